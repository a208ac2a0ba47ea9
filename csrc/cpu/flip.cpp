// Noisy copies of a sparse matrix of bits, on the CPU (Bojchevski et al. 2020,
// Section 3), by the exact product law and in sorted rows.
#include "flip.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "gather.h"
#include "parallel.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

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

// GapLaw::length of the counters from `first` on.
PYG_TRUST_CLONES void gap_lengths(uint64_t key,
                        uint64_t first,
                        int64_t count,
                        double scale,
                        double* length) {
  for (int64_t k = 0; k < count; ++k)
    length[k] = GapLaw::length(key, first + static_cast<uint64_t>(k), scale);
}

// Which of the entries with these numbers are not deleted.
PYG_TRUST_CLONES void stay(uint64_t key,
                 const int64_t* entry,
                 int64_t count,
                 uint64_t below,
                 uint8_t* kept) {
  for (int64_t k = 0; k < count; ++k)
    kept[k] = !deleted(key, static_cast<uint64_t>(entry[k]), below);
}

// The cells that gaps lead to, ascending, a block at a time; kNoCell behind
// the last of them.
class Gaps {
 public:
  static constexpr int64_t kBlock = 512;

  Gaps(const Matrix& x, uint64_t key, double p)
      : x_(x), key_(key), law_(p), total_(static_cast<uint64_t>(x.count())) {
    if (law_.none) {
      cell_[0] = kNoCell;
      return;
    }
    // Few where few are needed.
    const double mean = p * static_cast<double>(total_);
    size_ = mean < kBlock / 2 ? 16 + static_cast<int64_t>(1.5 * mean) : kBlock;
    long_scale_ = 1 / std::log1p(-static_cast<long double>(p));
    refill();
  }

  int64_t size() const { return size_; }
  const int64_t* cells() const { return cell_; }

  void refill() {
    const bool extended = total_ > static_cast<uint64_t>(kManyCells);
    double length[kBlock];
    if (!extended)
      gap_lengths(key_, counter_, size_, law_.scale, length);
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
  GapLaw law_;
  uint64_t total_;
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

// Where the rows of `size` sorted keys end, from 0 on.
void row_ends(const int64_t* key, int64_t size, int64_t rows, int64_t* end) {
  std::fill(end, end + rows, int64_t{0});
  for (int64_t k = 0; k < size; ++k)
    end[key[k] >> 32] = k + 1;
  for (int64_t i = 1; i < rows; ++i)
    end[i] = std::max(end[i], end[i - 1]);
}

// The same with every edge there in both directions.
void both_ends(const int64_t* key, int64_t size, int64_t rows, int64_t* end) {
  std::fill(end, end + rows, int64_t{0});
  for (int64_t k = 0; k < size; ++k) {
    const int64_t i = key[k] >> 32, j = key[k] & 0xFFFFFFFF;
    ++end[i];
    end[j] += i != j;
  }
  for (int64_t i = 1; i < rows; ++i)
    end[i] += end[i - 1];
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
  const uint64_t below = threshold(p_minus);
  Tensor ptr = torch::stable::new_empty(rowptr, {num_samples * n + 1});
  auto* start = ptr.mutable_data_ptr<int64_t>();
  parallel_tasks(num_samples, work, [&] {
    return [&, room = Room()](int64_t s) mutable {
      const int64_t size =
          draw(x, ones, p_plus, below, derive(seed, first + s), room);
      const int64_t* key = room.key.data();
      int64_t* end = start + s * n + 1;
      if (both) {
        both_ends(key, size, n, end);
        sample[s].key.assign(key, key + size);
        return;
      }
      row_ends(key, size, n, end);
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
      int64_t* row = start + s * n;
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
