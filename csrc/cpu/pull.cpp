// What incremental propagation needs on the CPU: editing rows, finding the
// rows that an edit touches, and pulling or pushing them.
#include "pull.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "dispatch.h"
#include "gather.h"
#include "kernels.h"
#include "parallel.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// Of all rows that are sent: they come from the cache as fast as they are asked
// for, and to fetch them ahead takes as long as to sum them.
constexpr int64_t kNearBytes = 1 << 23;

void pull(const Pull<float>& rows, int64_t begin, int64_t end) {
  kernels().pull_float(rows, begin, end);
}
void pull(const Pull<double>& rows, int64_t begin, int64_t end) {
  kernels().pull_double(rows, begin, end);
}

OpenRows open_rows(const Tensor& start,
                   const Tensor& length,
                   const Tensor& col) {
  return {start.const_data_ptr<int64_t>(), length.const_data_ptr<int64_t>(),
          col.const_data_ptr<int32_t>()};
}

template <typename scalar_t>
void pull_typed(const OpenRows& rows,
                const std::optional<Tensor>& list,
                int64_t count,
                const Tensor& in,
                const Tensor& recv,
                const Tensor& send,
                const std::optional<Tensor>& out,
                const std::optional<Tensor>& z,
                double weight,
                const std::optional<Tensor>& place,
                bool add) {
  Pull<scalar_t> step;
  step.rows = rows;
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
  const OpenRows rows = open_rows(start, length, col);
  const int64_t count = list ? list->numel() : start.numel();
  with_real(in, [&](auto zero) {
    pull_typed<decltype(zero)>(rows, list, count, in, recv, send, out, z,
                               weight, place, add);
  });
}

