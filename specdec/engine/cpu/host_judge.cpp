// The verdicts of the ratio rules on the host: what `rules/acceptance.py` says, draft after draft, without padding.
// `draw.py` builds this file where there is a compiler.

#include <vector>

#include "lanes.h"

namespace {

constexpr int64_t BLOCK = 128;              // ids whose sum is known before one of them is drawn
constexpr double NEARLY_NOTHING = 1e-9;     // less is left only where sums of blocks cannot tell whether anything is
constexpr double INFINITE = std::numeric_limits<double>::infinity();

struct Support {  // of the q̂ of a position; without ids behind a whole draft
  const int64_t *ids, *weights;
  int64_t size;
  double total;

  double at(int64_t place) const { return double(weights[place]) / total; }
  double of(int64_t id) const {
    const int64_t place = std::lower_bound(ids, ids + size, id) - ids;
    return place < size && ids[place] == id ? at(place) : 0.0;
  }
};

struct Row {  // of p
  const float* p;
  int64_t vocab;
  double mass;         // what p sums to
  const double* sums;  // what each block of p sums to, where a token is drawn

  bool proper() const { return mass > 0.0 && mass < INFINITE; }
  double of(int64_t id) const { return proper() ? double(p[id]) / mass : 0.0; }
};

struct Draft {
  const Row* rows;  // length + 1
  const Support* supports;
  const int64_t* tokens;
  const double* u;  // of each token
  int64_t length;
  double lenience;
};

struct Kept {
  int64_t count;
  double scale;  // of p, from which q̂ is taken where the next token was not kept
};

// Leviathan et al., arXiv 2211.17192, Algorithm 1 and §A.5.
Kept rejection(const Draft& draft) {
  int64_t count = 0;
  for (; count < draft.length; ++count) {
    const int64_t token = draft.tokens[count];
    if (!(draft.u[count] * draft.supports[count].of(token) * draft.lenience < draft.rows[count].of(token))) break;
  }
  return {count, 1.0};
}

// Sun et al., arXiv 2403.10444, Algorithm 2: the largest number of tokens whose u is below h, and its prefix ratio π.
Kept block(const Draft& draft) {
  Kept kept = {0, 1.0};
  double pi = 1.0;
  for (int64_t count = 1; count <= draft.length; ++count) {
    const int64_t token = draft.tokens[count - 1];
    pi = std::min(pi * (draft.rows[count - 1].of(token) / draft.supports[count - 1].of(token)), 1.0);
    const Support& next = draft.supports[count];
    double m = 0.0;
    for (int64_t place = 0; place < next.size; ++place)
      m += std::min(pi * draft.rows[count].of(next.ids[place]), next.at(place));
    const double h = m >= 1.0 ? 1.0 : (pi - m) / (1.0 - m);
    if (draft.u[count - 1] < h) kept = {count, pi};
  }
  return kept;
}

// A distribution, unnormalised: the numbers in `left` at `ids`, and p times a scale at all other ids.
struct Law {
  const Row& row;
  double scale;
  const int64_t* ids;  // ascending
  const double* left;
  int64_t size;

  template <typename Work>
  void each(int64_t begin, int64_t end, Work work) const {  // an id at a time, until `work` returns true
    int64_t place = std::lower_bound(ids, ids + size, begin) - ids;
    for (int64_t id = begin; id < end; ++id) {
      const bool own = place < size && ids[place] == id;
      if (work(id, own ? left[place++] : scale * row.of(id))) return;
    }
  }

  double total() const {
    double sum = 0.0;
    each(0, row.vocab, [&](int64_t, double some) { return sum += some, false; });
    return sum;
  }

