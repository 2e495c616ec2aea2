// Temperature, top-k, top-p and min-p of `rules/filters.py` on the host: logits -> distributions, a row at a time, which
// stays in the cache from the first look to the last. `draw.py` builds this file where there is a compiler.

#include <functional>
#include <vector>

#include "lanes.h"

namespace {

constexpr int STEPS = 4;                        // floors that are tried at once
constexpr double FEW = 512;                     // weights that are sorted without trying nearer floors
constexpr int64_t PART = 1024;                  // weights that are added up in float32
constexpr float CLOSE = 1.0001f;                // bounds in this ratio are not brought nearer: between them are ties
constexpr float LEAST = 1e-37f, OVER = 1.0001f;  // weights are 0 or between these

struct Limits {  // of a row; a top_k of 0, a top_p of 1 and a min_p of 0 are off
  double temperature, top_k, top_p, min_p;
};

struct Row {  // weights, of which the best is 1
  float* weights;
  int64_t count;
};

Lanes load_some(const float* from, int64_t count, float others) {
  float some[LANES];
  std::fill(some, some + LANES, others);
  std::copy(from, from + count, some);
  return load(some);
}

// Calls `work` with all numbers; those that the last vector lacks are `others`.
template <typename Work>
void for_each(const float* numbers, int64_t count, float others, Work work) {
  int64_t at = 0;
  for (; at + LANES <= count; at += LANES) work(load(numbers + at));
  if (at < count) work(load_some(numbers + at, count - at, others));
}

// The sum of what `work` makes of each of the weights; it is made in float32 for parts of them.
template <typename Work>
double sum_of(const float* weights, int64_t count, Work work) {
  double total = 0.0;
  for (int64_t part = 0; part < count; part += PART) {
    Lanes own = {};
    for_each(weights + part, std::min(PART, count - part), 0.0f, [&](Lanes some) { own += work(some); });
    total += sum(widen(own));
  }
  return total;
}

// Writes what `work` makes of each of the numbers.
template <typename Work>
void write_each(const float* numbers, int64_t count, float* to, Work work) {
  int64_t at = 0;
  for (; at + LANES <= count; at += LANES) store(to + at, work(load(numbers + at)));
  if (at < count) {
    const Lanes made = work(load_some(numbers + at, count - at, 0.0f));
    std::memcpy(to + at, &made, (count - at) * sizeof(float));
  }
}

// Weights of at least a floor, or 1 for each of them.
template <bool COUNT>
Lanes from(Lanes weights, float floor) {
  const Lanes zero = {};
  return weights >= floor ? COUNT ? zero + 1.0f : weights : zero;
}

double mass_from(Row row, float floor) {
  return sum_of(row.weights, row.count, [&](Lanes some) { return from<false>(some, floor); });
}

// The weights from `low` on come to what is wanted, and those from `high` on do not.
struct Bounds {
  float low, high;
  double from_low, from_high;  // what they come to, about
};

// Nearer bounds, by floors in equal ratios between these.
template <bool COUNT>
Bounds nearer(Row row, double wanted, Bounds bounds) {
  float floors[STEPS];
  const float ratio = std::pow(bounds.high / bounds.low, 1.0f / (STEPS + 1));
  for (int step = 0; step < STEPS; ++step) floors[step] = (step ? floors[step - 1] : bounds.low) * ratio;
  double reached[STEPS] = {};
  for (int64_t part = 0; part < row.count; part += PART) {
    Lanes own[STEPS] = {};
    for_each(row.weights + part, std::min(PART, row.count - part), 0.0f, [&](Lanes some) {
      for (int step = 0; step < STEPS; ++step) own[step] += from<COUNT>(some, floors[step]);
    });
    for (int step = 0; step < STEPS; ++step) reached[step] += sum(widen(own[step]));
  }
  for (int step = 0; step < STEPS; ++step) {
    if (reached[step] < wanted) return {bounds.low, floors[step], bounds.from_low, reached[step]};
    bounds.low = floors[step];
    bounds.from_low = reached[step];
  }
  return bounds;
}

// The weights from `low` on and under `high`, best first.
void take(Row row, float low, float high, std::vector<float>& taken) {
  taken.resize(row.count);
  int64_t count = 0;
  for_each(row.weights, row.count, 0.0f, [&](Lanes some) {
    for_lanes((some >= low) & (some < high), [&](int i) { taken[count++] = some[i]; });
  });
  taken.resize(count);
  std::sort(taken.begin(), taken.end(), std::greater<float>());
}

// What is kept: weights of at least `floor`, which come to `mass`, or to that number.
struct Kept {
  float floor;
  double mass;
};

// The best weights that come to what is wanted, with those that tie with the last; all of them where they do not.
template <bool COUNT>
Kept best(Row row, double wanted, Bounds whole, std::vector<float>& taken) {
  const auto many = [](const Bounds& each) {
    return (each.from_low - each.from_high) / (COUNT ? 1.0 : each.low) > FEW && each.high > CLOSE * each.low;
  };
  Bounds bounds = whole, wider = whole;
  while (many(bounds)) {
    const Bounds next = nearer<COUNT>(row, wanted, wider = bounds);
    if (next.high / next.low >= bounds.high / bounds.low) break;
    bounds = next;
  }
  Kept kept = {LEAST, 0.0};
  const Bounds all = {LEAST, OVER, 0.0, 0.0};
  for (const Bounds& each : {bounds, wider, all}) {  // what was added up in float32 may not have told the nearest
    kept.mass = each.from_high;
    take(row, each.low, each.high, taken);
    for (const float weight : taken) {
      if (kept.mass >= wanted && weight < kept.floor) return kept;
      kept = {weight, kept.mass + (COUNT ? 1.0 : weight)};
    }
    if (kept.mass >= wanted) return kept;
  }
  return kept;
}

// What the filters keep; `total` is the mass of all.
Kept filtered(Row row, double total, const Limits& limits, std::vector<float>& taken) {
  Kept kept = {LEAST, total};
  if (limits.top_k > 0.0 && limits.top_k < double(row.count)) {
    kept.floor = best<true>(row, limits.top_k, {1e-6f, OVER, double(row.count), 0.0}, taken).floor;
    kept.mass = mass_from(row, kept.floor);
  }
  if (limits.top_p < 1.0) {
    const float least = float(0.999 * (1.0 - limits.top_p) * kept.mass / double(row.count));  // less does not come to the rest
    const Bounds whole = {std::max(kept.floor, least), OVER, kept.mass, 0.0};
    const Kept nucleus = best<false>(row, limits.top_p * kept.mass, whole, taken);
    if (nucleus.floor > kept.floor) kept = nucleus;
  }
  if (limits.min_p > kept.floor) kept = {float(limits.min_p), mass_from(row, float(limits.min_p))};
  return kept;
}

// Writes e^((score - best) / temperature) of each id, and returns their sum; the next row's scores are fetched meanwhile.
double weigh(const float* scores, int64_t count, double temperature, float* weights) {
  Lanes tops = load_some(scores, 1, scores[0]);
  for_each(scores, count, scores[0], [&](Lanes some) { tops = larger(some, tops); });
  const float top = largest(tops);
  const float rate = float(1.0 / std::max(temperature, double(std::numeric_limits<float>::min())));
  double total = 0.0;
  for (int64_t part = 0; part < count; part += PART) {
    const int64_t size = std::min(PART, count - part);
    fetch(scores + count + part, size);
    write_each(scores + part, size, weights + part, [&](Lanes some) { return exponential((some - top) * rate); });
    total += sum_of(weights + part, size, [](Lanes some) { return some; });
  }
  return total;
}

}  // namespace

// scores [rows, vocab] and limits [rows, 4] -> p [rows, vocab], NaN in a row without a distribution
extern "C" void distributions(const float* scores, int64_t rows, int64_t vocab, const double* limits, float* p) {
  std::vector<float> taken;
  for (int64_t row = 0; row < rows; ++row, scores += vocab, p += vocab, limits += 4) {
    const Limits own = {limits[0], limits[1], limits[2], limits[3]};
    const double total = weigh(scores, vocab, own.temperature, p);
    if (!(total < std::numeric_limits<double>::infinity())) {
      std::fill(p, p + vocab, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const bool filters = own.top_k > 0.0 || own.top_p < 1.0 || own.min_p > 0.0;
    const Kept kept = filters ? filtered({p, vocab}, total, own, taken) : Kept{0.0f, total};
    const float scale = float(1.0 / kept.mass);
    write_each(p, vocab, p, [&](Lanes some) { return from<false>(some, kept.floor) * scale; });
  }
}
