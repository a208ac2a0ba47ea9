// Pulling rows of one level of propagation on the CPU.
#include "pull.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "dispatch.h"
#include "kernels.h"
#include "open_rows.h"
#include "parallel.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// Of all rows that are sent: they come from the cache as fast as they are asked
// for, and to fetch them ahead takes as long as to sum them.
constexpr int64_t kNearBytes = 1 << 23;

void pull_rows(const Tensor& start,
               const Tensor& length,
               const Tensor& col,
               const std::optional<Tensor>& list,
               const Tensor& in,
               const Tensor& recv,
               const Tensor& send,
               const std::optional<Tensor>& out,
               const std::optional<Tensor>& z,
               double weight) {
  const int64_t count = list ? list->numel() : start.numel();
  with_real(in, [&](auto zero) {
    using scalar_t = decltype(zero);
    Pull<scalar_t> step;
    step.rows = open_rows(start, length, col);
    step.list = list ? list->const_data_ptr<int64_t>() : nullptr;
    step.in = in.const_data_ptr<scalar_t>();
    step.columns = in.size(1);
    step.near = !list && in.numel() * int64_t{sizeof(scalar_t)} <= kNearBytes;
    step.recv = recv.const_data_ptr<scalar_t>();
    step.send = send.const_data_ptr<scalar_t>();
    step.out = out ? out->mutable_data_ptr<scalar_t>() : nullptr;
    step.z = z ? z->mutable_data_ptr<scalar_t>() : nullptr;
    step.weight = static_cast<scalar_t>(weight);
    constexpr int64_t task = 256;
    parallel_tasks((count + task - 1) / task, count * step.columns, [&] {
      return [&](int64_t k) {
        kernels_of<PullKernel<scalar_t>>().pull(
            step, k * task, std::min(count, (k + 1) * task));
      };
    });
  });
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("pull_rows", TORCH_BOX(&pyg_trust::pull_rows));
}
