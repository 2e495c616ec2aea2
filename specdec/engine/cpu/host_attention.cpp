// Attention of one layer over all sessions of a pass on the host: it writes the new keys and values of each session into
// its slab, then attends with each of its queries to its own keys. Softmax is streamed in float32 over tiles of keys.
// `operator.py` builds this file where there is a compiler. It is an operator of PyTorch, so that a compiled model
// calls it without Python, and other threads of the process go on for the whole pass.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <vector>

#include "lanes.h"

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

namespace {

constexpr int64_t TILE = 64;  // keys that are read at once, while the rows of a block go over them
constexpr float CLOSED = -std::numeric_limits<float>::infinity();  // the score of a key that a query does not see

struct Packed {  // a tensor [1, heads, tokens, width] whose last dimension is dense; strides in elements
  const char* data;
  int64_t head, token;
};

struct Block {  // some of the new tokens of a session; `operator.py` has the same numbers
  char *keys, *values;  // of its slab [layers, heads, capacity, width]
  int64_t capacity;     // tokens that the slab has room for
  int64_t start;        // tokens of the session before the pass
  int64_t count;        // new tokens of the session
  int64_t token;        // its first new token in the packed row
  int64_t first, rows;  // new tokens of the block: first..first + rows - 1
  const bool* tree;     // [count, count]: which new tokens each of them sees; null where they are a chain
};

struct Pass {  // what is the same in all layers
  Tensor blocks;   // int64 [blocks, numbers of a block], those of chains first
  int64_t tokens;  // of all sessions
  int64_t chains;  // blocks of chains
  bool others;     // whether there are sessions without a block
  int64_t heads, key_width, value_width;
  ScalarType dtype;
};

thread_local std::optional<Pass> present;  // the pass that this thread is in

struct Call {
  const Block* blocks;
  int64_t block_count, threads;
  int64_t layer, heads, group;  // `group` query heads share a key head
  int64_t key_width, value_width;
  int64_t window;  // keys that a query sees, its own included; 0 is all before it
  Packed query, key, value;
  char* out;  // [tokens, query heads, value width], dense
  const float* sinks;  // a score without a value for each query head; null is none
  float scale, softcap;  // softcap 0 is none
};

struct Rows {  // vectors of float32, of whole lanes
  const float* data;
  int64_t stride;
};

// Some keys or values as rows that whole lanes can be read from: those in memory, or else a copy with zeros behind each.
template <class T>
Rows rows_of(const T* from, int64_t count, int64_t room, int64_t width, float* copy) {
  const int64_t stride = padded(width);
  if constexpr (sizeof(T) == sizeof(float))
    if (stride == width && padded(count) <= room) return {from, width};
  for (int64_t row = 0; row < count; ++row)
    for (int64_t i = 0; i < stride; ++i) copy[row * stride + i] = i < width ? widen(from[row * width + i]) : 0.0f;
  return {copy, stride};
}

struct Seen {  // the keys first..last - 1 of the session
  int64_t first, last;
};

Seen seen_by(const Call& call, const Block& block, int64_t token) {
  const int64_t end = block.start + (block.tree ? block.count : token + 1);
  return {call.window ? std::max<int64_t>(0, end - call.window) : 0, end};
}

struct Row {  // one query and what it has seen so far
  const float* query;
  float* out;
  float top, total;
  int64_t token;
};

// The scores of the tile's keys `open`, by their index in the tile; those before and behind them are closed.
void score(const Call& call, const Row& row, Rows keys, Seen open, float* scores) {
  Bits lane;
  for (int i = 0; i < LANES; ++i) lane[i] = i;
  for (int64_t j = open.first / LANES * LANES; j < open.last; j += LANES) {
    Lanes parts[LANES] = {};
    for (int64_t i = 0; i < padded(call.key_width); i += LANES) {
      const Lanes query = load(row.query + i);
      for (int k = 0; k < LANES; ++k) parts[k] += query * load(keys.data + (j + k) * keys.stride + i);
    }
    Lanes found = sums(parts);
    if (call.softcap > 0)
      for (int k = 0; k < LANES; ++k) found[k] = call.softcap * std::tanh(found[k] / call.softcap);
    const Bits at = lane + int32_t(j);
    store(scores + j, (at >= int32_t(open.first)) & (at < int32_t(open.last)) ? found : Lanes{} + CLOSED);
  }
}

// Closes the keys of the tile that are new and that the node `token` of the tree does not descend from.
void close_others(const Block& block, int64_t token, int64_t tile, Seen open, float* scores) {
  const bool* sees = block.tree + token * block.count;
  for (int64_t j = std::max(open.first, block.start - tile); j < open.last; ++j)
    if (!sees[tile + j - block.start]) scores[j] = CLOSED;
}

// Turns the scores of the tile into weights below the row's greatest score; returns the factor on what it has summed.
float weigh(Row& row, Seen open, float* scores) {
  const int64_t begin = open.first / LANES * LANES;
  Lanes tops = Lanes{} + CLOSED, total = {};
  for (int64_t j = begin; j < open.last; j += LANES) tops = larger(load(scores + j), tops);
  const float top = std::max(row.top, largest(tops));
  const float shift = top == CLOSED ? 0.0f : top;
  for (int64_t j = begin; j < open.last; j += LANES) {
    const Lanes weights = exponential(load(scores + j) - shift);
    store(scores + j, weights);
    total += weights;
  }
  const float factor = row.top == CLOSED ? 0.0f : std::exp(row.top - top);
  row.top = top;
  row.total = row.total * factor + sum(total);
  return factor;
}

// Adds `COUNT` vectors of the tile's values, from column `at` on, to the row's sums.
template <int COUNT>
void add_values(Row& row, float factor, Rows values, Seen open, const float* weights, int64_t at) {
  Lanes sums[2][COUNT] = {};  // of every other key, because each addition waits for the one before it
  for (int c = 0; c < COUNT; ++c) sums[0][c] = factor * load(row.out + at + c * LANES);
  const auto add = [&](int64_t j, Lanes* to) {
    for (int c = 0; c < COUNT; ++c) to[c] += weights[j] * load(values.data + j * values.stride + at + c * LANES);
  };
  int64_t j = open.first;
  for (; j + 2 <= open.last; j += 2) add(j, sums[0]), add(j + 1, sums[1]);
  if (j < open.last) add(j, sums[0]);
  for (int c = 0; c < COUNT; ++c) store(row.out + at + c * LANES, sums[0][c] + sums[1][c]);
}

template <class T>
T* at(const Packed& packed, int64_t head, int64_t token) {
  return (T*)packed.data + head * packed.head + token * packed.token;
}

// The key of a session's token in this layer; those of the tokens behind it follow.
template <class T>
T* key_of(const Call& call, const Block& block, int64_t head, int64_t token) {
  return (T*)block.keys + ((call.layer * call.heads + head) * block.capacity + token) * call.key_width;
}

template <class T>
T* value_of(const Call& call, const Block& block, int64_t head, int64_t token) {
  return (T*)block.values + ((call.layer * call.heads + head) * block.capacity + token) * call.value_width;
}

template <class T>
void write(const Call& call, const Block& block, int64_t head) {
  for (int64_t i = block.first; i < block.first + block.rows; ++i) {
    std::memcpy(key_of<T>(call, block, head, block.start + i), at<T>(call.key, head, block.token + i),
                call.key_width * sizeof(T));
    std::memcpy(value_of<T>(call, block, head, block.start + i), at<T>(call.value, head, block.token + i),
                call.value_width * sizeof(T));
  }
}

class Attention {  // of one thread
 public:
  explicit Attention(const Call& call)
      : call_(call), key_width_(padded(call.key_width)), value_width_(padded(call.value_width)),
        keys_(TILE * key_width_), values_(TILE * value_width_), scores_(TILE) {}

