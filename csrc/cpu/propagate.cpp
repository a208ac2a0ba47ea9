// Exact propagation on the CPU: AGP's Algorithm 1 (Wang et al. 2021) for all
// columns at once, a few cache lines of columns at a time.
//
// z = sum_i w_i P^i x, P = R B S (R, S diagonal), goes from the last weight to
// the first (Horner): u_L = w_L x, u_i = w_i x + P u_{i+1}, z = u_0. What is
// stored is y_i = S u_i, so that a level sums stored rows as they are:
//
//   y_i = S (w_i x + R B y_{i+1}),   z = w_0 x + R B y_1.
//
// For z = sum_j c_j T_j(P) x in Chebyshev polynomials it is Clenshaw's
// recursion, u_j = c_j x + 2 P u_{j+1} - u_{j+2}, z = c_0 x + P u_1 - u_2. Of
// u_{j+2} a row needs itself alone, so that it is overwritten in place. Every
// operation is rounded by itself, none is fused.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "gather.h"
#include "half.h"
#include "kernels.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// What ops.cpp says; x is dense, or has rows (ptr, index, value).
struct Arguments {
  const Tensor& rowptr;
  const Tensor& col;
  const std::optional<Tensor>& dense;
  const std::optional<Tensor>& ptr;
  const std::optional<Tensor>& index;
  const std::optional<Tensor>& value;
  int64_t columns;
  const Tensor& recv;
  const Tensor& send;
  const double* weights;
  int64_t levels;
  const std::optional<Tensor>& scale;
  bool three_term;
  const std::optional<Tensor>& rows;
  bool loops;
  bool in_place;
};

// What the coefficients make of a node that has no neighbours, where P = 0:
// p(0), of which x is multiplied.
double at_zero(const double* weights, int64_t count, bool three_term) {
  if (!three_term)
    return weights[0];
  double sum = 0;  // T_j(0) = 1, 0, -1, 0, ...
  for (int64_t j = 0; j < count; j += 2)
    sum += j % 4 == 0 ? weights[j] : -weights[j];
  return sum;
}

// A row of `stride` columns is summed from entries, not from stored rows, if
// the rows of x have no more entries than this in these columns on average.
constexpr int64_t kFewEntries = 8;

// A level is computed for some rows alone if these have no more of all entries
// of the graph than this.
constexpr double kFewRows = 0.92;

// These rows are laid one after the other, in a copy, if they have no more of
// the entries than this. Of more rows, what is fetched ahead is mostly wanted
// where they stand.
constexpr double kPackedRows = 0.8;

// Stored rows of no more bytes together are not fetched ahead of their use.
constexpr int64_t kNearBytes = 1 << 21;

// Rows that one level after the other goes through, stored rows of kSortedBytes
// together at most, are laid out so that rows of one length come one after the
// other: where a row ends is then no surprise to the processor, which on short
// rows that are in its cache costs as much as to sum them. It pays after so
// many levels, and on rows of fewer entries than this on average.
constexpr int64_t kSortedBytes = 1 << 20;
constexpr int64_t kSortedLevels = 8;
constexpr int64_t kSortedEntries = 64;
constexpr int64_t kSortedTogether = 1024;  // rows

// The entries of a sparse x, tile after tile of `together` columns.
template <typename scalar_t>
class Tiles {
 public:
  Tiles(const Arguments& signal, int64_t num_nodes, int64_t together)
      : num_nodes_(num_nodes), together_(together) {
    const auto* ptr = signal.ptr->const_data_ptr<int64_t>();
    const auto* index = signal.index->const_data_ptr<int64_t>();
    const auto* value = signal.value->const_data_ptr<scalar_t>();
    const int64_t count = signal.index->numel();
    start_.assign((signal.columns + together - 1) / together + 1, 0);
    for (int64_t k = 0; k < count; ++k)
      ++start_[index[k] / together + 1];
    for (size_t tile = 1; tile < start_.size(); ++tile)
      start_[tile] += start_[tile - 1];
    row_.resize(count);
    column_.resize(count);
    value_.resize(count);
    std::vector<int64_t> next(start_.begin(), start_.end());
    for (int64_t v = 0; v < num_nodes; ++v) {
      for (int64_t k = ptr[v]; k < ptr[v + 1]; ++k) {
        const int64_t at = next[index[k] / together]++;
        row_[at] = static_cast<int32_t>(v);
        column_[at] = static_cast<uint8_t>(index[k] % together);
        value_[at] = value[k];
      }
    }
    ptr_.resize(num_nodes + 1);
  }

