// From lists of edges to sorted rows, and what is asked of sorted rows: all in
// a few passes, each of which holds a cursor per node and nothing per edge but
// its result.
//
// Rows are filled by a counting sort: degrees, their running sum, then every
// edge to the next free place of its row, in the order of the list. Whatever
// reaches far is prefetched some edges ahead.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "parallel.h"
#include "radix.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kAhead = 48;  // edges

// ++count[index[e]]; the first e with an index outside of the nodes, or -1.
int64_t count_rows(const Tensor& index, Tensor count_) {
  auto* count = count_.mutable_data_ptr<int64_t>();
  const auto n = static_cast<uint64_t>(count_.numel());
  const int64_t m = index.numel();
  return with_index(index, [&](const auto* row) -> int64_t {
    for (int64_t e = 0; e < m; ++e)
      if (static_cast<uint64_t>(int64_t{row[e]}) >= n)
        return e;
    for (int64_t e = 0; e < m; ++e) {
      if (e + kAhead < m)
        __builtin_prefetch(count + row[e + kAhead], 1);
      ++count[row[e]];
    }
    return -1;
  });
}

// Puts the targets of the rows [first, first + cursor) in their places, from
// cursor[row - first] on, and e beside each. False if a place or a target is
// none: then the list is not what was counted.
bool place_rows(const Tensor& row_,
                const Tensor& col_,
                Tensor cursor_,
                Tensor out_,
                const std::optional<Tensor>& perm_,
                int64_t first,
                int64_t num_nodes) {
  auto* cursor = cursor_.mutable_data_ptr<int64_t>();
  auto* out = out_.mutable_data_ptr<int32_t>();
  auto* perm = perm_ ? perm_->mutable_data_ptr<int64_t>() : nullptr;
  const auto rows = static_cast<uint64_t>(cursor_.numel());
  const auto room = static_cast<uint64_t>(out_.numel());
  const auto n = static_cast<uint64_t>(num_nodes);
  const int64_t m = row_.numel();
  return with_index(row_, [&](const auto* row) {
    return with_index(col_, [&](const auto* col) {
      for (int64_t e = 0; e < m; ++e) {
        if (e + 2 * kAhead < m) {
          const auto far = static_cast<uint64_t>(row[e + 2 * kAhead] - first);
          if (far < rows)
            __builtin_prefetch(cursor + far, 1);
          const auto near = static_cast<uint64_t>(row[e + kAhead] - first);
          if (near < rows) {
            __builtin_prefetch(out + cursor[near], 1);
            if (perm != nullptr)
              __builtin_prefetch(perm + cursor[near], 1);
          }
        }
        const auto v = static_cast<uint64_t>(row[e] - first);
        if (v >= rows)
          continue;
        const auto place = static_cast<uint64_t>(cursor[v]++);
        if (place >= room || static_cast<uint64_t>(int64_t{col[e]}) >= n)
          return false;
        out[place] = static_cast<int32_t>(col[e]);
        if (perm != nullptr)
          perm[place] = e;
      }
      return true;
    });
  });
}

// Sorts every row, equal targets by perm, which was ascending in every row.
// Returns how many entries repeat the one before, and the first that does.
std::tuple<int64_t, int64_t> sort_rows(const Tensor& rowptr_,
                                       Tensor col_,
                                       const std::optional<Tensor>& perm_) {
  const auto* rowptr = rowptr_.const_data_ptr<int64_t>();
  auto* col = col_.mutable_data_ptr<int32_t>();
  auto* perm = perm_ ? perm_->mutable_data_ptr<int64_t>() : nullptr;
  const int64_t n = rowptr_.numel() - 1, m = col_.numel();
  std::atomic<int64_t> repeated{0}, where{m};
  constexpr int64_t together = 1024;
  parallel_tasks((n + together - 1) / together, m, [&] {
    return [&, room = std::vector<int32_t>(),
            pairs = std::vector<std::pair<int32_t, int64_t>>()](
               int64_t task) mutable {
      int64_t found = 0, earliest = m;
      const auto sort_pairs = [&](int64_t begin, int64_t stop) {
        pairs.clear();
        for (int64_t e = begin; e < stop; ++e)
          pairs.emplace_back(col[e], perm[e]);
        std::sort(pairs.begin(), pairs.end());
        for (int64_t e = begin; e < stop; ++e)
          std::tie(col[e], perm[e]) = pairs[e - begin];
      };
      const int64_t end = std::min((task + 1) * together, n);
      for (int64_t v = task * together; v < end; ++v) {
        const int64_t begin = rowptr[v], stop = rowptr[v + 1];
        if (!std::is_sorted(col + begin, col + stop)) {
          if (perm == nullptr)
            sort_by(col + begin, stop - begin, int64_t{1} << 31, room,
                    [](int32_t target) { return target; });
          else
            sort_pairs(begin, stop);
        }
        for (int64_t e = begin + 1; e < stop; ++e) {
          if (col[e] == col[e - 1]) {
            ++found;
            earliest = std::min(earliest, e);
          }
        }
      }
      if (found == 0)
        return;
      repeated += found;
      int64_t before = where.load();
      while (earliest < before &&
             !where.compare_exchange_weak(before, earliest)) {
      }
    };
  });
  return {repeated.load(), where.load() == m ? -1 : where.load()};
}

