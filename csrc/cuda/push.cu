// Randomized propagation on CUDA: AGP (Wang et al. 2021, Algorithm 2).
#include "device/push.h"

#include <torch/csrc/stable/library.h>

#include <tuple>
#include <vector>

#include "cuda/machine.cuh"
#include "push_ops.h"

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

struct PushOnCuda {
  template <typename scalar_t>
  static std::tuple<Tensor, Tensor> push(const PushGraph<scalar_t>& graph,
                                         const DenseArguments& p) {
    const cuda::Guard guard(p.x);
    constexpr int64_t block = 64 / sizeof(scalar_t);
    const int64_t n = p.x.size(0), columns = p.x.size(1);
    Tensor out = torch::stable::new_empty(p.x, {n, columns});
    Tensor pushed = torch::stable::new_zeros(
        p.x, {(columns + block - 1) / block}, ScalarType::Long);
    const device::Dense<scalar_t> all{graph,
                                      p.pull_rowptr.const_data_ptr<int64_t>(),
                                      p.pull_col.const_data_ptr<int32_t>(),
                                      p.recv.const_data_ptr<scalar_t>(),
                                      p.send.const_data_ptr<scalar_t>(),
                                      n,
                                      p.pull_col.numel(),
                                      p.x.const_data_ptr<scalar_t>(),
                                      p.eps.const_data_ptr<scalar_t>(),
                                      out.mutable_data_ptr<scalar_t>(),
                                      columns,
                                      p.levels.ratio,
                                      p.levels.keep,
                                      p.levels.count,
                                      static_cast<uint64_t>(p.seed),
                                      p.first,
                                      p.pull_above,
                                      pushed.mutable_data_ptr<int64_t>()};
    device::push([&] { return cuda::Machine(p.x); }, all);
    return {out, pushed};
  }

  template <typename scalar_t>
  static std::tuple<Tensor, Tensor, Tensor> push_sparse(
      const PushGraph<scalar_t>& graph,
      const SparseArguments& p) {
    const cuda::Guard guard(p.value);
    const int64_t num_signals = p.ptr.numel() - 1;
    const device::Sparse<scalar_t> all{graph,
                                       p.send.const_data_ptr<scalar_t>(),
                                       p.send.numel(),
                                       p.col.numel(),
                                       p.ptr.const_data_ptr<int64_t>(),
                                       p.node.const_data_ptr<int64_t>(),
                                       p.value.const_data_ptr<scalar_t>(),
                                       p.node.numel(),
                                       num_signals,
                                       p.eps.const_data_ptr<scalar_t>(),
                                       p.prune.const_data_ptr<scalar_t>(),
                                       p.levels.ratio,
                                       p.levels.keep,
                                       p.levels.count,
                                       static_cast<uint64_t>(p.seed),
                                       p.first,
                                       p.top_k,
                                       p.threshold};
    Tensor ptr = torch::stable::new_zeros(p.ptr, {num_signals + 1});
    std::vector<Tensor> nodes, values;
    const auto allocate = [&](int64_t count) {
      nodes.push_back(torch::stable::new_empty(p.node, {count}));
      values.push_back(torch::stable::new_empty(p.value, {count}));
      return device::Entries<scalar_t>{
          nodes.back().mutable_data_ptr<int64_t>(),
          values.back().template mutable_data_ptr<scalar_t>()};
    };
    device::push_sparse([&] { return cuda::Machine(p.value); }, all,
                        ptr.mutable_data_ptr<int64_t>(), allocate);
    if (nodes.size() == 1)
      return {ptr, nodes[0], values[0]};

    int64_t size = 0;
    for (const Tensor& part : nodes)
      size += part.numel();
    Tensor node = torch::stable::new_empty(p.node, {size});
    Tensor value = torch::stable::new_empty(p.value, {size});
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