  // Those of a tile; `sent(row, column, value)` is what would be stored.
  template <typename Sent>
  Entries<scalar_t> of(int64_t tile, const Sent& sent) {
    const int64_t begin = start_[tile], end = start_[tile + 1];
    sent_.resize(end - begin);
    std::fill(ptr_.begin(), ptr_.end(), 0);
    for (int64_t k = begin; k < end; ++k) {
      ++ptr_[row_[k] + 1];
      sent_[k - begin] = sent(row_[k], column_[k], value_[k]);
    }
    for (int64_t v = 0; v < num_nodes_; ++v)
      ptr_[v + 1] += ptr_[v];
    return {ptr_.data(), column_.data() + begin, nullptr,
            value_.data() + begin, sent_.data()};
  }

  int64_t count(int64_t tile) const { return start_[tile + 1] - start_[tile]; }

  // Rounds what `of` made.
  scalar_t* sent() { return sent_.data(); }

 private:
  const int64_t num_nodes_, together_;
  std::vector<int64_t> start_, ptr_;
  std::vector<int32_t> row_;
  std::vector<uint8_t> column_;
  std::vector<scalar_t> value_, sent_;
};

// Some rows of a graph, one after the other, with loops where they are missing:
// what lies ahead in a list of entries is then what comes next. Or, not packed,
// some rows where they stand.
struct Part {
  bool packed;
  std::vector<int32_t> rows;
  Scratch<int64_t> ptr;
  Scratch<int32_t> col;
};

Part pick(const Loops& graph, std::vector<int32_t> rows, bool loops) {
  const auto count = static_cast<int64_t>(rows.size());
  constexpr int64_t touched = 16;  // of a row
  Scratch<int32_t> places(loops ? count : 0, Pages::kSmall, false);
  if (loops) {
    Loops missing = graph;
    missing.rows = rows.data();
    missing.places = places.get();
    by_rows(count, touched, [&](int64_t begin, int64_t end) {
      kernels().find_places(missing, begin, end);
    });
  }
  Scratch<int64_t> ptr(count + 1, Pages::kSmall, false);
  ptr[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t v = rows[i];
    ptr[i + 1] = ptr[i] + graph.rowptr[v + 1] - graph.rowptr[v] +
                 (loops && places[i] != kNoPlace);
  }
  Scratch<int32_t> col(std::max<int64_t>(ptr[count], 1), Pages::kHuge, false);
  col[0] = 0;
  by_rows(count, touched, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t v = rows[i];
      const int32_t* from = graph.col + graph.rowptr[v];
      int32_t* to = col.get() + ptr[i];
      if (loops && places[i] != kNoPlace) {
        to = std::copy_n(from, places[i], to);
        *to++ = v;
        from += places[i];
      }
      std::copy(from, graph.col + graph.rowptr[v + 1], to);
    }
  });
  return {true, std::move(rows), std::move(ptr), std::move(col)};
}

