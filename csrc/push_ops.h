// The ops of randomized propagation, from their tensors to the arguments of a
// device's kernels.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "dispatch.h"
#include "push.h"

namespace pyg_trust {
namespace {  // what holds tensors is as hidden as they are

// The levels of one propagation: Y_{i+1} / Y_i and w_i / Y_i.
struct Levels {
  const double* ratio;
  const double* keep;
  int64_t count;  // L

  Levels(const torch::stable::Tensor& ratio, const torch::stable::Tensor& keep)
      : ratio(on_host(ratio, "ratio")),
        keep(on_host(keep, "keep")),
        count(ratio.numel()) {}
};

// The dense signals of `push`, as ops.cpp names what they come with.
struct DenseArguments {
  const torch::stable::Tensor& pull_rowptr;
  const torch::stable::Tensor& pull_col;
  const torch::stable::Tensor& recv;
  const torch::stable::Tensor& send;
  const torch::stable::Tensor& x;
  const torch::stable::Tensor& eps;
  Levels levels;
  int64_t seed;
  int64_t first;
  double pull_above;
  bool only_pull;  // CPU: whether it ends where something is pushed
};

// The sparse signals of `push_sparse`.
struct SparseArguments {
  const torch::stable::Tensor& col;
  const torch::stable::Tensor& send;
  const torch::stable::Tensor& ptr;
  const torch::stable::Tensor& node;
  const torch::stable::Tensor& value;
  const torch::stable::Tensor& eps;
  const torch::stable::Tensor& prune;
  Levels levels;
  int64_t seed;
  int64_t first;
  int64_t top_k;
  double threshold;
};

template <typename scalar_t>
PushGraph<scalar_t> view(const torch::stable::Tensor& rowptr,
                         const torch::stable::Tensor& col,
                         const std::optional<torch::stable::Tensor>& scale,
                         const torch::stable::Tensor& group_ptr,
                         const torch::stable::Tensor& group_end) {
  return {rowptr.const_data_ptr<int64_t>(), col.const_data_ptr<int32_t>(),
          scale ? scale->const_data_ptr<scalar_t>() : nullptr,
          group_ptr.const_data_ptr<int64_t>(),
          group_end.const_data_ptr<int64_t>()};
}

// Runs Device::push(graph, arguments) or Device::push_sparse(graph, arguments)
// for a PushGraph of float or double.
template <typename Device>
struct PushOps {
  using Tensor = torch::stable::Tensor;

  static std::tuple<Tensor, Tensor> push(const Tensor& rowptr,
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
                                         bool only_pull) {
    return with_real(x, [&](auto zero) {
      return Device::push(
          view<decltype(zero)>(rowptr, col, scale, group_ptr, group_end),
          DenseArguments{pull_rowptr, pull_col, recv, send, x, eps,
                         Levels(ratio, keep), seed, first, pull_above,
                         only_pull});
    });
  }

  static std::tuple<Tensor, Tensor, Tensor> push_sparse(
      const Tensor& rowptr,
      const Tensor& col,
      const std::optional<Tensor>& scale,
      const Tensor& group_ptr,
      const Tensor& group_end,
      const Tensor& send,
      const Tensor& ptr,
      const Tensor& node,
      const Tensor& value,
      const Tensor& eps,
      const Tensor& prune,
      const Tensor& ratio,
      const Tensor& keep,
      int64_t seed,
      int64_t first,
      int64_t top_k,
      double threshold) {
    return with_real(value, [&](auto zero) {
      return Device::push_sparse(
          view<decltype(zero)>(rowptr, col, scale, group_ptr, group_end),
          SparseArguments{col, send, ptr, node, value, eps, prune,
                          Levels(ratio, keep), seed, first, top_k,
                          threshold});
    });
  }
};

}  // namespace
}  // namespace pyg_trust
