// What incremental propagation needs on the CPU: editing rows, finding the
// rows that an edit touches, and pulling them.
#include "pull.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "dispatch.h"
#include "kernels.h"
#include "open_rows.h"
#include "parallel.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// So many entries before a node is met, its stamp is fetched.
constexpr int64_t kMetAhead = 16;

// Of all rows that are sent: they come from the cache as fast as they are asked
// for, and to fetch them ahead takes as long as to sum them.
constexpr int64_t kNearBytes = 1 << 23;

void pull(const Pull<float>& rows, int64_t begin, int64_t end) {
  kernels().pull_float(rows, begin, end);
}
void pull(const Pull<double>& rows, int64_t begin, int64_t end) {
  kernels().pull_double(rows, begin, end);
}

void pull_rows(const Tensor& start,
               const Tensor& length,
               const Tensor& col,
               const std::optional<Tensor>& list,
               const Tensor& in,
               const Tensor& recv,
               const Tensor& send,
               const std::optional<Tensor>& out,
               const std::optional<Tensor>& z,
               double weight,
               const std::optional<Tensor>& place,
               bool add) {
  const int64_t count = list ? list->numel() : start.numel();
  with_real(in, [&](auto zero) {
    using scalar_t = decltype(zero);
    Pull<scalar_t> step;
    step.rows = open_rows(start, length, col);
    step.list = list ? list->const_data_ptr<int64_t>() : nullptr;
    step.in = in.const_data_ptr<scalar_t>();
    step.columns = in.size(1);
    step.near = !list && in.numel() * int64_t{sizeof(scalar_t)} <= kNearBytes;
    step.recv = recv.const_data_ptr<scalar_t>();
    step.send = send.const_data_ptr<scalar_t>();
    step.out = out ? out->mutable_data_ptr<scalar_t>() : nullptr;
    step.z = z ? z->mutable_data_ptr<scalar_t>() : nullptr;
    step.weight = static_cast<scalar_t>(weight);
    step.place = place ? place->const_data_ptr<int64_t>() : nullptr;
    step.add = add;
    constexpr int64_t task = 256;
    parallel_tasks((count + task - 1) / task, count * step.columns, [&] {
      return [&](int64_t k) {
        pull(step, k * task, std::min(count, (k + 1) * task));
      };
    });
  });
}

// Level by level, as far as the rows of `reads` (their lengths) that it takes
// have at most `most` entries together: the nodes of `extra` and those in the
// rows of the level before, the first one being `seeds`, each once, in the
// order in which they are met. stamp[v] >= mark says that v was met. Returns
// the nodes of all levels, and of each level where it ends and its entries.
std::tuple<Tensor, Tensor> touched_rows(const Tensor& start,
                                        const Tensor& length,
                                        const Tensor& col,
                                        const Tensor& reads,
                                        const Tensor& seeds,
                                        const Tensor& extra,
                                        const Tensor& stamp,
                                        int64_t mark,
                                        int64_t levels,
                                        double most) {
  const OpenRows rows = open_rows(start, length, col);
  const auto* entries = reads.const_data_ptr<int64_t>();
  auto* met = stamp.mutable_data_ptr<int32_t>();
  const auto* more = extra.const_data_ptr<int64_t>();
  const auto* given = seeds.const_data_ptr<int64_t>();
  std::vector<int64_t> found, counts, from(given, given + seeds.numel());
  for (int64_t level = 0; level < levels; ++level) {
    const auto now = static_cast<int32_t>(mark + level);
    const auto begin = static_cast<std::ptrdiff_t>(found.size());
    int64_t read = 0;
    const auto meet = [&](int64_t v) {
      if (met[v] != now) {
        met[v] = now;
        found.push_back(v);
        read += entries[v];
      }
    };
    for (int64_t k = 0; k < extra.numel(); ++k)
      meet(more[k]);
    const auto last = static_cast<int64_t>(from.size()) - 1;
    for (int64_t k = 0; k <= last; ++k) {
      const int64_t begins = from[std::min(k + kBeginAhead, last)];
      __builtin_prefetch(rows.start + begins);
      __builtin_prefetch(rows.length + begins);
      const int64_t named = from[std::min(k + kNamedAhead, last)];
      __builtin_prefetch(rows.col + rows.start[named]);
      const int32_t* row = rows.col + rows.start[from[k]];
      const int64_t count = rows.length[from[k]];
      for (int64_t e = 0; e < count; ++e) {
        const int64_t soon = row[std::min(e + kMetAhead, count - 1)];
        __builtin_prefetch(met + soon, 1);
        __builtin_prefetch(entries + soon);
        meet(row[e]);
      }
    }
    if (static_cast<double>(read) > most) {
      found.resize(begin);
      break;
    }
    from.assign(found.begin() + begin, found.end());
    counts.push_back(static_cast<int64_t>(found.size()));
    counts.push_back(read);
  }
  return {to_tensor(found, seeds), to_tensor(counts, seeds)};
}

