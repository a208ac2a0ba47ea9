// Rows of a level, for the instruction set of the file that includes this.
#pragma once

#include "gather.h"
#include "kernels.h"
#include "pulled.h"

namespace pyg_trust {
namespace {

// Rows to prefetch that stand in order, but so far apart in time that the
// processor sees no stream.
constexpr int64_t kRowsSoon = 2;

// One exact level of a push: rows [begin, end), the `width` columns from
// `first` on.
template <int width, typename scalar_t>
PYG_TRUST_INLINE void advance_columns(const Level<scalar_t>& level,
                                      int64_t begin,
                                      int64_t end,
                                      int64_t first) {
  const int64_t rest = level.first + level.columns - first;
  const int64_t columns = rest < width ? rest : width;
  gather<width, scalar_t>(
      level.rowptr, level.col, level.num_entries, level.in + first,
      level.stride, begin, end, [&](int64_t v, scalar_t* sum) {
        const scalar_t recv = level.recv[v] * level.ratio;
        for (int c = 0; c < width; ++c)
          sum[c] *= recv;
        if (level.weight != 0) {
          scalar_t* z = level.z + v * level.z_stride + first;
          for (int c = 0; c < columns; ++c)
            z[c] += level.weight * sum[c];
        }
        if (level.out != nullptr) {
          const scalar_t send = level.send[v];
          scalar_t* out = level.out + v * level.stride + first;
          for (int c = 0; c < width; ++c)
            out[c] = send * sum[c];
        }
      });
}

template <typename scalar_t>
void advance(const Level<scalar_t>& level, int64_t begin, int64_t end) {
  in_tiles<scalar_t>(level.first, level.end, PYG_TRUST_WIDTH(first) {
    advance_columns<width>(level, begin, end, first);
  });
}

// Row v of x, padded with zeros if it is shorter than `width`: where it is, or
// in `room`.
template <int width, typename scalar_t, typename store_t>
PYG_TRUST_INLINE const scalar_t* signal(const Step<scalar_t, store_t>& step,
                                        int64_t v,
                                        scalar_t* room) {
  if (step.x != nullptr) {
    const scalar_t* x = step.x + v * step.x_stride;
    if (step.columns == width)
      return x;
    for (int c = 0; c < width; ++c)
      room[c] = c < step.columns ? x[c] : scalar_t(0);
    return room;
  }
  for (int c = 0; c < width; ++c)
    room[c] = 0;
  const auto& entries = step.entries;
  for (int64_t k = entries.ptr[v]; k < entries.ptr[v + 1]; ++k)
    room[entries.column[k]] += entries.value[k];
  return room;
}

// Half of the lanes at a time.
template <int lanes>
PYG_TRUST_INLINE int32_t sum(
    const typename Vector<int32_t, lanes>::type& all) {
  if constexpr (lanes == 4) {
    return (all[0] + all[1]) + (all[2] + all[3]);
  } else {
    typename Vector<int32_t, lanes / 2>::type half[2];
    std::memcpy(half, &all, sizeof(half));
    return sum<lanes / 2>(half[0] + half[1]);
  }
}

// How many entries of a row are smaller than `own`, and how many are `own`.
struct Compared {
  int32_t smaller, equal;
};

#ifdef PYG_TRUST_AVX512F
// A vector at a time, of which the last reaches no further than the row.
inline Compared compare(const int32_t* row, int32_t count, int32_t own) {
  const __m512i all = _mm512_set1_epi32(own);
  Compared found{0, 0};
  for (int32_t e = 0; e < count; e += 16) {
    const int32_t rest = count - e;
    const auto inside =
        static_cast<__mmask16>(rest < 16 ? (1 << rest) - 1 : 0xFFFF);
    const __m512i entry = _mm512_maskz_loadu_epi32(inside, row + e);
    found.smaller +=
        __builtin_popcount(_mm512_mask_cmplt_epi32_mask(inside, entry, all));
    found.equal +=
        __builtin_popcount(_mm512_mask_cmpeq_epi32_mask(inside, entry, all));
  }
  return found;
}
#else
// Whole vectors, then the entries that are left.
inline Compared compare(const int32_t* row, int32_t count, int32_t own) {
  constexpr int lanes = kVectorBytes / int{sizeof(int32_t)};
  typename Vector<int32_t, lanes>::type smaller = {}, equal = {};
  int32_t e = 0;
  for (; e + lanes <= count; e += lanes) {
    const auto entry = load<lanes>(row + e);
    smaller -= entry < own;
    equal -= entry == own;
  }
  Compared found{0, 0};
  if (e > 0)
    found = {sum<lanes>(smaller), sum<lanes>(equal)};
  for (; e < count; ++e) {
    found.smaller += row[e] < own;
    found.equal += row[e] == own;
  }
  return found;
}
#endif

// Where in its row an entry of node v itself belongs: before the first of a
// later node; kNoPlace if it has one already.
inline void find_places(const Loops& loops, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t v = loops.rows == nullptr ? i : loops.rows[i];
    const int32_t* row = loops.col + loops.rowptr[v];
    const auto count =
        static_cast<int32_t>(loops.rowptr[v + 1] - loops.rowptr[v]);
    const Compared found = compare(row, count, static_cast<int32_t>(v));
    loops.places[i] = found.equal == 0 ? found.smaller : kNoPlace;
  }
}

// The entries of the i-th row, which is that of node v, with its own if it gets
// one: calls add(e, u) in order.
template <typename scalar_t, typename store_t, typename Add>
PYG_TRUST_INLINE void for_row(const Step<scalar_t, store_t>& step,
                              int64_t i,
                              int64_t v,
                              const Add& add) {
  const int64_t row = step.packed ? i : v;
  int64_t e = step.rowptr[row];
  const int64_t stop = step.rowptr[row + 1];
  if (step.places != nullptr && step.places[v] != kNoPlace) {
    for (const int64_t middle = e + step.places[v]; e < middle; ++e)
      add(e, step.col[e]);
    add(e, v);
  }
  for (; e < stop; ++e)
    add(e, step.col[e]);
}

template <int width, typename scalar_t>
PYG_TRUST_INLINE void prefetch_row(const scalar_t* row) {
  const auto* ahead = reinterpret_cast<const char*>(row);
  for (int64_t b = 0; b < width * int64_t{sizeof(scalar_t)}; b += kCacheLine)
    __builtin_prefetch(ahead + b);
}

template <int width, typename scalar_t, typename store_t>
PYG_TRUST_INLINE void load_rows(const Step<scalar_t, store_t>& step,
                                int64_t begin,
                                int64_t end) {
  constexpr int lanes = kRowLanes<scalar_t, width>;
  for (int64_t v = begin; v < end; ++v) {
    alignas(kCacheLine) scalar_t room[width];
    const scalar_t* x = signal<width>(step, v, room);
    for (int k = 0; k < width; k += lanes) {
      auto value = load<lanes>(x + k);
      if (step.scale != nullptr)
        value *= load<lanes>(step.scale + k);
      value = step.send[v] * (step.weight * value);
      store<lanes>(step.out + v * step.stride + k, value);
    }
  }
}

template <int width, bool near, typename scalar_t, typename store_t>
PYG_TRUST_INLINE void step_rows(const Step<scalar_t, store_t>& step,
                                int64_t begin,
                                int64_t end) {
  constexpr int lanes = kRowLanes<scalar_t, width>;
  constexpr int vectors = width / lanes;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t v = step.rows == nullptr ? i : step.rows[i];
    if (i + kRowsSoon < end) {
      const int64_t soon =
          step.rows == nullptr ? i + kRowsSoon : step.rows[i + kRowsSoon];
      if (step.in != nullptr && step.places != nullptr)
        prefetch_row<width>(step.in + soon * step.stride);
      if (step.x != nullptr && step.weight != 0)
        prefetch_row<width>(step.x + soon * step.x_stride);
    }
    Row<scalar_t, width> value[vectors];
    alignas(kCacheLine) scalar_t room[width];
    if (step.in != nullptr) {
      Row<scalar_t, width> total[vectors] = {};
      const int64_t row = step.packed ? i : v;
      const int64_t begins = step.rowptr[row], stop = step.rowptr[row + 1];
      const bool plain =
          step.places == nullptr || step.places[v] == kNoPlace;
      if (near && plain)
        add_rows<width, scalar_t, false>(step.col, 0, step.in, width, begins,
                                         stop, total);
      else if (near)
        add_near_rows_and_own<width, scalar_t>(
            step.col, step.num_entries, step.in, width, begins, stop,
            begins + step.places[v], v, total);
      else if (plain)
        add_rows<width, scalar_t>(step.col, step.num_entries, step.in, width,
                                  begins, stop, total);
      else
        add_rows_and_own<width, scalar_t>(
            step.col, step.num_entries, step.in, width, begins, stop,
            begins + step.places[v], v, total);
      for (int k = 0; k < vectors; ++k)
        value[k] = total[k];
    } else {
      for (int c = 0; c < width; ++c)
        room[c] = 0;
      const auto& entries = step.entries;
      for_row(step, i, v, [&](int64_t e, int64_t u) {
        const int64_t last = step.num_entries - 1;
        const int64_t later = e + kLinesAhead < last ? e + kLinesAhead : last;
        __builtin_prefetch(entries.ptr + step.col[later]);
        for (int64_t k = entries.ptr[u]; k < entries.ptr[u + 1]; ++k)
          room[entries.column[k]] += entries.sent[k];
      });
      for (int k = 0; k < vectors; ++k)
        value[k] = load<lanes>(room + k * lanes);
    }
    const scalar_t recv = step.recv[v] * step.factor;
    for (int k = 0; k < vectors; ++k)
      value[k] *= recv;

    if (step.out != nullptr) {
      if (step.weight != 0) {
        const scalar_t* x = signal<width>(step, v, room);
        for (int k = 0; k < vectors; ++k) {
          auto more = load<lanes>(x + k * lanes);
          if (step.scale != nullptr)
            more *= load<lanes>(step.scale + k * lanes);
          value[k] = step.weight * more + value[k];
        }
      }
      const scalar_t send = step.send[v];
      store_t* out = step.out + v * step.stride;
      for (int k = 0; k < vectors; ++k) {
        value[k] *= send;
        if (step.three_term)
          value[k] -= load<lanes>(step.before + v * step.stride + k * lanes);
        store<lanes>(out + k * lanes, value[k]);
      }
      continue;
    }
    // The end. Without neighbours to send to, y says nothing of u_2.
    scalar_t weight = step.weight;
    const bool apart = step.three_term && step.send[v] == 0;
    if (apart)
      weight = step.at_zero;
    for (int k = 0; k < vectors; ++k) {
      if (apart)
        value[k] = Row<scalar_t, width>{};
      else if (step.three_term)
        value[k] -= load<lanes>(step.before + v * step.stride + k * lanes) *
                    (scalar_t(1) / step.send[v]);
      if (step.unscale != nullptr)
        value[k] *= load<lanes>(step.unscale + k * lanes);
    }
    if (weight != 0) {
      const scalar_t* x = signal<width>(step, v, room);
      for (int k = 0; k < vectors; ++k)
        value[k] = weight * load<lanes>(x + k * lanes) + value[k];
    }
    scalar_t* z = step.z + (step.asked ? i : v) * step.z_stride;
    if (step.columns == width) {
      for (int k = 0; k < vectors; ++k)
        store<lanes>(z + k * lanes, value[k]);
    } else {
      std::memcpy(room, value, sizeof(room));
      for (int c = 0; c < step.columns; ++c)
        z[c] = room[c];
    }
  }
}