// All rows, some together by length.
Part sorted(const Loops& graph, int64_t n, bool loops) {
  std::vector<int32_t> rows(n);
  for (int64_t first = 0; first < n; first += kSortedTogether) {
    const int64_t last = std::min(first + kSortedTogether, n);
    // Those of many entries count as one length.
    std::array<int64_t, 2 * kSortedEntries + 1> start{};
    const auto length = [&](int64_t v) {
      return std::min(graph.rowptr[v + 1] - graph.rowptr[v],
                      2 * kSortedEntries - 1);
    };
    for (int64_t v = first; v < last; ++v)
      ++start[length(v) + 1];
    std::partial_sum(start.begin(), start.end(), start.begin());
    for (int64_t v = first; v < last; ++v)
      rows[first + start[length(v)]++] = static_cast<int32_t>(v);
  }
  return pick(graph, std::move(rows), loops);
}

// The rows that each level needs, from the end (level 0) on: those asked for,
// then those they receive from (and their own), until these are most of the
// graph.
std::vector<Part> parts_needed(const Loops& graph,
                               int64_t n,
                               const Tensor& rows,
                               int64_t levels,
                               bool loops,
                               bool own) {
  const auto* asked = rows.const_data_ptr<int64_t>();
  const auto few = static_cast<int64_t>(kFewRows * graph.rowptr[n]);
  std::vector<Part> needed;
  needed.push_back(pick(graph, {asked, asked + rows.numel()}, loops));
  while (static_cast<int64_t>(needed.size()) < levels) {
    const Part& last = needed.back();
    const auto count = static_cast<int64_t>(last.rows.size());
    if (last.ptr[count] > few)
      break;
    Scratch<uint8_t> mark(n, Pages::kSmall);
    by_rows(count, 16, [&](int64_t begin, int64_t end) {
      const auto meet = [&](int64_t v) {
        __atomic_store_n(mark.get() + v, uint8_t{1}, __ATOMIC_RELAXED);
      };
      for (int64_t i = begin; own && i < end; ++i)
        meet(last.rows[i]);
      for (int64_t e = last.ptr[begin]; e < last.ptr[end]; ++e)
        meet(last.col[e]);
    });
    // Whether a row is marked is hard to predict: no branch.
    int64_t entries = 0, found = 0;
    std::vector<int32_t> next(n + 1);
    for (int64_t v = 0; v < n; ++v) {
      next[found] = static_cast<int32_t>(v);
      found += mark[v];
      entries += mark[v] * (graph.rowptr[v + 1] - graph.rowptr[v]);
    }
    if (entries > few)
      break;
    next.resize(found);
    if (static_cast<double>(entries) > kPackedRows * graph.rowptr[n]) {
      Scratch<int64_t> no_ptr(0, Pages::kSmall, false);
      Scratch<int32_t> no_col(0, Pages::kSmall, false);
      needed.push_back(
          {false, std::move(next), std::move(no_ptr), std::move(no_col)});
      break;
    }
    needed.push_back(pick(graph, std::move(next), loops));
  }
  return needed;
}

// z = w_0 x + w_1 P x of a sparse x, a whole row of z after the other: what
// comes into it are few entries, and no level is stored.
template <typename scalar_t, typename store_t>
void one_level_of_entries(const Arguments& x,
                          int64_t num_rows,
                          scalar_t* z,
                          const Step<scalar_t, store_t>& all) {
  Step<scalar_t, scalar_t> step{};
  step.rowptr = all.rowptr;
  step.col = all.col;
  step.num_entries = all.num_entries;
  step.rows = all.rows;
  step.packed = all.packed;
  step.asked = all.asked;
  step.places = all.places;
  step.recv = all.recv;
  step.entries.ptr = x.ptr->const_data_ptr<int64_t>();
  step.entries.wide = x.index->const_data_ptr<int64_t>();
  step.entries.value = x.value->const_data_ptr<scalar_t>();
  step.z = z;
  step.z_stride = step.columns = x.columns;
  step.weight = static_cast<scalar_t>(x.weights[0]);
  const auto highest = static_cast<scalar_t>(x.weights[1]);
  const scalar_t* scales = nullptr;
  std::vector<scalar_t> inverse;
  if (x.scale) {
    scales = x.scale->const_data_ptr<scalar_t>();
    for (int64_t c = 0; c < x.columns; ++c)
      inverse.push_back(scalar_t(1) / scales[c]);
    step.unscale = inverse.data();
  }
  const int64_t n = x.ptr->numel() - 1;
  std::vector<scalar_t> sent(x.index->numel());
  for (int64_t v = 0; v < n; ++v) {
    for (int64_t k = step.entries.ptr[v]; k < step.entries.ptr[v + 1]; ++k) {
      scalar_t value = step.entries.value[k];
      if (scales != nullptr)
        value *= scales[step.entries.wide[k]];
      sent[k] = all.send[v] * (highest * value);
    }
  }
  if constexpr (!std::is_same_v<scalar_t, store_t>)
    kernels().round_half(sent.data(), x.index->numel());
  step.entries.sent = sent.data();
  by_rows(num_rows, x.columns, [&](int64_t begin, int64_t end) {
    kernels_of<RowKernels<scalar_t>>().wide(step, begin, end);
  });
}

