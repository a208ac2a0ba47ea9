// Noisy copies of a sparse matrix of bits, on the CPU (Bojchevski et al. 2020,
// Section 3), by the exact product law and in sorted rows.
#include "flip.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "parallel.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// Appends the rows of one sample to `out`, sorted, and writes where each ends;
// of an undirected graph the part above the diagonal. Self-loops of graphs
// are no cells: they stay (kDirected) or are left to `unfold` (kUndirected).
void draw(const Matrix& x,
          double p_plus,
          uint64_t below,
          uint64_t key,
          std::vector<int64_t>& end,
          std::vector<int32_t>& out) {
  const int64_t total = x.count();
  Gaps gaps(derive(key, 0), p_plus, total);
  const uint64_t deletions = derive(key, 1);
  int64_t start = 0;                 // of the row, among all cells
  int64_t next = gaps.next(total);   // the cell that is set next
  end.resize(x.rows);
  for (int64_t i = 0; i < x.rows; ++i) {
    const int64_t width = x.width(i);
    int64_t e = x.rowptr[i];
    const int64_t stop = x.rowptr[i + 1];
    if (x.cells == kUndirected)
      e = std::upper_bound(x.col + e, x.col + stop,
                           static_cast<int32_t>(i)) - x.col;
    // Both streams ascend: merge them.
    while (true) {
      const bool add = next < start + width;
      if (e == stop && !add)
        break;
      const int64_t j = add ? x.column(i, next - start) : x.cols;
      const int64_t k = e < stop ? x.col[e] : x.cols;
      if (k <= j && e < stop) {  // a one: what is drawn for it alone counts
        const bool loop = x.cells == kDirected && k == i;
        if (loop || !deleted(deletions, e, below))
          out.push_back(static_cast<int32_t>(k));
        ++e;
      } else {
        out.push_back(static_cast<int32_t>(j));
      }
      if (add && j <= k)
        next += 1 + gaps.next(total - next);
    }
    start += width;
    end[i] = static_cast<int64_t>(out.size());
  }
}

// Both directions of the edges above the diagonal, and the self-loops of the
// graph: in the order of rows, the neighbours before a node come first.
void unfold(const Matrix& x,
            const std::vector<int64_t>& end,
            const std::vector<int32_t>& upper,
            const std::vector<uint8_t>& loop,
            std::vector<int64_t>& at,
            int64_t offset,
            int32_t* out) {
  int64_t e = 0;
  for (int64_t i = 0; i < x.rows; ++i) {
    if (loop[i])
      out[at[i]++] = static_cast<int32_t>(offset + i);
    for (; e < end[i]; ++e) {
      const int64_t j = upper[e];
      out[at[i]++] = static_cast<int32_t>(offset + j);
      out[at[j]++] = static_cast<int32_t>(offset + i);
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
  parallel_tasks(num_samples, work, [&] {
    return [&](int64_t s) {
      Sample& made = sample[s];
      made.col.reserve(static_cast<size_t>(
          added * 1.1 + (1 - p_minus) * static_cast<double>(col.numel())) + 64);
      draw(x, p_plus, below, derive(seed, first + s), made.end, made.col);
    };
  });

  Tensor ptr = torch::stable::new_empty(rowptr, {num_samples * n + 1});
  auto* start = ptr.mutable_data_ptr<int64_t>();
  start[0] = 0;
  for (int64_t s = 0; s < num_samples; ++s) {
    const Sample& made = sample[s];
    int64_t* row = start + s * n;
    if (!both) {
      for (int64_t i = 0; i < n; ++i)
        row[i + 1] = row[0] + made.end[i];
      continue;
    }
    std::fill(row + 1, row + n + 1, 0);
    int64_t e = 0;
    for (int64_t i = 0; i < n; ++i) {
      row[i + 1] += loop[i];
      for (; e < made.end[i]; ++e) {
        ++row[i + 1];
        ++row[made.col[e] + 1];
      }
    }
    for (int64_t i = 0; i < n; ++i)
      row[i + 1] += row[i];
  }
  Tensor node = torch::stable::new_empty(col, {start[num_samples * n]});
  auto* out = node.mutable_data_ptr<int32_t>();
  parallel_tasks(num_samples, node.numel(), [&] {
    return [&, at = std::vector<int64_t>()](int64_t s) mutable {
      Sample& made = sample[s];
      const int64_t offset = graph ? s * n : 0;
      if (both) {
        at.assign(start + s * n, start + (s + 1) * n);
        unfold(x, made.end, made.col, loop, at, offset, out);
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
