// Bounds and sums of clipped gradients, in one pass over the rows
// (privacy/exact/clip.py). Numbers of a unit are computed from its own rows, in
// their order, and sums are exact.
#include "dispatch.h"
#include "gather.h"
#include "kernels.h"
#include "parallel.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;

// As in privacy/exact/clip.py.
constexpr int kInputBits = 22, kGridBits = 43;
const double kHuge = std::ldexp(1, 400), kTiny = std::ldexp(1, -300);
// Rows that are added up in float64, below 2^51: fewer than exactness allows,
// and no power of two apart in memory.
constexpr int64_t kBlock = 120;
// Columns of gradients that a task takes.
constexpr int64_t kStrip = 128;
// Added to a number below 2^51, it leaves the nearest integer in the last bits.
constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52

template <typename scalar_t>
struct Matrix {
  const scalar_t* start;
  int64_t pitch, width;
  explicit Matrix(const Tensor& tensor)
      : start(tensor.const_data_ptr<scalar_t>()),
        pitch(tensor.stride(0)),
        width(tensor.size(1)) {}
  const scalar_t* row(int64_t r) const { return start + r * pitch; }
};

template <typename scalar_t>
std::vector<Matrix<scalar_t>> matrices(const Tensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

// Numbers of a register, larger ones would live in memory, and of a step.
constexpr int kLanes = 4, kParts = 4, kStep = kLanes * kParts;
using Doubles = Vector<double, kLanes>::type;

template <typename scalar_t>
PYG_TRUST_INLINE Doubles widened(const scalar_t* from) {
  return __builtin_convertvector(load<kLanes>(from), Doubles);
}

// Of rows `at` of a matrix, the squares of their lengths and their largest
// entries; a NaN is in the squares alone.
template <typename scalar_t>
PYG_TRUST_CLONES void measure(const Matrix<scalar_t>& x,
                              const int64_t* at,
                              int64_t count,
                              double* squares,
                              double* tops) {
  for (int64_t r = 0; r < count; ++r) {
    const scalar_t* row = x.row(at[r]);
    Doubles sum[kParts] = {}, most[kParts] = {};
    double square = 0, top = 0;
    int64_t k = 0;
    for (; k + kStep <= x.width; k += kStep)
      for (int part = 0; part < kParts; ++part) {
        const Doubles value = widened(row + k + part * kLanes);
        const Doubles size = value < 0 ? -value : value;
        sum[part] += value * value;
        most[part] = size > most[part] ? size : most[part];
      }
    for (; k < x.width; ++k) {
      const double value = row[k], size = std::fabs(value);
      square += value * value;
      top = size > top ? size : top;
    }
    for (int part = 1; part < kParts; ++part) {
      sum[0] += sum[part];
      most[0] = most[part] > most[0] ? most[part] : most[0];
    }
    for (int j = 0; j < kLanes; ++j)
      top = most[0][j] > top ? most[0][j] : top;
    squares[r] = square + ((sum[0][0] + sum[0][1]) + (sum[0][2] + sum[0][3]));
    tops[r] = top;
  }
}

// Upper bounds of lengths from squares, as `bounds.lengths` in float64.
PYG_TRUST_CLONES
void bound_lengths(double* squares,
                   const double* tops,
                   int64_t count,
                   int64_t width) {
  const double root = std::sqrt(double(width));
  const double up = 1 + (double(width) / 2 + 4) * DBL_EPSILON / 2;
  const double more = root * 1.5e-154;  // the root of the least normal number
  for (int64_t r = 0; r < count; ++r) {
    const double found = std::sqrt(squares[r]);
    const double one = found * up + more;
    const double other = tops[r] * (root * (1 + 4 * DBL_EPSILON));
    // What is not finite stays so.
    squares[r] = found < HUGE_VAL && other < one ? other : one;
  }
}

// Marks rows in which an entry is not zero (a gradient) or not finite (an
// input).
template <typename scalar_t>
PYG_TRUST_CLONES void find_live(const Matrix<scalar_t>& x,
                                int64_t begin,
                                int64_t end,
                                bool input,
                                char* lives) {
  constexpr int lanes = 2 * kLanes * sizeof(float) / sizeof(scalar_t);
  constexpr int step = 2 * lanes;
  using Numbers = typename Vector<scalar_t, lanes>::type;
  for (int64_t r = begin; r < end; ++r) {
    const scalar_t* row = x.row(r);
    Numbers found[2] = {};
    scalar_t rest = 0;
    int64_t k = 0;
    // A NaN stays, and so does a sum of magnitudes, unless it is one.
    const auto add = [&](auto one) __attribute__((always_inline)) {
      for (; k + step <= x.width; k += step)
        for (int part = 0; part < 2; ++part)
          found[part] += one(load<lanes>(row + k + part * lanes));
      for (; k < x.width; ++k)
        rest += one(row[k]);
    };
    if (input)
      add([](auto value) __attribute__((always_inline)) { return value * 0; });
    else
      add([](auto value) __attribute__((always_inline)) {
        return value < 0 ? -value : value;
      });
    found[0] += found[1];
    for (int j = 0; j < lanes; ++j)
      rest += found[0][j];
    lives[r] |= rest != 0;
  }
}

// to[k * step] = rint(scale * x[k]).
template <typename scalar_t>
PYG_TRUST_INLINE void round_into(const scalar_t* x,
                                 int64_t count,
                                 double scale,
                                 double* to,
                                 int64_t step) {
  int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
    const Doubles value = widened(x + k) * scale + kMagic - kMagic;
    if (step == 1)
      store<kLanes>(to + k, value);
    else
      for (int j = 0; j < kLanes; ++j)
        to[(k + j) * step] = value[j];
  }
  for (; k < count; ++k)
    to[k * step] = double(x[k]) * scale + kMagic - kMagic;
}

