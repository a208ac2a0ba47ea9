// One exact level of propagation, which both ops share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gather.h"
#include "parallel.h"

namespace pyg_trust {

// The most columns that go through a level together: four cache lines of sums.
template <typename scalar_t>
constexpr int64_t kColumns = 4 * kCacheLine / sizeof(scalar_t);

// One level. Buffers have `stride` columns; those from `first` to `end` are
// advanced, of which `columns` are real, and the others stay zero.
template <typename scalar_t, typename store_t>
struct Level {
  const int64_t* rowptr;
  const int32_t* col;
  int64_t num_entries;
  const store_t* in;     // send * r
  store_t* out;          // send * ratio * P r, if not null
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

// Rows [begin, end) of a level.
void advance_rows(const Level<float, float>& level,
                  int64_t begin,
                  int64_t end);
void advance_rows(const Level<float, BFloat16>& level,
                  int64_t begin,
                  int64_t end);
void advance_rows(const Level<double, double>& level,
                  int64_t begin,
                  int64_t end);

// Calls run(begin, end) for ranges of the rows [0, n), in parallel.
template <typename Run>
void by_rows(int64_t n, int64_t stride, const Run& run) {
  constexpr int64_t rows = 256;
  parallel_tasks((n + rows - 1) / rows, n * stride, [&] {
    return [&](int64_t task) {
      run(task * rows, std::min(n, (task + 1) * rows));
    };
  });
}

}  // namespace pyg_trust
