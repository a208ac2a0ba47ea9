// Exact propagation on CUDA: AGP's Algorithm 1 (Wang et al. 2021) for all
// columns at once.
#include "device/propagate.h"

#include <torch/csrc/stable/library.h>

#include "cuda/machine.cuh"
#include "exact_ops.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

struct ExactOnCuda {
  template <typename scalar_t, typename store_t>
  static Tensor propagate(const Signal& x, const ExactArguments& p) {
    const cuda::Guard guard(p.recv);
    const int64_t n = p.rowptr.numel() - 1;
    const int64_t num_out = p.rows ? p.rows->numel() : n;
    Tensor out = torch::stable::new_empty(p.recv, {num_out, x.columns});
    if (out.numel() == 0)
      return out;
    const auto make = [&] { return cuda::Machine(p.recv); };
    auto machine = make();
    const int64_t* wanted =
        p.rows ? p.rows->const_data_ptr<int64_t>() : nullptr;
    const device::Exact<scalar_t> all{
        p.rowptr.const_data_ptr<int64_t>(),
        p.col.const_data_ptr<int32_t>(),
        n,
        p.col.numel(),
        x.columns,
        x.columns,
        x.dense != nullptr ? x.dense->const_data_ptr<scalar_t>() : nullptr,
        x.columns,
        p.recv.const_data_ptr<scalar_t>(),
        p.send.const_data_ptr<scalar_t>(),
        p.weights,
        p.levels,
        out.mutable_data_ptr<scalar_t>(),
        x.columns,
        p.scale ? p.scale->const_data_ptr<scalar_t>() : nullptr,
        p.three_term,
        wanted,
        num_out,
        p.rows ? device::count_entries(
                   machine, p.rowptr.const_data_ptr<int64_t>(), wanted, num_out)
             : 0,
        p.order ? p.order->const_data_ptr<int64_t>() : nullptr};
    if (x.dense != nullptr)
      device::propagate<store_t>(machine, all);
    else
      device::propagate_entries<store_t>(
          make, all, x.ptr->const_data_ptr<int64_t>(),
          x.index->const_data_ptr<int64_t>(),
          x.value->const_data_ptr<scalar_t>());
    return out;
  }
};
using CudaExactOps = ExactOps<ExactOnCuda>;

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CUDA, m) {
  m.impl("propagate", TORCH_BOX(&pyg_trust::CudaExactOps::propagate));
  m.impl("propagate_entries",
         TORCH_BOX(&pyg_trust::CudaExactOps::propagate_entries));
}
