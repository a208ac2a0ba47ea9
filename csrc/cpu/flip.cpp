// Noisy copies of a sparse matrix of bits, on the CPU (Bojchevski et al. 2020,
// Section 3), by the exact product law and in sorted rows.
#include "flip.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <vector>

#include "kernels.h"
#include "parallel.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// The ones that may flip, row by row, and their numbers in the matrix.
struct Ones {
  const int64_t* ptr;
  const int32_t* col;
  std::vector<int64_t> entry;
  std::vector<int64_t> loops;  // those that stay all the same
  std::vector<int64_t> own_ptr;
  std::vector<int32_t> own_col;

  explicit Ones(const Matrix& x) : ptr(x.rowptr), col(x.col) {
    if (x.cells != kUndirected) {
      entry.resize(x.rowptr[x.rows]);
      std::iota(entry.begin(), entry.end(), int64_t{0});
      for (int64_t i = 0; x.cells == kDirected && i < x.rows; ++i) {
        const int32_t* stop = col + ptr[i + 1];
        const int32_t* at = std::lower_bound(col + ptr[i], stop, i);
        if (at != stop && *at == i)
          loops.push_back(at - col);
      }
      return;
    }
    // Above the diagonal: the other half, and loops, are left to `unfold`.
    own_ptr.assign(1, 0);
    for (int64_t i = 0; i < x.rows; ++i) {
      int64_t e = std::upper_bound(col + ptr[i], col + ptr[i + 1], i) - col;
      for (; e < ptr[i + 1]; ++e) {
        entry.push_back(e);
        own_col.push_back(col[e]);
      }
      own_ptr.push_back(static_cast<int64_t>(entry.size()));
    }
    ptr = own_ptr.data();
    col = own_col.data();
  }
};

// The cells that gaps lead to, ascending, a block at a time; `cells` for all
// that lie behind the last.
class Gaps {
 public:
  static constexpr int64_t kBlock = 512;

  Gaps(uint64_t key, double p, int64_t cells)
      : key_(key), law_(p), cells_(static_cast<uint64_t>(cells)) {
    if (law_.none) {
      size_ = 1;
      cell_[0] = cells;
      return;
    }
    // Few where few are needed.
    const double mean = p * static_cast<double>(cells);
    size_ = mean < kBlock / 2 ? 16 + static_cast<int64_t>(2 * mean) : kBlock;
    long_scale_ = 1 / std::log1p(-static_cast<long double>(p));
    refill();
  }

  int64_t size() const { return size_; }
  const int64_t* cells() const { return cell_; }

  void refill() {
    if (law_.none)
      return;
    const bool extended = cells_ > static_cast<uint64_t>(kManyCells);
    double length[kBlock];
    if (!extended)
      kernels().gap_lengths(key_, counter_, size_, law_.scale, length);
    const auto all = static_cast<double>(cells_);
    for (int64_t k = 0; k < size_; ++k) {
      const uint64_t gap =
          extended ? long_gap(counter_ + static_cast<uint64_t>(k))
          : length[k] < all ? static_cast<uint64_t>(
                                  static_cast<int64_t>(length[k]))
                            : cells_;
      next_ = std::min(next_ + gap, cells_);
      cell_[k] = static_cast<int64_t>(next_);
      ++next_;
    }
    counter_ += static_cast<uint64_t>(size_);
  }

 private:
  uint64_t long_gap(uint64_t counter) const {
    const long double u =
        (static_cast<long double>(mix(key_ + counter * kGolden)) + 1) *
        0x1p-64L;
    const long double gap = std::log(u) * long_scale_;
    return gap < static_cast<long double>(cells_) ? static_cast<uint64_t>(gap)
                                                  : cells_;
  }

  uint64_t key_, counter_ = 0, next_ = 0;
  GapLaw law_;
  uint64_t cells_;
  int64_t size_;
  long double long_scale_ = 0;
  int64_t cell_[kBlock];
};

// What a thread draws in.
struct Room {
  std::vector<uint8_t> kept;
  std::vector<int32_t> col;
};

