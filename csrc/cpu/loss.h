// The gradient of the loss of a linear head, for the instruction set of the
// file that includes this. A strip of rows of Z is read once: its margins, its
// slopes and what these add to the gradient are made while it is in the cache.
#pragma once

#include "gather.h"
#include "kernels.h"

namespace pyg_trust {
namespace {

// Eight numbers side by side go along the rows of Z, so that every output costs
// the same, in vectors that are no larger than a register. As many rows and
// outputs at a time as there are registers for. Sums have the same order, and
// the same bits, whatever these numbers.
constexpr int kAlong = 8;
constexpr int kWide = kVectorBytes / int{sizeof(double)};
static_assert(kAlong % kWide == 0);
using Along = Vector<double, kWide>::type;
#ifdef PYG_TRUST_AVX512F
constexpr int kTile = 4;
#else
constexpr int kTile = 2;
#endif

// e^x for |x| <= 708, and for others that of the nearest such number; NaN for
// NaN. x = k log 2 + r, |r| <= log(2) / 2, and Taylor's polynomial of degree
// 13 in r, whose rest is below 2^-57: together within 4 units in the last
// place.
PYG_TRUST_INLINE Along exponential(Along x) {
  using Words = Vector<int64_t, kWide>::type;
  constexpr double most = 708;
  constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52: to integers
  // log 2, of which the first part times k is exact.
  constexpr double high = 6.93147180369123816490e-01;
  constexpr double low = 1.90821492927058770002e-10;
  constexpr double over[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800,
                             1.0 / 3628800,    1.0 / 362880,    1.0 / 40320,
                             1.0 / 5040,       1.0 / 720,       1.0 / 120,
                             1.0 / 24,         1.0 / 6,         0.5,
                             1.0,              1.0};
  const Along top = Along{} + most;
  x = x > top ? top : x;
  x = x < -top ? -top : x;
  const Along shifted = x * 1.44269504088896338700 + shift;
  const Along k = shifted - shift;
  const Along r = (x - k * high) - k * low;
  Along sum = Along{} + over[0];
  for (int i = 1; i < 14; ++i)
    sum = sum * r + over[i];
  Words bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + 1023) << 52;
  Along power;
  std::memcpy(&power, &bits, sizeof(power));
  return sum * power;
}

// The numbers k, ... of a row of d, zeros beyond its end.
template <bool whole>
PYG_TRUST_INLINE Along part(const double* row, int64_t k, int64_t d) {
  if constexpr (whole)
    return load<kWide>(row + k);
  Along some{};
  for (int64_t i = 0; i < d - k; ++i)
    some[i] = row[k + i];
  return some;
}

// Half of the eight at a time.
PYG_TRUST_INLINE double total(const double (&sum)[kAlong]) {
  const double left = (sum[0] + sum[4]) + (sum[2] + sum[6]);
  return left + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

// Adds the products of the numbers k, ... of `rows` rows at z with those of
// `cols` outputs at w.
template <int rows, int cols, bool whole>
PYG_TRUST_INLINE void add_products(const LossRows& loss,
                                   const double* z,
                                   const double* w,
                                   int64_t k,
                                   Along (&sum)[rows][cols]) {
  Along x[rows];
  for (int r = 0; r < rows; ++r)
    x[r] = part<whole>(z + r * loss.d, k, loss.d);
  for (int j = 0; j < cols; ++j) {
    const Along a = load<kWide>(w + j * loss.stride + k);
    for (int r = 0; r < rows; ++r)
      sum[r][j] += x[r] * a;
  }
}

// The margins of `rows` rows at z, for the outputs [c, c + cols).
template <int rows, int cols>
PYG_TRUST_INLINE void margins_of(const LossRows& loss,
                                 const double* z,
                                 int64_t c,
                                 double* margin) {
  const double* w = loss.W + c * loss.stride;
  double sums[rows][cols][kAlong];
  for (int first = 0; first < kAlong; first += kWide) {
    Along sum[rows][cols] = {};
    int64_t k = first;
    for (; k + kWide <= loss.d; k += kAlong)
      add_products<rows, cols, true>(loss, z, w, k, sum);
    if (k < loss.d)
      add_products<rows, cols, false>(loss, z, w, k, sum);
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j < cols; ++j)
        store<kWide>(sums[r][j] + first, sum[r][j]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < cols; ++j)
      margin[r * loss.count + c + j] = total(sums[r][j]);
  }
}

// What they add to the numbers k, ... of the gradient, row by row.
template <int rows, int cols, bool whole>
PYG_TRUST_INLINE void add_slopes(const LossRows& loss,
                                 const double* z,
                                 const double (&slope)[rows][cols],
                                 double* sum,
                                 int64_t k) {
  Along x[rows];
  for (int r = 0; r < rows; ++r)
    x[r] = part<whole>(z + r * loss.d, k, loss.d);
  for (int j = 0; j < cols; ++j) {
    Along all = load<kWide>(sum + j * loss.stride + k);
    for (int r = 0; r < rows; ++r)
      all += x[r] * slope[r][j];
    store<kWide>(sum + j * loss.stride + k, all);
  }
}

template <int rows, int cols>
PYG_TRUST_INLINE void gradient_of(const LossRows& loss,
                                  const double* z,
                                  int64_t c,
                                  const double* slopes,
                                  double* sum) {
  double slope[rows][cols];
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < cols; ++j)
      slope[r][j] = slopes[r * loss.count + c + j];
  }
  sum += c * loss.stride;
  int64_t k = 0;
  for (; k + kWide <= loss.d; k += kWide)
    add_slopes<rows, cols, true>(loss, z, slope, sum, k);
  if (k < loss.d)
    add_slopes<rows, cols, false>(loss, z, slope, sum, k);
}

