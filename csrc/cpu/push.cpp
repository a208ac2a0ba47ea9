// Randomized propagation on the CPU: AGP (Wang et al. 2021, Algorithm 2).
#include "push.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "gather.h"
#include "parallel.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The levels of one propagation: Y_{i+1} / Y_i and w_i / Y_i.
struct Levels {
  const double* ratio;
  const double* keep;
  int64_t count;  // L

  Levels(const Tensor& ratio, const Tensor& keep)
      : ratio(ratio.const_data_ptr<double>()),
        keep(keep.const_data_ptr<double>()),
        count(ratio.numel()) {}
};

// The same graph from the receiving side, for levels that are done exactly.
template <typename scalar_t>
struct PullGraph {
  const int64_t* rowptr;
  const int32_t* col;
  const scalar_t* recv;
  double above;  // pull where pushing is expected to cost more than this
};

template <int width>
PYG_TRUST_CLONES void pull_rows(const PullGraph<float>& graph,
                                int64_t num_nodes,
                                const float* in,
                                float* out) {
  gather<width, float>(graph.rowptr, graph.col, graph.rowptr[num_nodes], in,
                       width, 0, num_nodes, [&](int64_t v, float* sum) {
                         for (int c = 0; c < width; ++c)
                           out[v * width + c] = graph.recv[v] * sum[c];
                       });
}

template <int width>
PYG_TRUST_CLONES void pull_rows(const PullGraph<double>& graph,
                                int64_t num_nodes,
                                const double* in,
                                double* out) {
  gather<width, double>(graph.rowptr, graph.col, graph.rowptr[num_nodes], in,
                        width, 0, num_nodes, [&](int64_t v, double* sum) {
                          for (int c = 0; c < width; ++c)
                            out[v * width + c] = graph.recv[v] * sum[c];
                        });
}

// The residues of a block of `width` signals, level after level. A thread owns
// one and runs block after block through it; between blocks every residue is
// zero.
template <typename scalar_t, int width>
class Pusher {
 public:
  Pusher(const PushGraph<scalar_t>& graph,
         const std::optional<PullGraph<scalar_t>>& pull,
         const scalar_t* send,
         const Levels& levels,
         int64_t num_nodes)
      : graph_(graph),
        pull_(pull),
        send_(send),
        levels_(levels),
        num_nodes_(num_nodes),
        longest_(num_nodes / 16 + 1),
        residue_(num_nodes * width, pull ? Pages::kHuge : Pages::kSmall),
        next_(num_nodes * width, pull ? Pages::kHuge : Pages::kSmall) {}

  // Adds to the residues of level 0.
  void start(int64_t u, const scalar_t* value) { To{*this, value}.add(u, 1); }

  // Pushes everything started, and calls reserve(u, q) for the q^(i)(u) of all
  // signals. `eps` has the quantum of each; residues with |r| * send < prune
  // stay where they are. Returns how many levels were pushed.
  template <typename Reserve>
  int64_t run(const scalar_t* eps,
              scalar_t prune,
              uint64_t key,
              const Reserve& reserve) {
    for (int c = 0; c < width; ++c)
      per_eps_[c] = scalar_t(1) / eps[c];
    int64_t pushed = 0;
    for (int64_t level = 0; level <= levels_.count; ++level) {
      residue_.swap(next_);
      frontier_.swap(next_frontier_);
      next_frontier_.clear();
      // A frontier that outgrew its list is found by looking everywhere.
      const bool everywhere = std::exchange(outgrown_, false);
      const bool last = level == levels_.count;
      const auto keep = static_cast<scalar_t>(levels_.keep[level]);
      const auto ratio = last ? scalar_t(0)
                              : static_cast<scalar_t>(levels_.ratio[level]);
      if (everywhere && !last && pull_ && expected(ratio) > pull_->above) {
        pull(keep, ratio, reserve);
        continue;
      }
      pushed += !last;
      const uint64_t level_key = derive(key, level);
      const auto visit = [&](int64_t u) {
        scalar_t* row = residue_.get() + u * width;
        scalar_t value[width];
        bool any = false;
        for (int c = 0; c < width; ++c) {
          value[c] = row[c];
          any |= value[c] != 0;
        }
        if (!any)
          return;
        std::fill(row, row + width, scalar_t(0));
        if (keep != 0)
          reserve(u, keep, value);
        if (last)
          return;
        const scalar_t mass = scale_to_send(value, ratio, send_[u]);
        if (prune > 0 && std::abs(value[0]) < prune * ratio)
          return;
        push_row(graph_, u, mass, derive(level_key, u), To{*this, value});
      };
      if (everywhere) {
        for (int64_t u = 0; u < num_nodes_; ++u)
          visit(u);
      } else {
        for (const int32_t u : frontier_)
          visit(u);
      }
    }
    return pushed;
  }

