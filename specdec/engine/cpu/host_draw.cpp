// What the host draws by: the numbers of `rules/rng.py`, the likely ids of a q̂, and the target's own draws of coupled mode,
// which are for each row of p the winner of the race that `rules/coupling.py` describes. `draw.py` builds this file where
// there is a compiler.

#include <functional>
#include <vector>

#include "lanes.h"

namespace {

constexpr uint32_t COUPLING = 4, COUPLING_REST = 5;  // purposes of numbers, as `rules/rng.py` counts them
constexpr int BLOCK = 64;                            // numbers that are made at once, so that the compiler uses vectors

Lanes taken(Lanes lanes, Bits which) { return (Lanes)((Bits)lanes & which); }  // the others are 0

struct Place {  // what keys the numbers of a row
  uint32_t low, high;  // words of the seed
  uint32_t position, start;
};

// Philox4x32-10 (Salmon et al., SC 2011) of COUNT counters; each is replaced by its four random words.
template <int COUNT>
void philox(uint32_t (&a)[COUNT], uint32_t (&b)[COUNT], uint32_t (&c)[COUNT], uint32_t (&d)[COUNT], uint32_t low,
            uint32_t high) {
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < COUNT; ++i) {
      const uint64_t first = uint64_t(a[i]) * 0xD2511F53, second = uint64_t(c[i]) * 0xCD9E8D57;
      a[i] = uint32_t(second >> 32) ^ b[i] ^ low;
      b[i] = uint32_t(second);
      c[i] = uint32_t(first >> 32) ^ d[i] ^ high;
      d[i] = uint32_t(first);
    }
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
}

double uniform_of(uint32_t first, uint32_t second) {  // of 53 bits, may be 0
  return double(uint64_t(first) << 21 | second >> 11) * 0x1p-53;
}

double open_uniform(uint32_t first, uint32_t second) {  // of 52 bits, neither 0 nor 1
  return (double(uint64_t(first) << 20 | second >> 12) + 0.5) * 0x1p-52;
}

struct Winner {
  int64_t id;  // -1 where nobody races
  double arrival;
};

// The first of the ids to arrive; `ids` has room for a whole block more.
Winner race(const float* p, std::vector<uint32_t>& ids, int64_t count, const Place& place) {
  Winner best = {-1, std::numeric_limits<double>::infinity()};
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    uint32_t a[BLOCK], b[BLOCK], c[BLOCK], d[BLOCK];
    for (int i = 0; i < BLOCK; ++i) {
      a[i] = ids[begin + i];
      b[i] = place.position;
      c[i] = place.start;
      d[i] = place.start + COUPLING;
    }
    philox(a, b, c, d, place.low, place.high);
    for (int i = 0; i < BLOCK && begin + i < count; ++i) {
      const int64_t id = ids[begin + i];
      const double u = open_uniform(a[i], b[i]), mass = p[id];
      if (0.999999 * (1.0 - u) >= best.arrival * mass) continue;  // -ln u is more than 1 - u
      const double arrival = -std::log(u) / mass;
      if (arrival < best.arrival) best = {id, arrival};
    }
  }
  return best;
}

// Writes the likely ids to `ids`, and returns how many they are and the mass of all others.
std::pair<int64_t, double> likely_ids(const float* p, int64_t vocab, float likely, std::vector<uint32_t>& ids) {
  int64_t count = 0, begin = 0;
  Doubles rest = {};
  for (; begin + LANES <= vocab; begin += LANES) {
    const Lanes some = load(p + begin);
    const Bits races = some >= likely;
    if (any(some != 0.0f)) rest += widen(taken(some, ~races));  // filters leave most of a row at 0
    for_lanes(races, [&](int i) { ids[count++] = uint32_t(begin + i); });
  }
  double others = sum(rest);
  for (; begin < vocab; ++begin) {
    if (p[begin] >= likely)
      ids[count++] = uint32_t(begin);
    else
      others += p[begin];
  }
  return {count, others};
}

// The unlikely token at u, by the inverse of their cumulated mass.
int64_t unlikely_token(const float* p, int64_t vocab, float likely, double u) {
  double total = 0.0, below = 0.0;
  for (int64_t id = 0; id < vocab; ++id) total += p[id] >= likely ? 0.0 : p[id];
  const double target = std::fmin(u * total, std::nextafter(total, 0.0));
  for (int64_t id = 0; id < vocab; ++id) {
    below += p[id] >= likely ? 0.0 : p[id];
    if (below > target) return id;
  }
  return vocab - 1;  // only where p is no distribution
}

