// Randomized propagation on CUDA: AGP (Wang et al. 2021, Algorithm 2).
#include "device/push.h"

#include <torch/csrc/stable/library.h>

#include <tuple>
#include <vector>

#include "cuda/machine.cuh"
#include "push_ops.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

struct PushOnCuda {
  template <typename scalar_t>
  static void push(const Tensor& like, const Dense<scalar_t>& all) {
    const cuda::Guard guard(like);
    device::push([&] { return cuda::Machine(like); }, all);
  }

  template <typename scalar_t>
  static std::tuple<Tensor, Tensor, Tensor> push_sparse(
      const Tensor& like,
      const Tensor& like_value,
      const Sparse<scalar_t>& all) {
    const cuda::Guard guard(like);
    Tensor ptr = torch::stable::new_zeros(like, {all.num_signals + 1});
    std::vector<Tensor> nodes, values;
    const auto allocate = [&](int64_t count) {
      nodes.push_back(torch::stable::new_empty(like, {count}));
      values.push_back(torch::stable::new_empty(like_value, {count}));
      return device::Entries<scalar_t>{
          nodes.back().mutable_data_ptr<int64_t>(),
          values.back().template mutable_data_ptr<scalar_t>()};
    };
    device::push_sparse([&] { return cuda::Machine(like); }, all,
                        ptr.mutable_data_ptr<int64_t>(), allocate);
    if (nodes.size() == 1)
      return {ptr, nodes[0], values[0]};

    int64_t size = 0;
    for (const Tensor& part : nodes)
      size += part.numel();
    Tensor node = torch::stable::new_empty(like, {size});
    Tensor value = torch::stable::new_empty(like_value, {size});
    int64_t at = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const int64_t end = at + nodes[i].numel();
      Tensor node_part = torch::stable::narrow(node, 0, at, end - at);
      Tensor value_part = torch::stable::narrow(value, 0, at, end - at);
      torch::stable::copy_(node_part, nodes[i]);
      torch::stable::copy_(value_part, values[i]);
      at = end;
    }
    return {ptr, node, value};
  }
};
using CudaPushOps = PushOps<PushOnCuda>;

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CUDA, m) {
  m.impl("push", TORCH_BOX(&pyg_trust::CudaPushOps::push));
  m.impl("push_sparse", TORCH_BOX(&pyg_trust::CudaPushOps::push_sparse));
}