 private:
  // Where a push goes: the residues of the next level.
  struct To {
    Pusher& pusher;
    const scalar_t* value;

    void prefetch(int64_t v) const {
      __builtin_prefetch(pusher.next_.get() + v * width, 1);
    }

    void add(int64_t v, scalar_t factor) const {
      scalar_t* row = pusher.next_.get() + v * width;
      if (!pusher.outgrown_) {
        bool any = false;
        for (int c = 0; c < width; ++c)
          any |= row[c] != 0;
        // Residues that cancelled to zero may enlist their node twice; the
        // second visit finds zeros and does nothing.
        if (!any)
          pusher.enlist(v);
      }
      for (int c = 0; c < width; ++c)
        row[c] += value[c] * factor;
    }
  };

  void enlist(int64_t v) {
    if (static_cast<int64_t>(next_frontier_.size()) < longest_)
      next_frontier_.push_back(static_cast<int32_t>(v));
    else
      outgrown_ = true;
  }

  // Residues become what is sent to a node of degree one; returns the largest
  // in units of its quantum.
  scalar_t scale_to_send(scalar_t* value, scalar_t ratio, scalar_t send) {
    scalar_t mass = 0;
    for (int c = 0; c < width; ++c) {
      value[c] *= ratio * send;
      // 0 / 0, a signal without a quantum, is no larger than anything.
      const scalar_t size = std::abs(value[c]) * per_eps_[c];
      mass = size > mass ? size : mass;
    }
    return mass;
  }

  // The expected cost of pushing this level, from evenly spaced nodes.
  double expected(scalar_t ratio) {
    const int64_t step = num_nodes_ / kSamples + 1;
    double cost = 0;
    for (int64_t u = step / 2; u < num_nodes_; u += step) {
      const scalar_t* row = residue_.get() + u * width;
      scalar_t value[width];
      std::copy(row, row + width, value);
      const scalar_t mass = scale_to_send(value, ratio, send_[u]);
      if (mass > 0)
        cost += kVisitCost + kPushCost * push_cost(graph_, u, mass);
    }
    return cost * static_cast<double>(step);
  }

  // One level exactly.
  template <typename Reserve>
  void pull(scalar_t keep, scalar_t ratio, const Reserve& reserve) {
    scalar_t* residue = residue_.get();
    for (int64_t u = 0; u < num_nodes_; ++u) {
      scalar_t* row = residue + u * width;
      if (keep != 0)
        reserve(u, keep, row);
      for (int c = 0; c < width; ++c)
        row[c] *= ratio * send_[u];
    }
    pull_rows<width>(*pull_, num_nodes_, residue, next_.get());
    std::fill(residue, residue + num_nodes_ * width, scalar_t(0));
    outgrown_ = true;
  }

  const PushGraph<scalar_t> graph_;
  const std::optional<PullGraph<scalar_t>> pull_;
  const scalar_t* send_;
  const Levels levels_;
  const int64_t num_nodes_;
  const int64_t longest_;  // frontier that is kept as a list
  Scratch<scalar_t> residue_, next_;
  std::vector<int32_t> frontier_, next_frontier_;
  scalar_t per_eps_[width];
  bool outgrown_ = false;
};

template <typename scalar_t>
PushGraph<scalar_t> view(const Tensor& rowptr,
                         const Tensor& col,
                         const std::optional<Tensor>& scale,
                         const Tensor& group_ptr,
                         const Tensor& group_end) {
  return {rowptr.const_data_ptr<int64_t>(), col.const_data_ptr<int32_t>(),
          scale ? scale->const_data_ptr<scalar_t>() : nullptr,
          group_ptr.const_data_ptr<int64_t>(),
          group_end.const_data_ptr<int64_t>()};
}

// Columns of one block: those of a cache line.
template <typename scalar_t>
constexpr int kBlock = kCacheLine / sizeof(scalar_t);

template <typename scalar_t>
struct Propagation {
  PushGraph<scalar_t> graph;
  PullGraph<scalar_t> pull;
  const scalar_t* send;
  Levels levels;
  const scalar_t* x;
  const scalar_t* eps;
  scalar_t* z;
  int64_t num_nodes;
  int64_t columns;
  uint64_t seed;
  int64_t first;
  int64_t* pushed;