template <typename scalar_t, typename store_t>
void load_all(const Step<scalar_t, store_t>& step,
              int64_t begin,
              int64_t end) {
  in_tiles<scalar_t>(0, step.stride, PYG_TRUST_WIDTH(first) {
    static_cast<void>(first);
    load_rows<width>(step, begin, end);
  });
}

template <typename scalar_t, typename store_t>
void step_all(const Step<scalar_t, store_t>& step,
              int64_t begin,
              int64_t end) {
  in_tiles<scalar_t>(0, step.stride, PYG_TRUST_WIDTH(first) {
    static_cast<void>(first);
    if (step.near)
      step_rows<width, true>(step, begin, end);
    else
      step_rows<width, false>(step, begin, end);
  });
}

// Rows of z after one level of a sparse x.
template <typename scalar_t>
void wide_rows(const Step<scalar_t, scalar_t>& step,
               int64_t begin,
               int64_t end) {
  constexpr int64_t soon = 8;
  const auto& entries = step.entries;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t v = step.rows == nullptr ? i : step.rows[i];
    scalar_t* z = step.z + (step.asked ? i : v) * step.z_stride;
    for (int64_t c = 0; c < step.columns; ++c)
      z[c] = 0;
    for_row(step, i, v, [&](int64_t e, int64_t u) {
      const int64_t last = step.num_entries - 1;
      const int64_t far = e + kLinesAhead < last ? e + kLinesAhead : last;
      const int64_t near = e + soon < last ? e + soon : last;
      __builtin_prefetch(entries.ptr + step.col[far]);
      const int64_t next = entries.ptr[step.col[near]];
      __builtin_prefetch(entries.wide + next);
      __builtin_prefetch(entries.wide + next + 8);
      __builtin_prefetch(entries.sent + next);
      for (int64_t k = entries.ptr[u]; k < entries.ptr[u + 1]; ++k)
        z[entries.wide[k]] += entries.sent[k];
    });
    const scalar_t recv = step.recv[v];
    for (int64_t c = 0; c < step.columns; ++c)
      z[c] *= recv;
    if (step.unscale != nullptr) {
      for (int64_t c = 0; c < step.columns; ++c)
        z[c] *= step.unscale[c];
    }
    if (step.weight == 0)
      continue;
    // Row v of x, dense, some columns at a time.
    constexpr int64_t most = 2048;
    scalar_t room[most];
    for (int64_t first = 0; first < step.columns; first += most) {
      const int64_t rest = step.columns - first;
      const int64_t count = rest < most ? rest : most;
      for (int64_t c = 0; c < count; ++c)
        room[c] = 0;
      for (int64_t k = entries.ptr[v]; k < entries.ptr[v + 1]; ++k) {
        const int64_t c = entries.wide[k] - first;
        if (c >= 0 && c < count)
          room[c] += entries.value[k];
      }
      for (int64_t c = 0; c < count; ++c)
        z[first + c] = step.weight * room[c] + z[first + c];
    }
  }
}

inline void round_half(float* values, int64_t count) {
  Float16 stored;
  for (int64_t k = 0; k < count; ++k) {
    store<1>(&stored, load<1>(values + k));
    store<1>(values + k, load<1>(&stored));
  }
}

template <typename scalar_t, typename store_t>
constexpr StepKernels<scalar_t, store_t> step_kernels = {
    load_all<scalar_t, store_t>, step_all<scalar_t, store_t>};
template <typename scalar_t>
constexpr RowKernels<scalar_t> row_kernels = {advance<scalar_t>,
                                              wide_rows<scalar_t>};

}  // namespace
}  // namespace pyg_trust

#define PYG_TRUST_KERNELS(name, level)                                    \
  namespace pyg_trust {                                                   \
  const Kernels name = {step_kernels<float, float>,                       \
                        step_kernels<float, Float16>,                     \
                        step_kernels<double, double>,                     \
                        row_kernels<float>,                               \
                        row_kernels<double>,                              \
                        {pull_all_columns<float>},                        \
                        {pull_all_columns<double>},                       \
                        {pull_all_columns<int64_t>},                      \
                        level,                                            \
                        find_places,                                      \
                        round_half};                                      \
  }