template <typename scalar_t, typename store_t>
Tensor propagate_typed(const Arguments& p) {
  const auto& [rowptr, col, dense, ptr, index, value, columns, recv, send, w,
               num_levels, scale, three_term, rows, loops, in_place] = p;
  const int64_t n = rowptr.numel() - 1;
  int64_t levels = num_levels;
  while (levels > 0 && w[levels] == 0)
    --levels;
  // So many columns are in flight, in whole vectors: powers of two, then cache
  // lines.
  constexpr int64_t line = 64 / sizeof(scalar_t);
  const int64_t together = std::min(columns, kColumns<scalar_t>);
  const int64_t stride =
      together < line
          ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(together)))
          : (together + line - 1) / line * line;
  const int64_t num_out = rows ? rows->numel() : n;
  // A row of x is read for the last time where its z is written.
  Tensor out = in_place ? *dense
                        : torch::stable::new_empty(recv, {num_out, columns});
  if (columns == 0)
    return out;
  if (!in_place)
    wish_for_huge_pages(out.mutable_data_ptr<scalar_t>(),
                        num_out * columns * int64_t{sizeof(scalar_t)});

  const Loops graph{rowptr.const_data_ptr<int64_t>(),
                    col.const_data_ptr<int32_t>(), nullptr, nullptr};
  std::vector<Part> needed;
  if (rows)
    needed = parts_needed(graph, n, *rows, levels, loops && levels > 0,
                          three_term || loops);
  // Every other level may lie in the memory of z, which only the last one
  // writes: it reads the level before, and the one before that for three
  // terms alone.
  const bool in_z = levels > 1 && !rows && !in_place && !three_term &&
                    together == columns &&
                    stride * int64_t{sizeof(store_t)} <=
                        columns * int64_t{sizeof(scalar_t)};
  Scratch<store_t> one(levels > 0 ? n * stride : 0, Pages::kHuge, false);
  Scratch<store_t> two(levels > 1 && !in_z ? n * stride : 0, Pages::kHuge,
                       false);

  Step<scalar_t, store_t> step{};
  step.rowptr = graph.rowptr;
  step.col = graph.col;
  step.num_entries = col.numel();
  step.recv = recv.const_data_ptr<scalar_t>();
  step.send = send.const_data_ptr<scalar_t>();
  step.z_stride = columns;
  step.asked = rows.has_value();
  step.near = n * stride * int64_t{sizeof(store_t)} <= kNearBytes;
  // Without edges there is no entry to look ahead to.
  const int32_t no_col = 0;
  if (step.num_entries == 0) {
    step.col = &no_col;
    step.num_entries = 1;
  }
  const bool sorts = !rows && levels >= kSortedLevels &&
                     n * stride * int64_t{sizeof(store_t)} <= kSortedBytes &&
                     col.numel() <= kSortedEntries * n;
  std::optional<Part> by_length;
  if (sorts)
    by_length.emplace(sorted(graph, n, loops));
  const bool whole = !sorts && (static_cast<int64_t>(needed.size()) < levels ||
                                (!needed.empty() && !needed.back().packed));
  Scratch<int32_t> places(loops && whole ? n : 0, Pages::kSmall, false);
  if (loops && whole) {
    Loops missing = graph;
    missing.places = places.get();
    by_rows(n, 4, [&](int64_t begin, int64_t end) {
      kernels().find_places(missing, begin, end);
    });
    step.places = places.get();
  }
  step.at_zero = static_cast<scalar_t>(at_zero(w, levels + 1, three_term));
  std::vector<int64_t> no_entries;
  if (levels == 0) {  // z = w_0 x
    no_entries.assign(std::max(n, num_out) + 1, 0);
    step.rowptr = no_entries.data();
    step.rows = needed.empty() ? nullptr : needed[0].rows.data();
    step.packed = !needed.empty();
  }
  const Step<scalar_t, store_t> all = step;
  const auto& run = kernels_of<StepKernels<scalar_t, store_t>>();
  // Goes on with the rows that a level needs. Returns how many.
  const auto choose = [&](int64_t level) {
    const bool some = levels > 0 && level < static_cast<int64_t>(needed.size());
    step.rowptr = all.rowptr;
    step.col = all.col;
    step.num_entries = all.num_entries;
    step.places = all.places;
    step.rows = all.rows;
    step.packed = all.packed;
    if (!some && !by_length)
      return levels == 0 ? num_out : n;
    Part& part = by_length ? *by_length : needed[level];
    const auto count = static_cast<int64_t>(part.rows.size());
    step.rows = part.rows.data();
    step.packed = part.packed;
    if (!part.packed)
      return count;
    step.rowptr = part.ptr.get();
    step.col = part.col.get();
    step.num_entries = std::max<int64_t>(part.ptr[count], 1);
    step.places = nullptr;
    return count;
  };
  if (!dense && levels == 1 &&
      index->numel() * kColumns<scalar_t> <= kFewEntries * n * columns) {
    const int64_t num_rows = choose(0);
    one_level_of_entries<scalar_t, store_t>(
        p, num_rows, out.mutable_data_ptr<scalar_t>(), step);
    return out;
  }
  std::optional<Tiles<scalar_t>> tiles;
  if (!dense)
    tiles.emplace(p, n, together);
  alignas(64) scalar_t factors[2][kColumns<scalar_t>];
  for (int64_t first = 0; first < columns; first += together) {
    const int64_t count = std::min(together, columns - first);
    // Of the last columns no more vectors than they need.
    step.stride =
        count == together ? stride
        : stride < line   ? static_cast<int64_t>(
                              std::bit_ceil(static_cast<uint64_t>(count)))
                          : (count + line - 1) / line * line;
    step.columns = count;
    if (scale) {
      const auto* given = scale->const_data_ptr<scalar_t>() + first;
      for (int64_t c = 0; c < kColumns<scalar_t>; ++c) {
        factors[0][c] = c < count ? given[c] : scalar_t(1);
        factors[1][c] = scalar_t(1) / factors[0][c];
      }
      step.scale = factors[0];
      step.unscale = factors[1];
    }
    const auto highest = static_cast<scalar_t>(w[levels]);
    bool from_entries = false;
    if (tiles) {
      const int64_t tile = first / together;
      step.entries = tiles->of(tile, [&](int32_t v, uint8_t c, scalar_t value) {
        if (step.scale != nullptr)
          value *= step.scale[c];
        return step.send[v] * (highest * value);
      });
      if constexpr (!std::is_same_v<scalar_t, store_t>)
        kernels().round_half(tiles->sent(), tiles->count(tile));
      from_entries = levels > 0 && tiles->count(tile) <= kFewEntries * n;
    } else {
      step.x = dense->const_data_ptr<scalar_t>() + first;
      step.x_stride = columns;
    }

    store_t* current = one.get();
    store_t* next = two.get();
    if (in_z) {
      next = reinterpret_cast<store_t*>(out.mutable_data_ptr<scalar_t>());
      // y_1, which the last level reads, is not there.
      if (levels % 2 == 0)
        std::swap(current, next);
    }
    // Two levels on, three terms count y_L.
    if (levels > 0 && (!from_entries || (three_term && levels > 1))) {
      step.out = current;
      step.weight = highest;
      step.in = nullptr;
      by_rows(n, stride, [&](int64_t begin, int64_t end) {
        run.load(step, begin, end);
      });
    }
    for (int64_t i = std::max<int64_t>(levels - 1, 0); i >= 0; --i) {
      const bool top = i + 1 >= levels;
      step.in = levels == 0 || (top && from_entries) ? nullptr : current;
      // The last level of two or more finds u_2 there.
      step.before = next;
      step.out = i > 0 ? next : nullptr;
      step.z = out.mutable_data_ptr<scalar_t>() + first;
      step.weight = static_cast<scalar_t>(w[i]);
      step.factor = three_term && i > 0 ? scalar_t(2) : scalar_t(1);
      step.three_term = three_term && !top;
      const int64_t num_rows = choose(i);
      by_rows(num_rows, stride, [&](int64_t begin, int64_t end) {
        run.step(step, begin, end);
      });
      std::swap(current, next);
    }
  }
  return out;
}

