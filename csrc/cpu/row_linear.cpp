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
inline float load(const float* from) {
  return *from;
}
inline double load(const double* from) {
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
#undef PYG_TRUST_SET
#undef PYG_TRUST_BYTES
#undef PYG_TRUST_ROWS

#ifdef PYG_TRUST_X86
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace avx2 {
inline __m256 set1(float value) {
  return _mm256_set1_ps(value);
}
inline __m256d set1(double value) {
  return _mm256_set1_pd(value);
}
inline __m256 load(const float* from) {
  return _mm256_loadu_ps(from);
}
inline __m256d load(const double* from) {
  return _mm256_loadu_pd(from);
}
inline __m256 fma(__m256 a, __m256 b, __m256 c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline __m256d fma(__m256d a, __m256d b, __m256d c) {
  return _mm256_fmadd_pd(a, b, c);
}
inline void store(float* to, __m256 value) {
  _mm256_storeu_ps(to, value);
}
inline void store(double* to, __m256d value) {
  _mm256_storeu_pd(to, value);
}
}  // namespace avx2
#define PYG_TRUST_SET avx2
#define PYG_TRUST_BYTES 32
#define PYG_TRUST_ROWS 6
#include "row_linear.h"
#undef PYG_TRUST_SET
#undef PYG_TRUST_BYTES
#undef PYG_TRUST_ROWS
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
inline __m512 set1(float value) {
  return _mm512_set1_ps(value);
}
inline __m512d set1(double value) {
  return _mm512_set1_pd(value);
}
inline __m512 load(const float* from) {
  return _mm512_loadu_ps(from);
}
inline __m512d load(const double* from) {
  return _mm512_loadu_pd(from);
}
inline __m512 fma(__m512 a, __m512 b, __m512 c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline __m512d fma(__m512d a, __m512d b, __m512d c) {
  return _mm512_fmadd_pd(a, b, c);
}
inline void store(float* to, __m512 value) {
  _mm512_storeu_ps(to, value);
}
inline void store(double* to, __m512d value) {
  _mm512_storeu_pd(to, value);
}
}  // namespace avx512
#define PYG_TRUST_SET avx512
#define PYG_TRUST_BYTES 64
#define PYG_TRUST_ROWS 12
#include "row_linear.h"
#undef PYG_TRUST_SET
#undef PYG_TRUST_BYTES
#undef PYG_TRUST_ROWS
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
