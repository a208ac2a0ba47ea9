// The kernels that are compiled once for each instruction set, as whole files
// (kernels_*.cpp), and chosen when the library is loaded. All give the same
// bits: no multiply-add is fused, and each column is summed by itself.
#pragma once

#include <cstdint>

#include "half.h"
#include "parallel.h"
#include "pull.h"

namespace pyg_trust {

// The most columns that go through a level together: four cache lines of sums.
template <typename scalar_t>
constexpr int64_t kColumns = 4 * 64 / sizeof(scalar_t);

// One exact level of a push. Buffers have `stride` columns; those from `first`
// to `end` are advanced, of which `columns` are real, and the others stay
// zero.
template <typename scalar_t>
struct Level {
  const int64_t* rowptr;
  const int32_t* col;
  int64_t num_entries;
  const scalar_t* in;    // send * r
  scalar_t* out;         // send * ratio * P r, if not null
  const scalar_t* recv;  // d^-a
  const scalar_t* send;  // d^-b
  scalar_t ratio;
  scalar_t* z;         // += weight * ratio * P r
  int64_t z_stride;
  scalar_t weight;
  int64_t stride;
  int64_t first;
  int64_t end;
  int64_t columns;
};

// A signal whose entries are few: those of row v that lie in the columns at
// hand are [ptr[v], ptr[v + 1]).
template <typename scalar_t>
struct Entries {
  const int64_t* ptr;
  const uint8_t* column;
  const int64_t* wide;  // instead, if rows go through in all their columns
  const scalar_t* value;  // of x
  const scalar_t* sent;   // of y_L, as it would be stored
};

// One level of exact propagation, as in propagate.cpp: rows of y_i, or at the end
// those of z, from the rows of y_{i+1}.
template <typename scalar_t, typename store_t>
struct Step {
  // Of the graph or, if `packed`, of the rows in `rows` alone, one after the
  // other.
  const int64_t* rowptr;
  const int32_t* col;
  int64_t num_entries;
  const int32_t* rows;  // which rows, or null for all
  bool packed;
  bool asked;  // whether rows of z are those in `rows`, one after the other
  // Where rows get an entry of their own node (Loops); null for nowhere.
  const int32_t* places;
  const scalar_t* recv;
  const scalar_t* send;
  // x, dense (row v at x + v * x_stride) or, if that is null, sparse.
  const scalar_t* x;
  int64_t x_stride;
  Entries<scalar_t> entries;
  // Powers of two that what is stored is multiplied by, a column each, and
  // their inverses; null for none.
  const scalar_t* scale;
  const scalar_t* unscale;
  const store_t* in;  // y_{i+1}; null if that is sparse
  bool near;          // whether that stays in the cache
  store_t* out;       // y_i, over y_{i+2} if three terms count; null at the end
  scalar_t* z;        // at the end
  int64_t z_stride;
  scalar_t weight;  // w_i
  scalar_t factor;  // how often P counts
  bool three_term;  // whether - u_{i+2}, which is in `out` or in `before`
  const store_t* before;
  scalar_t at_zero;  // p(0)
  int64_t stride;    // columns of the buffers: 1, 2, 4, ... or whole lines
  int64_t columns;   // that are real
};

// Which rows lack an entry of their own node, and where it belongs in them.
struct Loops {
  const int64_t* rowptr;
  const int32_t* col;
  const int32_t* rows;  // which rows, or null for all
  int32_t* places;      // from the start of each of these rows
};

constexpr int32_t kNoPlace = -1;  // it is there already

// The kernels of a type. All run the rows [begin, end): of a list, where there
// is one, or else of the graph.
template <typename scalar_t, typename store_t>
struct StepKernels {
  using Run = void (*)(const Step<scalar_t, store_t>&, int64_t, int64_t);
  Run load;  // y_L
  Run step;
};
template <typename scalar_t>
struct RowKernels {
  void (*advance)(const Level<scalar_t>&, int64_t begin, int64_t end);
  // Rows of z in all their columns, from the entries of a sparse x.
  typename StepKernels<scalar_t, scalar_t>::Run wide;
};
template <typename scalar_t>
struct PullKernel {
  void (*pull)(const Pull<scalar_t>&, int64_t begin, int64_t end);
};

struct Kernels : StepKernels<float, float>,
                 StepKernels<float, Float16>,
                 StepKernels<double, double>,
                 RowKernels<float>,
                 RowKernels<double>,
                 PullKernel<float>,
                 PullKernel<double>,
                 PullKernel<int64_t> {
  int level;  // 0: what every processor has, 1: AVX2 and F16C, 2: AVX-512
  void (*find_places)(const Loops&, int64_t begin, int64_t end);
  // Values as they would be stored, widened again.
  void (*round_half)(float* values, int64_t count);
};

extern const Kernels kBaseKernels;
#if defined(__x86_64__) && defined(__GNUC__)
#define PYG_TRUST_X86 1
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

// Those of this processor, or fewer if the environment variable
// ATEN_CPU_CAPABILITY (torch's own) is 'default' or 'avx2'.
const Kernels& kernels();

template <typename Of>
const Of& kernels_of() {
  return kernels();
}

// Of a matrix on the right of rows, so many columns lie side by side, the last
// ones padded (row_linear.cpp).
template <typename scalar_t>
constexpr int64_t kPanel = 128 / sizeof(scalar_t);

// y = x times the matrix in `panels`, each number by one chain.
void rows_times(const double* x,
                const double* panels,
                int64_t depth,
                int64_t columns,
                double* y,
                int64_t rows);

// Calls run(begin, end) for ranges of the rows [0, n), in parallel. What the
// last rows of a range fetch ahead is for the next one, which mostly another
// thread runs: ranges are long where there are many for each thread.
template <typename Run>
void by_rows(int64_t n, int64_t stride, const Run& run) {
  constexpr int64_t least = 256, most = 2048, ranges = 16;
  const int64_t share = n / (ranges * torch::stable::get_num_threads());
  const int64_t rows = share < least ? least : share > most ? most : share;
  parallel_tasks((n + rows - 1) / rows, n * stride, [&] {
    return [&](int64_t task) {
      const int64_t end = (task + 1) * rows;
      run(task * rows, end < n ? end : n);
    };
  });
}

}  // namespace pyg_trust
