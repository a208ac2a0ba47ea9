// The gradient of the logistic losses of a linear head on the CPU. A strip of
// rows of Z is read once: its margins, its slopes and what these add to the
// gradient are made while it is in the cache, by the chains of row_linear.cpp.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "gather.h"
#include "kernels.h"
#include "parallel.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;
using Numbers = std::vector<double>;

// Rows are summed in chunks, and these in their order: the same for any number
// of threads.
constexpr int64_t kChunkRows = 512;
constexpr int64_t kMostChunks = 64;
constexpr int64_t kStrip = 64;

// Numbers of a vector, and of a step.
constexpr int kLanes = 4;
using Part = Vector<double, kLanes>::type;

// e^x for |x| <= 708, and for others that of the nearest such number; NaN for
// NaN. x = k log 2 + r, |r| <= log(2) / 2, and Taylor's polynomial of degree
// 13 in r, whose rest is below 2^-57: together within 4 units in the last
// place.
PYG_TRUST_INLINE Part exponential(Part x) {
  using Words = Vector<int64_t, kLanes>::type;
  constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52: to integers
  // log 2, of which the first part times k is exact.
  constexpr double high = 6.93147180369123816490e-01;
  constexpr double low = 1.90821492927058770002e-10;
  constexpr double over[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                             1.0 / 362880,    1.0 / 40320,    1.0 / 5040,
                             1.0 / 720,       1.0 / 120,      1.0 / 24,
                             1.0 / 6,         0.5,            1.0,
                             1.0};
  const Part most = Part{} + 708;
  x = x > most ? most : x;
  x = x < -most ? -most : x;
  const Part shifted = x * 1.44269504088896338700 + shift;
  const Part k = shifted - shift;
  const Part r = (x - k * high) - k * low;
  Part sum = Part{} + 1.0 / 6227020800;
  for (const double factor : over)
    sum = sum * r + factor;
  const Words bits = (std::bit_cast<Words>(shifted) + 1023) << 52;
  return sum * std::bit_cast<Part>(bits);
}

// The derivative of the logistic loss in margins, in their place; whole
// vectors.
PYG_TRUST_CLONES void slopes_of(const double* target,
                                int64_t size,
                                double* margin) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const Part y = load<kLanes>(target + i), at = load<kLanes>(margin + i);
    store<kLanes>(margin + i, -y / (1 + exponential(y * at)));
  }
}

// The square of the norm of a row: eight sums side by side.
PYG_TRUST_CLONES double square_of(const double* row, int64_t d) {
  constexpr int lanes = 8;
  Vector<double, lanes>::type sum = {};
  int64_t k = 0;
  for (; k + lanes <= d; k += lanes) {
    const auto part = load<lanes>(row + k);
    sum += part * part;
  }
  double square = 0;
  for (; k < d; ++k)
    square += row[k] * row[k];
  for (int lane = 0; lane < lanes; ++lane)
    square += sum[lane];
  return square;
}

// A matrix in panels, as rows_times reads it on the right.
void to_panels(const double* from, int64_t rows, int64_t columns, double* to) {
  constexpr int64_t panel = kPanel<double>;
  for (int64_t j = 0; j < columns; j += panel)
    for (int64_t r = 0; r < rows; ++r, to += panel) {
      const double* row = from + r * columns + j;
      if (columns - j >= panel)
        std::memcpy(to, row, panel * sizeof(double));
      else
        std::fill(std::copy(row, from + (r + 1) * columns, to), to + panel, 0);
    }
}

int64_t whole_panels(int64_t columns) {
  constexpr int64_t panel = kPanel<double>;
  return (columns + panel - 1) / panel * panel;
}

// A gradient, [d, count], and the squares of its slopes, [count], of the
// outputs that are listed.
struct Gradient {
  std::vector<int64_t> outputs;
  int64_t d, width;  // of a row of Z and of Y
  int64_t count = static_cast<int64_t>(outputs.size());
  Tensor value, square;
  Numbers weights;