Tensor to_tensor(const std::vector<int64_t>& nodes, const Tensor& like) {
  const auto count = static_cast<int64_t>(nodes.size());
  Tensor made = torch::stable::new_empty(like, {count});
  std::copy(nodes.begin(), nodes.end(), made.mutable_data_ptr<int64_t>());
  return made;
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
    for (const int64_t u : from) {
      const int32_t* row = rows.col + rows.start[u];
      for (int64_t e = 0; e < rows.length[u]; ++e)
        meet(row[e]);
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

// Row += weight * moved, unless that is null; returns the square of its norm:
// eight sums side by side, of every eighth column.
PYG_TRUST_CLONES double add_and_square(double* row,
                                       const double* moved,
                                       double weight,
                                       int64_t columns) {
  constexpr int lanes = 8;
  using Lanes = Vector<double, lanes>::type;
  Lanes sum = {};
  int64_t c = 0;
  for (; c + lanes <= columns; c += lanes) {
    Lanes r = load<lanes>(row + c);
    if (moved != nullptr) {
      r += weight * load<lanes>(moved + c);
      store<lanes>(row + c, r);
    }
    sum += r * r;
  }
  double square = 0;
  for (; c < columns; ++c) {
    if (moved != nullptr)
      row[c] += weight * moved[c];
    square += row[c] * row[c];
  }
  for (int lane = 0; lane < lanes; ++lane)
    square += sum[lane];
  return square;
}

// own * x(v) - z(v) + the sum over row v of weight * send[u] * z(u).
PYG_TRUST_CLONES void residue_of(const int32_t* row,
                                 int64_t length,
                                 const double* send,
                                 double weight,
                                 double own,
                                 const double* x,
                                 const double* mine,
                                 const double* z,
                                 int64_t columns,
                                 double* out) {
  for (int64_t c = 0; c < columns; ++c)
    out[c] = 0;
  for (int64_t e = 0; e < length; ++e) {
    const int64_t soon = row[e + 2 < length ? e + 2 : length - 1];
    for (int64_t c = 0; c < columns; c += kCacheLine / sizeof(double))
      __builtin_prefetch(z + soon * columns + c);
    const double* from = z + row[e] * columns;
    const double share = send[row[e]];
    for (int64_t c = 0; c < columns; ++c)
      out[c] += share * from[c];
  }
  for (int64_t c = 0; c < columns; ++c)
    out[c] = own * x[c] + weight * out[c] - mine[c];
}

// Copies of rows, in pieces that stay where they are.
class KeptRows {
 public:
  explicit KeptRows(int64_t columns) : columns_(columns) {}

  void push_back(const double* row) {
    if (count_ % kPiece == 0)
      pieces_.emplace_back(new double[kPiece * columns_]);
    std::copy(row, row + columns_,
              pieces_.back().get() + count_ % kPiece * columns_);
    ++count_;
  }

  Tensor tensor(const Tensor& like) const {
    Tensor made = torch::stable::new_empty(like, {count_, columns_});
    auto* to = made.mutable_data_ptr<double>();
    for (int64_t first = 0; first < count_; first += kPiece) {
      const int64_t size = std::min(kPiece, count_ - first) * columns_;
      const double* piece = pieces_[first / kPiece].get();
      to = std::copy(piece, piece + size, to);
    }
    return made;
  }

 private:
  static constexpr int64_t kPiece = 64;  // rows

  int64_t columns_, count_ = 0;
  std::vector<std::unique_ptr<double[]>> pieces_;
};

// Pushes residues until |R_v| <= limit[v] everywhere: z_v += R_v, R_u +=
// follow * recv[u] * send[v] * R_v for the nodes u in row v, and R_v = 0.
// With x, the residues of the seeds are computed first: alpha x_v + follow
// recv[v] sum_u send[u] z_u - z_v, over the entries u of row v.
// Returns the rows that changed, in the order in which they first did, as they
// were before: (node, R) and (node, z), the latter of those that were pushed;
// and the number of pushes.
std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t> push_rows(
    const Tensor& start,
    const Tensor& length,
    const Tensor& col,
    const Tensor& seeds,
    const Tensor& recv,
    const Tensor& send,
    const Tensor& limit,
    double follow,
    const Tensor& z,
    const Tensor& residue,
    const std::optional<Tensor>& x,
    double alpha) {
  const OpenRows rows = open_rows(start, length, col);
  const int64_t columns = z.size(1);
  const auto* receive = recv.const_data_ptr<double>();
  const auto* give = send.const_data_ptr<double>();
  const auto* most = limit.const_data_ptr<double>();
  auto* out = z.mutable_data_ptr<double>();
  auto* left = residue.mutable_data_ptr<double>();
  // By node: whether its residue is kept, it is in the queue, z is kept.
  constexpr int64_t kPushAhead = 4;
  constexpr int8_t kMet = 1, kQueued = 2, kPushed = 4;
  Scratch<int8_t> met(z.size(0), Pages::kSmall);
  std::vector<int64_t> nodes, pushed;
  KeptRows old_z(columns), old_r(columns);
  std::deque<int64_t> queue;
  std::vector<double> moved(columns);
  const auto fetch = [&](int64_t u) {
    for (int64_t c = 0; c < columns; c += kCacheLine / sizeof(double))
      __builtin_prefetch(left + u * columns + c, 1);
  };
  const auto touch = [&](int64_t v) {
    if ((met[v] & kMet) == 0) {
      met[v] |= kMet;
      nodes.push_back(v);
      old_r.push_back(left + v * columns);
    }
  };
  const auto large = [&](int64_t u, const double* more, double weight) {
    const double square =
        add_and_square(left + u * columns, more, weight, columns);
    return square > most[u] * most[u];
  };
  const auto* from = seeds.const_data_ptr<int64_t>();
  const double* signal = x ? x->const_data_ptr<double>() : nullptr;
  for (int64_t k = 0; k < seeds.numel(); ++k) {
    if (const int64_t v = from[k]; signal != nullptr) {
      touch(v);
      residue_of(rows.col + rows.start[v], rows.length[v], give,
                 follow * receive[v], alpha, signal + v * columns,
                 out + v * columns, out, columns, left + v * columns);
    }
    if (!large(from[k], nullptr, 0))
      continue;
    touch(from[k]);
    if ((met[from[k]] & kQueued) == 0) {
      met[from[k]] |= kQueued;
      queue.push_back(from[k]);
    }
  }
  int64_t pushes = 0;
  while (!queue.empty()) {
    const int64_t v = queue.front();
    queue.pop_front();
    double* r = left + v * columns;
    double* z_v = out + v * columns;
    if ((met[v] & kPushed) == 0) {
      pushed.push_back(v);
      old_z.push_back(z_v);
    }
    met[v] = kMet | kPushed;
    for (int64_t c = 0; c < columns; ++c) {
      z_v[c] += r[c];
      moved[c] = follow * give[v] * r[c];
      r[c] = 0;
    }
    ++pushes;
    const int32_t* row = rows.col + rows.start[v];
    for (int64_t e = 0; e < rows.length[v]; ++e) {
      const int64_t u = row[e];
      if (e + kPushAhead < rows.length[v])
        fetch(row[e + kPushAhead]);
      touch(u);
      if (large(u, moved.data(), receive[u]) && (met[u] & kQueued) == 0) {
        met[u] |= kQueued;
        queue.push_back(u);
      }
    }
  }
  return {to_tensor(nodes, seeds), old_r.tensor(z), to_tensor(pushed, seeds),
          old_z.tensor(z), pushes};
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("pull_rows", TORCH_BOX(&pyg_trust::pull_rows));
  m.impl("touched_rows", TORCH_BOX(&pyg_trust::touched_rows));
  m.impl("entries_at", TORCH_BOX(&pyg_trust::entries_at));
  m.impl("edit_rows", TORCH_BOX(&pyg_trust::edit_rows));
  m.impl("push_rows", TORCH_BOX(&pyg_trust::push_rows));
}
