// Vectors of float32 as wide as the processor's, which the compiler turns into its instructions, and float32 <-> bfloat16.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

constexpr int64_t LINE = 64;  // bytes that come from memory at once

typedef float Lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t Bits __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef double Doubles __attribute__((vector_size(LANES * sizeof(double))));

struct Bfloat16 {
  uint16_t bits;
};

Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

void store(float* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof lanes); }

// Asks for numbers that are read soon, so that they come from memory beside the work on others: into the second cache,
// because only few lines can be on their way to the first, and what asks for more waits.
template <class T>
void fetch(const T* from, int64_t count) {
  for (int64_t i = 0; i < count; i += LINE / int64_t(sizeof(T))) __builtin_prefetch(from + i, 0, 2);
}

float widen(float value) { return value; }

float widen(Bfloat16 value) {
  const uint32_t bits = uint32_t(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

void narrow(float value, float* to) { *to = value; }

void narrow(float value, Bfloat16* to) {  // to the nearest, of two the even one
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  to->bits = value == value ? uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : uint16_t(0x7fc0);
}

Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }

// e^x for x <= 0 within two units in the last place: 2^n times a polynomial on [-ln2/2, ln2/2]; 0 below the normal numbers.
Lanes exponential(Lanes x) {
  const Lanes zero = {};
  const Lanes bounded = larger(x, zero - 87.0f);
  const Bits n = __builtin_convertvector(bounded * 1.44269504f - 0.5f, Bits);
  const Lanes whole = __builtin_convertvector(n, Lanes);
  const Lanes r = (bounded - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Lanes p = r * (1.0f / 5040) + (1.0f / 720);
  p = p * r + (1.0f / 120);
  p = p * r + (1.0f / 24);
  p = p * r + (1.0f / 6);
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Lanes power = (Lanes)((n + 127) << 23);
  return x < -87.0f ? zero : x == x ? p * power : x;
}

#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (Bits){__VA_ARGS__})
#endif

// Halves the terms of each sum in two vectors, which have 2·WIDTH terms of a sum side by side, and joins the vectors.
template <int WIDTH, int... I>
Lanes halved(Lanes a, Lanes b, std::integer_sequence<int, I...>) {
  return PICK(a, b, (I / WIDTH * 2 * WIDTH + I % WIDTH)...) + PICK(a, b, (I / WIDTH * 2 * WIDTH + I % WIDTH + WIDTH)...);
}

// Lane i of the result is the sum of the lanes of parts[i].
template <int WIDTH = LANES / 2>
Lanes sums(Lanes* parts) {
  if constexpr (WIDTH > 0) {
    for (int i = 0; i < WIDTH; ++i)
      parts[i] = halved<WIDTH>(parts[2 * i], parts[2 * i + 1], std::make_integer_sequence<int, LANES>());
    return sums<WIDTH / 2>(parts);
  }
  return parts[0];
}

// The lanes in another order: lane i is the one that was lane i ^ STEP.
template <int STEP, int... I>
Lanes crossed(Lanes lanes, std::integer_sequence<int, I...>) {
  return PICK(lanes, lanes, (I ^ STEP)...);
}

template <int STEP = LANES / 2>
float sum(Lanes lanes) {
  if constexpr (STEP > 0) return sum<STEP / 2>(lanes + crossed<STEP>(lanes, std::make_integer_sequence<int, LANES>()));
  return lanes[0];
}

double sum(Doubles lanes) {
  double total = 0.0;
  for (int i = 0; i < LANES; ++i) total += lanes[i];
  return total;
}

Doubles widen(Lanes lanes) { return __builtin_convertvector(lanes, Doubles); }

bool any(Bits bits) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)bits, (__m512i)bits);
#endif
  int64_t words[LANES / 2], some = 0;
  std::memcpy(words, &bits, sizeof words);
  for (const int64_t word : words) some |= word;
  return some;
}

// Calls `work` with the index of each lane that is not 0, in their order.
template <typename Work>
void for_lanes(Bits bits, Work work) {
#if defined(__AVX512F__)
  for (uint32_t left = _mm512_test_epi32_mask((__m512i)bits, (__m512i)bits); left; left &= left - 1)
    work(__builtin_ctz(left));
#else
  if (!any(bits)) return;
  for (int i = 0; i < LANES; ++i)
    if (bits[i]) work(i);
#endif
}

template <int STEP = LANES / 2>
float largest(Lanes lanes) {
  if constexpr (STEP > 0)
    return largest<STEP / 2>(larger(lanes, crossed<STEP>(lanes, std::make_integer_sequence<int, LANES>())));
  return lanes[0];
}

int64_t padded(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

}  // namespace
