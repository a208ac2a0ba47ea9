// Randomized propagation on the CPU: AGP (Wang et al. 2021, Algorithm 2).
#include "push.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel.h"

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Zeros that the system hands out page by page: a query pays for the pages it
// touches, not for n.
template <typename scalar_t>
struct Zeros {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<scalar_t[], Free> data;

  explicit Zeros(int64_t n)
      : data(static_cast<scalar_t*>(std::calloc(n, sizeof(scalar_t)))) {
    if (data == nullptr)
      throw std::bad_alloc();
  }
  scalar_t& operator[](int64_t i) { return data[i]; }
};

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

// The residues of one signal, level after level. A thread owns one and runs
// signal after signal through it; between signals every residue is zero.
template <typename scalar_t>
class Pusher {
 public:
  Pusher(const PushGraph<scalar_t>& graph,
         const scalar_t* send,
         const Levels& levels,
         int64_t num_nodes)
      : graph_(graph),
        send_(send),
        levels_(levels),
        num_nodes_(num_nodes),
        longest_(num_nodes / 16 + 1),
        residue_(num_nodes),
        next_(num_nodes) {}

  // Adds to the residue of level 0.
  void start(int64_t u, scalar_t value) { raise(u, value); }

  // Pushes everything started, and calls reserve(u, q) for every q^(i)(u).
  template <typename Reserve>
  void run(scalar_t eps, uint64_t key, const Reserve& reserve) {
    for (int64_t level = 0; level <= levels_.count; ++level) {
      std::swap(residue_.data, next_.data);
      frontier_.swap(next_frontier_);
      next_frontier_.clear();
      const uint64_t level_key = derive(key, level);
      const bool last = level == levels_.count;
      const auto keep = static_cast<scalar_t>(levels_.keep[level]);
      const auto ratio = last ? scalar_t(0)
                              : static_cast<scalar_t>(levels_.ratio[level]);
      const auto visit = [&](int64_t u) {
        const scalar_t r = residue_[u];
        if (r == 0)
          return;
        residue_[u] = 0;
        if (keep != 0)
          reserve(u, keep * r);
        if (!last)
          push_row(graph_, u, ratio * r * send_[u], eps,
                   derive(level_key, u),
                   [this](int32_t v, scalar_t value) { raise(v, value); });
      };
      // A frontier that outgrew its list is found by looking everywhere.
      if (std::exchange(outgrown_, false)) {
        for (int64_t u = 0; u < num_nodes_; ++u)
          visit(u);
      } else {
        for (const int32_t u : frontier_)
          visit(u);
      }
    }
  }

 private:
  void raise(int64_t v, scalar_t value) {
    scalar_t& residue = next_[v];
    // A residue that cancelled to zero may enlist its node twice; the second
    // visit finds zero and does nothing.
    if (residue == 0 && !outgrown_) {
      if (static_cast<int64_t>(next_frontier_.size()) < longest_)
        next_frontier_.push_back(static_cast<int32_t>(v));
      else
        outgrown_ = true;
    }
    residue += value;
  }

  const PushGraph<scalar_t> graph_;
  const scalar_t* send_;
  const Levels levels_;
  const int64_t num_nodes_;
  const int64_t longest_;  // frontier that is kept as a list
  Zeros<scalar_t> residue_, next_;
  std::vector<int32_t> frontier_, next_frontier_;
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

template <typename scalar_t>
Tensor push_typed(const PushGraph<scalar_t>& graph,
                  const Tensor& send,
                  const Tensor& x,
                  const Tensor& eps,
                  const Levels& levels,
                  uint64_t seed,
                  int64_t first) {
  const int64_t num_signals = x.size(0), n = x.size(1);
  Tensor out = torch::stable::new_zeros(x, {num_signals, n});
  const auto* in = x.const_data_ptr<scalar_t>();
  const auto* quanta = eps.const_data_ptr<scalar_t>();
  auto* z = out.mutable_data_ptr<scalar_t>();
  parallel_tasks(num_signals, num_signals * n, [&] {
    return [&, pusher = std::make_shared<Pusher<scalar_t>>(
                   graph, send.const_data_ptr<scalar_t>(), levels,
                   n)](int64_t k) {
      for (int64_t u = 0; u < n; ++u)
        if (in[k * n + u] != 0)
          pusher->start(u, in[k * n + u]);
      scalar_t* row = z + k * n;
      pusher->run(quanta[k], derive(seed, first + k),
                  [row](int64_t u, scalar_t q) { row[u] += q; });
    };
  });
  return out;
}

Tensor push(const Tensor& rowptr,
            const Tensor& col,
            const std::optional<Tensor>& scale,
            const Tensor& group_ptr,
            const Tensor& group_end,
            const Tensor& send,
            const Tensor& x,
            const Tensor& eps,
            const Tensor& ratio,
            const Tensor& keep,
            int64_t seed,
            int64_t first) {
  const Levels levels(ratio, keep);
  if (x.scalar_type() == ScalarType::Double)
    return push_typed(view<double>(rowptr, col, scale, group_ptr, group_end),
                      send, x, eps, levels, seed, first);
  return push_typed(view<float>(rowptr, col, scale, group_ptr, group_end),
                    send, x, eps, levels, seed, first);
}

// A sparse sum: values that remember where they were touched.
template <typename scalar_t>
class Reserve {
 public:
  explicit Reserve(int64_t n) : value_(n) {}

  void add(int64_t u, scalar_t q) {
    if (value_[u] == 0)
      touched_.push_back(static_cast<int32_t>(u));
    value_[u] += q;
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
  Zeros<scalar_t> value_;
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
  std::vector<std::vector<std::pair<int32_t, scalar_t>>> rows(num_signals);
  struct Work {
    Pusher<scalar_t> pusher;
    Reserve<scalar_t> reserve;
  };
  // A query may touch little or much: it says nothing of n.
  parallel_tasks(num_signals, kSerial, [&] {
    auto work = std::make_shared<Work>(
        Work{Pusher<scalar_t>(graph, send.const_data_ptr<scalar_t>(), levels,
                              n),
             Reserve<scalar_t>(n)});
    return [&, work](int64_t k) {
      for (int64_t i = begin[k]; i < begin[k + 1]; ++i)
        work->pusher.start(node[i], value[i]);
      work->pusher.run(
          quanta[k], derive(seed, first + k),
          [&](int64_t u, scalar_t q) { work->reserve.add(u, q); });
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
    const Tensor& ratio,
    const Tensor& keep,
    int64_t seed,
    int64_t first,
    int64_t top_k,
    double threshold) {
  const Levels levels(ratio, keep);
  if (sig_value.scalar_type() == ScalarType::Double)
    return push_sparse_typed(
        view<double>(rowptr, col, scale, group_ptr, group_end), rowptr, send,
        sig_ptr, sig_node, sig_value, eps, levels, seed, first, top_k,
        threshold);
  return push_sparse_typed(
      view<float>(rowptr, col, scale, group_ptr, group_end), rowptr, send,
      sig_ptr, sig_node, sig_value, eps, levels, seed, first, top_k,
      threshold);
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("push", TORCH_BOX(&pyg_trust::push));
  m.impl("push_sparse", TORCH_BOX(&pyg_trust::push_sparse));
}
