// Sums of neighbours' rows by many threads: each sums a few neighbouring
// columns of a row, and long rows are cut into pieces.
#pragma once

#include <cstdint>

#include "device/machine.h"

namespace pyg_trust::device {

// Entries of a row that a thread (or `parts` threads) sums; a longer row is
// cut into pieces of that many, whose sums are added by a fixed tree.
constexpr int64_t kLongest = 512;

// The long rows of a graph, in any order.
struct LongRows {
  int64_t most_rows;    // there may be
  int64_t most_pieces;  // of all of them
  int64_t* count;       // [0] rows, [1] pieces
  int32_t* row;
  int64_t* first;  // the first piece of each long row
  int32_t* owner;  // which long row a piece is of
  void* sums;      // of the pieces
};

// Finds them; the rows have `num_entries` at most, and `stride` is the number of
// columns that are to be summed.
template <typename scalar_t, typename Machine>
LongRows find_long_rows(Machine& machine,
                        const int64_t* rowptr,
                        int64_t num_rows,
                        int64_t num_entries,
                        int64_t stride) {
  LongRows rows{};
  rows.most_rows = num_entries / (kLongest + 1);
  rows.most_pieces = num_entries / kLongest + rows.most_rows;
  if (rows.most_rows == 0)
    return rows;
  rows.count = machine.template make<int64_t>(2);
  rows.row = machine.template make<int32_t>(rows.most_rows);
  rows.first = machine.template make<int64_t>(rows.most_rows);
  rows.owner = machine.template make<int32_t>(rows.most_pieces);
  rows.sums = machine.template make<scalar_t>(rows.most_pieces * stride);
  machine.zero(rows.count, 2);
  machine.run(num_rows, 1, [=] PYG_TRUST_RUN(int64_t v, int64_t) {
    const int64_t degree = rowptr[v + 1] - rowptr[v];
    if (degree <= kLongest)
      return;
    const int64_t i = next(rows.count);
    const int64_t pieces = (degree + kLongest - 1) / kLongest;
    const int64_t first = add(rows.count + 1, pieces);
    rows.row[i] = static_cast<int32_t>(v);
    rows.first[i] = first;
    for (int64_t k = 0; k < pieces; ++k)
      rows.owner[first + k] = static_cast<int32_t>(i);
  });
  return rows;
}

// The sum of the rows in[col[e]] over e = begin, begin + step, ... < end, for
// `width` columns from in on.
template <int width, typename scalar_t>
PYG_TRUST_HD inline Pack<scalar_t, width> sum_rows(const int32_t* col,
                                                   const scalar_t* in,
                                                   int64_t stride,
                                                   int64_t begin,
                                                   int64_t end,
                                                   int64_t step) {
  constexpr int kAtOnce = 4;  // rows on their way
  Pack<scalar_t, width> sum = {};
  const auto row = [&](int64_t e) {
    return *reinterpret_cast<const Pack<scalar_t, width>*>(
        in + static_cast<int64_t>(col[e]) * stride);
  };
  int64_t e = begin;
  for (; e + (kAtOnce - 1) * step < end; e += kAtOnce * step) {
    Pack<scalar_t, width> rows[kAtOnce];
    for (int k = 0; k < kAtOnce; ++k)
      rows[k] = row(e + k * step);
    for (int k = 0; k < kAtOnce; ++k) {
      for (int c = 0; c < width; ++c)
        sum.at[c] += rows[k].at[c];
    }
  }
  for (; e < end; e += step) {
    const Pack<scalar_t, width> one = row(e);
    for (int c = 0; c < width; ++c)
      sum.at[c] += one.at[c];
  }
  return sum;
}

// Calls end(i, group, sum) for every row i and every group of `width` columns
// with wanted(group), where `sum` is that of in[u * stride + c] over the
// entries u of row i. Sums are taken in an order that depends on the row
// alone.
template <int parts,
          int width,
          typename scalar_t,
          typename Machine,
          typename Wanted,
          typename End>
void gather(Machine& machine,
            const int64_t* rowptr,
            const int32_t* col,
            const LongRows& rows,
            int64_t num_rows,
            const scalar_t* in,
            int64_t stride,
            const Wanted& wanted,
            const End& end) {
  using Sum = Pack<scalar_t, width>;
  const int64_t groups = stride / width;
  const auto part = [=] PYG_TRUST_RUN(int64_t i, int64_t group, int64_t p) {
    if (!wanted(group))
      return Sum{};
    const int64_t begin = rowptr[i], stop = rowptr[i + 1];
    if (stop - begin > kLongest)
      return Sum{};
    return sum_rows<width>(col, in + group * width, stride, begin + p, stop,
                           parts);
  };
  const auto whole = [=] PYG_TRUST_RUN(int64_t i, int64_t group,
                                       const Sum& sum) {
    if (wanted(group) && rowptr[i + 1] - rowptr[i] <= kLongest)
      end(i, group, sum);
  };
  machine.template run_parts<parts, Sum>(num_rows, groups, part, whole);
  if (rows.most_rows == 0)
    return;
  auto* piece_sum = static_cast<Sum*>(rows.sums);
  machine.template run_parts<parts, Sum>(
      rows.most_pieces, groups,
      [=] PYG_TRUST_RUN(int64_t piece, int64_t group, int64_t part) {
        if (!wanted(group))
          return Sum{};
        const int32_t k = rows.owner[piece];
        const int64_t i = rows.row[k];
        const int64_t from = (piece - rows.first[k]) * kLongest;
        const int64_t begin = rowptr[i] + from;
        const int64_t left = rowptr[i + 1] - begin;
        return sum_rows<width>(
            col, in + group * width, stride, begin + part,
            begin + (left < kLongest ? left : kLongest), parts);
      },
      [=] PYG_TRUST_RUN(int64_t piece, int64_t group, const Sum& sum) {
        piece_sum[piece * groups + group] = sum;
      },
      rows.count + 1);
  machine.template run_parts<kTeam, Sum>(
      rows.most_rows, groups,
      [=] PYG_TRUST_RUN(int64_t k, int64_t group, int64_t part) {
        Sum sum = {};
        if (!wanted(group))
          return sum;
        const int64_t i = rows.row[k];
        const int64_t pieces =
            (rowptr[i + 1] - rowptr[i] + kLongest - 1) / kLongest;
        for (int64_t j = part; j < pieces; j += kTeam)
          sum = join(sum, piece_sum[(rows.first[k] + j) * groups + group]);
        return sum;
      },
      [=] PYG_TRUST_RUN(int64_t k, int64_t group, const Sum& sum) {
        if (wanted(group))
          end(int64_t{rows.row[k]}, group, sum);
      },
      rows.count);
}

}  // namespace pyg_trust::device