Tensor propagate(const Tensor& rowptr,
                 const Tensor& col,
                 const std::optional<Tensor>& x,
                 const std::optional<Tensor>& ptr,
                 const std::optional<Tensor>& index,
                 const std::optional<Tensor>& value,
                 int64_t columns,
                 const Tensor& recv,
                 const Tensor& send,
                 const Tensor& weights,
                 bool half,
                 const std::optional<Tensor>& scale,
                 bool three_term,
                 const std::optional<Tensor>& rows,
                 bool loops,
                 bool in_place) {
  const Arguments given{rowptr, col, x, ptr, index, value, columns, recv, send,
                        on_host(weights, "weights"), weights.numel() - 1,
                        scale, three_term, rows, loops, in_place};
  return with_real(recv, [&](auto zero) {
    using scalar_t = decltype(zero);
    if constexpr (std::is_same_v<scalar_t, float>) {
      if (half)
        return propagate_typed<float, Float16>(given);
    }
    return propagate_typed<scalar_t, scalar_t>(given);
  });
}

// largest[c] = the larger of it and the bits of |x| in column c. A NaN is
// larger than all numbers.
PYG_TRUST_CLONES void magnitudes(const float* x,
                                 int64_t rows,
                                 int64_t columns,
                                 int32_t* largest) {
  for (int64_t v = 0; v < rows; ++v, x += columns) {
    for (int64_t c = 0; c < columns; ++c) {
      const int32_t word = std::bit_cast<int32_t>(x[c]) & 0x7FFFFFFF;
      largest[c] = word > largest[c] ? word : largest[c];
    }
  }
}

Tensor column_magnitudes(const Tensor& x) {
  const int64_t n = x.size(0), columns = x.size(1);
  const auto* from = x.const_data_ptr<float>();
  Tensor out = torch::stable::new_empty(x, {columns});
  std::vector<int32_t> largest(columns, 0);
  std::mutex merging;
  by_rows(n, columns, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> mine(columns, 0);
    magnitudes(from + begin * columns, end - begin, columns, mine.data());
    const std::lock_guard<std::mutex> lock(merging);
    for (int64_t c = 0; c < columns; ++c)
      largest[c] = std::max(largest[c], mine[c]);
  });
  std::memcpy(out.mutable_data_ptr<float>(), largest.data(),
              columns * sizeof(float));
  return out;
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("column_magnitudes", TORCH_BOX(&pyg_trust::column_magnitudes));
  m.impl("propagate", TORCH_BOX(&pyg_trust::propagate));
}