// Of all outputs of `rows` rows: their margins, or what their slopes add to the
// gradient.
template <int rows, bool margins>
PYG_TRUST_INLINE void tile(const LossRows& loss,
                           const double* z,
                           double* slopes,
                           double* sum) {
  int64_t c = 0;
  for (; c + kTile <= loss.count; c += kTile) {
    if constexpr (margins)
      margins_of<rows, kTile>(loss, z, c, slopes);
    else
      gradient_of<rows, kTile>(loss, z, c, slopes, sum);
  }
  for (; c < loss.count; ++c) {
    if constexpr (margins)
      margins_of<rows, 1>(loss, z, c, slopes);
    else
      gradient_of<rows, 1>(loss, z, c, slopes, sum);
  }
}

template <bool margins>
PYG_TRUST_INLINE void tiles(const LossRows& loss,
                            int64_t begin,
                            int64_t rows,
                            double* slopes,
                            double* sum) {
  const double* z = loss.Z + begin * loss.d;
  int64_t r = 0;
  for (; r + kTile <= rows; r += kTile)
    tile<kTile, margins>(loss, z + r * loss.d, slopes + r * loss.count, sum);
  for (; r < rows; ++r)
    tile<1, margins>(loss, z + r * loss.d, slopes + r * loss.count, sum);
}

// The derivative of the logistic loss in the margins of a strip of rows, in
// their place; both buffers are whole vectors long.
PYG_TRUST_INLINE void slopes_of(int64_t size, double* margin, double* target) {
  for (int64_t i = size; i % kAlong != 0; ++i)
    margin[i] = target[i] = 0;
  for (int64_t i = 0; i < size; i += kWide) {
    const Along y = load<kWide>(target + i), at = load<kWide>(margin + i);
    store<kWide>(margin + i, -y / (1 + exponential(y * at)));
  }
}

inline void loss_gradient(const LossRows& loss,
                          int64_t begin,
                          int64_t end,
                          double* room,
                          double* sum,
                          double* squares) {
  const int64_t count = loss.count;
  double* target = room + kLossStrip * count;
  for (; begin < end; begin += kLossStrip) {
    const int64_t rest = end - begin;
    const int64_t rows = rest < kLossStrip ? rest : kLossStrip;
    for (int64_t r = 0; r < rows; ++r) {
      const double* y = loss.Y + (begin + r) * loss.outputs;
      for (int64_t c = 0; c < count; ++c)
        target[r * count + c] = y[loss.columns[c]];
    }
    tiles<true>(loss, begin, rows, room, sum);
    slopes_of(rows * count, room, target);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < count; ++c)
        squares[c] += room[r * count + c] * room[r * count + c];
    }
    tiles<false>(loss, begin, rows, room, sum);
  }
}

}  // namespace
}  // namespace pyg_trust