  // Attends for a key head of a block; what begins at the key `next` is probably read after it.
  template <class T>
  void attend(const Block& block, int64_t head, const T* next) {
    open<T>(block, head);
    const int64_t last = seen_by(call_, block, block.first + block.rows - 1).last;
    for (int64_t tile = seen_by(call_, block, block.first).first; tile < last; tile += TILE) {
      const int64_t count = std::min(TILE, last - tile), room = block.capacity - tile;
      const T *keys = key_of<T>(call_, block, head, tile), *values = value_of<T>(call_, block, head, tile);
      const Rows key_rows = rows_of(keys, count, room, call_.key_width, keys_.data());
      const Rows value_rows = rows_of(values, count, room, call_.value_width, values_.data());
      for (Row& row : rows_) {
        const bool first = &row == rows_.data();
        const Seen seen = seen_by(call_, block, row.token);
        const Seen open = {std::max<int64_t>(0, seen.first - tile), std::min(count, seen.last - tile)};
        if (open.first >= open.last) continue;
        score(call_, row, key_rows, open, scores_.data());
        if (first) fetch(values, count * call_.value_width);
        if (block.tree) close_others(block, row.token, tile, open, scores_.data());
        add(row, weigh(row, open, scores_.data()), value_rows, open);
        if (first) fetch(tile + TILE < last ? keys + TILE * call_.key_width : next, TILE * call_.key_width);
      }
    }
    close<T>(block, head);
  }

