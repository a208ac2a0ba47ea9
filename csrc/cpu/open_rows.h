// Between tensors and what the kernels of rows with room read and make.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pull.h"

namespace pyg_trust {

inline OpenRows open_rows(const torch::stable::Tensor& start,
                          const torch::stable::Tensor& length,
                          const torch::stable::Tensor& col) {
  return {start.const_data_ptr<int64_t>(), length.const_data_ptr<int64_t>(),
          col.const_data_ptr<int32_t>()};
}

inline torch::stable::Tensor to_tensor(const std::vector<int64_t>& nodes,
                                       const torch::stable::Tensor& like) {
  const auto count = static_cast<int64_t>(nodes.size());
  torch::stable::Tensor made = torch::stable::new_empty(like, {count});
  std::copy(nodes.begin(), nodes.end(), made.mutable_data_ptr<int64_t>());
  return made;
}

}  // namespace pyg_trust
