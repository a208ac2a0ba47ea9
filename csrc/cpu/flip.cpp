// Noisy copies of a sparse matrix of bits, on the CPU (Bojchevski et al. 2020,
// Section 3), by the exact product law and in sorted rows.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "gather.h"
#include "parallel.h"
#include "rng.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// Above so many cells, gaps come from 64-bit uniforms in extended precision.
constexpr int64_t kManyCells = 1000000000;

// Which entries of the matrix are bits that flip.
enum Cells : int64_t { kAll = 0, kDirected = 1, kUndirected = 2 };

struct Matrix {
  const int64_t* rowptr;
  const int32_t* col;
  int64_t rows, cols;
  Cells cells;

  // Row i has the cells [first(i), cols), without the diagonal if kDirected.
  int64_t first(int64_t i) const {
    return cells == kUndirected ? i + 1 : 0;
  }
  int64_t width(int64_t i) const {
    return cols - first(i) - (cells == kDirected ? 1 : 0);
  }
  int64_t count() const {
    return cells == kAll        ? rows * cols
           : cells == kDirected ? rows * (rows - 1)
                                : rows * (rows - 1) / 2;
  }
  // How many cells come before row i, and which column a cell of it is.
  int64_t start(int64_t i) const {
    return cells == kUndirected ? i * (2 * rows - i - 1) / 2 : i * width(0);
  }
  int64_t column(int64_t i, int64_t cell) const {
    const int64_t j = first(i) + cell;
    return cells == kDirected && j >= i ? j + 1 : j;
  }
};

// A whole number up to 2^53 as a double, by operations that vector units have.
inline double exactly(uint64_t number) {
  const uint64_t high = 0x4530000000000000ull | number >> 32;
  const uint64_t low = 0x4330000000000000ull | (number & 0xFFFFFFFFull);
  return (std::bit_cast<double>(high) - 0x1.00000001p84) +
         std::bit_cast<double>(low);
}

