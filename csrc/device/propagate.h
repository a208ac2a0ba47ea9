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
// cut into pieces of that many, whose sums are added by a fixed tree.
constexpr int64_t kLongest = 512;

// The rows that are summed: those of a graph, or some of them, by number.
struct Rows {
  const int64_t* rowptr;
  const int64_t* list;  // null: all

  PYG_TRUST_HD int64_t at(int64_t i) const {
    return list == nullptr ? i : list[i];
  }
  PYG_TRUST_HD int64_t begin(int64_t i) const { return rowptr[at(i)]; }
  PYG_TRUST_HD int64_t degree(int64_t i) const {
    const int64_t v = at(i);
    return rowptr[v + 1] - rowptr[v];
  }
};

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

// Finds them; the rows have `num_entries` at most, and `stride` is the number of
// columns that are to be summed.
template <typename scalar_t, typename Machine>
LongRows find_long_rows(Machine& machine,
                        const Rows& all,
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
    const int64_t degree = all.degree(v);
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
    PYG_TRUST_COUNT(adds, kAtOnce);
    for (int k = 0; k < kAtOnce; ++k) {
      for (int c = 0; c < width; ++c)
        sum.at[c] += widen(rows[k].at[c]);
    }
  }
  for (; e < end; e += step) {
    PYG_TRUST_COUNT(adds, 1);
    const Pack<store_t, width> one = row(e);
    for (int c = 0; c < width; ++c)
      sum.at[c] += widen(one.at[c]);
  }
  return sum;
}

// Calls end(i, group, sum) for every row i and every group of `width` columns
// with wanted(group), where `sum` is that of in[u * stride + c] over the
// entries u of row i. Sums are taken in an order that depends on the row
// alone. With `count`, of `*count` rows, which is 0 or all.
template <int parts,
          int width,
          typename scalar_t,
          typename store_t,
          typename Machine,
          typename Wanted,
          typename End>
