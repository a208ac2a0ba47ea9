// A stable sort by digits of 11 bits, the least significant first.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace pyg_trust {

// By key(value), in [0, limit). Few values are sorted by comparisons.
template <typename T, typename Key>
void sort_by(T* values,
             int64_t count,
             int64_t limit,
             std::vector<T>& room,
             const Key& key) {
  constexpr int bits = 11;
  if (count < 1024) {
    std::sort(values, values + count, [&](const T& a, const T& b) {
      return key(a) < key(b);
    });
    return;
  }
  room.resize(count);
  T *from = values, *to = room.data();
  for (int shift = 0; (limit - 1) >> shift > 0; shift += bits) {
    std::array<int64_t, (1 << bits) + 1> start{};
    const auto digit = [&](const T& value) {
      return key(value) >> shift & ((1 << bits) - 1);
    };
    for (int64_t k = 0; k < count; ++k)
      ++start[digit(from[k]) + 1];
    for (int d = 0; d < 1 << bits; ++d)
      start[d + 1] += start[d];
    for (int64_t k = 0; k < count; ++k)
      to[start[digit(from[k])]++] = from[k];
    std::swap(from, to);
  }
  if (from != values)
    std::copy(from, from + count, values);
}

}  // namespace pyg_trust
