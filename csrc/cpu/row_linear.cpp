// Linear maps of rows whose bits are those of each row alone.
//
// y[r][j] = fma(x[r][K-1], w[j][K-1], ... fma(x[r][0], w[j][0], 0)): one chain
// for each number, over k ascending, each step rounded once, and then b[j] is
// added. It does not depend on how many rows or columns there are beside it, on
// the instruction set or on the threads: blocks are made over rows and columns
// alone, and the last columns go through the same chains beside columns of
// zeros. Matrix products of BLAS promise nothing of the kind: they round the
// same row otherwise in a batch of another size.
#include "dispatch.h"
#include "kernels.h"
#include "parallel.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#ifdef PYG_TRUST_X86
#include <immintrin.h>
#endif

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// Rows that a thread takes at a time: they and a panel stay in its cache.
constexpr int64_t kTask = 96;

namespace plain {
template <typename scalar_t>
inline scalar_t load(const scalar_t* from) {
  return *from;
}
template <typename scalar_t>
inline scalar_t set1(scalar_t value) {
  return value;
}
template <typename scalar_t>
inline scalar_t fma(scalar_t a, scalar_t b, scalar_t c) {
  return std::fma(a, b, c);
}
template <typename scalar_t>
inline void store(scalar_t* to, scalar_t value) {
  *to = value;
}
}  // namespace plain
#define PYG_TRUST_SET plain
#define PYG_TRUST_BYTES sizeof(scalar_t)
#define PYG_TRUST_ROWS 4
#include "row_linear.h"

#ifdef PYG_TRUST_X86
// The four functions, of a type of numbers and their vectors.
#define PYG_TRUST_VECTORS(scalar_t, vector_t, prefix, kind) \
  inline vector_t set1(scalar_t value) {                    \
    return prefix##_set1_##kind(value);                     \
  }                                                         \
  inline vector_t load(const scalar_t* from) {              \
    return prefix##_loadu_##kind(from);                     \
  }                                                         \
  inline vector_t fma(vector_t a, vector_t b, vector_t c) { \
    return prefix##_fmadd_##kind(a, b, c);                  \
  }                                                         \
  inline void store(scalar_t* to, vector_t value) {         \
    prefix##_storeu_##kind(to, value);                      \
  }

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace avx2 {
PYG_TRUST_VECTORS(float, __m256, _mm256, ps)
PYG_TRUST_VECTORS(double, __m256d, _mm256, pd)
}  // namespace avx2
#define PYG_TRUST_SET avx2
#define PYG_TRUST_BYTES 32
#define PYG_TRUST_ROWS 6
#include "row_linear.h"
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma")
#endif
namespace avx512 {
PYG_TRUST_VECTORS(float, __m512, _mm512, ps)
PYG_TRUST_VECTORS(double, __m512d, _mm512, pd)
}  // namespace avx512
#define PYG_TRUST_SET avx512
#define PYG_TRUST_BYTES 64
#define PYG_TRUST_ROWS 12
#include "row_linear.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

template <typename scalar_t>
void run(const scalar_t* x,
         const scalar_t* panels,
         int64_t depth,
         int64_t columns,
         scalar_t* y,
         int64_t rows,
         bool biased) {
#ifdef PYG_TRUST_X86
  static const bool fused = __builtin_cpu_supports("fma");
  if (kernels().level == 2 && fused)
    return avx512::row_linear(x, panels, depth, columns, y, rows, biased);
  if (kernels().level == 1 && fused)
    return avx2::row_linear(x, panels, depth, columns, y, rows, biased);
#endif
  plain::row_linear(x, panels, depth, columns, y, rows, biased);
}

// Column j of panel p is row p * kPanel + j of the weight, and zero beyond.
template <typename scalar_t>
void pack(const Tensor& weight, const scalar_t* bias, scalar_t* to) {
  constexpr int64_t width = kPanel<scalar_t>;
  const scalar_t* from = weight.const_data_ptr<scalar_t>();
  const int64_t columns = weight.size(0), depth = weight.size(1);
  const int64_t row = weight.stride(0), step = weight.stride(1);
  const int64_t length = (depth + (bias != nullptr)) * width;
  for (int64_t first = 0; first < columns; first += width, to += length) {
    if (first + width > columns)
      std::fill(to, to + length, scalar_t(0));
    for (int64_t j = 0; j < width && first + j < columns; ++j) {
      const scalar_t* at = from + (first + j) * row;
      for (int64_t k = 0; k < depth; ++k)
        to[k * width + j] = at[k * step];
      if (bias != nullptr)
        to[depth * width + j] = bias[first + j];
    }
  }
}

Tensor row_linear(const Tensor& x,
                  const Tensor& weight,
                  const std::optional<Tensor>& bias) {
  const int64_t rows = x.size(0), depth = x.size(1);
  const int64_t columns = weight.size(0);
  const bool biased = bias.has_value();
  Tensor out = torch::stable::new_empty(x, {rows, columns});
  with_real(x, [&](auto number) {
    using scalar_t = decltype(number);
    constexpr int64_t width = kPanel<scalar_t>;
    Tensor room = torch::stable::new_empty(
        x, {(columns + width - 1) / width, depth + biased, width});
    scalar_t* panels = room.mutable_data_ptr<scalar_t>();
    pack(weight, biased ? bias->const_data_ptr<scalar_t>() : nullptr, panels);
    const scalar_t* in = x.const_data_ptr<scalar_t>();
    scalar_t* y = out.mutable_data_ptr<scalar_t>();
    const int64_t work = rows * depth * (columns + 15) / 16;
    parallel_tasks((rows + kTask - 1) / kTask, work, [&] {
      return [=](int64_t task) {
        const int64_t first = task * kTask;
        const int64_t count = rows - first < kTask ? rows - first : kTask;
        run<scalar_t>(in + first * depth, panels, depth, columns,
                      y + first * columns, count, biased);
      };
    });
  });
  return out;
}

}  // namespace

void rows_times(const double* x,
                const double* panels,
                int64_t depth,
                int64_t columns,
                double* y,
                int64_t rows) {
  run(x, panels, depth, columns, y, rows, false);
}

}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("row_linear", TORCH_BOX(&pyg_trust::row_linear));
}
