// The inner loop of exact propagation: every node sums the rows of those it
// receives from. All that computes a level calls sum_row, so that a row has
// the same bits whoever asks for it, alone or with all others.
#pragma once

#include <cstdint>
#include <cstring>

#include "half.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#define PYG_TRUST_INLINE inline __attribute__((always_inline))

namespace pyg_trust {

constexpr int64_t kCacheLine = 64;  // bytes
// To prefetch. A line from memory takes as long as 60 to 100 rows that are in
// the cache: with 32 ahead, graphs beyond the cache took 1.5 times as long.
constexpr int64_t kLinesAhead = 128;
// Of a register. Files for one instruction set say so before they include this.
#ifndef PYG_TRUST_VECTOR_BYTES
#define PYG_TRUST_VECTOR_BYTES 16
#endif
constexpr int kVectorBytes = PYG_TRUST_VECTOR_BYTES;
// Entries of a row that is copied to get one more.
constexpr int kShortRow = 32;

// Vectors of `lanes` numbers that the compiler maps to whatever the processor
// has. A vector of one goes through memory: that is a number.
template <typename scalar_t, int lanes>
struct Vector {
  typedef scalar_t type __attribute__((vector_size(lanes * sizeof(scalar_t))));
};
template <typename scalar_t>
struct Vector<scalar_t, 1> {
  typedef scalar_t type;
};

template <int lanes, typename scalar_t>
PYG_TRUST_INLINE auto load(const scalar_t* from) {
  typename Vector<scalar_t, lanes>::type value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <int lanes>
PYG_TRUST_INLINE void store(float* to,
                            const typename Vector<float, lanes>::type& value) {
  std::memcpy(to, &value, sizeof(value));
}

template <int lanes>
PYG_TRUST_INLINE void store(
    double* to, const typename Vector<double, lanes>::type& value) {
  std::memcpy(to, &value, sizeof(value));
}

// Through words of 32 bits, without a float that is subnormal.
template <int lanes>
PYG_TRUST_INLINE auto widen_by_integers(const Float16* from) {
  using Words = typename Vector<uint32_t, lanes>::type;
  using Floats = typename Vector<float, lanes>::type;
  uint32_t bits[lanes];
  for (int k = 0; k < lanes; ++k)
    bits[k] = from[k].bits;
  Words half;
  std::memcpy(&half, bits, sizeof(half));
  const Words shifted = (half & 0x7FFF) << 13;
  const Words exponent = half & 0x7C00;
  const Words raised = shifted + (113u << 23);
  Floats small;
  std::memcpy(&small, &raised, sizeof(small));
  small -= 6.103515625e-05f;  // 2^-14
  Words subnormal;
  std::memcpy(&subnormal, &small, sizeof(small));
  const Words larger = shifted + (112u << 23);
  const Words normal = exponent == 0x7C00 ? larger + (112u << 23) : larger;
  const Words word =
      (exponent == 0 ? subnormal : normal) | (half & 0x8000) << 16;
  Floats value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

#ifdef PYG_TRUST_F16C
// Eight, and four in the low half of a register that may be read from less.
PYG_TRUST_INLINE __m256 widen8(const Float16* from) {
  return _mm256_cvtph_ps(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

template <int count>
PYG_TRUST_INLINE __m128 widen_few(const Float16* from) {
  int64_t word = 0;
  std::memcpy(&word, from, count * sizeof(Float16));
  return _mm_cvtph_ps(_mm_cvtsi64_si128(word));
}
#endif

template <int lanes>
PYG_TRUST_INLINE auto load(const Float16* from) {
  typename Vector<float, lanes>::type value;
#ifdef PYG_TRUST_F16C
  if constexpr (lanes == 16) {
#ifdef PYG_TRUST_AVX512F
    const __m512 all = _mm512_maskz_cvtph_ps(
        0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    std::memcpy(&value, &all, sizeof(value));
#else
    const __m256 all[2] = {widen8(from), widen8(from + 8)};
    std::memcpy(&value, all, sizeof(value));
#endif
  } else if constexpr (lanes == 8) {
    const __m256 all = widen8(from);
    std::memcpy(&value, &all, sizeof(value));
  } else {
    const __m128 all = widen_few<lanes>(from);
    std::memcpy(&value, &all, sizeof(value));
  }
#else
  value = widen_by_integers<lanes>(from);
#endif
  return value;
}

template <int lanes>
PYG_TRUST_INLINE void store(Float16* to,
                            const typename Vector<float, lanes>::type& value) {
#ifdef PYG_TRUST_F16C
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  if constexpr (lanes >= 8) {
    for (int k = 0; k < lanes; k += 8) {
      __m256 part;
      std::memcpy(&part, reinterpret_cast<const float*>(&value) + k,
                  sizeof(part));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k),
                       _mm256_cvtps_ph(part, nearest));
    }
  } else {
    __m128 part = _mm_setzero_ps();
    std::memcpy(&part, &value, lanes * sizeof(float));
    const int64_t word = _mm_cvtsi128_si64(_mm_cvtps_ph(part, nearest));
    std::memcpy(to, &word, lanes * sizeof(Float16));
  }
#else
  uint32_t words[lanes];
  std::memcpy(words, &value, sizeof(words));
  for (int k = 0; k < lanes; ++k)
    to[k].bits = narrow_bits(words[k]);
#endif
}

// Columns that one vector holds, and vectors of a row of `width` columns. No
// vector is larger than a register: sums in it would live in memory.
template <typename scalar_t, int width>
constexpr int kRowLanes = width < kVectorBytes / int{sizeof(scalar_t)}
                           ? width
                           : kVectorBytes / int{sizeof(scalar_t)};
template <typename scalar_t, int width>
using Row = typename Vector<scalar_t, kRowLanes<scalar_t, width>>::type;

// sum[c] = the sum of in[col[e] * stride + c] over e = begin, ..., stop - 1,
// one after the other, each column by itself. `width` columns, a constant in
// every caller, so that the sum lives in registers; rows are stored as store_t
// and summed as scalar_t. `fetch`: whether rows are fetched ahead of their use,
// which not every caller does by itself.
template <int width,
          typename scalar_t,
          bool fetch = true,
          typename store_t>
PYG_TRUST_INLINE void add_rows(const int32_t* col,
                               int64_t num_entries,
                               const store_t* in,
                               int64_t stride,
                               int64_t begin,
                               int64_t stop,
                               Row<scalar_t, width>* total) {
  constexpr int lanes = kRowLanes<scalar_t, width>;
  static_assert(width % lanes == 0);
  constexpr int64_t bytes = width * int64_t{sizeof(store_t)};
  constexpr int64_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  constexpr int64_t entries_ahead = kLinesAhead / lines;
  for (int64_t e = begin; e < stop; ++e) {
    const store_t* row = in + col[e] * stride;
    if constexpr (fetch) {
      // Past the row's end comes the next row, which is wanted next.
      const int64_t later =
          e + entries_ahead < num_entries ? e + entries_ahead : num_entries - 1;
      const auto* ahead =
          reinterpret_cast<const char*>(in + col[later] * stride);
      for (int64_t b = 0; b < bytes; b += kCacheLine)
        __builtin_prefetch(ahead + b);
    }
    for (int k = 0; k < width / lanes; ++k)
      total[k] += load<lanes>(row + k * lanes);
  }
}

// As add_rows, with row `own` before entry `middle`. One loop: two of half the
// length would both end where the processor does not expect it.
template <int width, typename scalar_t, typename store_t>
PYG_TRUST_INLINE void add_rows_and_own(const int32_t* col,
                                       int64_t num_entries,
                                       const store_t* in,
                                       int64_t stride,
                                       int64_t begin,
                                       int64_t stop,
                                       int64_t middle,
                                       int64_t own,
                                       Row<scalar_t, width>* total) {
  constexpr int lanes = kRowLanes<scalar_t, width>;
  constexpr int64_t bytes = width * int64_t{sizeof(store_t)};
  constexpr int64_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  constexpr int64_t entries_ahead = kLinesAhead / lines;
  for (int64_t e = begin; e <= stop; ++e) {
    const int64_t past = e - (e > middle);
    const int64_t entry = past < num_entries ? past : num_entries - 1;
    const int64_t other = col[entry];
    const store_t* row = in + (e == middle ? own : other) * stride;
    const int64_t later =
        e + entries_ahead < num_entries ? e + entries_ahead : num_entries - 1;
    const auto* ahead = reinterpret_cast<const char*>(in + col[later] * stride);
    for (int64_t b = 0; b < bytes; b += kCacheLine)
      __builtin_prefetch(ahead + b);
    for (int k = 0; k < width / lanes; ++k)
      total[k] += load<lanes>(row + k * lanes);
  }
}

// As add_rows_and_own, of rows that are all in the cache: nothing is fetched.
// The entries of a short row go into a list with their own among them, whole
// vectors at a time, which may reach into the rows behind.
template <int width, typename scalar_t, typename store_t>
PYG_TRUST_INLINE void add_near_rows_and_own(const int32_t* col,
                                            int64_t num_entries,
                                            const store_t* in,
                                            int64_t stride,
                                            int64_t begin,
                                            int64_t stop,
                                            int64_t middle,
                                            int64_t own,
                                            Row<scalar_t, width>* total) {
  constexpr int lanes = kRowLanes<scalar_t, width>;
  constexpr int words = kVectorBytes / int{sizeof(int32_t)};
  const int64_t count = stop - begin + 1;
  if (count > kShortRow || middle + kShortRow > num_entries) {
    add_rows<width, scalar_t, false>(col, 0, in, stride, begin, middle, total);
    for (int v = 0; v < width / lanes; ++v)
      total[v] += load<lanes>(in + own * stride + v * lanes);
    add_rows<width, scalar_t, false>(col, 0, in, stride, middle, stop, total);
    return;
  }
  int32_t list[2 * kShortRow];
  int32_t* after = list + (middle - begin);
  for (int k = 0; k < kShortRow; k += words) {
    const auto part = load<words>(col + begin + k);
    std::memcpy(list + k, &part, sizeof(part));
  }
  *after++ = static_cast<int32_t>(own);
  for (int k = 0; k < kShortRow; k += words) {
    const auto part = load<words>(col + middle + k);
    std::memcpy(after + k, &part, sizeof(part));
  }
  add_rows<width, scalar_t, false>(list, 0, in, stride, 0, count, total);
}

template <int width,
          typename scalar_t,
          bool fetch = true,
          typename store_t>
PYG_TRUST_INLINE void sum_row(const int32_t* col,
                              int64_t num_entries,
                              const store_t* in,
                              int64_t stride,
                              int64_t begin,
                              int64_t stop,
                              Row<scalar_t, width>* sum) {
  constexpr int vectors = width / kRowLanes<scalar_t, width>;
  Row<scalar_t, width> total[vectors] = {};
  add_rows<width, scalar_t, fetch>(col, num_entries, in, stride, begin, stop,
                                   total);
  for (int k = 0; k < vectors; ++k)
    sum[k] = total[k];
}

// Calls end(v, sum) for the rows v in [begin, rows), where sum[c] is that of
// sum_row.
template <int width, typename scalar_t, typename store_t, typename End>
PYG_TRUST_INLINE void gather(const int64_t* rowptr,
                             const int32_t* col,
                             int64_t num_entries,
                             const store_t* in,
                             int64_t stride,
                             int64_t begin,
                             int64_t rows,
                             const End& end) {
  for (int64_t v = begin; v < rows; ++v) {
    Row<scalar_t, width> sum[width / kRowLanes<scalar_t, width>];
    sum_row<width, scalar_t>(col, num_entries, in, stride, rowptr[v],
                             rowptr[v + 1], sum);
    alignas(kCacheLine) scalar_t total[width];
    std::memcpy(total, sum, sizeof(total));
    end(v, total);
  }
}

// A lambda with a constant width for in_tiles.
#define PYG_TRUST_WIDTH(first) \
  [&]<int width>(int64_t first) __attribute__((always_inline))

// Calls run.operator()<width>(first) for tiles of the columns [first, end), each
// as wide as there is a kernel: up to four cache lines.
template <typename scalar_t, typename Run>
PYG_TRUST_INLINE void in_tiles(int64_t first, int64_t end, const Run& run) {
  constexpr int line = kCacheLine / sizeof(scalar_t);
  while (first < end) {
    const int64_t rest = end - first;
    const auto fits = [&]<int width>() __attribute__((always_inline)) {
      if (rest < width)
        return false;
      run.template operator()<width>(first);
      first += width;
      return true;
    };
    fits.template operator()<4 * line>() ||
        fits.template operator()<3 * line>() ||
        fits.template operator()<2 * line>() ||
        fits.template operator()<line>() ||
        fits.template operator()<line / 2>() ||
        fits.template operator()<4>() || fits.template operator()<2>() ||
        fits.template operator()<1>();
  }
}

}  // namespace pyg_trust

// One function, compiled for each vector width, chosen when it is loaded.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && \
    !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define PYG_TRUST_CLONES \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PYG_TRUST_CLONES
#endif
