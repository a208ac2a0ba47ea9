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
#include <utility>
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

// W as LossRows has it, of the outputs that are listed.
Scratch<double> by_output(const Tensor& W,
                          const std::vector<int64_t>& listed,
                          int64_t stride) {
  const int64_t d = W.size(0), outputs = W.size(1);
  const auto count = static_cast<int64_t>(listed.size());
  Scratch<double> weights(count * stride, Pages::kSmall);
  const auto* given = W.const_data_ptr<double>();
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t k = 0; k < d; ++k)
      weights[c * stride + k] = given[k * outputs + listed[c]];
  }
  return weights;
}

int64_t whole_lines(int64_t d) {
  constexpr int64_t line = kCacheLine / sizeof(double);
  return (d + line - 1) / line * line;
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

// Rows `list` of Z and Y, a strip at a time side by side.
class Listed {
 public:
  explicit Listed(const LossRows& loss)
      : strip_(loss),
        Z_(kLossStrip * loss.d, Pages::kSmall),
        Y_(kLossStrip * loss.outputs, Pages::kSmall) {
    strip_.Z = Z_.get();
    strip_.Y = Y_.get();
  }

  const LossRows& take(const LossRows& loss,
                       const int64_t* list,
                       int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(loss.Z + list[r] * loss.d, loss.d, Z_.get() + r * loss.d);
      std::copy_n(loss.Y + list[r] * loss.outputs, loss.outputs,
                  Y_.get() + r * loss.outputs);
    }
    return strip_;
  }

 private:
  LossRows strip_;
  Scratch<double> Z_, Y_;
};

// Adds `sign` times the gradient of n rows, of a list if there is one, to out:
// [d, count]; the squares of the slopes to `squared`: [count]; and returns the
// sum of the squares of the rows, if it is wanted.
double add_gradient(const LossRows& loss,
                    const int64_t* list,
                    int64_t n,
                    bool wanted,
                    double sign,
                    double* out,
                    double* squared) {
  const int64_t d = loss.d, count = loss.count, stride = loss.stride;
  if (n == 0 || count == 0)
    return 0;
  const int64_t even = (n + kMostChunks - 1) / kMostChunks;
  const int64_t rows = std::max(kChunkRows, even);
  const int64_t chunks = (n + rows - 1) / rows;
  Scratch<double> sums(chunks * count * stride, Pages::kSmall);
  Scratch<double> squares(chunks * count, Pages::kSmall);
  std::vector<double> sizes(chunks, 0.0);
  const int64_t work = n * d * (count + 3) / 4;
  parallel_tasks(chunks, work, [&] {
    return [&, room = Scratch<double>(2 * kLossStrip * count, Pages::kSmall),
            listed = Listed(loss)](int64_t chunk) mutable {
      double* sum = sums.get() + chunk * count * stride;
      double* square = squares.get() + chunk * count;
      const int64_t end = std::min(n, (chunk + 1) * rows);
      if (list == nullptr)
        kernels().loss_gradient(loss, chunk * rows, end, room.get(), sum,
                                square);
      for (int64_t r = chunk * rows; list != nullptr && r < end;
           r += kLossStrip) {
        const int64_t some = std::min(kLossStrip, end - r);
        kernels().loss_gradient(listed.take(loss, list + r, some), 0, some,
                                room.get(), sum, square);
      }
      for (int64_t r = chunk * rows; wanted && r < end; ++r) {
        const int64_t at = list == nullptr ? r : list[r];
        sizes[chunk] += square_of(loss.Z + at * d, d);
      }
    };
  });
  double size = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const double* sum = sums.get() + chunk * count * stride;
    for (int64_t k = 0; k < d; ++k) {
      for (int64_t c = 0; c < count; ++c)
        out[k * count + c] += sign * sum[c * stride + k];
    }
    for (int64_t c = 0; c < count; ++c)
      squared[c] += squares[chunk * count + c];
    size += sizes[chunk];
  }
  return size;
}

// A gradient and the squares of its slopes, by output, of the outputs `listed`.
struct Gradient {
  Tensor value, square;
  std::vector<int64_t> listed;
  Scratch<double> weights;
  LossRows loss;

  Gradient(const Tensor& Z,
           const Tensor& Y,
           const Tensor& W,
           std::vector<int64_t> outputs)
      : value(torch::stable::new_zeros(Z, {Z.size(1), count_of(outputs)})),
        square(torch::stable::new_zeros(Z, {count_of(outputs)})),
        listed(std::move(outputs)),
        weights(by_output(W, listed, whole_lines(Z.size(1)))),
        loss{Z.const_data_ptr<double>(), Y.const_data_ptr<double>(),
             weights.get(), listed.data(), Z.size(1), W.size(1),
             count_of(listed), whole_lines(Z.size(1))} {}

  double add(const int64_t* list, int64_t n, bool wanted, double sign) {
    return add_gradient(loss, list, n, wanted, sign,
                        value.mutable_data_ptr<double>(),
                        square.mutable_data_ptr<double>());
  }

  static int64_t count_of(const std::vector<int64_t>& outputs) {
    return static_cast<int64_t>(outputs.size());
  }
};

std::vector<int64_t> all_of(int64_t count) {
  std::vector<int64_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::tuple<Tensor, Tensor> loss_gradient(
    const Tensor& Z,
    const Tensor& Y,
    const Tensor& W,
    const std::optional<Tensor>& columns) {
  std::vector<int64_t> listed = all_of(columns ? columns->numel() : W.size(1));
  if (columns)
    std::copy_n(columns->const_data_ptr<int64_t>(), listed.size(),
                listed.begin());
  Gradient made(Z, Y, W, std::move(listed));
  made.add(nullptr, Z.size(0), false, 1);
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
  Gradient made(Z, Y, W, all_of(W.size(1)));
  size[0] = made.add(list.const_data_ptr<int64_t>(), list.numel(), true, 1);
  made.loss.Z = old.const_data_ptr<double>();
  made.loss.Y = old_Y.const_data_ptr<double>();
  size[1] = made.add(nullptr, old.size(0), true, -1);
  return {made.value, made.square, sizes};
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
  m.impl("loss_change", TORCH_BOX(&pyg_trust::loss_change));
  m.impl("quasi_newton", TORCH_BOX(&pyg_trust::quasi_newton));
}
