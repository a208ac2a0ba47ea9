// What the kernels of AGP read from their tensors.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

#include "push.h"

namespace pyg_trust {

// The levels of one propagation: Y_{i+1} / Y_i and w_i / Y_i.
struct Levels {
  const double* ratio;
  const double* keep;
  int64_t count;  // L

  Levels(const torch::stable::Tensor& ratio, const torch::stable::Tensor& keep)
      : ratio(ratio.const_data_ptr<double>()),
        keep(keep.const_data_ptr<double>()),
        count(ratio.numel()) {}
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

}  // namespace pyg_trust