// The entries (row, target) that go with nodes, both of the rows that leave
// them and of those that enter them, and edges (in both directions, if
// `both`), sorted and each once; and all nodes that one is at, ascending.
std::tuple<Tensor, Tensor, Tensor> entries_at(const Tensor& start,
                                              const Tensor& length,
                                              const Tensor& col,
                                              const Tensor& back_start,
                                              const Tensor& back_length,
                                              const Tensor& back_col,
                                              const Tensor& nodes,
                                              const Tensor& edges,
                                              bool both) {
  const OpenRows out = open_rows(start, length, col);
  const OpenRows into = open_rows(back_start, back_length, back_col);
  const int64_t n = start.numel(), count = edges.size(1);
  const auto* list = nodes.const_data_ptr<int64_t>();
  const auto* ends = edges.const_data_ptr<int64_t>();
  std::vector<int64_t> keys, at(list, list + nodes.numel());
  const auto tidy = [](std::vector<int64_t>& values) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
  };
  for (int64_t k = 0; k < nodes.numel(); ++k) {
    const int64_t v = list[k];
    for (int64_t e = 0; e < out.length[v]; ++e)
      keys.push_back(v * n + out.col[out.start[v] + e]);
    for (int64_t e = 0; e < into.length[v]; ++e)
      keys.push_back(into.col[into.start[v] + e] * n + v);
  }
  for (int64_t k = 0; k < count; ++k) {
    keys.push_back(ends[k] * n + ends[count + k]);
    if (both)
      keys.push_back(ends[count + k] * n + ends[k]);
  }
  tidy(keys);
  const auto size = static_cast<int64_t>(keys.size());
  Tensor row = torch::stable::new_empty(nodes, {size});
  Tensor target = torch::stable::new_empty(nodes, {size});
  auto* rows = row.mutable_data_ptr<int64_t>();
  auto* targets = target.mutable_data_ptr<int64_t>();
  for (int64_t k = 0; k < size; ++k) {
    rows[k] = keys[k] / n;
    targets[k] = keys[k] % n;
    if (k == 0 || rows[k] != rows[k - 1])
      at.push_back(rows[k]);
    at.push_back(targets[k]);
  }
  tidy(at);
  return {row, target, to_tensor(at, nodes)};
}

// Takes the entries (row[k], target[k]), sorted and each once, out of their
// rows or puts them in; places that become free get -1. Returns -1, or the
// first k whose entry is not there (is there already), and then nothing has
// changed. Rows need to have the room.
int64_t edit_rows(const Tensor& start,
                  const Tensor& length,
                  const Tensor& col,
                  const Tensor& row,
                  const Tensor& target,
                  bool insert) {
  const auto* starts = start.const_data_ptr<int64_t>();
  auto* lengths = length.mutable_data_ptr<int64_t>();
  auto* cols = col.mutable_data_ptr<int32_t>();
  const auto* rows = row.const_data_ptr<int64_t>();
  const auto* targets = target.const_data_ptr<int64_t>();
  const int64_t count = row.numel();
  for (int64_t k = 0; k < count; ++k) {
    const int32_t* begin = cols + starts[rows[k]];
    const bool there = std::binary_search(begin, begin + lengths[rows[k]],
                                          static_cast<int32_t>(targets[k]));
    if (there == insert)
      return k;
  }
  for (int64_t k = 0; k < count;) {
    const int64_t v = rows[k];
    int64_t stop = k;
    while (stop < count && rows[stop] == v)
      ++stop;
    const int64_t changed = stop - k;
    int32_t* entry = cols + starts[v];
    if (insert) {
      // From the back, so that nothing is overwritten that is still needed.
      int64_t from = lengths[v] - 1, to = lengths[v] + changed - 1;
      for (int64_t m = stop - 1; m >= k; --m) {
        while (from >= 0 && entry[from] > targets[m])
          entry[to--] = entry[from--];
        entry[to--] = static_cast<int32_t>(targets[m]);
      }
      lengths[v] += changed;
    } else {
      int64_t to =
          std::lower_bound(entry, entry + lengths[v],
                           static_cast<int32_t>(targets[k])) -
          entry;
      int64_t m = k;
      for (int64_t from = to; from < lengths[v]; ++from) {
        if (m < stop && entry[from] == targets[m])
          ++m;
        else
          entry[to++] = entry[from];
      }
      std::fill(entry + to, entry + lengths[v], -1);
      lengths[v] -= changed;
    }
    k = stop;
  }
  return -1;
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("pull_rows", TORCH_BOX(&pyg_trust::pull_rows));
  m.impl("touched_rows", TORCH_BOX(&pyg_trust::touched_rows));
  m.impl("entries_at", TORCH_BOX(&pyg_trust::entries_at));
  m.impl("edit_rows", TORCH_BOX(&pyg_trust::edit_rows));
}