template <typename scalar_t>
PYG_TRUST_CLONES void round_row(const scalar_t* x,
                                int64_t n,
                                double by,
                                double* to,
                                int64_t step) {
  if (step == 1)
    return round_into(x, n, by, to, 1);
  round_into(x, n, by, to, step);
}

// to += rint(scale * x), for numbers up to 2^51; x may be integers already.
template <typename scalar_t>
PYG_TRUST_CLONES void add_row(const scalar_t* x,
                              int64_t count,
                              double scale,
                              int64_t* to) {
  int64_t zero;
  std::memcpy(&zero, &kMagic, sizeof(zero));
  for (int64_t k = 0; k < count; ++k) {
    const double value = double(x[k]) * scale + kMagic;
    int64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    to[k] += bits - zero;
  }
}

// 2^-k of `clip.scales`, from the bits of a number.
double scale_of(double top) {
  if (!(top > 0))
    return 0;
  top = top < kTiny ? kTiny : top > kHuge ? kHuge : top;
  uint64_t bits;
  std::memcpy(&bits, &top, sizeof(bits));
  // frexp counts from the power above: one more than the exponent.
  bits = ((bits >> 52) + 1 - kInputBits) << 52;
  std::memcpy(&top, &bits, sizeof(bits));
  return top;
}