// Keeps one of equal neighbours in every row, the first; how many are left.
int64_t merge_rows(Tensor rowptr_, Tensor col_) {
  auto* rowptr = rowptr_.mutable_data_ptr<int64_t>();
  auto* col = col_.mutable_data_ptr<int32_t>();
  const int64_t n = rowptr_.numel() - 1;
  int64_t kept = 0, begin = 0;
  for (int64_t v = 0; v < n; ++v) {
    const int64_t stop = rowptr[v + 1], start = kept;
    for (int64_t e = begin; e < stop; ++e)
      if (kept == start || col[kept - 1] != col[e])
        col[kept++] = col[e];
    begin = stop;
    rowptr[v + 1] = kept;
  }
  return kept;
}

// Whether these are rows: 0, or 1 for a rowptr that does not ascend from 0 to
// the number of entries, 2 for a target that is no node, 3 for a row that
// does not ascend.
int64_t check_rows(const Tensor& rowptr_, const Tensor& col_) {
  const auto* rowptr = rowptr_.const_data_ptr<int64_t>();
  const auto* col = col_.const_data_ptr<int32_t>();
  const int64_t n = rowptr_.numel() - 1, m = col_.numel();
  if (n < 0 || rowptr[0] != 0 || rowptr[n] != m)
    return 1;
  for (int64_t v = 0; v < n; ++v)
    if (rowptr[v + 1] < rowptr[v])
      return 1;
  for (int64_t v = 0; v < n; ++v) {
    for (int64_t e = rowptr[v]; e < rowptr[v + 1]; ++e) {
      if (col[e] < 0 || col[e] >= n)
        return 2;
      if (e > rowptr[v] && col[e] < col[e - 1])
        return 3;
    }
  }
  return 0;
}

template <typename value_t>
bool symmetric(const int64_t* rowptr,
               const int32_t* col,
               const value_t* weight,
               int64_t n,
               int64_t m) {
  // Sources come in ascending order, so what enters u has to be row u, one
  // entry after the other.
  Scratch<int64_t> next(n, Pages::kHuge);
  std::copy(rowptr, rowptr + n, next.get());
  for (int64_t v = 0; v < n; ++v) {
    for (int64_t e = rowptr[v]; e < rowptr[v + 1]; ++e) {
      if (e + 2 * kAhead < m) {
        __builtin_prefetch(next.get() + col[e + 2 * kAhead], 1);
        __builtin_prefetch(col + next[col[e + kAhead]]);
      }
      const int64_t u = col[e], back = next[u]++;
      if (back >= rowptr[u + 1] || col[back] != v)
        return false;
      if (weight != nullptr && weight[back] != weight[e])
        return false;
    }
  }
  return true;  // as many entries as places, and all in their place
}

bool is_symmetric(const Tensor& rowptr_,
                  const Tensor& col_,
                  const std::optional<Tensor>& weight) {
  const auto* rowptr = rowptr_.const_data_ptr<int64_t>();
  const auto* col = col_.const_data_ptr<int32_t>();
  const int64_t n = rowptr_.numel() - 1, m = col_.numel();
  if (!weight)
    return symmetric<float>(rowptr, col, nullptr, n, m);
  return with_real(*weight, [&](auto zero) {
    return symmetric(rowptr, col, weight->const_data_ptr<decltype(zero)>(), n,
                     m);
  });
}

// Rows to be made, of n nodes and m entries, and the position of each entry
// before if asked.
struct Made {
  Tensor start_, out_, perm_;
  int64_t* start = start_.mutable_data_ptr<int64_t>();
  int32_t* out = out_.mutable_data_ptr<int32_t>();
  int64_t* perm = perm_.mutable_data_ptr<int64_t>();

  Made(const Tensor& rowptr, const Tensor& col, int64_t m, bool with_perm)
      : start_(torch::stable::new_empty(rowptr, {rowptr.numel()})),
        out_(torch::stable::new_empty(col, {m})),
        perm_(torch::stable::new_empty(rowptr, {with_perm ? m : 0})) {}

  std::tuple<Tensor, Tensor, Tensor> tensors() const {
    return {start_, out_, perm_};
  }
};