 private:
  template <class T>
  void open(const Block& block, int64_t head) {
    const int64_t count = block.rows * call_.group;
    rows_.resize(count);
    queries_.assign(count * key_width_, 0.0f);
    outs_.assign(count * value_width_, 0.0f);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t token = block.first + r / call_.group, own = head * call_.group + r % call_.group;
      float* query = queries_.data() + r * key_width_;
      const T* from = at<const T>(call_.query, own, block.token + token);
      for (int64_t i = 0; i < call_.key_width; ++i) query[i] = widen(from[i]) * call_.scale;
      const float sink = call_.sinks ? call_.sinks[own] : CLOSED;  // its weight is e^0
      rows_[r] = {query, outs_.data() + r * value_width_, sink, call_.sinks ? 1.0f : 0.0f, token};
    }
  }

  void add(Row& row, float factor, Rows values, Seen open) {
    int64_t at = 0;
    for (; at + 4 * LANES <= value_width_; at += 4 * LANES) add_values<4>(row, factor, values, open, scores_.data(), at);
    for (; at < value_width_; at += LANES) add_values<1>(row, factor, values, open, scores_.data(), at);
  }

  template <class T>
  void close(const Block& block, int64_t head) {
    for (size_t r = 0; r < rows_.size(); ++r) {
      const int64_t own = head * call_.group + int64_t(r) % call_.group;
      const int64_t token = block.token + rows_[r].token;
      T* to = (T*)call_.out + (token * call_.heads * call_.group + own) * call_.value_width;
      for (int64_t i = 0; i < call_.value_width; ++i) narrow(rows_[r].out[i] / rows_[r].total, to + i);
    }
  }

  const Call& call_;
  const int64_t key_width_, value_width_;
  std::vector<float> keys_, values_, scores_, queries_, outs_;
  std::vector<Row> rows_;
};

// The first key that a block reads.
template <class T>
const T* first_key(const Call& call, const Block& block, int64_t head) {
  return key_of<const T>(call, block, head, seen_by(call, block, block.first).first);
}

template <class T>
void run(const Call& call) {
  const int64_t tasks = call.block_count * call.heads;
#pragma omp parallel num_threads(call.threads) if (call.threads > 1)
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < tasks; ++i) write<T>(call, call.blocks[i / call.heads], i % call.heads);
    Attention attention(call);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < tasks; ++i) {
      const int64_t next = std::min(i + 1, tasks - 1);
      attention.attend(call.blocks[i / call.heads], i % call.heads,
                       first_key<T>(call, call.blocks[next / call.heads], next % call.heads));
    }
  }
}

struct Rule {  // as `AttentionRule` in Python
  std::optional<double> scale;
  std::optional<int64_t> window;
  std::optional<double> softcap;
  std::optional<Tensor> sinks;
};

Tensor dense(const Tensor& part) { return part.stride(3) == 1 ? part : torch::stable::contiguous(part); }

Packed packed(const Tensor& part) { return {(const char*)part.const_data_ptr(), part.stride(1), part.stride(2)}; }