Tensor clip_rows(const Tensor& grad, Tensors inners) {
  const int64_t n = grad.size(0);
  std::vector<char> lives(n);
  with_real(grad, [&](auto number) {
    using scalar_t = decltype(number);
    const Matrix<scalar_t> given(grad);
    const auto inputs = matrices<scalar_t>(inners);
    by_rows(n, given.width, [&](int64_t begin, int64_t end) {
      find_live(given, begin, end, false, lives.data());
      for (const auto& x : inputs)
        find_live(x, begin, end, true, lives.data());
    });
  });
  const int64_t count = std::count(lives.begin(), lives.end(), true);
  Tensor out = torch::stable::new_empty(grad, {count}, ScalarType::Long);
  int64_t* to = out.mutable_data_ptr<int64_t>();
  for (int64_t r = 0; r < n; ++r)
    if (lives[r])
      *to++ = r;
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> clip_sizes(Tensors grads,
                                                      Tensors inners,
                                                      const Tensor& rows,
                                                      const Tensor& owner,
                                                      const Tensor& pairs,
                                                      int64_t units) {
  const int64_t m = rows.size(0), count = pairs.size(0);
  const int64_t num = grads.size(), others = inners.size();
  const int64_t d = grads[0].size(1), w = others > 0 ? inners[0].size(1) : 1;
  const auto zeros = [&](auto... size) {
    return torch::stable::new_zeros(grads[0], {size...}, ScalarType::Double);
  };
  Tensor sums = zeros(int64_t{5}, count, units), weight = zeros(units);
  Tensor scale = zeros(others, m);
  Tensor total = zeros(others > 0 ? 0 : num, units, d);
  const int64_t* at = rows.const_data_ptr<int64_t>();
  const int64_t* unit = owner.const_data_ptr<int64_t>();
  const int64_t* pair = pairs.const_data_ptr<int64_t>();
  double* powers = scale.mutable_data_ptr<double>();
  std::vector<double> lengths((num + others) * m), tops((num + others) * m);
  with_real(grads[0], [&](auto number) {
    using scalar_t = decltype(number);
    auto all = matrices<scalar_t>(grads);
    for (const Tensor& inner : inners)
      all.emplace_back(inner);
    by_rows(m, num * d + others * w, [&](int64_t begin, int64_t end) {
      for (int64_t v = 0; v < num + others; ++v) {
        double* length = lengths.data() + v * m + begin;
        double* top = tops.data() + v * m + begin;
        measure(all[v], at + begin, end - begin, length, top);
        bound_lengths(length, top, end - begin, all[v].width);
        if (v >= num)
          for (int64_t r = 0; r < end - begin; ++r)
            powers[(v - num) * m + begin + r] = scale_of(top[r]);
      }
    });
    for (int64_t p = 0; p < (others > 0 ? 0 : num); ++p)
      for (int64_t r = 0; r < m; ++r) {
        double* to = total.mutable_data_ptr<double>() +
                     (p * units + unit[r]) * d;
        const scalar_t* x = all[p].row(at[r]);
        for (int64_t k = 0; k < d; ++k)
          to[k] += x[k];
      }
  });
  double* sum = sums.mutable_data_ptr<double>();
  double* most = weight.mutable_data_ptr<double>();
  const double out = 0.51 * std::sqrt(double(d));
  const double more = std::sqrt(double(d)) * std::sqrt(double(w)) / 3;
  const double share = std::ldexp(1, kInputBits - kGridBits - 1);
  for (int64_t p = 0; p < count; ++p) {
    const double* length = lengths.data() + pair[2 * p] * m;
    const double* top = tops.data() + pair[2 * p] * m;
    const double* other = lengths.data() + (num + pair[2 * p + 1]) * m;
    const double* largest = tops.data() + (num + pair[2 * p + 1]) * m;
    const double* power = powers + pair[2 * p + 1] * m;
    for (int64_t r = 0; r < m; ++r) {
      double* to = sum + p * units + unit[r];
      double one = top[r] * share, rounded = out;
      if (others > 0) {
        const double inverse = power[r] > 0 ? 1 / power[r] : 0;
        // Larger rows can't be rounded to integers: they count as infinite.
        one = largest[r] > kHuge ? HUGE_VAL : top[r] * power[r];
        rounded = out * other[r] * inverse + more;
        to[0] += length[r] * power[r];
        to[2 * count * units] += length[r] * other[r];
        to[3 * count * units] += other[r];
      }
      // A NaN of either is in the products of the lengths.
      to[count * units] += top[r] > 0 ? rounded : 0;
      to[4 * count * units] += length[r];
      double& all = most[unit[r]];
      all = all < one ? one : all;
    }
  }
  return {sums, weight, scale, total};
}

// Products of gradients and inputs, the columns from `first` to `end` of the
// gradients.
template <typename scalar_t>
void add_products(const Matrix<scalar_t>& grad,
                  const Matrix<scalar_t>& inner,
                  const std::vector<int64_t>& list,
                  const int64_t* at,
                  const double* by,
                  const double* power,
                  int64_t first,
                  int64_t end,
                  int64_t* to) {
  constexpr int64_t panel = kPanel<double>;
  std::vector<double> room(kBlock * (kStrip + panel) + kStrip * panel);
  double* const left = room.data();
  double* const right = left + kBlock * kStrip;
  double* const made = right + kBlock * panel;
  std::fill(right, made, 0.0);
  const int64_t count = list.size(), wide = end - first;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t depth = std::min(kBlock, count - begin);
    const int64_t* rows = list.data() + begin;
    for (int64_t i = 0; i < depth; ++i)
      round_row(grad.row(at[rows[i]]) + first, wide,
                by[rows[i]] * power[rows[i]], left + i, depth);
    for (int64_t j = 0; j < inner.width; j += panel) {
      const int64_t columns = std::min(panel, inner.width - j);
      for (int64_t i = 0; i < depth; ++i)
        round_row(inner.row(at[rows[i]]) + j, columns, 1 / power[rows[i]],
                  right + i * panel, 1);
      rows_times(left, right, depth, columns, made, wide);
      for (int64_t c = 0; c < wide; ++c)
        add_row(made + c * columns, columns, 1,
                to + (first + c) * inner.width + j);
    }
  }
}

