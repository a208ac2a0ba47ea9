// Exact propagation on CUDA: AGP's Algorithm 1 (Wang et al. 2021) for all
// columns at once.
#include "device/propagate.h"

#include <torch/csrc/stable/library.h>

#include <optional>

#include "cuda/machine.cuh"

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename scalar_t, typename store_t>
Tensor propagate_typed(const Tensor& rowptr,
                       const Tensor& col,
                       const Tensor& x,
                       const Tensor& recv,
                       const Tensor& send,
                       const Tensor& weights,
                       const std::optional<Tensor>& scale,
                       bool three_term) {
  const cuda::Guard guard(x);
  Tensor out = torch::stable::new_empty(x, {x.size(0), x.size(1)});
  cuda::Machine machine(x);
  device::propagate<store_t>(
      machine,
      device::Exact<scalar_t>{
          rowptr.const_data_ptr<int64_t>(), col.const_data_ptr<int32_t>(),
          x.size(0), col.numel(), x.size(1), x.const_data_ptr<scalar_t>(),
          recv.const_data_ptr<scalar_t>(), send.const_data_ptr<scalar_t>(),
          cuda::on_host(weights, "weights"), weights.numel() - 1,
          out.mutable_data_ptr<scalar_t>(),
          scale ? scale->const_data_ptr<scalar_t>() : nullptr, three_term});
  return out;
}

Tensor propagate(const Tensor& rowptr,
                 const Tensor& col,
                 const Tensor& x,
                 const Tensor& recv,
                 const Tensor& send,
                 const Tensor& weights,
                 bool half,
                 const std::optional<Tensor>& scale,
                 bool three_term,
                 const std::optional<Tensor>& /* rows: taken by ops.py */,
                 const std::optional<Tensor>& /* order: of the CPU */) {
  const auto typed = x.scalar_type() == ScalarType::Double
                         ? propagate_typed<double, double>
                     : half ? propagate_typed<float, Float16>
                            : propagate_typed<float, float>;
  return typed(rowptr, col, x, recv, send, weights, scale, three_term);
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CUDA, m) {
  m.impl("propagate", TORCH_BOX(&pyg_trust::propagate));
}
