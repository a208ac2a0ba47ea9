// The gradient of the loss of a linear head on the CPU.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

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
constexpr int64_t kMostTile = 8;

std::tuple<Tensor, Tensor> loss_gradient(const Tensor& Z,
                                         const Tensor& Y,
                                         const Tensor& W,
                                         int64_t head) {
  const int64_t n = Z.size(0), d = Z.size(1), outputs = W.size(1);
  const int64_t lanes = outputs > 4 ? 8 : outputs > 2 ? 4 : outputs;
  const int64_t stride =
      lanes == 0 ? 0 : (outputs + lanes - 1) / lanes * lanes;
  Tensor value = torch::stable::new_empty(Z, {d, outputs});
  Tensor square = torch::stable::new_empty(Z, {1});
  auto* out = value.mutable_data_ptr<double>();
  std::fill_n(out, d * outputs, 0.0);
  auto& total = square.mutable_data_ptr<double>()[0];
  total = 0;
  if (n == 0 || outputs == 0)
    return {value, square};
  Scratch<double> weights(d * stride, Pages::kSmall);
  const auto* given = W.const_data_ptr<double>();
  for (int64_t k = 0; k < d; ++k)
    std::copy_n(given + k * outputs, outputs, weights.get() + k * stride);
  const int64_t even = (n + kMostChunks - 1) / kMostChunks;
  const int64_t rows = std::max(kChunkRows, even);
  const int64_t chunks = (n + rows - 1) / rows;
  Scratch<double> sums(chunks * d * stride, Pages::kSmall);
  Scratch<double> squares(chunks, Pages::kSmall);
  const LossRows loss{Z.const_data_ptr<double>(),
                      Y.const_data_ptr<double>(),
                      weights.get(),
                      d,
                      outputs,
                      stride,
                      static_cast<Head>(head)};
  parallel_tasks(chunks, n * d, [&] {
    return [&, room = Scratch<double>(kMostTile * stride, Pages::kSmall)](
               int64_t chunk) mutable {
      squares[chunk] = kernels().loss_gradient(
          loss, chunk * rows, std::min(n, (chunk + 1) * rows), room.get(),
          sums.get() + chunk * d * stride);
    };
  });
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const double* sum = sums.get() + chunk * d * stride;
    for (int64_t k = 0; k < d; ++k) {
      for (int64_t c = 0; c < outputs; ++c)
        out[k * outputs + c] += sum[k * stride + c];
    }
    total += squares[chunk];
  }
  return {value, square};
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("loss_gradient", TORCH_BOX(&pyg_trust::loss_gradient));
}
