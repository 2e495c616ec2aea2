// Temperature, top-k, top-p and min-p of `rules/filters.py` on the host: logits -> distributions, a row at a time, which
// stays in the cache from the first look to the last. `host_draw.py` builds this file where there is a compiler.

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

// What weights of at least a floor come to: their mass, or their number.
template <bool COUNT>
Lanes kept(Lanes weights, float floor) {
  const Lanes zero = {};
  return weights >= floor ? COUNT ? zero + 1.0f : weights : zero;
}

template <bool COUNT>
double mass_from(Row row, float floor) {
  return sum_of(row.weights, row.count, [&](Lanes some) { return kept<COUNT>(some, floor); });
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
  double from[STEPS] = {};
  for (int64_t part = 0; part < row.count; part += PART) {
    Lanes own[STEPS] = {};
    for_each(row.weights + part, std::min(PART, row.count - part), 0.0f, [&](Lanes some) {
      for (int step = 0; step < STEPS; ++step) own[step] += kept<COUNT>(some, floors[step]);
    });
    for (int step = 0; step < STEPS; ++step) from[step] += sum(widen(own[step]));
  }
  for (int step = 0; step < STEPS; ++step) {
    if (from[step] < wanted) return {bounds.low, floors[step], bounds.from_low, from[step]};
    bounds.low = floors[step];
    bounds.from_low = from[step];
  }
  return bounds;
}

// The weights from `low` on and under `high`, best first.
void take(Row row, float low, float high, std::vector<float>& taken) {
  taken.resize(row.count + LANES);
  int64_t count = 0;
  for_each(row.weights, row.count, 0.0f, [&](Lanes some) {
    const Bits between = (some >= low) & (some < high);
    if (!any(between)) return;
    for (int i = 0; i < LANES; ++i) {
      taken[count] = some[i];
      count -= between[i];
    }
  });
  taken.resize(count);
  std::sort(taken.begin(), taken.end(), std::greater<float>());
}

// The weight with which the best come to what is wanted; the least of all where they do not.
template <bool COUNT>
float last_wanted(Row row, double wanted, Bounds whole, std::vector<float>& taken) {
  const auto many = [](const Bounds& each) {
    return (each.from_low - each.from_high) / (COUNT ? 1.0 : each.low) > FEW && each.high > CLOSE * each.low;
  };
  Bounds bounds = whole, wider = whole;
  while (many(bounds)) {
    const Bounds next = nearer<COUNT>(row, wanted, wider = bounds);
    if (next.high / next.low >= bounds.high / bounds.low) break;
    bounds = next;
  }
  const Bounds all = {LEAST, OVER, 0.0, 0.0};
  for (const Bounds& each : {bounds, wider, all}) {  // what was added up in float32 may not have told the nearest
    double reached = each.from_high;
    take(row, each.low, each.high, taken);
    for (const float weight : taken) {
      reached += COUNT ? 1.0 : weight;
      if (reached >= wanted) return weight;
    }
  }
  return taken.empty() ? LEAST : taken.back();
}

// The least weight that is kept; `total` is the mass of all.
float floor_of(Row row, double total, const Limits& limits, std::vector<float>& taken) {
  float floor = LEAST;
  if (limits.top_k > 0.0 && limits.top_k < double(row.count)) {
    floor = last_wanted<true>(row, limits.top_k, {1e-6f, OVER, double(row.count), 0.0}, taken);
    if (limits.top_p < 1.0) total = mass_from<false>(row, floor);
  }
  if (limits.top_p < 1.0) {
    const float least = float(0.999 * (1.0 - limits.top_p) * total / double(row.count));  // less does not come to the rest
    const Bounds whole = {std::max({floor, least, LEAST}), OVER, total, 0.0};
    floor = std::max(floor, last_wanted<false>(row, limits.top_p * total, whole, taken));
  }
  return std::max(floor, float(limits.min_p));
}

// Writes e^((score - best) / temperature) of each id, and returns their sum.
double weigh(const float* scores, int64_t count, double temperature, float* weights) {
  Lanes best = load_some(scores, 1, scores[0]);
  for_each(scores, count, scores[0], [&](Lanes some) { best = larger(some, best); });
  const float top = largest(best);
  const float rate = float(1.0 / std::max(temperature, double(std::numeric_limits<float>::min())));
  double total = 0.0;
  for (int64_t part = 0; part < count; part += PART) {
    const int64_t size = std::min(PART, count - part);
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
    const float floor = filters ? floor_of({p, vocab}, total, own, taken) : 0.0f;
    const float scale = float(1.0 / (filters ? mass_from<false>({p, vocab}, floor) : total));
    write_each(p, vocab, p, [&](Lanes some) { return kept<false>(some, floor) * scale; });
  }
}