  Gradient(const Tensor& W, const std::optional<Tensor>& columns)
      : outputs(columns ? columns->numel() : W.size(1)),
        d(W.size(0)),
        width(W.size(1)),
        value(torch::stable::new_zeros(W, {d, count})),
        square(torch::stable::new_zeros(W, {count})),
        weights(d * whole_panels(count)) {
    std::iota(outputs.begin(), outputs.end(), 0);
    if (columns)
      std::copy_n(columns->const_data_ptr<int64_t>(), count, outputs.begin());
    const auto* from = W.const_data_ptr<double>();
    Numbers listed(d * count);
    for (int64_t k = 0; k < d; ++k)
      for (int64_t c = 0; c < count; ++c)
        listed[k * count + c] = from[k * width + outputs[c]];
    to_panels(listed.data(), d, count, weights.data());
  }

  // Adds `sign` times the gradient of the rows in a list, or of all; returns
  // the sum of the squares of these rows, if it is wanted.
  double add(const Tensor& Z,
             const Tensor& Y,
             const Tensor* list,
             bool sized,
             double sign) {
    const int64_t n = list != nullptr ? list->numel() : Z.size(0);
    const auto* at = list ? list->const_data_ptr<int64_t>() : nullptr;
    const auto* all = Z.const_data_ptr<double>();
    const auto* targets_of = Y.const_data_ptr<double>();
    if (n == 0 || count == 0)
      return 0;
    const int64_t rows =
        std::max(kChunkRows, (n + kMostChunks - 1) / kMostChunks);
    const int64_t chunks = (n + rows - 1) / rows, size = d * count;
    Numbers sums(chunks * size), squares(chunks * count), norms(chunks);
    parallel_tasks(chunks, n * d * (count + 3) / 4, [&] {
      return [&, copy = Numbers(at != nullptr ? kStrip * d : 0),
              panels = Numbers(kStrip * whole_panels(d)),
              targets = Numbers(kStrip * count), G = Numbers(kStrip * count),
              turned = Numbers(kStrip * count),
              more = Numbers(size)](int64_t chunk) mutable {
        double* sum = &sums[chunk * size];
        const int64_t end = std::min(n, (chunk + 1) * rows);
        for (int64_t first = chunk * rows; first < end; first += kStrip) {
          const int64_t some = std::min(kStrip, end - first);
          const double* z = all + first * d;
          for (int64_t r = 0; r < some; ++r) {
            const int64_t row = at != nullptr ? at[first + r] : first + r;
            const double* y = targets_of + row * width;
            for (int64_t c = 0; c < count; ++c)
              targets[r * count + c] = y[outputs[c]];
            if (at != nullptr)
              std::copy_n(all + row * d, d, &copy[r * d]);
          }
          if (at != nullptr)
            z = copy.data();
          for (int64_t r = 0; sized && r < some; ++r)
            norms[chunk] += square_of(z + r * d, d);
          rows_times(z, weights.data(), d, count, G.data(), some);
          slopes_of(targets.data(), (some * count + 3) / kLanes * kLanes,
                    G.data());
          double* square = &squares[chunk * count];
          for (int64_t r = 0; r < some; ++r)
            for (int64_t c = 0; c < count; ++c)
              square[c] += G[r * count + c] * G[r * count + c];
          for (int64_t c = 0; c < count; ++c)
            for (int64_t r = 0; r < some; ++r)
              turned[c * some + r] = G[r * count + c];
          to_panels(z, some, d, panels.data());
          rows_times(turned.data(), panels.data(), some, d, more.data(),
                     count);
          for (int64_t k = 0; k < size; ++k)
            sum[k] += more[k];
        }
      };
    });
    auto* out = value.mutable_data_ptr<double>();
    auto* squared = square.mutable_data_ptr<double>();
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      for (int64_t c = 0; c < count; ++c) {
        squared[c] += squares[chunk * count + c];
        for (int64_t k = 0; k < d; ++k)
          out[k * count + c] += sign * sums[chunk * size + c * d + k];
      }
    return std::accumulate(norms.begin(), norms.end(), 0.0);
  }
};

