// The one place where the dtype of a tensor becomes a type. Which device's
// kernels run is torch's dispatch: an op that both devices have takes its
// tensors apart once, in push_ops.h.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>

namespace pyg_trust {

// run(double()) or run(float()), as the numbers in `of` are.
template <typename Run>
auto with_real(const torch::stable::Tensor& of, const Run& run) {
  using torch::headeronly::ScalarType;
  if (of.scalar_type() == ScalarType::Double)
    return run(double{});
  STD_TORCH_CHECK(of.scalar_type() == ScalarType::Float,
                  "needs numbers in float32 or float64");
  return run(float{});
}

// run(data) with the indices in `of`, int64 or int32.
template <typename Run>
auto with_index(const torch::stable::Tensor& of, const Run& run) {
  using torch::headeronly::ScalarType;
  if (of.scalar_type() == ScalarType::Long)
    return run(of.const_data_ptr<int64_t>());
  STD_TORCH_CHECK(of.scalar_type() == ScalarType::Int,
                  "needs indices in int32 or int64");
  return run(of.const_data_ptr<int32_t>());
}

// float64 numbers that the host reads, whichever device runs the rest.
inline const double* on_host(const torch::stable::Tensor& tensor,
                             const char* name) {
  STD_TORCH_CHECK(tensor.is_cpu(), "'", name, "' needs to be on the CPU");
  return tensor.const_data_ptr<double>();
}

}  // namespace pyg_trust