  // Blocks [begin, end), none of which has more than `width` columns.
  template <int width>
  void run(int64_t begin, int64_t end) const {
    parallel_tasks(end - begin, (end - begin) * num_nodes * width, [&] {
      return [&, pusher = std::make_shared<Pusher<scalar_t, width>>(
                     graph, pull, send, levels, num_nodes)](int64_t task) {
        const int64_t block = begin + task;
        const int64_t column = block * kBlock<scalar_t>;
        const int64_t count = std::min<int64_t>(width, columns - column);
        scalar_t quanta[width] = {};
        std::copy(eps + column, eps + column + count, quanta);
        scalar_t value[width] = {};
        for (int64_t u = 0; u < num_nodes; ++u) {
          const scalar_t* row = x + u * columns + column;
          if (std::any_of(row, row + count,
                          [](scalar_t r) { return r != 0; })) {
            std::copy(row, row + count, value);
            pusher->start(u, value);
          }
        }
        pushed[block] = pusher->run(
            quanta, 0, derive(seed, first + block),
            [&](int64_t u, scalar_t keep, const scalar_t* r) {
              scalar_t* row = z + u * columns + column;
              for (int64_t c = 0; c < count; ++c)
                row[c] += keep * r[c];
            });
      };
    });
  }
};

template <typename scalar_t>
std::tuple<Tensor, Tensor> push_typed(const PushGraph<scalar_t>& graph,
                                      const PullGraph<scalar_t>& pull,
                                      const Tensor& send,
                                      const Tensor& x,
                                      const Tensor& eps,
                                      const Levels& levels,
                                      uint64_t seed,
                                      int64_t first) {
  const int64_t n = x.size(0), columns = x.size(1);
  constexpr int block = kBlock<scalar_t>;
  const int64_t whole = columns / block, rest = columns % block;
  Tensor out = torch::stable::new_zeros(x, {n, columns});
  Tensor pushed = torch::stable::new_zeros(x, {whole + (rest > 0)},
                                           ScalarType::Long);
  const Propagation<scalar_t> all{
      graph,
      pull,
      send.const_data_ptr<scalar_t>(),
      levels,
      x.const_data_ptr<scalar_t>(),
      eps.const_data_ptr<scalar_t>(),
      out.mutable_data_ptr<scalar_t>(),
      n,
      columns,
      seed,
      first,
      pushed.mutable_data_ptr<int64_t>()};
  all.template run<block>(0, whole);
  if (rest > 4)
    all.template run<block>(whole, whole + 1);
  else if (rest > 1)
    all.template run<4>(whole, whole + 1);
  else if (rest > 0)
    all.template run<1>(whole, whole + 1);
  return {out, pushed};
}

std::tuple<Tensor, Tensor> push(const Tensor& rowptr,
                                const Tensor& col,
                                const std::optional<Tensor>& scale,
                                const Tensor& group_ptr,
                                const Tensor& group_end,
                                const Tensor& pull_rowptr,
                                const Tensor& pull_col,
                                const Tensor& recv,
                                const Tensor& send,
                                const Tensor& x,
                                const Tensor& eps,
                                const Tensor& ratio,
                                const Tensor& keep,
                                int64_t seed,
                                int64_t first,
                                double pull_above,
                                bool /* always deterministic */) {
  const Levels levels(ratio, keep);
  const auto* from = pull_rowptr.const_data_ptr<int64_t>();
  const auto* source = pull_col.const_data_ptr<int32_t>();
  const double above = pull_above * static_cast<double>(col.numel());
  if (x.scalar_type() == ScalarType::Double)
    return push_typed<double>(
        view<double>(rowptr, col, scale, group_ptr, group_end),
        {from, source, recv.const_data_ptr<double>(), above}, send, x, eps,
        levels, seed, first);
  return push_typed<float>(
      view<float>(rowptr, col, scale, group_ptr, group_end),
      {from, source, recv.const_data_ptr<float>(), above}, send, x, eps,
      levels, seed, first);
}

// A sparse sum: values that remember where they were touched.
template <typename scalar_t>
class Reserve {
 public:
  explicit Reserve(int64_t n) : value_(n, Pages::kSmall) {}

  void add(int64_t u, scalar_t q) {
    scalar_t& value = value_[u];
    if (value == 0)
      touched_.push_back(static_cast<int32_t>(u));
    value += q;
  }

  // Moves out the entries of magnitude above `threshold`, the top_k largest
  // of them (the smaller index first among equals), in ascending order.
  std::vector<std::pair<int32_t, scalar_t>> take(int64_t top_k,
                                                 double threshold) {
    std::vector<std::pair<int32_t, scalar_t>> row;
    for (const int32_t u : touched_) {
      const scalar_t q = std::exchange(value_[u], scalar_t(0));
      if (std::abs(q) > threshold)
        row.emplace_back(u, q);
    }
    touched_.clear();
    if (top_k >= 0 && static_cast<int64_t>(row.size()) > top_k) {
      std::nth_element(row.begin(), row.begin() + top_k, row.end(),
                       [](const auto& x, const auto& y) {
                         const scalar_t a = std::abs(x.second);
                         const scalar_t b = std::abs(y.second);
                         return a != b ? a > b : x.first < y.first;
                       });
      row.resize(top_k);
    }
    std::sort(row.begin(), row.end(), [](const auto& x, const auto& y) {
      return x.first < y.first;
    });
    return row;
  }

