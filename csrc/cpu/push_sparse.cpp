// AGP for sparse signals on the CPU: queries that touch what they push.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel.h"
#include "push_ops.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

constexpr int64_t kVisitAhead = 16;  // nodes to prefetch
constexpr int64_t kHits = 256;       // sent together
constexpr int64_t kKeptBytes = int64_t{1} << 30;

// Gives the entry itself where a push asks for its node.
struct Entries {
  int64_t operator[](int64_t e) const { return e; }
};

// The working memory of a query, all zeros between queries.
template <typename scalar_t>
struct Work {
  // What a query knows of a node, side by side: memory is what it waits for.
  struct alignas(4 * sizeof(scalar_t)) Cell {
    scalar_t residue[2];  // of this level and of the next
    scalar_t reserve;
  };

  explicit Work(int64_t n) : size(n), cells(n, Pages::kHuge) {}

  int64_t size;
  Scratch<Cell> cells;
  std::vector<int32_t> frontier, next_frontier, touched;
};

// Working memory kept from call to call: a query that touches little must not
// clear much. What an exception interrupted is not given back.
template <typename scalar_t>
class Pool {
 public:
  // At least n nodes of it.
  std::unique_ptr<Work<scalar_t>> take(int64_t n) {
    std::unique_ptr<Work<scalar_t>> found;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!kept_.empty()) {
        found = std::move(kept_.back());
        kept_.pop_back();
      }
    }
    if (found == nullptr || found->size < n) {
      found.reset();  // first, so that both are never there
      found = std::make_unique<Work<scalar_t>>(n);
    }
    return found;
  }

  void give(std::unique_ptr<Work<scalar_t>> work) {
    constexpr int64_t cell = sizeof(typename Work<scalar_t>::Cell);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (work->size * cell <= kKeptBytes &&
        kept_.size() < static_cast<size_t>(torch::stable::get_num_threads()))
      kept_.push_back(std::move(work));
  }

  static Pool& shared() {
    static Pool* pool = new Pool;  // outlives every thread
    return *pool;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Work<scalar_t>>> kept_;
};

// Sorts by node. Nodes are below `n`.
template <typename scalar_t>
void sort_row(std::vector<std::pair<int32_t, scalar_t>>& row, int64_t n) {
  constexpr int bits = 11;
  constexpr int64_t few = 512;
  if (static_cast<int64_t>(row.size()) < few) {
    std::sort(row.begin(), row.end(), [](const auto& x, const auto& y) {
      return x.first < y.first;
    });
    return;
  }
  std::vector<std::pair<int32_t, scalar_t>> other(row.size());
  for (int shift = 0; (n - 1) >> shift > 0; shift += bits) {
    std::array<size_t, (1 << bits) + 1> start{};
    const auto digit = [shift](const auto& entry) {
      return entry.first >> shift & ((1 << bits) - 1);
    };
    for (const auto& entry : row)
      ++start[digit(entry) + 1];
    for (int d = 0; d < 1 << bits; ++d)
      start[d + 1] += start[d];
    for (const auto& entry : row)
      other[start[digit(entry)]++] = entry;
    row.swap(other);
  }
}

// One signal at a time, level after level.
template <typename scalar_t>
class Query {
 public:
  using Row = std::vector<std::pair<int32_t, scalar_t>>;

  Query(const PushGraph<scalar_t>& graph,
        const scalar_t* send,
        const Levels& levels,
        int64_t num_nodes)
      : graph_{graph.rowptr, {}, graph.scale, graph.group_ptr,
               graph.group_end},
        col_(graph.col),
        send_(send),
        levels_(levels),
        num_nodes_(num_nodes),
        longest_(few_nodes(num_nodes)),
        work_(Pool<scalar_t>::shared().take(num_nodes)),
        cells_(work_->cells.get()) {}

  // Gives the working memory back; call it once, after the last signal.
  void finish() { Pool<scalar_t>::shared().give(std::move(work_)); }

  // Adds to the residues of level 0.
  void start(int64_t u, scalar_t value) {
    entry_[count_] = u;
    node_[count_] = static_cast<int32_t>(u);
    amount_[count_++] = value;
    if (count_ == kHits)
      arrive();
  }