Tensor clip_sums(Tensors grads,
                 Tensors inners,
                 const Tensor& rows,
                 const Tensor& owner,
                 const Tensor& pairs,
                 const Tensor& scale,
                 const Tensor& each,
                 int64_t only) {
  const int64_t m = rows.size(0), count = pairs.size(0);
  const int64_t d = grads[0].size(1);
  const int64_t w = inners.empty() ? 1 : inners[0].size(1);
  Tensor out =
      torch::stable::new_zeros(grads[0], {count, d, w}, ScalarType::Long);
  int64_t* to = out.mutable_data_ptr<int64_t>();
  const int64_t* at = rows.const_data_ptr<int64_t>();
  const int64_t* unit = owner.const_data_ptr<int64_t>();
  const int64_t* pair = pairs.const_data_ptr<int64_t>();
  const double* powers = scale.const_data_ptr<double>();
  const double* factor = each.const_data_ptr<double>();
  // Zero times what is not finite is not zero: those are left out.
  std::vector<int64_t> list;
  std::vector<double> by(m);
  for (int64_t r = 0; r < m; ++r) {
    by[r] = factor[unit[r]];
    if (by[r] > 0 && (only < 0 || unit[r] == only))
      list.push_back(r);
  }
  with_real(grads[0], [&](auto number) {
    using scalar_t = decltype(number);
    const auto given = matrices<scalar_t>(grads);
    const auto inputs = matrices<scalar_t>(inners);
    const int64_t strips = (d + kStrip - 1) / kStrip;
    const int64_t work = count * int64_t(list.size()) * d * w / 8;
    parallel_tasks(count * strips, work, [&] {
      return [&](int64_t task) {
        const int64_t p = task / strips, first = task % strips * kStrip;
        const int64_t end = std::min(first + kStrip, d);
        const auto& grad = given[pair[2 * p]];
        if (inputs.empty()) {
          for (const int64_t r : list)
            add_row(grad.row(at[r]) + first, end - first, by[r],
                    to + p * d + first);
          return;
        }
        const int64_t a = pair[2 * p + 1];
        std::vector<int64_t> some;
        // A row of zeros has no power.
        for (const int64_t r : list)
          if (powers[a * m + r] > 0)
            some.push_back(r);
        add_products(grad, inputs[a], some, at, by.data(), powers + a * m,
                     first, end, to + p * d * w);
      };
    });
  });
  return out;
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("clip_rows", TORCH_BOX(&pyg_trust::clip_rows));
  m.impl("clip_sizes", TORCH_BOX(&pyg_trust::clip_sizes));
  m.impl("clip_sums", TORCH_BOX(&pyg_trust::clip_sums));
}
