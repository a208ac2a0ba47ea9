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

#include "gather.h"
#include "parallel.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kRowsPerTask = 256;

// One level. Buffers have `stride` columns, of which the first `columns` are
// real; the others stay zero.
template <typename scalar_t, typename store_t>
struct Level {
  const int64_t* rowptr;
  const int32_t* col;
  const store_t* in;     // send * P^i x
  store_t* out;          // send * P^(i+1) x
  const scalar_t* recv;  // d^-a
  const scalar_t* send;  // d^-b
  scalar_t* z;           // += weight * P^(i+1) x
  scalar_t weight;
  int64_t num_entries;
  int64_t stride;
  int64_t columns;
  bool last;
};

// Rows [begin, end) of a level, for the `width` columns from `first` on.
template <int width, typename scalar_t, typename store_t>
inline __attribute__((always_inline)) void advance(
    const Level<scalar_t, store_t>& level,
    int64_t begin,
    int64_t end,
    int64_t first) {
  const int64_t columns = std::min<int64_t>(width, level.columns - first);
  gather<width, scalar_t>(
      level.rowptr, level.col, level.num_entries, level.in + first,
      level.stride, begin, end, [&](int64_t v, scalar_t* sum) {
        const scalar_t recv = level.recv[v];
        for (int c = 0; c < width; ++c)
          sum[c] *= recv;
        if (level.weight != 0) {
          scalar_t* z = level.z + v * level.columns + first;
          for (int c = 0; c < columns; ++c)
            z[c] += level.weight * sum[c];
        }
        if (!level.last) {
          const scalar_t send = level.send[v];
          store_t* out = level.out + v * level.stride + first;
          for (int c = 0; c < width; ++c)
            out[c] = static_cast<store_t>(send * sum[c]);
        }
      });
}

template <typename scalar_t, typename store_t>
inline __attribute__((always_inline)) void advance_columns(
    const Level<scalar_t, store_t>& level,
    int64_t begin,
    int64_t end) {
  constexpr int line = kCacheLine / sizeof(scalar_t);
  int64_t first = 0;
  for (; first + 4 * line <= level.stride; first += 4 * line)
    advance<4 * line>(level, begin, end, first);
  const int64_t rest = level.stride - first;
  if (rest >= 3 * line)
    advance<3 * line>(level, begin, end, first);
  else if (rest >= 2 * line)
    advance<2 * line>(level, begin, end, first);
  else if (rest >= line)
    advance<line>(level, begin, end, first);
  else if (rest >= line / 2 && line / 2 > 4)
    advance<line / 2>(level, begin, end, first);
  else if (rest >= 4)
    advance<4>(level, begin, end, first);
  else if (rest >= 2)
    advance<2>(level, begin, end, first);
  else if (rest == 1)
    advance<1>(level, begin, end, first);
}

PYG_TRUST_CLONES void advance_rows(const Level<float, float>& level,
                                   int64_t begin,
                                   int64_t end) {
  advance_columns(level, begin, end);
}

PYG_TRUST_CLONES void advance_rows(const Level<float, BFloat16>& level,
                                   int64_t begin,
                                   int64_t end) {
  advance_columns(level, begin, end);
}

PYG_TRUST_CLONES void advance_rows(const Level<double, double>& level,
                                   int64_t begin,
                                   int64_t end) {
  advance_columns(level, begin, end);
}

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
  // Columns in whole vectors: powers of two, then cache lines.
  constexpr int64_t line = kCacheLine / sizeof(scalar_t);
  const int64_t stride =
      columns < line
          ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(columns)))
          : (columns + line - 1) / line * line;

  Tensor out = torch::stable::new_empty(x, {n, columns});
  Scratch<store_t> one(n * stride, Pages::kHuge);
  Scratch<store_t> two(n * stride, Pages::kHuge);
  const auto* in = x.const_data_ptr<scalar_t>();
  const auto* d_send = send.const_data_ptr<scalar_t>();
  auto* z = out.mutable_data_ptr<scalar_t>();
  Level<scalar_t, store_t> level;
  level.rowptr = rowptr.const_data_ptr<int64_t>();
  level.col = col.const_data_ptr<int32_t>();
  level.recv = recv.const_data_ptr<scalar_t>();
  level.send = d_send;
  level.z = z;
  level.num_entries = col.numel();
  level.stride = stride;
  level.columns = columns;
  store_t* current = one.get();
  store_t* next = two.get();

  const int64_t tasks = (n + kRowsPerTask - 1) / kRowsPerTask;
  const auto by_rows = [&](const auto& run) {
    parallel_tasks(tasks, n * stride, [&] {
      return [&](int64_t task) {
        run(task * kRowsPerTask, std::min(n, (task + 1) * kRowsPerTask));
      };
    });
  };
  by_rows([&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      store_t* row = current + u * stride;
      for (int64_t c = 0; c < columns; ++c) {
        const scalar_t value = in[u * columns + c];
        z[u * columns + c] = static_cast<scalar_t>(w[0]) * value;
        row[c] = static_cast<store_t>(d_send[u] * value);
      }
    }
  });
  for (int64_t i = 1; i <= levels; ++i) {
    level.in = current;
    level.out = next;
    level.weight = static_cast<scalar_t>(w[i]);
    level.last = i == levels;
    by_rows([&](int64_t begin, int64_t end) {
      advance_rows(level, begin, end);
    });
    std::swap(current, next);
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