  // Pushes everything started: `eps` is the quantum, and residues with
  // |r| * send < prune stay where they are. Returns the entries of magnitude
  // above `threshold`, the top_k largest of them (the smaller node first among
  // equals), in ascending order.
  Row run(scalar_t eps,
          scalar_t prune,
          uint64_t key,
          int64_t top_k,
          double threshold) {
    arrive();
    per_eps_ = scalar_t(1) / eps;
    for (int64_t level = 0; level <= levels_.count; ++level) {
      now_ = 1 - now_;
      work_->frontier.swap(work_->next_frontier);
      const int64_t size = std::exchange(enlisted_, 0);
      // A frontier that outgrew its list is found by looking everywhere.
      const bool everywhere = std::exchange(outgrown_, false);
      last_ = level == levels_.count;
      keep_ = static_cast<scalar_t>(levels_.keep[level]);
      ratio_ =
          last_ ? scalar_t(0) : static_cast<scalar_t>(levels_.ratio[level]);
      below_ = prune * ratio_;
      level_key_ = derive(key, level);
      if (everywhere) {
        for (int64_t u = 0; u < num_nodes_; ++u)
          visit(u);
      } else {
        const int32_t* frontier = work_->frontier.data();
        for (int64_t i = 0; i < size; ++i) {
          prefetch(frontier[std::min(i + kVisitAhead, size - 1)]);
          prefetch_row(frontier[std::min(i + kVisitAhead / 2, size - 1)]);
          visit(frontier[i]);
        }
      }
      flush();
    }
    return take(top_k, threshold);
  }

 private:
  // Where a push goes: along entries, whose nodes are looked up later.
  struct To {
    Query& query;
    scalar_t value;

    void prefetch(int64_t) const {}

    void add(int64_t e, scalar_t factor) const {
      query.entry_[query.count_] = e;
      query.amount_[query.count_] = value * factor;
      __builtin_prefetch(query.col_ + e);
      if (++query.count_ == kHits)
        query.flush();
    }
  };

  void prefetch(int64_t u) const {
    __builtin_prefetch(cells_ + u, 1);
    __builtin_prefetch(graph_.rowptr + u);
    __builtin_prefetch(send_ + u);
    if (graph_.scale != nullptr)
      __builtin_prefetch(graph_.group_ptr + u);
  }

  void prefetch_row(int64_t u) const {
    if (graph_.scale != nullptr)
      __builtin_prefetch(graph_.scale + graph_.rowptr[u]);
  }

  void visit(int64_t u) {
    auto& cell = cells_[u];
    const scalar_t value = std::exchange(cell.residue[now_], scalar_t(0));
    if (value == 0)
      return;
    if (keep_ != 0) {
      if (cell.reserve == 0)
        work_->touched.push_back(static_cast<int32_t>(u));
      cell.reserve += keep_ * value;
    }
    if (last_)
      return;
    scalar_t sent = value;
    const scalar_t mass = scale_to_send<1>(
        &sent, send_factor(false, ratio_, send_[u]), &per_eps_);
    if (!is_pruned(sent, below_))
      push_row(graph_, u, mass, derive(level_key_, u), To{*this, sent});
  }

  // Looks up where the entries lead, all before the first of them is needed.
  void flush() {
    for (int64_t i = 0; i < count_; ++i) {
      node_[i] = col_[entry_[i]];
      __builtin_prefetch(cells_ + node_[i], 1);
    }
    arrive();
  }

  // Adds the amounts to the residues of the next level.
  void arrive() {
    const int next = 1 - now_;
    auto& list = work_->next_frontier;
    if (outgrown_) {
      for (int64_t i = 0; i < count_; ++i)
        cells_[node_[i]].residue[next] += amount_[i];
    } else {
      if (static_cast<int64_t>(list.size()) < enlisted_ + count_)
        list.resize(2 * (enlisted_ + count_));
      for (int64_t i = 0; i < count_; ++i) {
        scalar_t& residue = cells_[node_[i]].residue[next];
        // Residues that cancelled to zero may enlist their node twice; the
        // second visit finds zeros and does nothing.
        list[enlisted_] = node_[i];
        enlisted_ += residue == 0;
        residue += amount_[i];
      }
      outgrown_ = enlisted_ > longest_;
    }
    count_ = 0;
  }

