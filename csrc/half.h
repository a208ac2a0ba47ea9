// Half the bytes of a float: IEEE 754 binary16, by integers. Where the
// processor converts (F16C), the bits are the same.
#pragma once

#include <cstdint>

namespace pyg_trust {

struct Float16 {
  uint16_t bits;
};

// To nearest, ties to even; beyond 65504 + 16 to infinity, as IEEE says.
inline uint16_t narrow_bits(uint32_t word) {
  const uint32_t sign = word >> 16 & 0x8000;
  const uint32_t size = word & 0x7FFFFFFF;
  if (size >= 0x7F800000)  // infinity or NaN
    return static_cast<uint16_t>(sign | 0x7C00 |
                                 (size > 0x7F800000 ? 0x200 : 0));
  if (size >= 0x477FF000)  // rounds to 2^16 at least
    return static_cast<uint16_t>(sign | 0x7C00);
  if (size >= 0x38800000)  // normal: 2^-14 at least
    return static_cast<uint16_t>(
        sign | (size - (112u << 23) + 0xFFF + (size >> 13 & 1)) >> 13);
  if (size < 0x33000000)  // below half of the smallest
    return static_cast<uint16_t>(sign);
  const uint32_t shift = 126 - (size >> 23);  // 14 to 24
  const uint32_t digits = (size & 0x7FFFFF) | 0x800000;
  const uint32_t kept = digits >> shift;
  const uint32_t rest = digits & ((1u << shift) - 1);
  const uint32_t tie = 1u << (shift - 1);
  return static_cast<uint16_t>(
      sign | (kept + (rest > tie || (rest == tie && (kept & 1)))));
}

}  // namespace pyg_trust
