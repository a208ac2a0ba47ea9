// The inner loop of exact propagation: every node sums the rows of those it
// receives from.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace pyg_trust {

constexpr int64_t kCacheLine = 64;  // bytes
constexpr int64_t kLinesAhead = 32;  // to prefetch

// Half the bytes of a float, with 8 significant bits.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value) {
    // To nearest, ties to even; finite values alone come here.
    const auto word = std::bit_cast<uint32_t>(value);
    bits = static_cast<uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

// Vectors of `lanes` numbers that the compiler maps to whatever the processor
// has.
template <typename scalar_t, int lanes>
struct Vector {
  typedef scalar_t type __attribute__((vector_size(lanes * sizeof(scalar_t))));
};

template <int lanes, typename scalar_t>
inline __attribute__((always_inline)) auto load(const scalar_t* from) {
  typename Vector<scalar_t, lanes>::type value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <int lanes>
inline __attribute__((always_inline)) auto load(const BFloat16* from) {
  typename Vector<uint16_t, lanes>::type bits;
  std::memcpy(&bits, from, sizeof(bits));
  const auto words =
      __builtin_convertvector(bits, typename Vector<uint32_t, lanes>::type)
      << 16;
  typename Vector<float, lanes>::type value;
  std::memcpy(&value, &words, sizeof(value));
  return value;
}

// Calls end(v, sum) for the rows v in [begin, rows), where sum[c] is the sum of
// in[u * stride + c] over the entries u of row v. `width` columns, a constant
// in every caller, so that the sum lives in registers; rows are stored as
// store_t and summed as scalar_t.
template <int width, typename scalar_t, typename store_t, typename End>
inline __attribute__((always_inline)) void gather(const int64_t* rowptr,
                                                  const int32_t* col,
                                                  int64_t num_entries,
                                                  const store_t* in,
                                                  int64_t stride,
                                                  int64_t begin,
                                                  int64_t rows,
                                                  const End& end) {
  constexpr int line = kCacheLine / sizeof(scalar_t);
  constexpr int lanes = width < line ? width : line;
  static_assert(width % lanes == 0);
  constexpr int64_t bytes = width * int64_t{sizeof(store_t)};
  constexpr int64_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  constexpr int64_t entries_ahead = kLinesAhead / lines;
  for (int64_t v = begin; v < rows; ++v) {
    typename Vector<scalar_t, lanes>::type sum[width / lanes] = {};
    const int64_t stop = rowptr[v + 1];
    for (int64_t e = rowptr[v]; e < stop; ++e) {
      const store_t* row = in + col[e] * stride;
      // Past the row's end comes the next row, which is wanted next.
      const int64_t later = std::min(e + entries_ahead, num_entries - 1);
      const auto* ahead =
          reinterpret_cast<const char*>(in + col[later] * stride);
      for (int64_t b = 0; b < bytes; b += kCacheLine)
        __builtin_prefetch(ahead + b);
      for (int k = 0; k < width / lanes; ++k)
        sum[k] += load<lanes>(row + k * lanes);
    }
    alignas(kCacheLine) scalar_t total[width];
    std::memcpy(total, sum, sizeof(total));
    end(v, total);
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