  // Moves the reserves out.
  Row take(int64_t top_k, double threshold) {
    Row row;
    const auto move = [&](int64_t u) {
      const scalar_t q = std::exchange(cells_[u].reserve, scalar_t(0));
      if (std::abs(q) > threshold)
        row.emplace_back(static_cast<int32_t>(u), q);
    };
    auto& touched = work_->touched;
    bool sorted = static_cast<int64_t>(touched.size()) > longest_;
    if (sorted) {
      for (int64_t u = 0; u < num_nodes_; ++u)
        move(u);
    } else {
      const auto size = static_cast<int64_t>(touched.size());
      for (int64_t i = 0; i < size; ++i) {
        __builtin_prefetch(
            cells_ + touched[std::min(i + kVisitAhead, size - 1)], 1);
        move(touched[i]);
      }
    }
    touched.clear();
    if (top_k >= 0 && static_cast<int64_t>(row.size()) > top_k) {
      std::nth_element(row.begin(), row.begin() + top_k, row.end(),
                       [](const auto& x, const auto& y) {
                         const scalar_t a = std::abs(x.second);
                         const scalar_t b = std::abs(y.second);
                         return a != b ? a > b : x.first < y.first;
                       });
      row.resize(top_k);
      sorted = false;
    }
    if (!sorted)
      sort_row(row, num_nodes_);
    return row;
  }

  const PushGraph<scalar_t, Entries> graph_;
  const int32_t* col_;
  const scalar_t* send_;
  const Levels levels_;
  const int64_t num_nodes_;
  const int64_t longest_;  // frontier that is kept as a list
  std::unique_ptr<Work<scalar_t>> work_;
  typename Work<scalar_t>::Cell* cells_;
  int now_ = 0;  // which residue is this level's
  int64_t enlisted_ = 0;
  bool outgrown_ = false;
  // The level.
  bool last_;
  scalar_t keep_, ratio_, below_, per_eps_;
  uint64_t level_key_;
  // What is on its way.
  int64_t count_ = 0;
  int64_t entry_[kHits];
  int32_t node_[kHits];
  scalar_t amount_[kHits];
};

struct PushSparseOnCpu {
  template <typename scalar_t>
  static std::tuple<Tensor, Tensor, Tensor> push_sparse(
      const PushGraph<scalar_t>& graph,
      const SparseArguments& p) {
    const int64_t num_signals = p.ptr.numel() - 1, n = p.send.numel();
    const auto* begin = p.ptr.const_data_ptr<int64_t>();
    const auto* node = p.node.const_data_ptr<int64_t>();
    const auto* value = p.value.const_data_ptr<scalar_t>();
    const auto* quanta = p.eps.const_data_ptr<scalar_t>();
    const auto* bounds = p.prune.const_data_ptr<scalar_t>();
    const auto seed = static_cast<uint64_t>(p.seed);
    std::vector<typename Query<scalar_t>::Row> rows(num_signals);
    std::mutex mutex;
    std::vector<std::shared_ptr<Query<scalar_t>>> queries;
    // A query may touch little or much: it says nothing of n.
    parallel_tasks(num_signals, kSerial, [&] {
      auto query = std::make_shared<Query<scalar_t>>(
          graph, p.send.const_data_ptr<scalar_t>(), p.levels, n);
      {
        const std::lock_guard<std::mutex> lock(mutex);
        queries.push_back(query);
      }
      return [&, query](int64_t k) {
        for (int64_t i = begin[k]; i < begin[k + 1]; ++i)
          query->start(node[i], value[i]);
        rows[k] = query->run(quanta[k], bounds[k], derive(seed, p.first + k),
                             p.top_k, p.threshold);
      };
    });
    for (const auto& query : queries)
      query->finish();

    Tensor ptr = torch::stable::new_empty(p.ptr, {num_signals + 1});
    auto* ptr_data = ptr.mutable_data_ptr<int64_t>();
    ptr_data[0] = 0;
    for (int64_t k = 0; k < num_signals; ++k)
      ptr_data[k + 1] = ptr_data[k] + static_cast<int64_t>(rows[k].size());
    Tensor out_node = torch::stable::new_empty(p.node, {ptr_data[num_signals]});
    Tensor out_value =
        torch::stable::new_empty(p.value, {ptr_data[num_signals]});
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
};
using Ops = PushOps<PushSparseOnCpu>;

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("push_sparse", TORCH_BOX(&pyg_trust::Ops::push_sparse));
}
