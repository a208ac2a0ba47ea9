// The random choices of disjoint walks, shared by every device.
#pragma once

#include <cstdint>

#include "rng.h"

namespace pyg_trust {

constexpr int kWalkTries = 4;  // neighbours to try before a row is scanned

// A uniform integer in [0, count), the counter-th of the stream `key`. For
// count < 2^31 it is in range whatever is rounded, and every probability is
// that of the uniform law up to a factor of 1 +- 2^-22.
PYG_TRUST_HD inline int64_t below(uint64_t key,
                                  uint64_t counter,
                                  int64_t count) {
  return static_cast<int64_t>(uniform(key, counter) *
                              static_cast<double>(count));
}

// Tries a few neighbours in the row [begin, end) of `col`. One that is not
// claimed is uniform among those that are not, as rejection always is; -1 says
// that all tries were claimed, whatever that says of the others.
template <typename Claimed>
PYG_TRUST_HD inline int64_t try_neighbours(const int32_t* col,
                                           int64_t begin,
                                           int64_t end,
                                           uint64_t key,
                                           uint64_t& counter,
                                           const Claimed& claimed) {
  for (int i = 0; i < kWalkTries; ++i) {
    const int64_t v = col[begin + below(key, counter++, end - begin)];
    if (!claimed(v))
      return v;
  }
  return -1;
}

}  // namespace pyg_trust