// The rows of the reversed edges.
std::tuple<Tensor, Tensor, Tensor> transpose_rows(const Tensor& rowptr_,
                                                  const Tensor& col_,
                                                  bool with_perm) {
  const auto* rowptr = rowptr_.const_data_ptr<int64_t>();
  const auto* col = col_.const_data_ptr<int32_t>();
  const int64_t n = rowptr_.numel() - 1, m = col_.numel();
  const Made made(rowptr_, col_, m, with_perm);
  auto *start = made.start, *perm = made.perm;
  auto* out = made.out;
  wish_for_huge_pages(out, m * int64_t{sizeof(int32_t)});
  std::fill(start, start + n + 1, 0);
  for (int64_t e = 0; e < m; ++e) {
    if (e + kAhead < m)
      __builtin_prefetch(start + col[e + kAhead] + 1, 1);
    ++start[col[e] + 1];
  }
  for (int64_t v = 0; v < n; ++v)
    start[v + 1] += start[v];
  // start[u] is the cursor of row u, and in the end the start of the next.
  for (int64_t v = 0; v < n; ++v) {
    for (int64_t e = rowptr[v]; e < rowptr[v + 1]; ++e) {
      if (e + 2 * kAhead < m) {
        __builtin_prefetch(start + col[e + 2 * kAhead], 1);
        __builtin_prefetch(out + start[col[e + kAhead]], 1);
      }
      const int64_t place = start[col[e]]++;
      out[place] = static_cast<int32_t>(v);
      if (with_perm)
        perm[place] = e;
    }
  }
  std::copy_backward(start, start + n, start + n + 1);
  start[0] = 0;
  return made.tensors();
}

// Which nodes have an edge to themselves.
Tensor own_loops(const Tensor& rowptr_, const Tensor& col_) {
  const auto* rowptr = rowptr_.const_data_ptr<int64_t>();
  const auto* col = col_.const_data_ptr<int32_t>();
  const int64_t n = rowptr_.numel() - 1;
  Tensor own_ = torch::stable::new_empty(rowptr_, {n}, ScalarType::Bool);
  auto* own = own_.mutable_data_ptr<bool>();
  constexpr int64_t together = 4096;
  parallel_tasks((n + together - 1) / together, n * 8, [&] {
    return [&](int64_t task) {
      const int64_t end = std::min((task + 1) * together, n);
      for (int64_t v = task * together; v < end; ++v)
        own[v] = std::binary_search(col + rowptr[v], col + rowptr[v + 1],
                                    static_cast<int32_t>(v));
    };
  });
  return own_;
}

// The rows with an edge to itself at every node that is not marked, and where
// each entry was if asked, -1 for those edges.
std::tuple<Tensor, Tensor, Tensor> add_loops(const Tensor& rowptr_,
                                             const Tensor& col_,
                                             const Tensor& own_,
                                             bool with_perm) {
  const auto* rowptr = rowptr_.const_data_ptr<int64_t>();
  const auto* col = col_.const_data_ptr<int32_t>();
  const auto* own = own_.const_data_ptr<bool>();
  const int64_t n = rowptr_.numel() - 1;
  int64_t total = col_.numel();
  for (int64_t v = 0; v < n; ++v)
    total += !own[v];
  const Made made(rowptr_, col_, total, with_perm);
  int64_t place = 0;
  const auto put = [&](int64_t node, int64_t before) {
    if (with_perm)
      made.perm[place] = before;
    made.out[place++] = static_cast<int32_t>(node);
  };
  for (int64_t v = 0; v < n; ++v) {
    made.start[v] = place;
    int64_t e = rowptr[v];
    const int64_t end = rowptr[v + 1];
    for (; e < end && (own[v] || col[e] <= v); ++e)
      put(col[e], e);
    if (!own[v])
      put(v, -1);
    for (; e < end; ++e)
      put(col[e], e);
  }
  made.start[n] = place;
  return made.tensors();
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("count_rows", TORCH_BOX(&pyg_trust::count_rows));
  m.impl("place_rows", TORCH_BOX(&pyg_trust::place_rows));
  m.impl("sort_rows", TORCH_BOX(&pyg_trust::sort_rows));
  m.impl("merge_rows", TORCH_BOX(&pyg_trust::merge_rows));
  m.impl("check_rows", TORCH_BOX(&pyg_trust::check_rows));
  m.impl("is_symmetric", TORCH_BOX(&pyg_trust::is_symmetric));
  m.impl("transpose_rows", TORCH_BOX(&pyg_trust::transpose_rows));
  m.impl("own_loops", TORCH_BOX(&pyg_trust::own_loops));
  m.impl("add_loops", TORCH_BOX(&pyg_trust::add_loops));
}
