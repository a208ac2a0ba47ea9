// Rows of a level, for the instruction set of the file that includes this.
#pragma once

#include "flip.h"
#include "gather.h"
#include "kernels.h"

namespace pyg_trust {
namespace {

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
  constexpr int line = kCacheLine / sizeof(scalar_t);
  int64_t first = level.first;
  for (; first + 4 * line <= level.end; first += 4 * line)
    advance_columns<4 * line>(level, begin, end, first);
  const int64_t rest = level.end - first;
  if (rest >= 3 * line)
    advance_columns<3 * line>(level, begin, end, first);
  else if (rest >= 2 * line)
    advance_columns<2 * line>(level, begin, end, first);
  else if (rest >= line)
    advance_columns<line>(level, begin, end, first);
  else if (rest >= line / 2 && line / 2 > 4)
    advance_columns<line / 2>(level, begin, end, first);
  else if (rest >= 4)
    advance_columns<4>(level, begin, end, first);
  else if (rest >= 2)
    advance_columns<2>(level, begin, end, first);
  else if (rest == 1)
    advance_columns<1>(level, begin, end, first);
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

template <typename scalar_t, typename store_t>
PYG_TRUST_INLINE int64_t name_of(const Step<scalar_t, store_t>& step,
                                 int64_t v) {
  return step.names == nullptr ? v : step.names[v];
}

// Where in row v an entry of v itself belongs: before the first of a later
// node. The row's end if it has one already, or if none is wanted; `own` says
// whether one is.
template <typename scalar_t, typename store_t>
PYG_TRUST_INLINE int64_t own_place(const Step<scalar_t, store_t>& step,
                                   int64_t v,
                                   int64_t name,
                                   bool* own) {
  const int64_t stop = step.rowptr[v + 1];
  *own = false;
  if (!step.loops)
    return stop;
  int64_t low = step.rowptr[v], count = stop - low;
  while (count > 0) {
    const int64_t half = count / 2;
    const bool before = name_of(step, step.col[low + half]) < name;
    low = before ? low + half + 1 : low;
    count = before ? count - half - 1 : half;
  }
  *own = low == stop || name_of(step, step.col[low]) != name;
  return *own ? low : stop;
}

template <int width, typename scalar_t, typename store_t>
PYG_TRUST_INLINE void load_rows(const Step<scalar_t, store_t>& step,
                                int64_t begin,
                                int64_t end) {
  constexpr int lanes = kRowLanes<scalar_t, width>;
  for (int64_t v = begin; v < end; ++v) {
    alignas(kCacheLine) scalar_t room[width];
    const int64_t name = name_of(step, v);
    const scalar_t* x = signal<width>(step, name, room);
    for (int k = 0; k < width; k += lanes) {
      auto value = load<lanes>(x + k);
      if (step.scale != nullptr)
        value *= load<lanes>(step.scale + k);
      value = step.send[name] * (step.weight * value);
      store<lanes>(step.out + v * step.stride + k, value);
    }
  }
}

template <int width, typename scalar_t, typename store_t>
PYG_TRUST_INLINE void step_rows(const Step<scalar_t, store_t>& step,
                                int64_t begin,
                                int64_t end) {
  constexpr int lanes = kRowLanes<scalar_t, width>;
  constexpr int vectors = width / lanes;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t v = step.rows == nullptr ? i : step.rows[i];
    const int64_t name = name_of(step, v);
    Row<scalar_t, width> value[vectors];
    alignas(kCacheLine) scalar_t room[width];
    bool own;
    const int64_t begins = step.rowptr[v], stop = step.rowptr[v + 1];
    const int64_t middle = own_place(step, v, name, &own);
    if (step.in != nullptr) {
      Row<scalar_t, width> total[vectors] = {};
      add_rows<width, scalar_t>(step.col, step.num_entries, step.in,
                                step.stride, begins, middle, total);
      if (own) {
        for (int k = 0; k < vectors; ++k)
          total[k] += load<lanes>(step.in + v * step.stride + k * lanes);
        add_rows<width, scalar_t>(step.col, step.num_entries, step.in,
                                  step.stride, middle, stop, total);
      }
      for (int k = 0; k < vectors; ++k)
        value[k] = total[k];
    } else {
      for (int c = 0; c < width; ++c)
        room[c] = 0;
      const auto& entries = step.entries;
      const auto add = [&](int64_t u) {
        for (int64_t k = entries.ptr[u]; k < entries.ptr[u + 1]; ++k)
          room[entries.column[k]] += entries.sent[k];
      };
      for (int64_t e = begins; e < stop; ++e) {
        if (own && e == middle)
          add(name);
        const int64_t later =
            e + kLinesAhead < step.num_entries ? e + kLinesAhead : e;
        if (step.names == nullptr)
          __builtin_prefetch(entries.ptr + step.col[later]);
        add(name_of(step, step.col[e]));
      }
      if (own && middle == stop)
        add(name);
      for (int k = 0; k < vectors; ++k)
        value[k] = load<lanes>(room + k * lanes);
    }
    const scalar_t recv = step.recv[name] * step.factor;
    for (int k = 0; k < vectors; ++k)
      value[k] *= recv;

    if (step.out != nullptr) {
      if (step.weight != 0) {
        const scalar_t* x = signal<width>(step, name, room);
        for (int k = 0; k < vectors; ++k) {
          auto more = load<lanes>(x + k * lanes);
          if (step.scale != nullptr)
            more *= load<lanes>(step.scale + k * lanes);
          value[k] = step.weight * more + value[k];
        }
      }
      const scalar_t send = step.send[name];
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
    const bool apart = step.three_term && step.send[name] == 0;
    if (apart)
      weight = step.at_zero;
    for (int k = 0; k < vectors; ++k) {
      if (apart)
        value[k] = Row<scalar_t, width>{};
      else if (step.three_term)
        value[k] -= load<lanes>(step.before + v * step.stride + k * lanes) *
                    (scalar_t(1) / step.send[name]);
      if (step.unscale != nullptr)
        value[k] *= load<lanes>(step.unscale + k * lanes);
    }
    if (weight != 0) {
      const scalar_t* x = signal<width>(step, name, room);
      for (int k = 0; k < vectors; ++k)
        value[k] = weight * load<lanes>(x + k * lanes) + value[k];
    }
    const int64_t place = step.rows == nullptr ? name : i;
    scalar_t* z = step.z + place * step.z_stride;
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

// Calls run.template by<width>() for the width of a row of the buffers.
template <typename scalar_t, typename Run>
PYG_TRUST_INLINE void with_width(int64_t stride, const Run& run) {
  constexpr int line = kCacheLine / sizeof(scalar_t);
  if (stride == 4 * line)
    run.template by<4 * line>();
  else if (stride == 3 * line)
    run.template by<3 * line>();
  else if (stride == 2 * line)
    run.template by<2 * line>();
  else if (stride == line)
    run.template by<line>();
  else if (stride == line / 2)
    run.template by<line / 2>();
  else if (stride == 4)
    run.template by<4>();
  else if (stride == 2)
    run.template by<2>();
  else
    run.template by<1>();
}

template <typename scalar_t, typename store_t>
struct Load {
  const Step<scalar_t, store_t>& step;
  int64_t begin, end;
  template <int width>
  PYG_TRUST_INLINE void by() const {
    load_rows<width>(step, begin, end);
  }
};

template <typename scalar_t, typename store_t>
struct Take {
  const Step<scalar_t, store_t>& step;
  int64_t begin, end;
  template <int width>
  PYG_TRUST_INLINE void by() const {
    step_rows<width>(step, begin, end);
  }
};

template <typename scalar_t, typename store_t>
void load_all(const Step<scalar_t, store_t>& step,
              int64_t begin,
              int64_t end) {
  with_width<scalar_t>(step.stride, Load<scalar_t, store_t>{step, begin, end});
}

template <typename scalar_t, typename store_t>
void step_all(const Step<scalar_t, store_t>& step,
              int64_t begin,
              int64_t end) {
  with_width<scalar_t>(step.stride, Take<scalar_t, store_t>{step, begin, end});
}

inline void round_half(float* values, int64_t count) {
  Float16 stored;
  for (int64_t k = 0; k < count; ++k) {
    store<1>(&stored, load<1>(values + k));
    store<1>(values + k, load<1>(&stored));
  }
}

inline void gap_lengths(uint64_t key,
                        uint64_t first,
                        int64_t count,
                        double scale,
                        double* length) {
  for (int64_t k = 0; k < count; ++k)
    length[k] = GapLaw::length(key, first + static_cast<uint64_t>(k), scale);
}

inline void stay(uint64_t key,
                 const int64_t* entry,
                 int64_t count,
                 uint64_t below,
                 uint8_t* kept) {
  for (int64_t k = 0; k < count; ++k)
    kept[k] = !deleted(key, static_cast<uint64_t>(entry[k]), below);
}

}  // namespace
}  // namespace pyg_trust

#define PYG_TRUST_KERNELS(name, level)                                     \
  namespace pyg_trust {                                                    \
  const Kernels name = {level,           advance<float>,                   \
                        advance<double>, load_all<float, float>,           \
                        load_all<float, Float16>, load_all<double, double>, \
                        step_all<float, float>, step_all<float, Float16>,  \
                        step_all<double, double>, round_half,              \
                        gap_lengths,     stay};                            \
  }
