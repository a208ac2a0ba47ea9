// Randomized propagation on CUDA: AGP (Wang et al. 2021, Algorithm 2).
#include "device/push.h"

#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "cuda/machine.cuh"
#include "levels.h"

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename scalar_t>
std::tuple<Tensor, Tensor> push_typed(const PushGraph<scalar_t>& graph,
                                      const Tensor& pull_rowptr,
                                      const Tensor& pull_col,
                                      const Tensor& recv,
                                      const Tensor& send,
                                      const Tensor& x,
                                      const Tensor& eps,
                                      const Tensor& ratio,
                                      const Tensor& keep,
                                      int64_t seed,
                                      int64_t first,
                                      double pull_above,
                                      bool deterministic) {
  const cuda::Guard guard(x);
  constexpr int64_t block = 64 / sizeof(scalar_t);
  const int64_t n = x.size(0), columns = x.size(1);
  Tensor out = torch::stable::new_empty(x, {n, columns});
  Tensor pushed = torch::stable::new_zeros(x, {(columns + block - 1) / block},
                                           ScalarType::Long);
  const device::Dense<scalar_t> all{graph,
                                    pull_rowptr.const_data_ptr<int64_t>(),
                                    pull_col.const_data_ptr<int32_t>(),
                                    recv.const_data_ptr<scalar_t>(),
                                    send.const_data_ptr<scalar_t>(),
                                    n,
                                    pull_col.numel(),
                                    x.const_data_ptr<scalar_t>(),
                                    eps.const_data_ptr<scalar_t>(),
                                    out.mutable_data_ptr<scalar_t>(),
                                    columns,
                                    cuda::on_host(ratio, "ratio"),
                                    cuda::on_host(keep, "keep"),
                                    ratio.numel(),
                                    static_cast<uint64_t>(seed),
                                    first,
                                    pull_above,
                                    pushed.mutable_data_ptr<int64_t>()};
  const auto make = [&] { return cuda::Machine(x); };
  if (deterministic)
    device::push<int64_t>(make, all);
  else
    device::push<scalar_t>(make, all);
  return {out, pushed};
}

std::tuple<Tensor, Tensor> push(const Tensor& rowptr,
                                const Tensor& col,
                                const std::optional<Tensor>& scale,
                                const Tensor& group_ptr,
                                const Tensor& group_end,
                                const Tensor& pull_rowptr,
                                const Tensor& pull_col,
                                const Tensor& recv,
                                const Tensor& send,
                                const Tensor& x,
                                const Tensor& eps,
                                const Tensor& ratio,
                                const Tensor& keep,
                                int64_t seed,
                                int64_t first,
                                double pull_above,
                                bool deterministic) {
  if (x.scalar_type() == ScalarType::Double)
    return push_typed(view<double>(rowptr, col, scale, group_ptr, group_end),
                      pull_rowptr, pull_col, recv, send, x, eps, ratio, keep,
                      seed, first, pull_above, deterministic);
  return push_typed(view<float>(rowptr, col, scale, group_ptr, group_end),
                    pull_rowptr, pull_col, recv, send, x, eps, ratio, keep,
                    seed, first, pull_above, deterministic);
}

template <typename scalar_t>
std::tuple<Tensor, Tensor, Tensor> push_sparse_typed(
    const PushGraph<scalar_t>& graph,
    const Tensor& col,
    const Tensor& send,
    const Tensor& sig_ptr,
    const Tensor& sig_node,
    const Tensor& sig_value,
    const Tensor& eps,
    const Tensor& prune,
    const Tensor& ratio,
    const Tensor& keep,
    int64_t seed,
    int64_t first,
    int64_t top_k,
    double threshold,
    bool deterministic) {
  const cuda::Guard guard(sig_value);
  const int64_t num_signals = sig_ptr.numel() - 1;
  const device::Sparse<scalar_t> all{graph,
                                     send.const_data_ptr<scalar_t>(),
                                     send.numel(),
                                     col.numel(),
                                     sig_ptr.const_data_ptr<int64_t>(),
                                     sig_node.const_data_ptr<int64_t>(),
                                     sig_value.const_data_ptr<scalar_t>(),
                                     sig_node.numel(),
                                     num_signals,
                                     eps.const_data_ptr<scalar_t>(),
                                     prune.const_data_ptr<scalar_t>(),
                                     cuda::on_host(ratio, "ratio"),
                                     cuda::on_host(keep, "keep"),
                                     ratio.numel(),
                                     static_cast<uint64_t>(seed),
                                     first,
                                     top_k,
                                     threshold};
  Tensor ptr = torch::stable::new_zeros(sig_ptr, {num_signals + 1});
  std::vector<Tensor> nodes, values;
  const auto make = [&] { return cuda::Machine(sig_value); };
  const auto allocate = [&](int64_t count) {
    nodes.push_back(torch::stable::new_empty(sig_node, {count}));
    values.push_back(torch::stable::new_empty(sig_value, {count}));
    return device::Entries<scalar_t>{
        nodes.back().mutable_data_ptr<int64_t>(),
        values.back().template mutable_data_ptr<scalar_t>()};
  };
  if (deterministic)
    device::push_sparse<int64_t>(make, all, ptr.mutable_data_ptr<int64_t>(),
                                 allocate);
  else
    device::push_sparse<scalar_t>(make, all, ptr.mutable_data_ptr<int64_t>(),
                                  allocate);
  if (nodes.size() == 1)
    return {ptr, nodes[0], values[0]};

  int64_t size = 0;
  for (const Tensor& part : nodes)
    size += part.numel();
  Tensor node = torch::stable::new_empty(sig_node, {size});
  Tensor value = torch::stable::new_empty(sig_value, {size});
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

std::tuple<Tensor, Tensor, Tensor> push_sparse(
    const Tensor& rowptr,
    const Tensor& col,
    const std::optional<Tensor>& scale,
    const Tensor& group_ptr,
    const Tensor& group_end,
    const Tensor& send,
    const Tensor& sig_ptr,
    const Tensor& sig_node,
    const Tensor& sig_value,
    const Tensor& eps,
    const Tensor& prune,
    const Tensor& ratio,
    const Tensor& keep,
    int64_t seed,
    int64_t first,
    int64_t top_k,
    double threshold,
    bool deterministic) {
  if (sig_value.scalar_type() == ScalarType::Double)
    return push_sparse_typed(
        view<double>(rowptr, col, scale, group_ptr, group_end), col, send,
        sig_ptr, sig_node, sig_value, eps, prune, ratio, keep, seed, first,
        top_k, threshold, deterministic);
  return push_sparse_typed(
      view<float>(rowptr, col, scale, group_ptr, group_end), col, send,
      sig_ptr, sig_node, sig_value, eps, prune, ratio, keep, seed, first,
      top_k, threshold, deterministic);
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CUDA, m) {
  m.impl("push", TORCH_BOX(&pyg_trust::push));
  m.impl("push_sparse", TORCH_BOX(&pyg_trust::push_sparse));
}
