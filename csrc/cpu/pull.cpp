// What incremental propagation needs on the CPU: editing rows, finding the
// rows that an edit touches, and pulling or pushing them.
#include "pull.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>
#include <vector>

#include "parallel.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Of the next row in a list, so many entries are fetched while this one is
// summed; gather() fetches the later ones.
constexpr int64_t kHead = 8;

template <int width, typename scalar_t>
inline __attribute__((always_inline)) void pull_columns(
    const Pull<scalar_t>& pull,
    int64_t begin,
    int64_t end,
    int64_t first) {
  const auto* in = pull.in + first;
  constexpr int64_t bytes = width * int64_t{sizeof(scalar_t)};
  for (int64_t k = begin; k < end; ++k) {
    const int64_t v = pull.list == nullptr ? k : pull.list[k];
    if (k + 1 < end) {
      const int64_t next = pull.list == nullptr ? k + 1 : pull.list[k + 1];
      const int32_t* head = pull.rows.col + pull.rows.start[next];
      const int64_t count = std::min(pull.rows.length[next], kHead);
      for (int64_t e = 0; e < count; ++e) {
        const auto* ahead =
            reinterpret_cast<const char*>(in + head[e] * pull.columns);
        for (int64_t b = 0; b < bytes; b += kCacheLine)
          __builtin_prefetch(ahead + b);
      }
    }
    const int64_t ends[2] = {pull.rows.start[v],
                             pull.rows.start[v] + pull.rows.length[v]};
    // Row 0 of a matrix of one row.
    gather<width, scalar_t>(
        ends, pull.rows.col, ends[1], in, pull.columns, 0, 1,
        [&](int64_t, scalar_t* sum) {
          const scalar_t recv = pull.recv[v];
          for (int c = 0; c < width; ++c)
            sum[c] *= recv;
          if (pull.z != nullptr) {
            scalar_t* z = pull.z + k * pull.columns + first;
            for (int c = 0; c < width; ++c)
              z[c] += pull.weight * sum[c];
          }
          if (pull.out != nullptr) {
            const scalar_t send = pull.send[v];
            scalar_t* out = pull.out + v * pull.columns + first;
            for (int c = 0; c < width; ++c)
              out[c] = send * sum[c];
          }
        });
  }
}

template <typename scalar_t>
inline __attribute__((always_inline)) void pull_all_columns(
    const Pull<scalar_t>& pull,
    int64_t begin,
    int64_t end) {
  constexpr int line = kCacheLine / sizeof(scalar_t);
  int64_t first = 0;
  for (; first + 4 * line <= pull.columns; first += 4 * line)
    pull_columns<4 * line>(pull, begin, end, first);
  if (first + 2 * line <= pull.columns) {
    pull_columns<2 * line>(pull, begin, end, first);
    first += 2 * line;
  }
  if (first + line <= pull.columns) {
    pull_columns<line>(pull, begin, end, first);
    first += line;
  }
  if (line > 8 && first + 8 <= pull.columns) {
    pull_columns<8>(pull, begin, end, first);
    first += 8;
  }
  if (first + 4 <= pull.columns) {
    pull_columns<4>(pull, begin, end, first);
    first += 4;
  }
  if (first + 2 <= pull.columns) {
    pull_columns<2>(pull, begin, end, first);
    first += 2;
  }
  if (first < pull.columns)
    pull_columns<1>(pull, begin, end, first);
}

}  // namespace

PYG_TRUST_CLONES void pull_range(const Pull<float>& pull,
                                 int64_t begin,
                                 int64_t end) {
  pull_all_columns(pull, begin, end);
}

PYG_TRUST_CLONES void pull_range(const Pull<double>& pull,
                                 int64_t begin,
                                 int64_t end) {
  pull_all_columns(pull, begin, end);
}

