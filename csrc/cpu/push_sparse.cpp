// AGP for sparse signals on the CPU: queries that touch what they push.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel.h"
#include "push_ops.h"
#include "radix.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

constexpr int64_t kVisitAhead = 16;  // nodes to prefetch
constexpr int64_t kHits = 256;       // sent together
constexpr int64_t kKeptBytes = int64_t{1} << 30;

// All that a push reads.
template <typename scalar_t>
struct Sparse {
  PushGraph<scalar_t> graph;
  const scalar_t* send;
  int64_t num_nodes;
  const int64_t* ptr;
  const int64_t* node;
  const scalar_t* value;
  int64_t num_signals;
  const scalar_t* eps;
  const scalar_t* prune;
  const double* ratio;
  const double* keep;
  int64_t levels;
  uint64_t seed;
  int64_t first;  // number of the first signal
  int64_t top_k;
  double threshold;
};

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

// One signal at a time, level after level.
template <typename scalar_t>
class Query {
 public:
  using Row = std::vector<std::pair<int32_t, scalar_t>>;

  explicit Query(const Sparse<scalar_t>& all)
      : all_(all),
        graph_{all.graph.rowptr, {}, all.graph.scale, all.graph.group_ptr,
               all.graph.group_end},
        col_(all.graph.col),
        send_(all.send),
        num_nodes_(all.num_nodes),
        longest_(few_nodes(all.num_nodes)),
        work_(Pool<scalar_t>::shared().take(all.num_nodes)),
        cells_(work_->cells.get()) {}

  // Gives the working memory back; call it once, after the last signal.
  void finish() { Pool<scalar_t>::shared().give(std::move(work_)); }

  // Signal k: residues with |r| * send < prune stay where they are. Returns the
  // entries of magnitude above `threshold`, the top_k largest of them (the
  // smaller node first among equals), in ascending order.
  Row run(int64_t k) {
    for (int64_t i = all_.ptr[k]; i < all_.ptr[k + 1]; ++i)
      start(all_.node[i], all_.value[i]);
    arrive();
    const scalar_t prune = all_.prune[k];
    const uint64_t key = derive(all_.seed, all_.first + k);
    per_eps_ = scalar_t(1) / all_.eps[k];
    for (int64_t level = 0; level <= all_.levels; ++level) {
      now_ = 1 - now_;
      work_->frontier.swap(work_->next_frontier);
      const int64_t size = std::exchange(enlisted_, 0);
      // A frontier that outgrew its list is found by looking everywhere.
      const bool everywhere = std::exchange(outgrown_, false);
      last_ = level == all_.levels;
      keep_ = static_cast<scalar_t>(all_.keep[level]);
      ratio_ =
          last_ ? scalar_t(0) : static_cast<scalar_t>(all_.ratio[level]);
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
    return take(all_.top_k, all_.threshold);
  }

 private:
  // Adds to the residues of level 0.
  void start(int64_t u, scalar_t value) {
    entry_[count_] = u;
    node_[count_] = static_cast<int32_t>(u);
    amount_[count_++] = value;
    if (count_ == kHits)
      arrive();
  }

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
      sort_by(row.data(), static_cast<int64_t>(row.size()), num_nodes_, room_,
              [](const auto& entry) { return entry.first; });
    return row;
  }

  const Sparse<scalar_t>& all_;
  const PushGraph<scalar_t, Entries> graph_;
  const int32_t* col_;
  const scalar_t* send_;
  const int64_t num_nodes_;
  const int64_t longest_;  // frontier that is kept as a list
  std::unique_ptr<Work<scalar_t>> work_;
  typename Work<scalar_t>::Cell* cells_;
  Row room_;
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

template <typename scalar_t>
std::tuple<Tensor, Tensor, Tensor> push_typed(const Tensor& like,
                                              const Tensor& like_value,
                                              const Sparse<scalar_t>& all) {
  std::vector<typename Query<scalar_t>::Row> rows(all.num_signals);
  std::mutex mutex;
  std::vector<std::shared_ptr<Query<scalar_t>>> queries;
  // A query may touch little or much: it says nothing of n.
  parallel_tasks(all.num_signals, kSerial, [&] {
    auto query = std::make_shared<Query<scalar_t>>(all);
    const std::lock_guard<std::mutex> lock(mutex);
    queries.push_back(query);
    return [&, query](int64_t k) { rows[k] = query->run(k); };
  });
  for (const auto& query : queries)
    query->finish();

  Tensor ptr = torch::stable::new_empty(like, {all.num_signals + 1});
  auto* end = ptr.mutable_data_ptr<int64_t>();
  *end = 0;
  for (const auto& row : rows) {
    const int64_t begin = *end++;
    *end = begin + std::ssize(row);
  }
  Tensor out_node = torch::stable::new_empty(like, {*end});
  Tensor out_value = torch::stable::new_empty(like_value, {*end});
  auto* node = out_node.mutable_data_ptr<int64_t>();
  auto* value = out_value.mutable_data_ptr<scalar_t>();
  for (const auto& row : rows)
    for (const auto& [u, q] : row) {
      *node++ = u;
      *value++ = q;
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
    const Tensor& ptr,
    const Tensor& node,
    const Tensor& value,
    const Tensor& eps,
    const Tensor& prune,
    const Tensor& ratio,
    const Tensor& keep,
    int64_t seed,
    int64_t first,
    int64_t top_k,
    double threshold) {
  return with_real(value, [&](auto zero) {
    using scalar_t = decltype(zero);
    return push_typed(
        ptr, value,
        Sparse<scalar_t>{
            view<scalar_t>(rowptr, col, scale, group_ptr, group_end),
            send.const_data_ptr<scalar_t>(), send.numel(),
            ptr.const_data_ptr<int64_t>(), node.const_data_ptr<int64_t>(),
            value.const_data_ptr<scalar_t>(), ptr.numel() - 1,
            eps.const_data_ptr<scalar_t>(), prune.const_data_ptr<scalar_t>(),
            ratio.const_data_ptr<double>(), keep.const_data_ptr<double>(),
            ratio.numel(), static_cast<uint64_t>(seed), first, top_k,
            threshold});
  });
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("push_sparse", TORCH_BOX(&pyg_trust::push_sparse));
}
