// Noisy copies of a sparse matrix of bits on CUDA (Bojchevski et al. 2020,
// Section 3): those of the CPU.
#include "device/flip.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cuda/machine.cuh"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

std::tuple<Tensor, Tensor> flip_bits(const Tensor& rowptr,
                                     const Tensor& col,
                                     int64_t num_cols,
                                     double p_plus,
                                     double p_minus,
                                     int64_t cells,
                                     int64_t seed,
                                     int64_t first,
                                     int64_t num_samples) {
  const cuda::Guard guard(rowptr);
  cuda::Machine machine(rowptr);
  const int64_t n = rowptr.numel() - 1;
  const device::Flips flips{
      {rowptr.const_data_ptr<int64_t>(), col.const_data_ptr<int32_t>(), n,
       num_cols, static_cast<Cells>(cells)},
      col.numel(),
      p_plus,
      p_minus,
      static_cast<uint64_t>(seed),
      first,
      num_samples};
  STD_TORCH_CHECK(p_plus <= 0 || flips.x.count() <= kManyCells,
                  "more than 10^9 cells need the CPU");
  STD_TORCH_CHECK(num_samples * n < int64_t{1} << 32,
                  "too many rows in all samples");
  const device::Bits bits = device::flip_bits(machine, flips);
  Tensor ptr = torch::stable::new_zeros(rowptr, {num_samples * n + 1});
  Tensor out = torch::stable::new_empty(col, {bits.count});
  device::write_bits(machine, flips, bits, ptr.mutable_data_ptr<int64_t>(),
                     out.mutable_data_ptr<int32_t>());
  return {ptr, out};
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CUDA, m) {
  m.impl("flip_bits", TORCH_BOX(&pyg_trust::flip_bits));
}