namespace {

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
                double weight) {
  Pull<scalar_t> pull;
  pull.rows = rows;
  pull.list = list ? list->const_data_ptr<int64_t>() : nullptr;
  pull.in = in.const_data_ptr<scalar_t>();
  pull.columns = in.size(1);
  pull.recv = recv.const_data_ptr<scalar_t>();
  pull.send = send.const_data_ptr<scalar_t>();
  pull.out = out ? out->mutable_data_ptr<scalar_t>() : nullptr;
  pull.z = z ? z->mutable_data_ptr<scalar_t>() : nullptr;
  pull.weight = static_cast<scalar_t>(weight);
  constexpr int64_t task = 256;
  parallel_tasks((count + task - 1) / task, count * pull.columns, [&] {
    return [&](int64_t k) {
      pull_range(pull, k * task, std::min(count, (k + 1) * task));
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
               double weight) {
  const OpenRows rows = open_rows(start, length, col);
  const int64_t count = list ? list->numel() : start.numel();
  if (in.scalar_type() == ScalarType::Double)
    pull_typed<double>(rows, list, count, in, recv, send, out, z, weight);
  else
    pull_typed<float>(rows, list, count, in, recv, send, out, z, weight);
}

// The nodes of `extra` and those in the rows of `seeds`, each once, in the
// order in which they are met. stamp[v] == mark says that v was met.
Tensor touched_rows(const Tensor& start,
                    const Tensor& length,
                    const Tensor& col,
                    const Tensor& seeds,
                    const Tensor& extra,
                    const Tensor& stamp,
                    int64_t mark) {
  const OpenRows rows = open_rows(start, length, col);
  auto* met = stamp.mutable_data_ptr<int32_t>();
  const auto now = static_cast<int32_t>(mark);
  std::vector<int64_t> found;
  const auto meet = [&](int64_t v) {
    if (met[v] != now) {
      met[v] = now;
      found.push_back(v);
    }
  };
  const auto* more = extra.const_data_ptr<int64_t>();
  for (int64_t k = 0; k < extra.numel(); ++k)
    meet(more[k]);
  const auto* from = seeds.const_data_ptr<int64_t>();
  for (int64_t k = 0; k < seeds.numel(); ++k) {
    const int32_t* row = rows.col + rows.start[from[k]];
    for (int64_t e = 0; e < rows.length[from[k]]; ++e)
      meet(row[e]);
  }
  const auto count = static_cast<int64_t>(found.size());
  Tensor out = torch::stable::new_empty(seeds, {count});
  std::copy(found.begin(), found.end(), out.mutable_data_ptr<int64_t>());
  return out;
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

// Pushes residues until |R_v| <= limit[v] everywhere: z_v += R_v, R_u +=
// follow * recv[u] * send[v] * R_v for the nodes u in row v, and R_v = 0.
// Returns the rows that changed, in the order in which they were first
// touched, as they were before: (node, z, R); and the number of pushes.
std::tuple<Tensor, Tensor, Tensor, int64_t> push_rows(const Tensor& start,
                                                      const Tensor& length,
                                                      const Tensor& col,
                                                      const Tensor& seeds,
                                                      const Tensor& recv,
                                                      const Tensor& send,
                                                      const Tensor& limit,
                                                      double follow,
                                                      const Tensor& z,
                                                      const Tensor& residue) {
  const OpenRows rows = open_rows(start, length, col);
  const int64_t columns = z.size(1);
  const auto* receive = recv.const_data_ptr<double>();
  const auto* give = send.const_data_ptr<double>();
  const auto* most = limit.const_data_ptr<double>();
  auto* out = z.mutable_data_ptr<double>();
  auto* left = residue.mutable_data_ptr<double>();
  // By node: 0 if not met yet, else 1, and 2 while it is in the queue.
  Scratch<int8_t> met(z.size(0), Pages::kSmall);
  std::vector<int64_t> nodes;
  std::vector<double> old_z, old_r;
  std::deque<int64_t> queue;
  const auto touch = [&](int64_t v) {
    if (met[v] == 0) {
      met[v] = 1;
      nodes.push_back(v);
      old_z.insert(old_z.end(), out + v * columns, out + (v + 1) * columns);
      old_r.insert(old_r.end(), left + v * columns, left + (v + 1) * columns);
    }
  };
  const auto large = [&](int64_t v) {
    double square = 0;
    const double* r = left + v * columns;
    for (int64_t c = 0; c < columns; ++c)
      square += r[c] * r[c];
    return square > most[v] * most[v];
  };
  const auto* from = seeds.const_data_ptr<int64_t>();
  for (int64_t k = 0; k < seeds.numel(); ++k) {
    if (!large(from[k]))
      continue;
    touch(from[k]);
    if (met[from[k]] == 1) {
      met[from[k]] = 2;
      queue.push_back(from[k]);
    }
  }
  std::vector<double> moved(columns);
  int64_t pushes = 0;
  while (!queue.empty()) {
    const int64_t v = queue.front();
    queue.pop_front();
    met[v] = 1;
    double* r = left + v * columns;
    double* z_v = out + v * columns;
    for (int64_t c = 0; c < columns; ++c) {
      z_v[c] += r[c];
      moved[c] = follow * give[v] * r[c];
      r[c] = 0;
    }
    ++pushes;
    const int32_t* row = rows.col + rows.start[v];
    for (int64_t e = 0; e < rows.length[v]; ++e) {
      const int64_t u = row[e];
      touch(u);
      double* r_u = left + u * columns;
      for (int64_t c = 0; c < columns; ++c)
        r_u[c] += receive[u] * moved[c];
      if (met[u] == 1 && large(u)) {
        met[u] = 2;
        queue.push_back(u);
      }
    }
  }
  const auto count = static_cast<int64_t>(nodes.size());
  Tensor node = torch::stable::new_empty(seeds, {count});
  Tensor before = torch::stable::new_empty(z, {count, columns});
  Tensor before_r = torch::stable::new_empty(z, {count, columns});
  std::copy(nodes.begin(), nodes.end(), node.mutable_data_ptr<int64_t>());
  std::copy(old_z.begin(), old_z.end(), before.mutable_data_ptr<double>());
  std::copy(old_r.begin(), old_r.end(), before_r.mutable_data_ptr<double>());
  return {node, before, before_r, pushes};
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("pull_rows", TORCH_BOX(&pyg_trust::pull_rows));
  m.impl("touched_rows", TORCH_BOX(&pyg_trust::touched_rows));
  m.impl("edit_rows", TORCH_BOX(&pyg_trust::edit_rows));
  m.impl("push_rows", TORCH_BOX(&pyg_trust::push_rows));
}