// Refuses what would be read or written beside the memory of the pass.
void check(const Tensor& part, int64_t heads, int64_t width) {
  const std::array<int64_t, 4> shape = {1, heads, present->tokens, width};
  STD_TORCH_CHECK(part.dim() == 4 && std::equal(shape.begin(), shape.end(), part.sizes().begin()) &&
                      part.scalar_type() == present->dtype,
                  "a layer attends with queries, keys or values that are not of this pass");
}

// The blocks that attend here in a layer; trees in a layer with a window do not.
int64_t block_count(const Rule& rule) { return rule.window ? present->chains : present->blocks.size(0); }

Tensor attend_blocks(const Tensor& query, const Tensor& key, const Tensor& value, int64_t layer, const Rule& rule) {
  const Pass& pass = *present;
  const int64_t group = query.size(1) / pass.heads;
  check(query, group * pass.heads, pass.key_width);
  check(key, pass.heads, pass.key_width);
  check(value, pass.heads, pass.value_width);
  const Tensor queries = dense(query), keys = dense(key), values = dense(value);
  const Tensor out = torch::stable::new_empty(query, {1, pass.tokens, query.size(1), pass.value_width});
  std::optional<Tensor> sinks;
  if (rule.sinks) sinks = torch::stable::contiguous(torch::stable::to(*rule.sinks, ScalarType::Float));
  const Call call = {
      (const Block*)pass.blocks.const_data_ptr(),
      block_count(rule),
      int64_t(torch::stable::get_num_threads()),
      layer,
      pass.heads,
      group,
      pass.key_width,
      pass.value_width,
      rule.window.value_or(0),
      packed(queries),
      packed(keys),
      packed(values),
      (char*)out.mutable_data_ptr(),
      sinks ? sinks->const_data_ptr<float>() : nullptr,
      float(rule.scale.value_or(1 / std::sqrt(double(pass.key_width)))),
      float(rule.softcap.value_or(0)),
  };
  pass.dtype == ScalarType::BFloat16 ? run<Bfloat16>(call) : run<float>(call);
  return out;
}

void begin(const Tensor& blocks, const Tensor& keys, const Tensor& values, int64_t tokens, int64_t chains, bool others) {
  STD_TORCH_CHECK(blocks.size(1) * sizeof(int64_t) == sizeof(Block), "a block has other numbers here");
  present = {blocks, tokens, chains, others, keys.size(2), keys.size(4), values.size(4), keys.scalar_type()};
}

void end(const Tensor&) { present.reset(); }

// What sessions with blocks attend to in a layer; the rows of the others are not written.
Tensor attend_some(const Tensor& query, const Tensor& key, const Tensor& value, int64_t layer, std::optional<double> scale,
                   std::optional<int64_t> window, std::optional<double> softcap, const std::optional<Tensor>& sinks) {
  STD_TORCH_CHECK(present, "this thread is in no pass");
  return attend_blocks(query, key, value, layer, {scale, window, softcap, sinks});
}

Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, int64_t layer, std::optional<double> scale,
              std::optional<int64_t> window, std::optional<double> softcap, const std::optional<Tensor>& sinks) {
  const Rule rule = {scale, window, softcap, sinks};
  if (present && !present->others && block_count(rule) == present->blocks.size(0))
    return attend_blocks(query, key, value, layer, rule);
  using torch::stable::detail::from;
  std::array<StableIValue, 8> stack = {from(query), from(key),    from(value),   from(layer),
                                       from(scale), from(window), from(softcap), from(sinks)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("specdec::attend_by_step", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace

// Makes this library PyTorch's operator, in place of any other.
extern "C" void serve() {
  TorchLibraryHandle library;
  TORCH_ERROR_CODE_CHECK(aoti_torch_library_init_impl("specdec", "CPU", __FILE__, __LINE__, &library));
  const auto implement = [&](const char* name, void (*function)(StableIValue*, uint64_t, uint64_t)) {
    TORCH_ERROR_CODE_CHECK(torch_library_impl(library, name, function, TORCH_ABI_VERSION));
  };
  implement("begin", TORCH_BOX(&begin));
  implement("end", TORCH_BOX(&end));
  implement("attend_some", TORCH_BOX(&attend_some));
  implement("attend", TORCH_BOX(&attend));
}
