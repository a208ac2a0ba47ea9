// Exact propagation on CUDA: AGP's Algorithm 1 (Wang et al. 2021) for all
// columns at once.
#include "device/propagate.h"

#include <torch/csrc/stable/library.h>

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
                       const Tensor& weights) {
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
          out.mutable_data_ptr<scalar_t>()});
  return out;
}

Tensor propagate(const Tensor& rowptr,
                 const Tensor& col,
                 const Tensor& x,
                 const Tensor& recv,
                 const Tensor& send,
                 const Tensor& weights,
                 bool half) {
  if (x.scalar_type() == ScalarType::Double)
    return propagate_typed<double, double>(rowptr, col, x, recv, send,
                                           weights);
  if (half)
    return propagate_typed<float, device::Half>(rowptr, col, x, recv, send,
                                                weights);
  return propagate_typed<float, float>(rowptr, col, x, recv, send, weights);
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CUDA, m) {
  m.impl("propagate", TORCH_BOX(&pyg_trust::propagate));
}