  // The first of the ids begin..end-1 with which their sum is over `target`, or the last of which anything is left, where
  // rounding keeps the sum below; -1 where nothing is left.
  int64_t over(int64_t begin, int64_t end, double target) const {
    double sum = 0.0;
    int64_t found = -1;
    each(begin, end, [&](int64_t id, double some) {
      if (some > 0.0) found = id;
      return (sum += some) > target;
    });
    return found;
  }
};

int64_t drawn_one_by_one(const Law& law, double u) {
  const double total = law.total();
  if (!(total > 0.0)) return drawn_one_by_one({law.row, 1.0, nullptr, nullptr, 0}, u);  // nothing is left, so it is p itself
  return law.over(0, law.row.vocab, std::min(u * total, std::nextafter(total, 0.0)));
}

// The token at u.
int64_t drawn(const Law& law, double u, std::vector<double>& blocks) {
  const Row& row = law.row;
  if (!row.proper()) return 0;
  for (size_t block = 0; block < blocks.size(); ++block) blocks[block] = law.scale * (row.sums[block] / row.mass);
  for (int64_t place = 0; place < law.size; ++place)
    blocks[law.ids[place] / BLOCK] += law.left[place] - law.scale * row.of(law.ids[place]);
  double total = 0.0;
  for (double& block : blocks) total += block = std::max(block, 0.0);
  if (total < NEARLY_NOTHING) return drawn_one_by_one(law, u);
  const double target = std::min(u * total, std::nextafter(total, 0.0));
  double before = 0.0;
  for (size_t block = 0; block < blocks.size(); before += blocks[block++]) {
    if (before + blocks[block] <= target) continue;
    const int64_t begin = int64_t(block) * BLOCK, end = std::min(begin + BLOCK, row.vocab);
    const int64_t found = law.over(begin, end, target - before);
    return found >= 0 ? found : drawn_one_by_one(law, u);
  }
  return drawn_one_by_one(law, u);
}

// The sum of `count` numbers; `least` becomes the least of them and of what it was.
double sum(const float* numbers, int64_t count, Lanes& least) {
  Doubles low = {}, high = {};
  int64_t begin = 0;
  for (; begin + 2 * LANES <= count; begin += 2 * LANES) {
    const Lanes a = load(numbers + begin), b = load(numbers + begin + LANES), lesser = a < b ? a : b;
    if (!any((a != 0.0f) | (b != 0.0f))) continue;  // filters leave most of a row at 0
    low += widen(a);
    high += widen(b);
    least = lesser < least ? lesser : least;
  }
  double total = sum(low + high);
  for (; begin < count; ++begin) {
    total += numbers[begin];
    least[0] = std::min(least[0], numbers[begin]);
  }
  return total;
}

// Writes what each block of a row sums to, and returns the sum of all: -inf for a row with a negative number.
double sum_blocks(const float* p, int64_t vocab, double* sums) {
  Lanes least = {};
  double total = 0.0;
  for (int64_t begin = 0; begin < vocab; begin += BLOCK)
    total += *sums++ = sum(p + begin, std::min(BLOCK, vocab - begin), least);
  return any(least < 0.0f) ? -INFINITE : total;
}

struct Drawn {  // the draws of one drafter for one position
  const int64_t* children;  // nodes, in the order of the draw
  int64_t count;
  Support law;
};

// The siblings of one position, judged one after the other by recursive rejection (`rules/multidraft.py`).
class Position {
 public:
  Position(const Row& row, const std::vector<Drawn>& drawn) : row_(row) {
    for (const Drawn& each : drawn) ids_.insert(ids_.end(), each.law.ids, each.law.ids + each.law.size);
    if (drawn.size() > 1) {
      std::sort(ids_.begin(), ids_.end());
      ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
    }
    for (const int64_t id : ids_) left_.push_back(row.of(id));
    others_ = std::max(1.0 - total_left(), 0.0);
  }

  // The child that is kept, or -1. `u` has a number for each child.
  int64_t choose(const Drawn& drawn, const int64_t* tokens, const double* u, bool replacement) {
    std::vector<double> q(ids_.size());
    for (int64_t at = 0; at < drawn.law.size; ++at) q[place(drawn.law.ids[at])] = double(drawn.law.weights[at]);
    double all = drawn.law.total, mass = total_left() + others_;
    const std::vector<double> before = left_;
    for (int64_t at = 0; at < drawn.count; ++at) {
      const size_t own = place(tokens[drawn.children[at]]);
      if (u[at] * (q[own] / all) * mass < left_[own]) return drawn.children[at];
      for (size_t i = 0; i < ids_.size(); ++i) left_[i] = std::max(left_[i] - mass * (q[i] / all), 0.0);
      mass = total_left() + others_;
      if (!replacement && all > q[own]) all -= q[own];  // nothing is left of a rejected token, whatever its q̂
    }
    if (mass < NEARLY_NOTHING && !(law().total() > 0.0)) left_ = before;  // nothing is left, so it is what was before
    return -1;
  }

  Law law() const { return {row_, 1.0, ids_.data(), left_.data(), int64_t(ids_.size())}; }

 private:
  const Row& row_;
  std::vector<int64_t> ids_;  // that anything was drawn from, ascending
  std::vector<double> left_;
  double others_;  // what p has of all other ids

  size_t place(int64_t id) const { return std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin(); }
  double total_left() const {
    double sum = 0.0;
    for (const double each : left_) sum += each;
    return sum;
  }
};

}  // namespace