 private:
  Scratch<scalar_t> value_;
  std::vector<int32_t> touched_;
};

template <typename scalar_t>
std::tuple<Tensor, Tensor, Tensor> push_sparse_typed(
    const PushGraph<scalar_t>& graph,
    const Tensor& rowptr,
    const Tensor& send,
    const Tensor& sig_ptr,
    const Tensor& sig_node,
    const Tensor& sig_value,
    const Tensor& eps,
    const Tensor& prune,
    const Levels& levels,
    uint64_t seed,
    int64_t first,
    int64_t top_k,
    double threshold) {
  const int64_t num_signals = sig_ptr.numel() - 1, n = rowptr.numel() - 1;
  const auto* begin = sig_ptr.const_data_ptr<int64_t>();
  const auto* node = sig_node.const_data_ptr<int64_t>();
  const auto* value = sig_value.const_data_ptr<scalar_t>();
  const auto* quanta = eps.const_data_ptr<scalar_t>();
  const auto* bounds = prune.const_data_ptr<scalar_t>();
  std::vector<std::vector<std::pair<int32_t, scalar_t>>> rows(num_signals);
  struct Work {
    Pusher<scalar_t, 1> pusher;
    Reserve<scalar_t> reserve;
  };
  // A query may touch little or much: it says nothing of n.
  parallel_tasks(num_signals, kSerial, [&] {
    auto work = std::make_shared<Work>(
        Work{Pusher<scalar_t, 1>(graph, std::nullopt,
                                 send.const_data_ptr<scalar_t>(), levels, n),
             Reserve<scalar_t>(n)});
    return [&, work](int64_t k) {
      for (int64_t i = begin[k]; i < begin[k + 1]; ++i)
        work->pusher.start(node[i], value + i);
      work->pusher.run(quanta + k, bounds[k], derive(seed, first + k),
                       [&](int64_t u, scalar_t keep, const scalar_t* r) {
                         work->reserve.add(u, keep * *r);
                       });
      rows[k] = work->reserve.take(top_k, threshold);
    };
  });

  Tensor ptr = torch::stable::new_empty(sig_ptr, {num_signals + 1});
  auto* ptr_data = ptr.mutable_data_ptr<int64_t>();
  ptr_data[0] = 0;
  for (int64_t k = 0; k < num_signals; ++k)
    ptr_data[k + 1] = ptr_data[k] + static_cast<int64_t>(rows[k].size());
  Tensor out_node = torch::stable::new_empty(sig_node, {ptr_data[num_signals]});
  Tensor out_value =
      torch::stable::new_empty(sig_value, {ptr_data[num_signals]});
  auto* node_data = out_node.mutable_data_ptr<int64_t>();
  auto* value_data = out_value.mutable_data_ptr<scalar_t>();
  for (const auto& row : rows) {
    for (const auto& [u, q] : row) {
      *node_data++ = u;
      *value_data++ = q;
    }
  }
  return {ptr, out_node, out_value};
}

std::tuple<Tensor, Tensor, Tensor> push_sparse(
    const Tensor& rowptr,
    const Tensor& col,
    const std::optional<Tensor>& scale,
    const Tensor& group_ptr,
    const Tensor& group_end,
    const Tensor& send,
    const Tensor& sig_ptr,
    const Tensor& sig_node,
    const Tensor& sig_value,
    const Tensor& eps,
    const Tensor& prune,
    const Tensor& ratio,
    const Tensor& keep,
    int64_t seed,
    int64_t first,
    int64_t top_k,
    double threshold,
    bool /* always deterministic */) {
  const Levels levels(ratio, keep);
  if (sig_value.scalar_type() == ScalarType::Double)
    return push_sparse_typed(
        view<double>(rowptr, col, scale, group_ptr, group_end), rowptr, send,
        sig_ptr, sig_node, sig_value, eps, prune, levels, seed, first, top_k,
        threshold);
  return push_sparse_typed(
      view<float>(rowptr, col, scale, group_ptr, group_end), rowptr, send,
      sig_ptr, sig_node, sig_value, eps, prune, levels, seed, first, top_k,
      threshold);
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("push", TORCH_BOX(&pyg_trust::push));
  m.impl("push_sparse", TORCH_BOX(&pyg_trust::push_sparse));
}
