// Exact propagation on the CPU: AGP's Algorithm 1 (Wang et al. 2021) for all
// columns at once, each level one gather over the rows with the degree
// scaling and the sum over levels fused into its end.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "parallel.h"

// One function, compiled for each vector width, chosen when it is loaded.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && \
    !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define PYG_TRUST_CLONES \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PYG_TRUST_CLONES
#endif

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kRowsPerTask = 256;
constexpr int64_t kAhead = 8;  // neighbours to prefetch
constexpr int64_t kLine = 64;  // bytes

// One level. Buffers have `stride` columns, of which the first `columns` are
// real; the others stay zero.
template <typename scalar_t>
struct Level {
  const int64_t* rowptr;
  const int32_t* col;
  const scalar_t* in;    // send * P^i x
  scalar_t* out;         // send * P^(i+1) x
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
// `width` is a constant in every caller, so the sum lives in registers.
template <int width, typename scalar_t>
inline __attribute__((always_inline)) void gather(const Level<scalar_t>& level,
                                                  int64_t begin,
                                                  int64_t end,
                                                  int64_t first) {
  const int64_t stride = level.stride;
  const int64_t last_entry = level.num_entries - 1;
  const scalar_t* in = level.in + first;
  const int64_t columns = std::min<int64_t>(width, level.columns - first);
  for (int64_t v = begin; v < end; ++v) {
    scalar_t sum[width] = {};
    const int64_t stop = level.rowptr[v + 1];
    for (int64_t e = level.rowptr[v]; e < stop; ++e) {
      const scalar_t* row = in + level.col[e] * stride;
      // Past the row's end comes the next row, which is wanted next.
      const int64_t later = std::min(e + kAhead, last_entry);
      const scalar_t* ahead = in + level.col[later] * stride;
      for (int64_t b = 0; b < width * int64_t{sizeof(scalar_t)}; b += kLine)
        __builtin_prefetch(reinterpret_cast<const char*>(ahead) + b);
      for (int c = 0; c < width; ++c)
        sum[c] += row[c];
    }
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
      scalar_t* out = level.out + v * stride + first;
      for (int c = 0; c < width; ++c)
        out[c] = send * sum[c];
    }
  }
}

template <typename scalar_t>
inline __attribute__((always_inline)) void gather_columns(
    const Level<scalar_t>& level,
    int64_t begin,
    int64_t end) {
  constexpr int wide = 256 / sizeof(scalar_t);
  int64_t first = 0;
  for (; first + wide <= level.stride; first += wide)
    gather<wide>(level, begin, end, first);
  for (; first + wide / 4 <= level.stride; first += wide / 4)
    gather<wide / 4>(level, begin, end, first);
  for (; first + 4 <= level.stride; first += 4)
    gather<4>(level, begin, end, first);
  for (; first < level.stride; ++first)
    gather<1>(level, begin, end, first);
}

PYG_TRUST_CLONES void gather_rows(const Level<float>& level,
                                  int64_t begin,
                                  int64_t end) {
  gather_columns(level, begin, end);
}

PYG_TRUST_CLONES void gather_rows(const Level<double>& level,
                                  int64_t begin,
                                  int64_t end) {
  gather_columns(level, begin, end);
}

template <typename scalar_t>
Tensor propagate_typed(const Tensor& rowptr,
                       const Tensor& col,
                       const Tensor& x,
                       const Tensor& recv,
                       const Tensor& send,
                       const Tensor& weights) {
  const int64_t n = x.size(0), columns = x.size(1);
  const int64_t levels = weights.numel() - 1;
  const auto* w = weights.const_data_ptr<double>();
  // Whole vectors of columns, so that the gather has no remainder.
  constexpr int64_t vector = 64 / sizeof(scalar_t);
  const int64_t stride = columns < 4 ? columns
                         : columns < vector
                             ? (columns + 3) / 4 * 4
                             : (columns + vector - 1) / vector * vector;

  Tensor out = torch::stable::new_empty(x, {n, columns});
  Tensor buffers = torch::stable::new_empty(x, {2, n, stride});
  const auto* in = x.const_data_ptr<scalar_t>();
  const auto* d_send = send.const_data_ptr<scalar_t>();
  auto* z = out.mutable_data_ptr<scalar_t>();
  Level<scalar_t> level;
  level.rowptr = rowptr.const_data_ptr<int64_t>();
  level.col = col.const_data_ptr<int32_t>();
  level.recv = recv.const_data_ptr<scalar_t>();
  level.send = d_send;
  level.z = z;
  level.num_entries = col.numel();
  level.stride = stride;
  level.columns = columns;
  auto* current = buffers.mutable_data_ptr<scalar_t>();
  auto* next = current + n * stride;

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
      scalar_t* row = current + u * stride;
      for (int64_t c = 0; c < columns; ++c) {
        const scalar_t value = in[u * columns + c];
        z[u * columns + c] = static_cast<scalar_t>(w[0]) * value;
        row[c] = d_send[u] * value;
      }
      std::fill(row + columns, row + stride, scalar_t(0));
    }
  });
  for (int64_t i = 1; i <= levels; ++i) {
    level.in = current;
    level.out = next;
    level.weight = static_cast<scalar_t>(w[i]);
    level.last = i == levels;
    by_rows([&](int64_t begin, int64_t end) {
      gather_rows(level, begin, end);
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
                 const Tensor& weights) {
  return x.scalar_type() == ScalarType::Double
             ? propagate_typed<double>(rowptr, col, x, recv, send, weights)
             : propagate_typed<float>(rowptr, col, x, recv, send, weights);
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("propagate", TORCH_BOX(&pyg_trust::propagate));
}