// Writes the rows of one sample to `room.col`, sorted, and to `end` where each
// ends; of an undirected graph the part above the diagonal, without
// self-loops. Returns how many entries there are.
int64_t draw(const Matrix& x,
             const Ones& ones,
             double p_plus,
             uint64_t below,
             uint64_t key,
             int64_t* end,
             Room& room) {
  const auto count = static_cast<int64_t>(ones.entry.size());
  const int64_t total = x.count(), directed = x.cells == kDirected;
  room.kept.resize(static_cast<size_t>(count));
  uint8_t* kept = room.kept.data();
  kernels().stay(derive(key, 1), ones.entry.data(), count, below, kept);
  for (const int64_t e : ones.loops)
    kept[e] = 1;
  Gaps gaps(derive(key, 0), p_plus, total);
  const int64_t* cell = gaps.cells();
  int64_t k = 0, e = 0, w = 0;
  int32_t* out = nullptr;
  const auto make_room = [&] {  // for all ones that are left, and a block
    const auto needed = static_cast<size_t>(w + count - e + gaps.size() + 1);
    if (room.col.size() < needed)
      room.col.resize(std::max(needed, room.col.size() * 3 / 2));
    out = room.col.data();
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
  int64_t start = 0;  // of the row, among all cells
  for (int64_t i = 0; i < x.rows; ++i) {
    const int64_t stop = ones.ptr[i + 1], limit = start + x.width(i);
    const int64_t shift = x.first(i) - start;
    const auto column = [&](int64_t at) {
      const int64_t j = at + shift;
      return j + (directed & (j >= i));
    };
    // Both ascend, and what is drawn for a one alone counts. No branch depends
    // on which is next.
    while (e < stop && cell[k] < limit) {
      const int64_t j = column(cell[k]), one = ones.col[e];
      const int64_t has = one <= j;
      out[w] = static_cast<int32_t>(has ? one : j);
      w += kept[e] | (has ^ 1);
      e += has;
      pass(j <= one);
    }
    for (; e < stop; ++e) {
      out[w] = ones.col[e];
      w += kept[e];
    }
    for (; cell[k] < limit; pass(1))
      out[w++] = static_cast<int32_t>(column(cell[k]));
    start = limit;
    end[i] = w;
  }
  return w;
}

// Both directions of the edges above the diagonal, and the self-loops of the
// graph: in the order of rows, the neighbours before a node come first.
void unfold(int64_t rows,
            const int64_t* end,
            const int32_t* upper,
            const std::vector<uint8_t>& loop,
            int64_t* at,
            int64_t offset,
            int32_t* out) {
  int64_t e = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const auto name = static_cast<int32_t>(offset + i);
    int64_t own = at[i];
    if (loop[i])
      out[own++] = name;
    for (; e < end[i]; ++e) {
      const int64_t j = upper[e];
      out[own++] = static_cast<int32_t>(offset + j);
      out[at[j]++] = name;
    }
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
  std::vector<uint8_t> loop(both ? n : 0);
  for (int64_t i = 0; both && i < n; ++i)
    loop[i] = std::binary_search(x.col + x.rowptr[i], x.col + x.rowptr[i + 1],
                                 static_cast<int32_t>(i));

  struct Sample {
    std::vector<int64_t> end;
    std::vector<int32_t> col;
  };
  std::vector<Sample> sample(num_samples);
  const double added = p_plus * static_cast<double>(x.count());
  const int64_t work =
      num_samples * (col.numel() + n + static_cast<int64_t>(added));
  const uint64_t below = threshold(p_minus);
  Tensor ptr = torch::stable::new_empty(rowptr, {num_samples * n + 1});
  auto* start = ptr.mutable_data_ptr<int64_t>();
  // Where rows end, from 0 on in every sample.
  parallel_tasks(num_samples, work, [&] {
    return [&, room = Room()](int64_t s) mutable {
      Sample& made = sample[s];
      int64_t* row = start + s * n + 1;
      if (both)
        made.end.resize(n);
      int64_t* end = both ? made.end.data() : row;
      const int64_t size =
          draw(x, ones, p_plus, below, derive(seed, first + s), end, room);
      made.col.assign(room.col.data(), room.col.data() + size);
      if (!both)
        return;
      int64_t before = 0;
      for (int64_t i = 0; i < n; ++i) {
        row[i] = end[i] - before + loop[i];
        before = end[i];
      }
      for (const int32_t j : made.col)
        ++row[j];
      for (int64_t i = 1; i < n; ++i)
        row[i] += row[i - 1];
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
      Sample& made = sample[s];
      const int64_t offset = graph ? s * n : 0;
      if (both) {
        at.assign(start + s * n, start + (s + 1) * n);
        unfold(n, made.end.data(), made.col.data(), loop, at.data(), offset,
               out);
      } else {
        int32_t* row = out + start[s * n];
        for (const int32_t j : made.col)
          *row++ = static_cast<int32_t>(offset + j);
      }
      made = Sample();
    };
  });
  return {ptr, node};
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("flip_bits", TORCH_BOX(&pyg_trust::flip_bits));
}
