// The gradient of the loss of a linear head, for the instruction set of the
// file that includes this. A tile of rows of Z is read once: its margins, its
// slopes and what these add to the gradient are made while it is in the cache.
#pragma once

#include "gather.h"
#include "kernels.h"

namespace pyg_trust {
namespace {

// As many rows as there are registers for. Sums have the same order, and the
// same bits, whatever the number.
#ifdef PYG_TRUST_AVX512F
constexpr int kTile = 8;
#else
constexpr int kTile = 4;
#endif

// e^x for |x| <= 708, and for others that of the nearest such number; NaN for
// NaN. x = k log 2 + r, |r| <= log(2) / 2, and Taylor's polynomial of degree
// 13 in r, whose rest is below 2^-57: together within 4 units in the last
// place.
template <int lanes>
PYG_TRUST_INLINE auto exponential(typename Vector<double, lanes>::type x) {
  using Numbers = typename Vector<double, lanes>::type;
  using Words = typename Vector<int64_t, lanes>::type;
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
  const Numbers top = Numbers{} + most;
  x = x > top ? top : x;
  x = x < -top ? -top : x;
  const Numbers shifted = x * 1.44269504088896338700 + shift;
  const Numbers k = shifted - shift;
  const Numbers r = (x - k * high) - k * low;
  Numbers sum = Numbers{} + over[0];
  for (int i = 1; i < 14; ++i)
    sum = sum * r + over[i];
  Words bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + 1023) << 52;
  Numbers power;
  std::memcpy(&power, &bits, sizeof(power));
  return sum * power;
}

// The derivative of the loss in the margins of a row, in their place, and the
// sum of its squares. Beyond the real outputs it is 0.
template <int lanes>
PYG_TRUST_INLINE double slopes_of(const LossRows& loss,
                                  const double* y,
                                  double* margin) {
  using Numbers = typename Vector<double, lanes>::type;
  const int64_t outputs = loss.outputs;
  double most = 0, total = 0, weight = 0;
  if (loss.head == kSoftmax) {
    most = margin[0];
    for (int64_t c = 0; c < outputs; ++c) {
      most = margin[c] > most ? margin[c] : most;
      weight += y[c];
    }
    for (int64_t first = 0; first < loss.stride; first += lanes) {
      const Numbers x = load<lanes>(margin + first) - most;
      store<lanes>(margin + first, exponential<lanes>(x));
    }
    for (int64_t c = 0; c < outputs; ++c)
      total += margin[c];
  }
  double square = 0;
  for (int64_t first = 0; first < loss.stride; first += lanes) {
    const int64_t rest = outputs - first;
    const int count = rest < lanes ? static_cast<int>(rest) : lanes;
    Numbers target{};
    if (count == lanes) {
      target = load<lanes>(y + first);
    } else {
      for (int c = 0; c < count; ++c)
        target[c] = y[first + c];
    }
    const Numbers at = load<lanes>(margin + first);
    Numbers slope;
    if (loss.head == kOneVersusRest)
      slope = -target / (1 + exponential<lanes>(target * at));
    else if (loss.head == kSoftmax)
      slope = at / total * weight - target;
    else
      slope = 2 * (at - target) * (target < 0 ? -target : target);
    for (int c = count; c < lanes; ++c)
      slope[c] = 0;
    store<lanes>(margin + first, slope);
    for (int c = 0; c < count; ++c)
      square += slope[c] * slope[c];
  }
  return square;
}

// What `rows` rows add to the gradient, and to the squares, one by one; `room`
// is for their slopes.
template <int lanes, int rows>
PYG_TRUST_INLINE void add_tile(const LossRows& loss,
                               int64_t begin,
                               double* room,
                               double* sum,
                               double& square) {
  using Numbers = typename Vector<double, lanes>::type;
  const int64_t d = loss.d, stride = loss.stride;
  const double* z = loss.Z + begin * d;
  for (int64_t first = 0; first < stride; first += lanes) {
    Numbers margin[rows] = {};
    for (int64_t k = 0; k < d; ++k) {
      const Numbers w = load<lanes>(loss.W + k * stride + first);
      for (int r = 0; r < rows; ++r)
        margin[r] += z[r * d + k] * w;
    }
    for (int r = 0; r < rows; ++r)
      store<lanes>(room + r * stride + first, margin[r]);
  }
  for (int r = 0; r < rows; ++r)
    square += slopes_of<lanes>(loss, loss.Y + (begin + r) * loss.outputs,
                               room + r * stride);
  for (int64_t first = 0; first < stride; first += lanes) {
    Numbers slope[rows];
    for (int r = 0; r < rows; ++r)
      slope[r] = load<lanes>(room + r * stride + first);
    for (int64_t k = 0; k < d; ++k) {
      double* at = sum + k * stride + first;
      Numbers all = load<lanes>(at);
      for (int r = 0; r < rows; ++r)
        all += z[r * d + k] * slope[r];
      store<lanes>(at, all);
    }
  }
}

template <int lanes>
double add_loss_rows(const LossRows& loss,
                int64_t begin,
                int64_t end,
                double* room,
                double* sum) {
  double square = 0;
  for (; begin + kTile <= end; begin += kTile)
    add_tile<lanes, kTile>(loss, begin, room, sum, square);
  for (; begin < end; ++begin)
    add_tile<lanes, 1>(loss, begin, room, sum, square);
  return square;
}

inline double loss_gradient(const LossRows& loss,
                            int64_t begin,
                            int64_t end,
                            double* room,
                            double* sum) {
  switch (loss.stride) {
    case 1:
      return add_loss_rows<1>(loss, begin, end, room, sum);
    case 2:
      return add_loss_rows<2>(loss, begin, end, room, sum);
    case 4:
      return add_loss_rows<4>(loss, begin, end, room, sum);
    default:
      return add_loss_rows<8>(loss, begin, end, room, sum);
  }
}

}  // namespace
}  // namespace pyg_trust
