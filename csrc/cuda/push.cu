// Randomized propagation on CUDA: AGP (Wang et al. 2021, Algorithm 2).
#include "device/push.h"

#include <torch/csrc/stable/library.h>

#include "cuda/machine.cuh"
#include "push_ops.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

struct PushOnCuda {
  template <typename scalar_t>
  static void push(const Tensor& like, const Dense<scalar_t>& all) {
    const cuda::Guard guard(like);
    device::push([&] { return cuda::Machine(like); }, all);
  }
};

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CUDA, m) {
  m.impl("push", TORCH_BOX(&pyg_trust::PushOp<pyg_trust::PushOnCuda>::push));
}
