// Row by row products for one instruction set: included once for each, with
//   set1, load, fma, store  of vectors of PYG_TRUST_BYTES bytes,
//   PYG_TRUST_ROWS  so many rows go through together, and
//   PYG_TRUST_SET  the name of all that.
// See row_linear.cpp for what is promised of the bits.

namespace PYG_TRUST_SET {

// `kRows` rows from `x` on, times `kVectors` vectors of columns of a panel,
// plus its last row if it is `biased`.
template <typename scalar_t, int kRows, int kVectors>
inline void chains(const scalar_t* x,
                   const scalar_t* panel,
                   int64_t depth,
                   int64_t columns,
                   scalar_t* y,
                   int64_t pitch,
                   bool biased) {
  constexpr int64_t lanes = PYG_TRUST_BYTES / sizeof(scalar_t);
  using vector_t = decltype(set1(scalar_t(0)));
  vector_t sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = set1(scalar_t(0));
  for (int64_t k = 0; k < depth; ++k, panel += kPanel<scalar_t>) {
    vector_t weight[kVectors];
    for (int v = 0; v < kVectors; ++v)
      weight[v] = load(panel + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const auto value = set1(x[r * depth + k]);
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = fma(value, weight[v], sum[r][v]);
    }
  }
  const auto one = set1(scalar_t(1));
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) {
      if (biased)  // a sum that is rounded once
        sum[r][v] = fma(one, sum[r][v], load(panel + v * lanes));
      const int64_t rest = columns - v * lanes;
      scalar_t* to = y + r * pitch + v * lanes;
      if (rest >= lanes) {
        store(to, sum[r][v]);
        continue;
      }
      scalar_t room[lanes];
      store(room, sum[r][v]);
      for (int64_t j = 0; j < rest; ++j)
        to[j] = room[j];
    }
}

template <typename scalar_t, int kVectors>
inline void strip(const scalar_t* x,
                  const scalar_t* panel,
                  int64_t depth,
                  int64_t columns,
                  scalar_t* y,
                  int64_t pitch,
                  int64_t rows,
                  bool biased) {
  int64_t r = 0;
  for (; r + PYG_TRUST_ROWS <= rows; r += PYG_TRUST_ROWS)
    chains<scalar_t, PYG_TRUST_ROWS, kVectors>(x + r * depth, panel, depth,
                                               columns, y + r * pitch, pitch,
                                               biased);
  for (; r + 3 <= rows; r += 3)
    chains<scalar_t, 3, kVectors>(x + r * depth, panel, depth, columns,
                                  y + r * pitch, pitch, biased);
  for (; r < rows; ++r)
    chains<scalar_t, 1, kVectors>(x + r * depth, panel, depth, columns,
                                  y + r * pitch, pitch, biased);
}

template <typename scalar_t>
void row_linear(const scalar_t* x,
                const scalar_t* panels,
                int64_t depth,
                int64_t columns,
                scalar_t* y,
                int64_t rows,
                bool biased) {
  constexpr int64_t lanes = PYG_TRUST_BYTES / sizeof(scalar_t);
  constexpr int64_t panel = kPanel<scalar_t>;
  for (int64_t first = 0; first < columns; first += panel) {
    const int64_t end = columns < first + panel ? columns : first + panel;
    for (int64_t j = first; j < end; j += 2 * lanes) {
      const scalar_t* at = panels + first * (depth + biased) + (j - first);
      if (end - j > lanes)
        strip<scalar_t, 2>(x, at, depth, end - j, y + j, columns, rows,
                            biased);
      else
        strip<scalar_t, 1>(x, at, depth, end - j, y + j, columns, rows,
                            biased);
    }
  }
}

}  // namespace PYG_TRUST_SET

#undef PYG_TRUST_SET
#undef PYG_TRUST_BYTES
#undef PYG_TRUST_ROWS