// log(u), 0 < u <= 1, within two units of the last place, from operations that
// every machine rounds alike: its own libraries do not agree on the last bit,
// of which a gap, and with it all that follows, may depend. With u = 2^k (1 +
// f) and s = f / (2 + f) it is k log 2 + 2 artanh(s), 2 s = f - s f, and
// artanh(s) = s + s^3 / 3 + ..., |s| < 0.172. Nothing branches, so that loops
// over it are vectors.
inline double log_of(double u) {
  auto word = std::bit_cast<uint64_t>(u);
  const double exponent = exactly(word >> 52) - 1023;
  word = (word & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  const double m = std::bit_cast<double>(word);
  const bool large = m > 1.4142135623730951;
  const double f = m * (large ? 0.5 : 1.0) - 1;
  // log 2 in two parts, of which k times the first is exact.
  const double k = exponent + (large ? 1.0 : 0.0);
  const double s = f / (2 + f), w = s * s;
  double rest = 0;
#pragma GCC unroll 10
  for (int i = 21; i > 1; i -= 2)
    rest = (rest + 2.0 / i) * w;
  const double high = k * 0x1.62e42fefa3800p-1;
  const double low = k * 0x1.ef35793c76730p-45;
  return high + (f - (s * (f - rest) - low));
}

// The number of cells before the next bit that is set, before it is rounded
// down, from the counter-th number of a stream: with U uniform in (0, 1],
// floor(log U / log(1 - p)) is geometric. In total variation N cells are within
// N 2^-46 of independent bits (N 2^-57 in extended precision): sampling_slack in
// certificates/smoothing.py.
inline double gap_length(uint64_t key, uint64_t counter, double scale) {
  const uint64_t word = mix(key + counter * kGolden);
  return log_of(exactly((word >> 11) + 1) * 0x1p-53) * scale;
}

// A cell as one number: cells in the order of rows ascend.
int64_t key_of(int64_t row, int64_t col) {
  return row << 32 | col;
}

constexpr int64_t kNoCell = std::numeric_limits<int64_t>::max();

// The ones, their numbers in the matrix, and which of them are no cells; of an
// undirected graph those on the diagonal and above.
struct Ones {
  std::vector<int64_t> key, entry, loops;

  explicit Ones(const Matrix& x) {
    const auto size = static_cast<size_t>(x.rowptr[x.rows]);
    key.reserve(size);
    entry.reserve(size);
    for (int64_t i = 0; i < x.rows; ++i) {
      for (int64_t e = x.rowptr[i]; e < x.rowptr[i + 1]; ++e) {
        const int64_t j = x.col[e];
        if (x.cells == kUndirected && j < i)
          continue;
        if (x.cells != kAll && j == i)
          loops.push_back(static_cast<int64_t>(key.size()));
        key.push_back(key_of(i, j));
        entry.push_back(e);
      }
    }
  }
};

// Of the counters from `first` on.
PYG_TRUST_CLONES void gap_lengths(uint64_t key,
                        uint64_t first,
                        int64_t count,
                        double scale,
                        double* length) {
  for (int64_t k = 0; k < count; ++k)
    length[k] = gap_length(key, first + static_cast<uint64_t>(k), scale);
}

// Which of the entries with these numbers are not deleted: words below `below`
// are those of that event.
PYG_TRUST_CLONES void stay(uint64_t key,
                 const int64_t* entry,
                 int64_t count,
                 uint64_t below,
                 uint8_t* kept) {
  for (int64_t k = 0; k < count; ++k)
    kept[k] = mix(key + static_cast<uint64_t>(entry[k]) * kGolden) >= below;
}

// The cells that gaps lead to, ascending, a block at a time; kNoCell behind
// the last of them.
class Gaps {
 public:
  static constexpr int64_t kBlock = 512;

  Gaps(const Matrix& x, uint64_t key, double p)
      : x_(x), key_(key), total_(static_cast<uint64_t>(x.count())) {
    if (p <= 0) {
      cell_[0] = kNoCell;
      return;
    }
    // Few where few are needed.
    const double mean = p * static_cast<double>(total_);
    size_ = mean < kBlock / 2 ? 16 + static_cast<int64_t>(1.5 * mean) : kBlock;
    scale_ = 1 / std::log1p(-p);
    long_scale_ = 1 / std::log1p(-static_cast<long double>(p));
    refill();
  }

  int64_t size() const { return size_; }
  const int64_t* cells() const { return cell_; }

  void refill() {
    const bool extended = total_ > static_cast<uint64_t>(kManyCells);
    double length[kBlock];
    if (!extended)
      gap_lengths(key_, counter_, size_, scale_, length);
    const auto all = static_cast<double>(total_);
    for (int64_t k = 0; k < size_; ++k) {
      next_ += extended ? long_gap(counter_ + static_cast<uint64_t>(k))
               : length[k] < all
                   ? static_cast<uint64_t>(static_cast<int64_t>(length[k]))
                   : total_;
      if (next_ >= total_) {
        std::fill(cell_ + k, cell_ + size_, kNoCell);
        next_ = total_;
        break;
      }
      const auto at = static_cast<int64_t>(next_++);
      while (at >= end_) {
        ++row_;
        start_ = end_;
        end_ += x_.width(row_);
      }
      cell_[k] = key_of(row_, x_.column(row_, at - start_));
    }
    counter_ += static_cast<uint64_t>(size_);
  }

 private:
  uint64_t long_gap(uint64_t counter) const {
    const long double u =
        (static_cast<long double>(mix(key_ + counter * kGolden)) + 1) *
        0x1p-64L;
    const long double gap = std::log(u) * long_scale_;
    return gap < static_cast<long double>(total_) ? static_cast<uint64_t>(gap)
                                                  : total_;
  }

  const Matrix& x_;
  uint64_t key_, counter_ = 0, next_ = 0;
  uint64_t total_;
  double scale_ = 0;
  int64_t size_ = 1;
  long double long_scale_ = 0;
  int64_t row_ = -1, start_ = 0, end_ = 0;  // a row and its cells
  int64_t cell_[kBlock];
};

// What a thread draws in.
struct Room {
  std::vector<uint8_t> kept;
  std::vector<int64_t> key;
};

// Writes what is set in one sample to `room.key`, ascending; returns how much
// that is.
int64_t draw(const Matrix& x,
             const Ones& ones,
             double p_plus,
             uint64_t below,
             uint64_t key,
             Room& room) {
  const auto count = static_cast<int64_t>(ones.key.size());
  room.kept.resize(static_cast<size_t>(count));
  uint8_t* kept = room.kept.data();
  stay(derive(key, 1), ones.entry.data(), count, below, kept);
  for (const int64_t e : ones.loops)
    kept[e] = 1;
  Gaps gaps(x, derive(key, 0), p_plus);
  const int64_t* one = ones.key.data();
  const int64_t* zero = gaps.cells();
  int64_t k = 0, e = 0, w = 0;
  int64_t* out = nullptr;
  const auto make_room = [&] {  // for all ones that are left, and a block
    const auto needed = static_cast<size_t>(w + count - e + gaps.size() + 1);
    if (room.key.size() < needed)
      room.key.resize(std::max(needed, room.key.size() * 3 / 2));
    out = room.key.data();
  };
  make_room();
  const auto pass = [&](int64_t step) {
    k += step;
    if (k == gaps.size()) {
      gaps.refill();
      k = 0;
      make_room();
    }
  };
  // Both ascend, and what is drawn for a one alone counts. No branch depends
  // on which is next.
  while (e < count && zero[k] != kNoCell) {
    const int64_t a = one[e], b = zero[k], old = a <= b;
    out[w] = old ? a : b;
    w += kept[e] | (old ^ 1);
    e += old;
    pass(b <= a);
  }
  for (; e < count; ++e) {
    out[w] = one[e];
    w += kept[e];
  }
  for (; zero[k] != kNoCell; pass(1))
    out[w++] = zero[k];
  return w;
}

// Where the rows of sorted keys end, from 0 on; with `both`, every edge is there
// in both directions.
void row_ends(const int64_t* key,
              int64_t size,
              int64_t rows,
              bool both,
              int64_t* end) {
  std::fill(end, end + rows, int64_t{0});
  for (int64_t k = 0; !both && k < size; ++k)
    end[key[k] >> 32] = k + 1;
  for (int64_t k = 0; both && k < size; ++k) {
    const int64_t i = key[k] >> 32, j = key[k] & 0xFFFFFFFF;
    ++end[i];
    end[j] += i != j;
  }
  for (int64_t i = 1; i < rows; ++i)
    end[i] = both ? end[i] + end[i - 1] : std::max(end[i], end[i - 1]);
}

// Writes each edge in both directions, the next of row i to out[at[i]]. In the
// order of keys, the neighbours before a node come first, and then its loop.
void unfold(const std::vector<int64_t>& keys,
            int64_t* at,
            int64_t offset,
            int32_t* out) {
  for (const int64_t key : keys) {
    const int64_t i = key >> 32, j = key & 0xFFFFFFFF;
    out[at[i]++] = static_cast<int32_t>(offset + j);
    if (i != j)
      out[at[j]++] = static_cast<int32_t>(offset + i);
  }
}

std::tuple<Tensor, Tensor> flip_bits(const Tensor& rowptr,
                                     const Tensor& col,
                                     int64_t num_cols,
                                     double p_plus,
                                     double p_minus,
                                     int64_t cells,
                                     int64_t seed,
                                     int64_t first,
                                     int64_t num_samples) {
  const int64_t n = rowptr.numel() - 1;
  const Matrix x{rowptr.const_data_ptr<int64_t>(),
                 col.const_data_ptr<int32_t>(), n, num_cols,
                 static_cast<Cells>(cells)};
  const bool graph = cells != kAll, both = cells == kUndirected;
  const Ones ones(x);
  struct Sample {
    std::vector<int64_t> key;
    std::vector<int32_t> col;
  };
  std::vector<Sample> sample(num_samples);
  const double added = p_plus * static_cast<double>(x.count());
  const int64_t work =
      num_samples * (col.numel() + n + static_cast<int64_t>(added));
  const auto below = static_cast<uint64_t>(p_minus * 0x1p64);
  Tensor ptr = torch::stable::new_empty(rowptr, {num_samples * n + 1});
  auto* start = ptr.mutable_data_ptr<int64_t>();
  parallel_tasks(num_samples, work, [&] {
    return [&, room = Room()](int64_t s) mutable {
      const int64_t size =
          draw(x, ones, p_plus, below, derive(seed, first + s), room);
      const int64_t* key = room.key.data();
      row_ends(key, size, n, both, start + s * n + 1);
      if (both) {
        sample[s].key.assign(key, key + size);
        return;
      }
      const auto offset = static_cast<int32_t>(graph ? s * n : 0);
      sample[s].col.resize(size);
      for (int64_t k = 0; k < size; ++k)
        sample[s].col[k] = static_cast<int32_t>(key[k]) + offset;
    };
  });
  start[0] = 0;
  for (int64_t s = 1; s < num_samples; ++s) {
    const int64_t base = start[s * n];
    for (int64_t i = 1; i <= n; ++i)
      start[s * n + i] += base;
  }
  Tensor node = torch::stable::new_empty(col, {start[num_samples * n]});
  auto* out = node.mutable_data_ptr<int32_t>();
  parallel_tasks(num_samples, node.numel(), [&] {
    return [&, at = std::vector<int64_t>()](int64_t s) mutable {
      const Sample made = std::move(sample[s]);
      const int64_t* row = start + s * n;
      if (both) {
        at.assign(row, row + n);
        unfold(made.key, at.data(), s * n, out);
      } else {
        std::copy(made.col.begin(), made.col.end(), out + row[0]);
      }
    };
  });
  return {ptr, node};
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("flip_bits", TORCH_BOX(&pyg_trust::flip_bits));
}
