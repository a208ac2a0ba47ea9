// Disjoint random walks on CUDA: DRW and DRW-R (Ayle et al. 2023, Algorithms 2
// and 3), in rounds.
#include "device/walk.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cuda/machine.cuh"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

std::tuple<Tensor, Tensor> disjoint_walks(const Tensor& rowptr,
                                          const Tensor& col,
                                          const Tensor& roots,
                                          int64_t walk_length,
                                          int64_t restarts,
                                          int64_t seed) {
  const cuda::Guard guard(roots);
  cuda::Machine machine(roots);
  const device::Subgraphs found = device::disjoint_walks(
      machine,
      device::Walks{rowptr.const_data_ptr<int64_t>(),
                    col.const_data_ptr<int32_t>(), rowptr.numel() - 1,
                    roots.const_data_ptr<int64_t>(),
                    roots.numel(), walk_length, restarts,
                    static_cast<uint64_t>(seed)});
  Tensor ptr = torch::stable::new_empty(roots, {found.count + 1});
  Tensor node = torch::stable::new_empty(roots, {found.size});
  device::write_subgraphs(machine, found, ptr.mutable_data_ptr<int64_t>(),
                          node.mutable_data_ptr<int64_t>());
  return {ptr, node};
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CUDA, m) {
  m.impl("disjoint_walks", TORCH_BOX(&pyg_trust::disjoint_walks));
}
