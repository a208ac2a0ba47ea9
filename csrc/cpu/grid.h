// Rounding to the grid of exact sums (live.cpp), for any instruction set.
#pragma once

#include <cstdint>

namespace pyg_trust {
namespace {

// Doubles near this one are integers, which their last bits hold: it converts
// integers below 2^51 by an addition, and rounds to nearest, ties to even.
constexpr double kMagic = 6755399441055744.0;
constexpr int64_t kMagicBits = __builtin_bit_cast(int64_t, kMagic);
constexpr int64_t kHalf = int64_t{1} << 51;

// to += rint(scale * in).
template <typename scalar_t>
void add_rounded(const scalar_t* in,
                 double scale,
                 int64_t count,
                 int64_t* to) {
  uint64_t wide = 0;
  for (int64_t c = 0; c < count; ++c) {
    const double value = scale * static_cast<double>(in[c]);
    const int64_t q = __builtin_bit_cast(int64_t, value + kMagic) - kMagicBits;
    to[c] += q;
    wide |= static_cast<uint64_t>(q + kHalf);
  }
  for (int64_t c = 0; wide >> 52 && c < count; ++c) {
    const double value = scale * static_cast<double>(in[c]);
    to[c] += __builtin_llrint(value) -
             (__builtin_bit_cast(int64_t, value + kMagic) - kMagicBits);
  }
}

}  // namespace
}  // namespace pyg_trust