void gather(Machine& machine,
            const Rows& all,
            const int32_t* col,
            const LongRows& rows,
            int64_t num_rows,
            const store_t* in,
            int64_t stride,
            const Wanted& wanted,
            const End& end,
            const int64_t* count = nullptr) {
  using Sum = Pack<scalar_t, width>;
  const int64_t groups = stride / width;
  const auto part = [=] PYG_TRUST_RUN(int64_t i, int64_t group, int64_t p) {
    const int64_t begin = all.begin(i), stop = begin + all.degree(i);
    if (stop - begin > kLongest || !wanted(group))
      return Sum{};
    return sum_rows<width, scalar_t>(col, in + group * width, stride,
                                     begin + p, stop, parts);
  };
  const auto whole = [=] PYG_TRUST_RUN(int64_t i, int64_t group,
                                       const Sum& sum) {
    if (all.degree(i) <= kLongest && wanted(group))
      end(i, group, sum);
  };
  if (count == nullptr)
    machine.template run_parts<parts, Sum>(num_rows, groups, part, whole);
  else
    machine.template run_parts<parts, Sum>(num_rows, groups, part, whole,
                                           count);
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
        const int64_t begin = all.begin(i) + from;
        const int64_t left = all.degree(i) - from;
        return sum_rows<width, scalar_t>(
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
        const int64_t pieces =
            (all.degree(rows.row[k]) + kLongest - 1) / kLongest;
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

// All that exact propagation reads and writes; `weights` is on the host.
template <typename scalar_t>
struct Exact {
  const int64_t* rowptr;
  const int32_t* col;
  int64_t num_nodes;
  int64_t num_entries;
  int64_t columns;
  int64_t together;  // columns of all calls of which this may be one
  const scalar_t* x;
  int64_t x_stride;
  const scalar_t* recv;  // d^-a
  const scalar_t* send;  // d^-b
  const double* weights;
  int64_t levels;
  scalar_t* z;
  int64_t z_stride;
  const scalar_t* scale;  // of what is stored, by column, or null
  bool three_term;
  const int64_t* rows;  // whose z is wanted, in this order, or null
  int64_t num_rows;
  int64_t most_entries;  // of these rows, together
  // What the rows of the graph are called in x, recv, send and z; null if they
  // have these names already.
  const int64_t* names;
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
  int64_t levels = p.levels;
  while (levels > 0 && p.weights[levels] == 0)
    --levels;
  const int64_t x_stride = p.x_stride, z_stride = p.z_stride;
  const scalar_t* x = p.x;
  const scalar_t* recv = p.recv;
  const scalar_t* send = p.send;
  const scalar_t* scale = p.scale;
  const int64_t* names = p.names;
  scalar_t* z = p.z;
  const bool whole_x = is_aligned<width>(x, x_stride);
  const bool whole_z = is_aligned<width>(z, z_stride);
  const Rows all{p.rowptr, nullptr}, wanted{p.rowptr, p.rows};
  const int64_t num_out = p.rows == nullptr ? n : p.num_rows;
  const auto name = [=] PYG_TRUST_RUN(int64_t v) {
    return names == nullptr ? v : names[v];
  };

  // y_L, or all of z.
  const auto highest = static_cast<scalar_t>(p.weights[levels]);
  const int64_t groups = stride / width;
  if (levels == 0) {
    machine.run(num_out, groups, [=] PYG_TRUST_RUN(int64_t i, int64_t group) {
      const int64_t u = name(wanted.at(i)), first = group * width;
      auto row = load_pack<width>(x + u * x_stride + first, columns - first,
                                  whole_x);
      for (int c = 0; c < width; ++c)
        row.at[c] *= highest;
      const int64_t place = wanted.list == nullptr ? u : i;
      store_pack(z + place * z_stride + first, row, columns - first, whole_z);
    });
    return;
  }
  auto* current = machine.template make<store_t>(n * stride);
  auto* following = machine.template make<store_t>(n * stride);
  machine.run(n, groups, [=] PYG_TRUST_RUN(int64_t v, int64_t group) {
    const int64_t u = name(v), first = group * width;
    const auto row = load_pack<width>(x + u * x_stride + first,
                                      columns - first, whole_x);
    Pack<store_t, width> stored;
    for (int c = 0; c < width; ++c) {
      scalar_t value = row.at[c];
      if (scale != nullptr && first + c < columns)
        value *= scale[first + c];
      narrow(static_cast<scalar_t>(send[u] * (highest * value)), stored.at[c]);
    }
    *reinterpret_cast<Pack<store_t, width>*>(current + v * stride + first) =
        stored;
  });
  const bool some = p.rows != nullptr;
  const LongRows long_rows =
      levels > 1 || !some
          ? find_long_rows<scalar_t>(machine, all, n, p.num_entries, stride)
          : LongRows{};
  const LongRows long_wanted =
      some ? find_long_rows<scalar_t>(machine, wanted, num_out,
                                      p.most_entries, stride)
           : long_rows;
  const auto alone =
      static_cast<scalar_t>(at_zero(p.weights, levels + 1, p.three_term));
  for (int64_t i = levels - 1; i >= 0; --i) {
    const auto weight = static_cast<scalar_t>(p.weights[i]);
    const auto factor = static_cast<scalar_t>(level_factor(p.three_term, i));
    const bool last = i == 0;
    const bool three_term = p.three_term && i + 1 < levels;
    store_t* out = following;
    const Rows rows = last ? wanted : all;
    gather<parts, width, scalar_t>(
        machine, rows, p.col, last ? long_wanted : long_rows,
        last ? num_out : n, current, stride, Everything{},
        [=] PYG_TRUST_RUN(int64_t k, int64_t group,
                          const Pack<scalar_t, width>& received) {
          Pack<scalar_t, width> sum = received;
          const int64_t v = rows.at(k), u = name(v);
          const scalar_t by = recv[u] * factor;
          const int64_t begin = group * width;
          auto* place = reinterpret_cast<Pack<store_t, width>*>(
              out + v * stride + begin);
          Pack<store_t, width> before{};
          if (three_term)
            before = *place;
          const bool apart = last && three_term && send[u] == 0;
          const scalar_t own = apart ? alone : weight;
          Pack<scalar_t, width> more{};
          if (own != 0)
            more = load_pack<width>(x + u * x_stride + begin, columns - begin,
                                    whole_x);
          if (!last) {
            Pack<store_t, width> next;
            for (int c = 0; c < width; ++c) {
              scalar_t value = sum.at[c] * by;
              if (weight != 0 && begin + c < columns) {
                if (scale != nullptr)
                  more.at[c] *= scale[begin + c];
                value = weight * more.at[c] + value;
              }
              value *= send[u];
              if (three_term)
                value -= widen(before.at[c]);
              narrow(value, next.at[c]);
            }
            *place = next;
            return;
          }
          for (int c = 0; c < width; ++c) {
            scalar_t value = sum.at[c] * by;
            if (apart)
              value = 0;
            else if (three_term)
              value -= widen(before.at[c]) * (scalar_t(1) / send[u]);
            if (scale != nullptr && begin + c < columns)
              value *= scalar_t(1) / scale[begin + c];
            if (own != 0)
              value = own * more.at[c] + value;
            sum.at[c] = value;
          }
          const int64_t row = rows.list == nullptr ? u : k;
          store_pack(z + row * z_stride + begin, sum, columns - begin,
                     whole_z);
        });
    std::swap(current, following);
  }
}

// The entries of some rows of the graph, for Exact::most_entries: waits.
template <typename Machine>
int64_t count_entries(Machine& machine,
                      const int64_t* rowptr,
                      const int64_t* rows,
                      int64_t num_rows) {
  auto* all = machine.template make<int64_t>(1);
  machine.zero(all, 1);
  const Rows wanted{rowptr, rows};
  machine.run(num_rows, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
    const int64_t degree = wanted.degree(i);
    if (degree > kLongest)
      add(all, degree);
  });
  return machine.read(all);
}

// z = sum_i weights[i] (D_recv B D_send)^i x, as in horner.h.
template <typename store_t, typename scalar_t, typename Machine>
void propagate(Machine& machine, const Exact<scalar_t>& p) {
  constexpr int kWidest = 16 / sizeof(store_t);  // bytes that load at once
  constexpr int kMiddle = kWidest / 2;
  constexpr int kParts = 8;  // threads of a row with few columns
  if (p.num_nodes == 0 || p.columns == 0)
    return;
  if (p.together == 1)
    propagate_by<kParts, 1, store_t>(machine, p);
  else if (kMiddle > 1 && p.together <= kMiddle)
    propagate_by<kParts, kMiddle, store_t>(machine, p);
  else if (p.together <= 2 * kWidest)
    propagate_by<kParts, kWidest, store_t>(machine, p);
  else
    propagate_by<1, kWidest, store_t>(machine, p);
}

// The columns [first, first + columns) of the rows (ptr, index, value), dense.
template <typename scalar_t, typename Machine>
const scalar_t* lay_out(Machine& machine,
                        const int64_t* ptr,
                        const int64_t* index,
                        const scalar_t* value,
                        int64_t num_rows,
                        int64_t first,
                        int64_t columns) {
  auto* x = machine.template make<scalar_t>(num_rows * columns);
  machine.zero(x, num_rows * columns);
  machine.run(num_rows, 1, [=] PYG_TRUST_RUN(int64_t v, int64_t) {
    for (int64_t k = ptr[v]; k < ptr[v + 1]; ++k) {
      const int64_t c = index[k] - first;
      if (c >= 0 && c < columns)
        x[v * columns + c] += value[k];
    }
  });
  return x;
}

// The same for the rows (ptr, index, value) of a sparse x (not p.x), as many
// columns at a time as kTile: a tile is laid out, so that the bits are those of
// a dense x.
template <typename store_t, typename scalar_t, typename MakeMachine>
void propagate_entries(const MakeMachine& make_machine,
                       const Exact<scalar_t>& p,
                       const int64_t* ptr,
                       const int64_t* index,
                       const scalar_t* value) {
  constexpr int64_t kTile = 128;
  for (int64_t first = 0; first < p.columns; first += kTile) {
    auto machine = make_machine();
    Exact<scalar_t> part = p;
    part.columns = p.columns - first < kTile ? p.columns - first : kTile;
    part.x = lay_out(machine, ptr, index, value, p.num_nodes, first,
                     part.columns);
    part.x_stride = part.columns;
    part.z = p.z + first;
    if (p.scale != nullptr)
      part.scale = p.scale + first;
    propagate<store_t>(machine, part);
  }
}

}  // namespace pyg_trust::device
