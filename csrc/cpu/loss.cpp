// The gradient of the loss of a linear head on the CPU.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "gather.h"
#include "kernels.h"
#include "parallel.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// Rows are summed in chunks, and these in their order: the same for any number
// of threads.
constexpr int64_t kChunkRows = 512;
constexpr int64_t kMostChunks = 64;

std::tuple<Tensor, Tensor> loss_gradient(
    const Tensor& Z,
    const Tensor& Y,
    const Tensor& W,
    int64_t head,
    const std::optional<Tensor>& columns) {
  const int64_t n = Z.size(0), d = Z.size(1), outputs = W.size(1);
  std::vector<int64_t> listed(columns ? columns->numel() : outputs);
  if (columns)
    std::copy_n(columns->const_data_ptr<int64_t>(), listed.size(),
                listed.begin());
  else
    std::iota(listed.begin(), listed.end(), 0);
  const auto count = static_cast<int64_t>(listed.size());
  constexpr int64_t line = kCacheLine / sizeof(double);
  const int64_t stride = (d + line - 1) / line * line;
  Tensor value = torch::stable::new_empty(Z, {d, count});
  Tensor square = torch::stable::new_empty(Z, {count});
  auto* out = value.mutable_data_ptr<double>();
  auto* squared = square.mutable_data_ptr<double>();
  std::fill_n(out, d * count, 0.0);
  std::fill_n(squared, count, 0.0);
  if (n == 0 || count == 0)
    return {value, square};
  Scratch<double> weights(count * stride, Pages::kSmall);
  const auto* given = W.const_data_ptr<double>();
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t k = 0; k < d; ++k)
      weights[c * stride + k] = given[k * outputs + listed[c]];
  }
  const int64_t even = (n + kMostChunks - 1) / kMostChunks;
  const int64_t rows = std::max(kChunkRows, even);
  const int64_t chunks = (n + rows - 1) / rows;
  Scratch<double> sums(chunks * count * stride, Pages::kSmall);
  Scratch<double> squares(chunks * count, Pages::kSmall);
  const LossRows loss{Z.const_data_ptr<double>(),
                      Y.const_data_ptr<double>(),
                      weights.get(),
                      listed.data(),
                      d,
                      outputs,
                      count,
                      stride,
                      static_cast<Head>(head)};
  const int64_t work = n * d * (count + 3) / 4;
  parallel_tasks(chunks, work, [&] {
    return [&, room = Scratch<double>(2 * kLossStrip * count,
                                      Pages::kSmall)](int64_t chunk) mutable {
      kernels().loss_gradient(loss, chunk * rows,
                              std::min(n, (chunk + 1) * rows), room.get(),
                              sums.get() + chunk * count * stride,
                              squares.get() + chunk * count);
    };
  });
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const double* sum = sums.get() + chunk * count * stride;
    for (int64_t k = 0; k < d; ++k) {
      for (int64_t c = 0; c < count; ++c)
        out[k * count + c] += sum[c * stride + k];
    }
    for (int64_t c = 0; c < count; ++c)
      squared[c] += squares[chunk * count + c];
  }
  return {value, square};
}

// The two loops of BFGS for one output: from the gradient g to the step p, with
// `count` pairs (s, y) of d numbers each, the oldest first. Pairs without
// positive curvature have a product of 0, and no part.
PYG_TRUST_CLONES void two_loops(const double* inverse,
                                const double* pairs,
                                const double* products,
                                int64_t count,
                                int64_t d,
                                double* shares,
                                double* g,
                                double* p) {
  const auto dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (int64_t k = 0; k < d; ++k)
      sum += a[k] * b[k];
    return sum;
  };
  for (int64_t i = count - 1; i >= 0; --i) {
    const double *s = pairs + 2 * i * d, *y = s + d;
    shares[i] = products[i] == 0 ? 0 : dot(s, g) / products[i];
    for (int64_t k = 0; k < d; ++k)
      g[k] -= shares[i] * y[k];
  }
  for (int64_t k = 0; k < d; ++k)
    p[k] = 0;
  for (int64_t j = 0; j < d; ++j) {
    for (int64_t k = 0; k < d; ++k)
      p[k] += inverse[j * d + k] * g[j];
  }
  for (int64_t i = 0; i < count; ++i) {
    const double *s = pairs + 2 * i * d, *y = s + d;
    if (products[i] == 0)
      continue;
    const double share = shares[i] - dot(y, p) / products[i];
    for (int64_t k = 0; k < d; ++k)
      p[k] += share * s[k];
  }
}

Tensor quasi_newton(const Tensor& grad,
                    const Tensor& inverse,
                    const Tensor& past,
                    int64_t count) {
  const int64_t d = grad.size(0), outputs = grad.size(1);
  Tensor step = torch::stable::new_empty(grad, {d, outputs});
  auto* out = step.mutable_data_ptr<double>();
  const auto* from = grad.const_data_ptr<double>();
  const auto* held = past.const_data_ptr<double>();
  const auto* blocks = inverse.const_data_ptr<double>();
  std::vector<double> pairs(2 * count * d), products(count), shares(count);
  std::vector<double> g(d), p(d);
  for (int64_t c = 0; c < outputs; ++c) {
    for (int64_t k = 0; k < d; ++k)
      g[k] = from[k * outputs + c];
    for (int64_t k = 0; k < 2 * count * d; ++k)
      pairs[k] = held[k * outputs + c];
    for (int64_t i = 0; i < count; ++i) {
      const double *s = pairs.data() + 2 * i * d, *y = s + d;
      double sum = 0;
      for (int64_t k = 0; k < d; ++k)
        sum += s[k] * y[k];
      products[i] = sum > std::numeric_limits<double>::min() ? sum : 0;
    }
    two_loops(blocks + c * d * d, pairs.data(), products.data(), count, d,
              shares.data(), g.data(), p.data());
    for (int64_t k = 0; k < d; ++k)
      out[k * outputs + c] = p[k];
  }
  return step;
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("loss_gradient", TORCH_BOX(&pyg_trust::loss_gradient));
  m.impl("quasi_newton", TORCH_BOX(&pyg_trust::quasi_newton));
}
