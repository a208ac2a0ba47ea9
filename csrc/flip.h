// Random flips of the bits of a matrix, shared by every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "rng.h"

namespace pyg_trust {

// Above so many cells, gaps come from 64-bit uniforms in extended precision.
constexpr int64_t kManyCells = 1000000000;

// The numbers of cells between the bits that are set, one after another: with
// U uniform in (0, 1], floor(log U / log(1 - p)) is geometric. In total
// variation N cells are within N 2^-46 of independent bits (N 2^-57 in
// extended precision): functional/smoothing.py, sampling_slack.
class Gaps {
 public:
  Gaps(uint64_t key, double p, int64_t cells)
      : key_(key), none_(p <= 0), extended_(cells > kManyCells) {
    scale_ = none_ ? 0 : 1 / std::log1p(-p);
    long_scale_ = none_ ? 0 : 1 / std::log1p(-static_cast<long double>(p));
  }

  // The next one, `limit` for any that is at least that long.
  int64_t next(int64_t limit) {
    if (none_)
      return limit;
    const uint64_t word = mix(key_ + counter_++ * kGolden);
    if (extended_) {
      const long double u =
          (static_cast<long double>(word) + 1) * 0x1p-64L;
      const long double gap = std::log(u) * long_scale_;
      return gap < static_cast<long double>(limit)
                 ? static_cast<int64_t>(gap)
                 : limit;
    }
    const double u = static_cast<double>((word >> 11) + 1) * 0x1p-53;
    const double gap = std::log(u) * scale_;
    return gap < static_cast<double>(limit) ? static_cast<int64_t>(gap)
                                            : limit;
  }

 private:
  uint64_t key_, counter_ = 0;
  bool none_, extended_;
  double scale_;
  long double long_scale_;
};

// Words below it are those of an event of probability p < 1, up to 2^-64.
PYG_TRUST_HD inline uint64_t threshold(double p) {
  return static_cast<uint64_t>(p * 0x1p64);
}

// Whether the entry with this number is deleted.
PYG_TRUST_HD inline bool deleted(uint64_t key, uint64_t entry, uint64_t below) {
  return mix(key + entry * kGolden) < below;
}

}  // namespace pyg_trust
