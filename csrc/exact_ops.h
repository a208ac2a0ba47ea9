// The ops of exact propagation, from their tensors to the arguments of a
// device's kernels.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <type_traits>

#include "dispatch.h"
#include "half.h"

namespace pyg_trust {
namespace {  // what holds tensors is as hidden as they are

// x: dense, or the rows (ptr, index, value) of a sparse matrix.
struct Signal {
  const torch::stable::Tensor* dense;
  const torch::stable::Tensor* ptr;
  const torch::stable::Tensor* index;
  const torch::stable::Tensor* value;
  int64_t columns;
};

// The rest, as ops.cpp names it.
struct ExactArguments {
  const torch::stable::Tensor& rowptr;
  const torch::stable::Tensor& col;
  const torch::stable::Tensor& recv;
  const torch::stable::Tensor& send;
  const double* weights;
  int64_t levels;
  const std::optional<torch::stable::Tensor>& scale;
  bool three_term;
  const std::optional<torch::stable::Tensor>& rows;
  const std::optional<torch::stable::Tensor>& order;
  bool loops = false;     // CPU
  bool in_place = false;  // CPU
};

// Runs Device::propagate<scalar_t, store_t>(x, arguments): numbers, and what
// the levels are kept in.
template <typename Device>
struct ExactOps {
  using Tensor = torch::stable::Tensor;

  static Tensor run(const Signal& x, const ExactArguments& rest, bool half) {
    return with_real(rest.recv, [&](auto zero) {
      using scalar_t = decltype(zero);
      if constexpr (std::is_same_v<scalar_t, float>) {
        if (half)
          return Device::template propagate<float, Float16>(x, rest);
      }
      return Device::template propagate<scalar_t, scalar_t>(x, rest);
    });
  }

  static Tensor propagate(const Tensor& rowptr,
                          const Tensor& col,
                          const Tensor& x,
                          const Tensor& recv,
                          const Tensor& send,
                          const Tensor& weights,
                          bool half,
                          const std::optional<Tensor>& scale,
                          bool three_term,
                          const std::optional<Tensor>& rows,
                          const std::optional<Tensor>& order) {
    return run({&x, nullptr, nullptr, nullptr, x.size(1)},
               {rowptr, col, recv, send, on_host(weights, "weights"),
                weights.numel() - 1, scale, three_term, rows, order},
               half);
  }

  static Tensor propagate_entries(const Tensor& rowptr,
                                  const Tensor& col,
                                  const Tensor& ptr,
                                  const Tensor& index,
                                  const Tensor& value,
                                  int64_t columns,
                                  const Tensor& recv,
                                  const Tensor& send,
                                  const Tensor& weights,
                                  bool half,
                                  const std::optional<Tensor>& scale,
                                  bool three_term,
                                  const std::optional<Tensor>& rows,
                                  const std::optional<Tensor>& order) {
    return run({nullptr, &ptr, &index, &value, columns},
               {rowptr, col, recv, send, on_host(weights, "weights"),
                weights.numel() - 1, scale, three_term, rows, order},
               half);
  }

  static Tensor propagate_looped(const Tensor& rowptr,
                                 const Tensor& col,
                                 const std::optional<Tensor>& x,
                                 const std::optional<Tensor>& ptr,
                                 const std::optional<Tensor>& index,
                                 const std::optional<Tensor>& value,
                                 int64_t columns,
                                 const Tensor& recv,
                                 const Tensor& send,
                                 const Tensor& weights,
                                 bool half,
                                 const std::optional<Tensor>& scale,
                                 bool three_term,
                                 const std::optional<Tensor>& rows,
                                 const std::optional<Tensor>& order,
                                 bool loops,
                                 bool in_place) {
    const Signal signal =
        x ? Signal{&*x, nullptr, nullptr, nullptr, columns}
          : Signal{nullptr, &*ptr, &*index, &*value, columns};
    return run(signal,
               {rowptr, col, recv, send, on_host(weights, "weights"),
                weights.numel() - 1, scale, three_term, rows, order, loops,
                in_place},
               half);
  }
};

}  // namespace
}  // namespace pyg_trust