std::tuple<Tensor, Tensor> loss_gradient(
    const Tensor& Z,
    const Tensor& Y,
    const Tensor& W,
    const std::optional<Tensor>& columns) {
  Gradient made(W, columns);
  made.add(Z, Y, nullptr, false, 1);
  return {made.value, made.square};
}

std::tuple<Tensor, Tensor, Tensor> loss_change(const Tensor& Z,
                                               const Tensor& Y,
                                               const Tensor& list,
                                               const Tensor& old,
                                               const Tensor& old_Y,
                                               const Tensor& W) {
  Tensor sizes = torch::stable::new_empty(Z, {2});
  auto* size = sizes.mutable_data_ptr<double>();
  Gradient made(W, std::nullopt);
  size[0] = made.add(Z, Y, &list, true, 1);
  size[1] = made.add(old, old_Y, nullptr, true, -1);
  return {made.value, made.square, sizes};
}

// The two loops of BFGS for one output: from the gradient g to the step p, with
// `count` pairs (s, y) of d numbers each, the oldest first. Pairs without
// positive curvature have no part. `held` has room for two numbers a pair.
PYG_TRUST_CLONES void two_loops(const double* inverse,
                                const double* pairs,
                                int64_t count,
                                int64_t d,
                                double* held,
                                double* g,
                                double* p) {
  const auto dot = [d](const double* a, const double* b)
      __attribute__((always_inline)) {
    return std::inner_product(a, a + d, b, 0.0);
  };
  const auto add = [d](double* to, double share, const double* from)
      __attribute__((always_inline)) {
    for (int64_t k = 0; k < d; ++k)
      to[k] += share * from[k];
  };
  double* products = held + count;
  for (int64_t i = count - 1; i >= 0; --i) {
    const double *s = pairs + 2 * i * d, *y = s + d;
    products[i] = dot(s, y);
    if (products[i] > std::numeric_limits<double>::min())
      add(g, -(held[i] = dot(s, g) / products[i]), y);
  }
  std::fill(p, p + d, 0);
  for (int64_t j = 0; j < d; ++j)
    add(p, g[j], inverse + j * d);
  for (int64_t i = 0; i < count; ++i) {
    const double *s = pairs + 2 * i * d, *y = s + d;
    if (products[i] > std::numeric_limits<double>::min())
      add(p, held[i] - dot(y, p) / products[i], s);
  }
}

Tensor quasi_newton(const Tensor& grad,
                    const Tensor& inverse,
                    const Tensor& past,
                    int64_t count) {
  const int64_t d = grad.size(0), outputs = grad.size(1);
  Tensor step = torch::stable::new_empty(grad, {d, outputs});
  const auto* from = grad.const_data_ptr<double>();
  const auto* before = past.const_data_ptr<double>();
  const auto* blocks = inverse.const_data_ptr<double>();
  auto* to = step.mutable_data_ptr<double>();
  Numbers pairs(2 * count * d), held(2 * count), g(d), p(d);
  for (int64_t c = 0; c < outputs; ++c) {
    for (int64_t k = 0; k < d; ++k)
      g[k] = from[k * outputs + c];
    for (int64_t k = 0; k < 2 * count * d; ++k)
      pairs[k] = before[k * outputs + c];
    two_loops(blocks + c * d * d, pairs.data(), count, d, held.data(),
              g.data(), p.data());
    for (int64_t k = 0; k < d; ++k)
      to[k * outputs + c] = p[k];
  }
  return step;
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("loss_gradient", TORCH_BOX(&pyg_trust::loss_gradient));
  m.impl("loss_change", TORCH_BOX(&pyg_trust::loss_change));
  m.impl("quasi_newton", TORCH_BOX(&pyg_trust::quasi_newton));
}