int64_t drawn_token(const float* p, int64_t vocab, const Place& place, float likely, std::vector<uint32_t>& ids) {
  const auto [count, rest] = likely_ids(p, vocab, likely, ids);
  const Winner winner = race(p, ids, count, place);
  uint32_t a[1] = {place.start}, b[1] = {place.position}, c[1] = {place.start}, d[1] = {place.start + COUPLING_REST};
  philox(a, b, c, d, place.low, place.high);
  const double arrival = -std::log(open_uniform(a[0], b[0])) / rest;
  if (winner.id >= 0 && !(arrival < winner.arrival)) return winner.id;
  return unlikely_token(p, vocab, likely, uniform_of(c[0], d[0]));
}

struct Likely {
  float mass;
  int64_t id;
};

// A probability that at least `k` ids have, where so many ids have one: the k-th of the largest of each block. NaN for a row
// with NaN.
float floor_of(const float* q, int64_t vocab, int64_t k, std::vector<float>& tops) {
  tops.clear();
  Bits invalid = {};
  for (int64_t begin = 0; begin < vocab; begin += BLOCK) {
    const int64_t end = std::min(begin + BLOCK, vocab);
    Lanes most = {};
    int64_t id = begin;
    for (; id + LANES <= end; id += LANES) {
      const Lanes some = load(q + id);
      invalid |= some != some;
      most = larger(most, some);
    }
    float top = largest(most);
    for (; id < end; ++id) top = std::isnan(q[id]) || q[id] > top ? q[id] : top;
    if (std::isnan(top)) return top;
    tops.push_back(top);
  }
  if (any(invalid)) return std::numeric_limits<float>::quiet_NaN();
  if (int64_t(tops.size()) <= k) return std::numeric_limits<float>::denorm_min();
  std::nth_element(tops.begin(), tops.begin() + (k - 1), tops.end(), std::greater<float>());
  return std::max(tops[k - 1], std::numeric_limits<float>::denorm_min());
}

// The `k` likeliest of the ids that are possible, or fewer, ascending; of ids that tie, the first.
void likeliest(const float* q, int64_t vocab, int64_t k, float floor, std::vector<Likely>& found) {
  found.clear();
  int64_t id = 0;
  for (; id + LANES <= vocab; id += LANES)
    for_lanes(load(q + id) >= floor, [&](int i) { found.push_back({q[id + i], id + i}); });
  for (; id < vocab; ++id)
    if (q[id] >= floor) found.push_back({q[id], id});
  if (int64_t(found.size()) > k) {
    const auto first = [](const Likely& a, const Likely& b) { return a.mass != b.mass ? a.mass > b.mass : a.id < b.id; };
    std::nth_element(found.begin(), found.begin() + k, found.end(), first);
    found.resize(k);
  }
  std::sort(found.begin(), found.end(), [](const Likely& a, const Likely& b) { return a.id < b.id; });
}

Place place_of(const int64_t* words, int64_t rows, int64_t row) {  // words [4, rows]
  const auto word = [&](int64_t which) { return uint32_t(words[which * rows + row]); };
  return {word(0), word(1), word(2), word(3)};
}

}  // namespace

// p [rows, vocab], `count` of its rows, and words [4, count], their coordinates -> drawn [count]
extern "C" void draw(const float* p, int64_t vocab, const int64_t* rows, int64_t count, const int64_t* words, double likely,
                     int64_t* drawn) {
  std::vector<uint32_t> ids(vocab + BLOCK);
  for (int64_t at = 0; at < count; ++at)
    drawn[at] = drawn_token(p + rows[at] * vocab, vocab, place_of(words, count, at), float(likely), ids);
}

// words [4, rows], the coordinates of the rows, and the index and the purpose of each number -> u [rows]
extern "C" void uniform(const int64_t* words, int64_t rows, const int64_t* indices, const int64_t* lanes, double* u) {
  for (int64_t row = 0; row < rows; ++row) {
    const Place place = place_of(words, rows, row);
    uint32_t a[1] = {uint32_t(indices[row])}, b[1] = {place.position}, c[1] = {place.start}, d[1] = {uint32_t(lanes[row])};
    philox(a, b, c, d, place.low, place.high);
    u[row] = uniform_of(a[0], b[0]);
  }
}

// q [rows, vocab] -> mass and ids [rows, k]: the k likeliest ids, ascending, then ids of mass 0; NaN for a row with NaN
extern "C" void likely(const float* q, int64_t rows, int64_t vocab, int64_t k, double* mass, int64_t* ids) {
  std::vector<float> tops;
  std::vector<Likely> found;
  for (int64_t row = 0; row < rows; ++row, q += vocab, mass += k, ids += k) {
    const float floor = floor_of(q, vocab, k, tops);
    std::fill(mass, mass + k, std::isnan(floor) ? floor : 0.0f);
    std::fill(ids, ids + k, 0);
    likeliest(q, vocab, k, floor, found);
    for (size_t place = 0; place < found.size(); ++place) {
      mass[place] = found[place].mass;
      ids[place] = found[place].id;
    }
  }
}
