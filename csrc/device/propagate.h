// Exact propagation by many threads: level after level, every thread sums a
// few neighbouring columns of a row, and long rows are cut into pieces.
#pragma once

#include <cstdint>
#include <utility>

#include "device/policy.h"
#include "half.h"
#include "horner.h"

namespace pyg_trust::device {

// Entries of a row that a thread (or `parts` threads) sums; a longer row is
// cut into pieces of that many, whose sums are added in order.
constexpr int64_t kLongest = 512;

PYG_TRUST_HD inline float widen(Float16 value) {
  const uint32_t raised = ((value.bits & 0x7FFFu) << 13) + (113u << 23);
  const float small = bits<float>(raised) - 6.103515625e-05f;  // 2^-14
  return bits<float>(widen_bits(value.bits, bits<uint32_t>(small)));
}
template <typename scalar_t>
PYG_TRUST_HD inline scalar_t widen(scalar_t value) {
  return value;
}
PYG_TRUST_HD inline void narrow(float value, Float16& to) {
  to.bits = narrow_bits(bits<uint32_t>(value));
}
template <typename scalar_t>
PYG_TRUST_HD inline void narrow(scalar_t value, scalar_t& to) {
  to = value;
}

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

// Finds them; `stride` is the number of columns that are to be summed.
template <typename scalar_t, typename Machine>
LongRows find_long_rows(Machine& machine,
                        const int64_t* rowptr,
                        int64_t num_nodes,
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
  machine.run(num_nodes, 1, [=] PYG_TRUST_RUN(int64_t v, int64_t) {
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
template <int width, typename scalar_t, typename store_t>
PYG_TRUST_HD inline Pack<scalar_t, width> sum_rows(const int32_t* col,
                                                   const store_t* in,
                                                   int64_t stride,
                                                   int64_t begin,
                                                   int64_t end,
                                                   int64_t step) {
  constexpr int kAtOnce = 4;  // rows on their way
  Pack<scalar_t, width> sum = {};
  const auto row = [&](int64_t e) {
    return *reinterpret_cast<const Pack<store_t, width>*>(
        in + static_cast<int64_t>(col[e]) * stride);
  };
  int64_t e = begin;
  for (; e + (kAtOnce - 1) * step < end; e += kAtOnce * step) {
    Pack<store_t, width> rows[kAtOnce];
    for (int k = 0; k < kAtOnce; ++k)
      rows[k] = row(e + k * step);
    for (int k = 0; k < kAtOnce; ++k) {
      for (int c = 0; c < width; ++c)
        sum.at[c] += widen(rows[k].at[c]);
    }
  }
  for (; e < end; e += step) {
    const Pack<store_t, width> one = row(e);
    for (int c = 0; c < width; ++c)
      sum.at[c] += widen(one.at[c]);
  }
  return sum;
}

// Calls end(v, group, sum) for every node v and every group of `width` columns
// with wanted(group), where `sum` is that of in[u * stride + c] over the
// entries u of row v. Sums are taken in an order that depends on the graph
// alone.
template <int parts,
          int width,
          typename scalar_t,
          typename store_t,
          typename Machine,
          typename Wanted,
          typename End>
void gather(Machine& machine,
            const int64_t* rowptr,
            const int32_t* col,
            const LongRows& rows,
            int64_t num_nodes,
            const store_t* in,
            int64_t stride,
            const Wanted& wanted,
            const End& end) {
  using Sum = Pack<scalar_t, width>;
  const int64_t groups = stride / width;
  machine.template run_sum<parts, Sum>(
      num_nodes, groups,
      [=] PYG_TRUST_RUN(int64_t v, int64_t group, int64_t part) {
        const int64_t begin = rowptr[v], stop = rowptr[v + 1];
        if (stop - begin > kLongest || !wanted(group))
          return Sum{};
        return sum_rows<width, scalar_t>(col, in + group * width, stride,
                                         begin + part, stop, parts);
      },
      [=] PYG_TRUST_RUN(int64_t v, int64_t group, const Sum& sum) {
        if (rowptr[v + 1] - rowptr[v] <= kLongest && wanted(group))
          end(v, group, sum);
      });
  if (rows.most_rows == 0)
    return;
  auto* piece_sum = static_cast<Sum*>(rows.sums);
  machine.template run_sum<parts, Sum>(
      rows.most_pieces, groups,
      [=] PYG_TRUST_RUN(int64_t piece, int64_t group, int64_t part) {
        if (!wanted(group))
          return Sum{};
        const int32_t i = rows.owner[piece];
        const int64_t v = rows.row[i];
        const int64_t begin =
            rowptr[v] + (piece - rows.first[i]) * kLongest;
        const int64_t left = rowptr[v + 1] - begin;
        return sum_rows<width, scalar_t>(
            col, in + group * width, stride, begin + part,
            begin + (left < kLongest ? left : kLongest), parts);
      },
      [=] PYG_TRUST_RUN(int64_t piece, int64_t group, const Sum& sum) {
        piece_sum[piece * groups + group] = sum;
      },
      rows.count + 1);
  machine.run(
      rows.most_rows, groups,
      [=] PYG_TRUST_RUN(int64_t i, int64_t group) {
        if (!wanted(group))
          return;
        const int64_t v = rows.row[i];
        const int64_t degree = rowptr[v + 1] - rowptr[v];
        const int64_t pieces = (degree + kLongest - 1) / kLongest;
        Sum sum = {};
        for (int64_t k = 0; k < pieces; ++k) {
          const Sum one = piece_sum[(rows.first[i] + k) * groups + group];
          for (int c = 0; c < width; ++c)
            sum.at[c] += one.at[c];
        }
        end(v, group, sum);
      },
      rows.count);
}

// All that exact propagation reads and writes; `weights` is on the host.
template <typename scalar_t>
struct Exact {
  const int64_t* rowptr;
  const int32_t* col;
  int64_t num_nodes;
  int64_t num_entries;
  int64_t columns;
  const scalar_t* x;
  const scalar_t* recv;  // d^-a
  const scalar_t* send;  // d^-b
  const double* weights;
  int64_t levels;
  scalar_t* z;
  const scalar_t* scale;  // of what is stored, by column, or null
  bool three_term;
};

struct Everything {
  PYG_TRUST_HD bool operator()(int64_t) const { return true; }
};

template <int parts,
          int width,
          typename store_t,
          typename scalar_t,
          typename Machine>
void propagate_by(Machine& machine, const Exact<scalar_t>& p) {
  const int64_t columns = p.columns, n = p.num_nodes;
  const int64_t stride = (columns + width - 1) / width * width;
  const LongRows rows = find_long_rows<scalar_t>(machine, p.rowptr, n,
                                                 p.num_entries, stride);
  auto* current = machine.template make<store_t>(n * stride);
  auto* following = machine.template make<store_t>(n * stride);
  const scalar_t* x = p.x;
  const scalar_t* recv = p.recv;
  const scalar_t* send = p.send;
  const scalar_t* scale = p.scale;
  scalar_t* z = p.z;
  int64_t levels = p.levels;
  while (levels > 0 && p.weights[levels] == 0)
    --levels;

  // y_L, or all of z.
  const auto highest = static_cast<scalar_t>(p.weights[levels]);
  const bool all = levels == 0;
  machine.run(n, stride, [=] PYG_TRUST_RUN(int64_t u, int64_t c) {
    scalar_t value = c < columns ? x[u * columns + c] : scalar_t(0);
    if (all) {
      if (c < columns)
        z[u * columns + c] = highest * value;
      return;
    }
    if (scale != nullptr && c < columns)
      value *= scale[c];
    narrow(static_cast<scalar_t>(send[u] * (highest * value)),
           current[u * stride + c]);
  });
  const auto alone =
      static_cast<scalar_t>(at_zero(p.weights, levels + 1, p.three_term));
  for (int64_t i = levels - 1; i >= 0; --i) {
    const auto weight = static_cast<scalar_t>(p.weights[i]);
    const auto factor = static_cast<scalar_t>(level_factor(p.three_term, i));
    const bool last = i == 0;
    const bool three_term = p.three_term && i + 1 < levels;
    store_t* out = following;
    gather<parts, width, scalar_t>(
        machine, p.rowptr, p.col, rows, n, current, stride, Everything{},
        [=] PYG_TRUST_RUN(int64_t v, int64_t group,
                          const Pack<scalar_t, width>& received) {
          Pack<scalar_t, width> sum = received;
          const scalar_t by = recv[v] * factor;
          const int64_t begin = group * width;
          auto* place = reinterpret_cast<Pack<store_t, width>*>(
              out + v * stride + begin);
          Pack<store_t, width> before{};
          if (three_term)
            before = *place;
          if (!last) {
            Pack<store_t, width> next;
            for (int c = 0; c < width; ++c) {
              scalar_t value = sum.at[c] * by;
              if (weight != 0 && begin + c < columns) {
                scalar_t more = x[v * columns + begin + c];
                if (scale != nullptr)
                  more *= scale[begin + c];
                value = weight * more + value;
              }
              value *= send[v];
              if (three_term)
                value -= widen(before.at[c]);
              narrow(value, next.at[c]);
            }
            *place = next;
            return;
          }
          const bool apart = three_term && send[v] == 0;
          const scalar_t own = apart ? alone : weight;
          for (int c = 0; c < width && begin + c < columns; ++c) {
            scalar_t value = sum.at[c] * by;
            if (apart)
              value = 0;
            else if (three_term)
              value -= widen(before.at[c]) * (scalar_t(1) / send[v]);
            if (scale != nullptr)
              value *= scalar_t(1) / scale[begin + c];
            if (own != 0)
              value = own * x[v * columns + begin + c] + value;
            z[v * columns + begin + c] = value;
          }
        });
    std::swap(current, following);
  }
}

// z = sum_i weights[i] (D_recv B D_send)^i x, as in horner.h.
template <typename store_t, typename scalar_t, typename Machine>
void propagate(Machine& machine, const Exact<scalar_t>& p) {
  constexpr int kWidest = 16 / sizeof(store_t);  // bytes that load at once
  constexpr int kMiddle = kWidest / 2;
  constexpr int kParts = 8;  // threads of a row with few columns
  if (p.num_nodes == 0 || p.columns == 0)
    return;
  if (p.columns == 1)
    propagate_by<kParts, 1, store_t>(machine, p);
  else if (kMiddle > 1 && p.columns <= kMiddle)
    propagate_by<kParts, kMiddle, store_t>(machine, p);
  else if (p.columns <= 2 * kWidest)
    propagate_by<kParts, kWidest, store_t>(machine, p);
  else
    propagate_by<1, kWidest, store_t>(machine, p);
}

}  // namespace pyg_trust::device
