// Random flips of the bits of a matrix.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "rng.h"

namespace pyg_trust {

// Above so many cells, gaps come from 64-bit uniforms in extended precision.
constexpr int64_t kManyCells = 1000000000;

// Which entries of the matrix are bits that flip.
enum Cells : int64_t { kAll = 0, kDirected = 1, kUndirected = 2 };

struct Matrix {
  const int64_t* rowptr;
  const int32_t* col;
  int64_t rows, cols;
  Cells cells;

  // Row i has the cells [first(i), cols), without the diagonal if kDirected.
  int64_t first(int64_t i) const {
    return cells == kUndirected ? i + 1 : 0;
  }
  int64_t width(int64_t i) const {
    return cols - first(i) - (cells == kDirected ? 1 : 0);
  }
  int64_t count() const {
    return cells == kAll        ? rows * cols
           : cells == kDirected ? rows * (rows - 1)
                                : rows * (rows - 1) / 2;
  }
  // How many cells come before row i, and which column a cell of it is.
  int64_t start(int64_t i) const {
    return cells == kUndirected ? i * (2 * rows - i - 1) / 2 : i * width(0);
  }
  int64_t column(int64_t i, int64_t cell) const {
    const int64_t j = first(i) + cell;
    return cells == kDirected && j >= i ? j + 1 : j;
  }
};

inline double double_of(uint64_t word) {
  double made;
  memcpy(&made, &word, sizeof(made));
  return made;
}

// A whole number up to 2^53 as a double, by operations that vector units have.
inline double exactly(uint64_t number) {
  const uint64_t high = 0x4530000000000000ull | number >> 32;
  const uint64_t low = 0x4330000000000000ull | (number & 0xFFFFFFFFull);
  return (double_of(high) - 0x1.00000001p84) + double_of(low);
}

// log(u), 0 < u <= 1, within two units of the last place, from operations that
// every machine rounds alike: its own libraries do not agree on the last bit,
// of which a gap, and with it all that follows, may depend. With u = 2^k (1 +
// f) and s = f / (2 + f) it is k log 2 + 2 artanh(s), 2 s = f - s f, and
// artanh(s) = s + s^3 / 3 + ..., |s| < 0.172. Nothing branches, so that loops
// over it are vectors.
inline double log_of(double u) {
  uint64_t word;
  memcpy(&word, &u, sizeof(word));
  const double exponent = exactly(word >> 52) - 1023;
  word = (word & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  const double m = double_of(word);
  const bool large = m > 1.4142135623730951;
  const double f = m * (large ? 0.5 : 1.0) - 1;
  // log 2 in two parts, of which k times the first is exact.
  const double k = exponent + (large ? 1.0 : 0.0);
  const double s = f / (2 + f), w = s * s;
  double rest = 2.0 / 21;
  rest = rest * w + 2.0 / 19;
  rest = rest * w + 2.0 / 17;
  rest = rest * w + 2.0 / 15;
  rest = rest * w + 2.0 / 13;
  rest = rest * w + 2.0 / 11;
  rest = rest * w + 2.0 / 9;
  rest = rest * w + 2.0 / 7;
  rest = rest * w + 2.0 / 5;
  rest = rest * w + 2.0 / 3;
  rest *= w;
  const double high = k * 0x1.62e42fefa3800p-1;
  const double low = k * 0x1.ef35793c76730p-45;
  return high + (f - (s * (f - rest) - low));
}

// The numbers of cells between the bits that are set, one after another: with
// U uniform in (0, 1], floor(log U / log(1 - p)) is geometric. In total
// variation N cells are within N 2^-46 of independent bits (N 2^-57 in
// extended precision): sampling_slack in certificates/smoothing.py.
struct GapLaw {
  double scale;
  bool none;

  explicit GapLaw(double p) : scale(0), none(p <= 0) {
    if (!none)
      scale = 1 / std::log1p(-p);
  }

  // The counter-th of the stream `key`, before it is rounded down.
  static double length(uint64_t key,
                                    uint64_t counter,
                                    double scale) {
    const uint64_t word = mix(key + counter * kGolden);
    return log_of(exactly((word >> 11) + 1) * 0x1p-53) * scale;
  }

  // The counter-th of the stream `key`, `limit` if it is at least that long.
  int64_t gap(uint64_t key, uint64_t counter, int64_t limit) const {
    if (none)
      return limit;
    const double made = length(key, counter, scale);
    return made < static_cast<double>(limit) ? static_cast<int64_t>(made)
                                             : limit;
  }
};

// Words below it are those of an event of probability p < 1, up to 2^-64.
inline uint64_t threshold(double p) {
  return static_cast<uint64_t>(p * 0x1p64);
}

// Whether the entry with this number is deleted.
inline bool deleted(uint64_t key, uint64_t entry, uint64_t below) {
  return mix(key + entry * kGolden) < below;
}

}  // namespace pyg_trust
