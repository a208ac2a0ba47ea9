#include "advance.h"

namespace pyg_trust {
namespace {

// Rows [begin, end) of a level, for the `width` columns from `first` on.
template <int width, typename scalar_t, typename store_t>
inline __attribute__((always_inline)) void advance(
    const Level<scalar_t, store_t>& level,
    int64_t begin,
    int64_t end,
    int64_t first) {
  const int64_t columns =
      std::min<int64_t>(width, level.first + level.columns - first);
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
          store_t* out = level.out + v * level.stride + first;
          for (int c = 0; c < width; ++c)
            out[c] = static_cast<store_t>(send * sum[c]);
        }
      });
}

template <typename scalar_t, typename store_t>
inline __attribute__((always_inline)) void advance_columns(
    const Level<scalar_t, store_t>& level,
    int64_t begin,
    int64_t end) {
  constexpr int line = kCacheLine / sizeof(scalar_t);
  int64_t first = level.first;
  for (; first + 4 * line <= level.end; first += 4 * line)
    advance<4 * line>(level, begin, end, first);
  const int64_t rest = level.end - first;
  if (rest >= 3 * line)
    advance<3 * line>(level, begin, end, first);
  else if (rest >= 2 * line)
    advance<2 * line>(level, begin, end, first);
  else if (rest >= line)
    advance<line>(level, begin, end, first);
  else if (rest >= line / 2 && line / 2 > 4)
    advance<line / 2>(level, begin, end, first);
  else if (rest >= 4)
    advance<4>(level, begin, end, first);
  else if (rest >= 2)
    advance<2>(level, begin, end, first);
  else if (rest == 1)
    advance<1>(level, begin, end, first);
}

}  // namespace

PYG_TRUST_CLONES void advance_rows(const Level<float, float>& level,
                                   int64_t begin,
                                   int64_t end) {
  advance_columns(level, begin, end);
}

PYG_TRUST_CLONES void advance_rows(const Level<float, BFloat16>& level,
                                   int64_t begin,
                                   int64_t end) {
  advance_columns(level, begin, end);
}

PYG_TRUST_CLONES void advance_rows(const Level<double, double>& level,
                                   int64_t begin,
                                   int64_t end) {
  advance_columns(level, begin, end);
}

}  // namespace pyg_trust
