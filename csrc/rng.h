// Counter-based random numbers, for host and device alike. A stream is a
// 64-bit key, made from the seed and from what is being drawn; no state, so
// the same draw gives the same number on any thread and on any device.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define PYG_TRUST_HD __host__ __device__
#else
#define PYG_TRUST_HD
#endif

namespace pyg_trust {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

// The output function of SplitMix64 (Steele, Lea and Flood, 2014): a
// bijection of 64-bit words in which every input bit moves every output bit.
PYG_TRUST_HD inline uint64_t mix(uint64_t z) {
  z += kGolden;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// The key of `item` under `key`; pyg_trust.rng.derive is its twin.
PYG_TRUST_HD inline uint64_t derive(uint64_t key, uint64_t item) {
  return mix(key ^ mix(item));
}

// The counter-th uniform number of the stream `key`, in [0, 1).
PYG_TRUST_HD inline double uniform(uint64_t key, uint64_t counter) {
  return static_cast<double>(mix(key + counter * kGolden) >> 11) * 0x1p-53;
}

}  // namespace pyg_trust