// p [rows, vocab] -> mass [rows]
extern "C" void masses(const float* p, int64_t rows, int64_t vocab, double* mass) {
  std::vector<double> sums((vocab + BLOCK - 1) / BLOCK);
  for (int64_t row = 0; row < rows; ++row, p += vocab) *mass++ = sum_blocks(p, vocab, sums.data());
}

// p [rows, vocab] and `count` drafts as `rules/padding.py` lays them flat -> the tokens of each that are kept, and the one
// behind them
extern "C" void judge(const float* p, const double* mass, int64_t vocab, int64_t count, const int64_t* first, const int64_t* lengths,
                      const int64_t* tokens, const int64_t* sizes, const int64_t* ids, const int64_t* weights,
                      const double* u, const double* lenience, const double* last, bool by_block, int64_t* kept,
                      int64_t* token) {
  const int64_t width = (vocab + BLOCK - 1) / BLOCK;
  std::vector<double> blocks(width), sums(width), left;
  std::vector<Row> rows;
  std::vector<Support> supports;
  for (int64_t b = 0; b < count; ++b) {
    const int64_t length = lengths[b];
    rows.clear();
    supports.clear();
    for (int64_t row = first[b]; row <= first[b] + length; ++row) rows.push_back({p + row * vocab, vocab, mass[row], sums.data()});
    for (int64_t step = 0; step < length; ++step, ++sizes) {
      double total = 0.0;
      for (int64_t place = 0; place < *sizes; ++place) total += double(weights[place]);
      supports.push_back({ids, weights, *sizes, total});
      ids += *sizes;
      weights += *sizes;
    }
    supports.push_back({});
    const Draft draft = {rows.data(), supports.data(), tokens, u, length, lenience[b]};
    const Kept found = by_block ? block(draft) : rejection(draft);
    const Row& row = rows[found.count];
    const Support& taken = supports[found.count];
    left.resize(taken.size);
    for (int64_t place = 0; place < taken.size; ++place)
      left[place] = std::max(found.scale * row.of(taken.ids[place]) - taken.at(place), 0.0);
    sum_blocks(row.p, vocab, sums.data());
    kept[b] = found.count;
    token[b] = drawn({row, found.scale, taken.ids, left.data(), taken.size}, last[found.count], blocks);
    tokens += length;
    u += length;
    last += length + 1;
  }
}

// p [rows, vocab] and `count` trees as `trees/flat.py` lays them flat -> the last node of each that is kept, or -1, and the
// token behind it. u [count, depth, width] and last [count, depth, 2] are its numbers.
extern "C" void judge_trees(const float* p, const double* mass, int64_t vocab, int64_t count, const int64_t* first,
                            const int64_t* lengths, const int64_t* tokens, const int64_t* drafters, const int64_t* families,
                            const int64_t* children, const int64_t* sizes, const int64_t* ids, const int64_t* weights,
                            const double* u, const double* last, int64_t depth, int64_t width, bool replacement,
                            int64_t* kept, int64_t* token) {
  std::vector<double> blocks((vocab + BLOCK - 1) / BLOCK), sums(blocks.size());
  std::vector<std::vector<Drawn>> nodes;  // the root, then each node
  for (int64_t b = 0; b < count; ++b) {
    nodes.assign(lengths[b] + 1, {});
    for (std::vector<Drawn>& node : nodes) {
      for (int64_t left = *drafters++; left > 0; --left) {
        double total = 0.0;
        for (int64_t place = 0; place < *sizes; ++place) total += double(weights[place]);
        node.push_back({children, *families, {ids, weights, *sizes, total}});
        children += *families++;
        ids += *sizes;
        weights += *sizes++;
      }
    }
    kept[b] = -1;
    for (int64_t level = 0; level < depth; ++level) {
      const std::vector<Drawn>& node = nodes[kept[b] + 1];
      const int64_t at = first[b] + 1 + kept[b];
      const Row row = {p + at * vocab, vocab, mass[at], sums.data()};
      Position position(row, node);
      const double* numbers = u + level * width;
      int64_t next = -1;
      for (size_t turn = 0; turn < node.size() && next < 0; numbers += node[turn++].count)
        next = position.choose(node[turn], tokens, numbers, replacement);
      if (next < 0) {
        sum_blocks(row.p, vocab, sums.data());
        token[b] = drawn(position.law(), last[2 * level + node.empty()], blocks);
        break;
      }
      kept[b] = next;
    }
    tokens += lengths[b];
    u += depth * width;
    last += depth * 2;
  }
}
