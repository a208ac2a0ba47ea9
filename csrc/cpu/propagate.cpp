// Exact propagation on the CPU: AGP's Algorithm 1 (Wang et al. 2021) for all
// columns at once, each level one gather over the rows with the degree
// scaling and the sum over levels fused into its end.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "advance.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename scalar_t, typename store_t>
Tensor propagate_typed(const Tensor& rowptr,
                       const Tensor& col,
                       const Tensor& x,
                       const Tensor& recv,
                       const Tensor& send,
                       const Tensor& weights) {
  const int64_t n = x.size(0), columns = x.size(1);
  const int64_t levels = weights.numel() - 1;
  const auto* w = weights.const_data_ptr<double>();
  // So many columns are in flight, in whole vectors: powers of two, then cache
  // lines.
  constexpr int64_t line = kCacheLine / sizeof(scalar_t);
  const int64_t together = std::min(columns, kColumns<scalar_t>);
  const int64_t stride =
      together < line
          ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(together)))
          : (together + line - 1) / line * line;

  Tensor out = torch::stable::new_empty(x, {n, columns});
  Scratch<store_t> one(n * stride, Pages::kHuge);
  Scratch<store_t> two(n * stride, Pages::kHuge);
  const auto* d_send = send.const_data_ptr<scalar_t>();
  Level<scalar_t, store_t> level;
  level.rowptr = rowptr.const_data_ptr<int64_t>();
  level.col = col.const_data_ptr<int32_t>();
  level.num_entries = col.numel();
  level.recv = recv.const_data_ptr<scalar_t>();
  level.send = d_send;
  level.ratio = 1;
  level.z_stride = columns;
  level.stride = stride;
  level.first = 0;
  for (int64_t first = 0; first < columns; first += together) {
    const int64_t count = std::min(together, columns - first);
    const auto* in = x.const_data_ptr<scalar_t>() + first;
    auto* z = out.mutable_data_ptr<scalar_t>() + first;
    store_t* current = one.get();
    store_t* next = two.get();
    by_rows(n, stride, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        store_t* row = current + u * stride;
        for (int64_t c = 0; c < count; ++c) {
          const scalar_t value = in[u * columns + c];
          z[u * columns + c] = static_cast<scalar_t>(w[0]) * value;
          row[c] = static_cast<store_t>(d_send[u] * value);
        }
        std::fill(row + count, row + stride, store_t{});
      }
    });
    level.z = z;
    level.columns = count;
    // Of the last columns no more vectors than they need.
    level.end = std::min(stride, (count + line - 1) / line * line);
    for (int64_t i = 1; i <= levels; ++i) {
      level.in = current;
      level.out = i < levels ? next : nullptr;
      level.weight = static_cast<scalar_t>(w[i]);
      by_rows(n, stride, [&](int64_t begin, int64_t end) {
        advance_rows(level, begin, end);
      });
      std::swap(current, next);
    }
  }
  return out;
}

Tensor propagate(const Tensor& rowptr,
                 const Tensor& col,
                 const Tensor& x,
                 const Tensor& recv,
                 const Tensor& send,
                 const Tensor& weights,
                 bool half) {
  if (x.scalar_type() == ScalarType::Double)
    return propagate_typed<double, double>(rowptr, col, x, recv, send,
                                           weights);
  if (half)
    return propagate_typed<float, BFloat16>(rowptr, col, x, recv, send,
                                            weights);
  return propagate_typed<float, float>(rowptr, col, x, recv, send, weights);
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("propagate", TORCH_BOX(&pyg_trust::propagate));
}
