// Randomized propagation, from the tensors of its op to the arguments of a
// device's kernels.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "dispatch.h"
#include "push.h"

namespace pyg_trust {
namespace {  // what holds tensors is as hidden as they are

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

// Runs Device::push(like, Dense) in float or double.
template <typename Device>
struct PushOp {
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
      using scalar_t = decltype(zero);
      constexpr int64_t block = 64 / sizeof(scalar_t);
      const int64_t n = x.size(0), columns = x.size(1);
      Tensor z = torch::stable::new_empty(x, {n, columns});
      Tensor pushed =
          torch::stable::new_zeros(x, {(columns + block - 1) / block},
                                   torch::headeronly::ScalarType::Long);
      Device::push(
          x, Dense<scalar_t>{
                 view<scalar_t>(rowptr, col, scale, group_ptr, group_end),
                 pull_rowptr.const_data_ptr<int64_t>(),
                 pull_col.const_data_ptr<int32_t>(),
                 recv.const_data_ptr<scalar_t>(),
                 send.const_data_ptr<scalar_t>(), n, pull_col.numel(),
                 x.const_data_ptr<scalar_t>(), eps.const_data_ptr<scalar_t>(),
                 z.mutable_data_ptr<scalar_t>(), columns,
                 on_host(ratio, "ratio"), on_host(keep, "keep"), ratio.numel(),
                 static_cast<uint64_t>(seed), first, pull_above,
                 pushed.mutable_data_ptr<int64_t>(), only_pull});
      return std::tuple{z, pushed};
    });
  }
};

}  // namespace
}  // namespace pyg_trust
