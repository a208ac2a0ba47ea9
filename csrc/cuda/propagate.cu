// Exact propagation on CUDA: AGP's Algorithm 1 (Wang et al. 2021) for all
// columns at once.
#include "device/propagate.h"

#include <torch/csrc/stable/library.h>

#include <optional>

#include "cuda/machine.cuh"

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// x: dense, or the rows (ptr, index, value) of a sparse matrix.
struct Signal {
  const Tensor* dense;
  const Tensor* ptr;
  const Tensor* index;
  const Tensor* value;
  int64_t columns;
};

template <typename scalar_t, typename store_t>
Tensor propagate_typed(const Tensor& rowptr,
                       const Tensor& col,
                       const Signal& x,
                       const Tensor& recv,
                       const Tensor& send,
                       const Tensor& weights,
                       const std::optional<Tensor>& scale,
                       bool three_term,
                       const std::optional<Tensor>& rows,
                       const std::optional<Tensor>& order) {
  const cuda::Guard guard(recv);
  const int64_t n = rowptr.numel() - 1;
  const int64_t num_out = rows ? rows->numel() : n;
  Tensor out = torch::stable::new_empty(recv, {num_out, x.columns});
  if (out.numel() == 0)
    return out;
  const auto make = [&] { return cuda::Machine(recv); };
  auto machine = make();
  const int64_t* wanted = rows ? rows->const_data_ptr<int64_t>() : nullptr;
  const device::Exact<scalar_t> all{
      rowptr.const_data_ptr<int64_t>(),
      col.const_data_ptr<int32_t>(),
      n,
      col.numel(),
      x.columns,
      x.columns,
      x.dense != nullptr ? x.dense->const_data_ptr<scalar_t>() : nullptr,
      x.columns,
      recv.const_data_ptr<scalar_t>(),
      send.const_data_ptr<scalar_t>(),
      cuda::on_host(weights, "weights"),
      weights.numel() - 1,
      out.mutable_data_ptr<scalar_t>(),
      x.columns,
      scale ? scale->const_data_ptr<scalar_t>() : nullptr,
      three_term,
      wanted,
      num_out,
      rows ? device::count_entries(
                 machine, rowptr.const_data_ptr<int64_t>(), wanted, num_out)
           : 0,
      order ? order->const_data_ptr<int64_t>() : nullptr};
  if (x.dense != nullptr)
    device::propagate<store_t>(machine, all);
  else
    device::propagate_entries<store_t>(
        make, all, x.ptr->const_data_ptr<int64_t>(),
        x.index->const_data_ptr<int64_t>(),
        x.value->const_data_ptr<scalar_t>());
  return out;
}

Tensor run(const Tensor& rowptr,
           const Tensor& col,
           const Signal& x,
           const Tensor& recv,
           const Tensor& send,
           const Tensor& weights,
           bool half,
           const std::optional<Tensor>& scale,
           bool three_term,
           const std::optional<Tensor>& rows,
           const std::optional<Tensor>& order) {
  const auto typed = recv.scalar_type() == ScalarType::Double
                         ? propagate_typed<double, double>
                     : half ? propagate_typed<float, Float16>
                            : propagate_typed<float, float>;
  return typed(rowptr, col, x, recv, send, weights, scale, three_term, rows,
               order);
}

Tensor propagate(const Tensor& rowptr,
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
  const Signal signal{&x, nullptr, nullptr, nullptr, x.size(1)};
  return run(rowptr, col, signal, recv, send, weights, half, scale, three_term,
             rows, order);
}

Tensor propagate_entries(const Tensor& rowptr,
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
  const Signal signal{nullptr, &ptr, &index, &value, columns};
  return run(rowptr, col, signal, recv, send, weights, half, scale, three_term,
             rows, order);
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CUDA, m) {
  m.impl("propagate", TORCH_BOX(&pyg_trust::propagate));
  m.impl("propagate_entries", TORCH_BOX(&pyg_trust::propagate_entries));
}
