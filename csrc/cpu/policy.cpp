// Policy iteration for the worst case of PageRank on the CPU (Bojchevski and
// Guennemann 2019, Algorithm 1): every column is a problem of its own, done
// by one thread from beginning to end.
#include "policy.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "gather.h"
#include "parallel.h"
#include "policy_system.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// A policy is solved so much more precisely than the last one was optimal.
constexpr double kPrecision = 1e-2;

// The maximizing policy //////////////////////////////////////////////////////

// What the attacker may do, the same for all columns.
struct Threat {
  int64_t n;
  Rows clean;
  Rows addable;              // the pairs that may be added
  const int64_t* budget;
  bool all_pairs;
  std::vector<int64_t> max_removed, max_added;
  int64_t window = 0;        // of a global order, all that a row can add

  // The removable edges of rows with a budget, by row, and those rows.
  std::vector<int64_t> removable_ptr, removable;
  std::vector<int64_t> active;
  Operator graph;

  Threat(const Tensor& rowptr,
         const Tensor& col,
         const Tensor& may_go,
         const Tensor& budget_,
         const Tensor& add_ptr,
         const Tensor& add_col,
         bool all_pairs_,
         double follow)
      : n(rowptr.numel() - 1),
        clean{rowptr.const_data_ptr<int64_t>(), col.const_data_ptr<int32_t>()},
        addable{add_ptr.const_data_ptr<int64_t>(),
                add_col.const_data_ptr<int32_t>()},
        budget(budget_.const_data_ptr<int64_t>()),
        all_pairs(all_pairs_),
        max_removed(n),
        max_added(n),
        graph(clean, n, follow) {
    const bool* goes = may_go.const_data_ptr<bool>();
    removable_ptr.push_back(0);
    for (int64_t i = 0; i < n; ++i) {
      bool loop = false;
      for (int64_t e = clean.ptr[i]; e < clean.ptr[i + 1]; ++e) {
        loop |= clean.node[e] == i;
        if (budget[i] > 0 && goes[e])
          removable.push_back(e);
      }
      removable_ptr.push_back(static_cast<int64_t>(removable.size()));
      const int64_t additions =
          all_pairs ? n - 1 - (clean.size(i) - (loop ? 1 : 0))
                    : addable.size(i);
      max_removed[i] =
          std::min(budget[i], removable_ptr[i + 1] - removable_ptr[i]);
      max_added[i] = std::min(budget[i], additions);
      // Its neighbours, itself, and then as many as it can add.
      if (all_pairs && max_added[i] > 0)
        window =
            std::max(window, std::min(n, max_added[i] + clean.size(i) + 1));
      if (max_removed[i] + max_added[i] > 0)
        active.push_back(i);
    }
    Change none;
    none.clear(n, col.numel());
    none.new_ptr.assign(n + 1, 0);
    graph.set(none);
  }
};

// The edges that a policy flips, sorted.
struct Flips {
  std::vector<int32_t> row, node;
};

// The rows of optional tensors, [num_columns, num_nodes] but for the last two.
struct Costs {
  const double *bonus, *visit, *step, *root;
  // Of single edges: [num_columns, num_edges] and [num_columns, num_pairs].
  const double *removal, *addition;

  bool by_edge() const { return removal != nullptr || addition != nullptr; }

  Prices prices(double follow, int64_t i) const {
    const auto get = [i](const double* of) {
      return of == nullptr ? 0.0 : of[i];
    };
    return {follow, get(bonus), get(visit), get(step), get(root)};
  }
};

class Worker {
 public:
  Worker(const Threat& threat, double follow)
      : threat_(threat),
        follow_(follow),
        policy_(threat.clean, threat.n, follow),
        solver_(threat.n),
        value_(padded(threat.n)),
        reward_(padded(threat.n)),
        paid_(threat.n),
        sums_(threat.n),
        mark_(threat.n) {}

  // `value` holds the first guess and then the result, `gap` T V - V.
  void run(const double* reward,
           const Costs& costs,
           double goal,
           double rounding,
           int64_t max_iter,
           double* value,
           double* gap) {
    const int64_t n = threat_.n;
    std::copy(value, value + n, value_.begin());
    for (int64_t iteration = 0;; ++iteration) {
      bool finite = true;
      most_ = 0;
      for (int64_t i = 0; i < n; ++i) {
        most_ = std::max(most_, std::abs(value_[i]));
        finite &= std::isfinite(value_[i]);
      }
      std::swap(change_, last_);
      change_.clear(n, threat_.clean.ptr[n]);
      if (!finite) {  // overflow: there is no order to go by
        change_.new_ptr.assign(n + 1, 0);
        std::fill(gap, gap + n, kNan);
        break;
      }
      const double left = improve(reward, costs, gap);
      const double limit = std::max(goal, rounding * most_);
      if (!(left > limit) || iteration + 1 >= max_iter)
        break;
      // A policy that has not changed is likely to be the last one.
      const bool same = iteration > 0 && change_ == last_;
      if (!same) {
        policy_.set(change_);
        for (int64_t i = 0; i < n; ++i)
          reward_[i] = reward[i] - paid_[i] +
                       costs.prices(follow_, i).worth(0.0, flips(i),
                                                      policy_.size(i));
      }
      for (int64_t i = 0; i < n; ++i)
        value_[i] += gap[i];
      solver_.run([&](const Values& x, Values& out) { policy_.apply(x, out); },
                  reward_,
                  same ? limit / 4 : std::max(kPrecision * left, limit / 4),
                  value_);
    }
    std::copy(value_.begin(), value_.begin() + n, value);
  }

  // The flips of the last policy that was found.
  Flips flipped() const {
    Flips made;
    const Rows added = change_.added();
    for (const int64_t i : threat_.active) {
      if (flips(i) == 0)
        continue;
      const size_t first = made.node.size();
      for (int64_t e = threat_.clean.ptr[i]; e < threat_.clean.ptr[i + 1]; ++e)
        if (change_.gone[e])
          made.node.push_back(threat_.clean.node[e]);
      made.node.insert(made.node.end(), added.begin(i), added.end(i));
      std::sort(made.node.begin() + first, made.node.end());
      made.row.resize(made.node.size(), static_cast<int32_t>(i));
    }
    return made;
  }

 private:
  // A value and the edge or node that has it.
  using Candidate = std::pair<double, int64_t>;

  // What a flip adds to the sum of the row, its price, and the edge or node.
  struct Offer {
    double value, price;
    int64_t place;
  };

  int64_t flips(int64_t i) const {
    return change_.lost[i] + change_.added().size(i);
  }

  // The maximizing policy at value_, into change_, and T V - V into `gap`.
  // Returns the largest magnitude of the latter.
  double improve(const double* reward, const Costs& costs, double* gap) {
    threat_.graph.exact_sums(value_, [&](int64_t i, const Sum& sum) {
      sums_[i] = sum;
      gap[i] = costs.prices(follow_, i).worth(sum.value(), 0,
                                              threat_.clean.size(i));
    });
    sort_all();
    for (const int64_t i : threat_.active) {
      change_.new_ptr.resize(i + 1, change_.new_ptr.back());
      const Prices prices = costs.prices(follow_, i);
      gap[i] = costs.by_edge()
                   ? improve_priced_row(i, prices, costs)
                   : improve_row(i, prices, value_[i] - reward[i]);
      change_.new_ptr.push_back(static_cast<int64_t>(change_.new_node.size()));
    }
    change_.new_ptr.resize(threat_.n + 1, change_.new_ptr.back());
    double most = 0;
    for (int64_t i = 0; i < threat_.n; ++i) {
      gap[i] = reward[i] + gap[i] - value_[i];
      most = std::max(most, std::abs(gap[i]));
    }
    return most;
  }

  double improve_row(int64_t i, const Prices& prices, double guess) {
    const int64_t degree = threat_.clean.size(i);
    const int64_t most_removed = threat_.max_removed[i];
    const double close =
        kClose * (most_ + prices.bonus + prices.visit + prices.step);
    find_additions(i);
    // With a root there are no shortcuts, nor where a row may be emptied.
    const bool all = prices.root != 0 || (degree > 0 && most_removed >= degree);
    if (addition_.empty() && !all)
      return remove(i, prices, close);
    Choice choice;
    if (most_removed == 0 && !all) {
      choice = best_prefix(sums_[i], degree, addition_value_.data(),
                           threat_.max_added[i], 1, prices, close);
    } else {
      find_removals(i);
      sort_removals(most_removed);
      gain_.resize(addition_.size() + 1);
      loss_.resize(removal_.size() + 1);
      choice = all ? best_of_all(sums_[i], degree, addition_value_.data(),
                                 threat_.max_added[i], removal_value_.data(),
                                 most_removed, threat_.budget[i], prices,
                                 gain_.data(), loss_.data())
                   : best_flips(sums_[i], degree, addition_value_.data(),
                          threat_.max_added[i], removal_value_.data(),
                          most_removed, threat_.budget[i], prices, guess,
                          close, gain_.data(), loss_.data());
    }
    take(i, choice.removed);
    change_.new_node.insert(change_.new_node.end(), addition_.begin(),
                            addition_.begin() + choice.added);
    return choice.worth;
  }

  // With a price per edge the best flips of a size are those with the best
  // scores, which depend on the size: each size has its own order.
  double improve_priced_row(int64_t i,
                            const Prices& prices,
                            const Costs& costs) {
    const int64_t degree = threat_.clean.size(i);
    const int64_t most_removed = threat_.max_removed[i];
    const int64_t most_added = threat_.max_added[i];
    const int64_t budget = threat_.budget[i];
    // Candidates: value, price, edge or node.
    offers_[0].clear();
    offers_[1].clear();
    if (most_removed > 0) {
      for (int64_t k = threat_.removable_ptr[i];
           k < threat_.removable_ptr[i + 1]; ++k) {
        const int64_t e = threat_.removable[k];
        offers_[0].push_back(
            {-value_[threat_.clean.node[e]],
             costs.removal == nullptr ? 0.0 : costs.removal[e], e});
      }
    }
    if (most_added > 0 && !threat_.all_pairs) {
      for (int64_t k = threat_.addable.ptr[i]; k < threat_.addable.ptr[i + 1];
           ++k) {
        const int32_t j = threat_.addable.node[k];
        offers_[1].push_back(
            {value_[j], costs.addition == nullptr ? 0.0 : costs.addition[k],
             j});
      }
    } else if (most_added > 0) {
      find_additions(i);
      for (const int32_t j : addition_)
        offers_[1].push_back({value_[j], 0.0, j});
    }
    const double clean = sums_[i].value();
    double best = prices.worth(clean, 0, degree);
    int64_t best_added = 0, best_removed = 0;
    const auto score = [&](int64_t size) {
      const double share =
          size > 0 ? follow_ / static_cast<double>(size) : 0.0;
      const int64_t most[2] = {most_removed, most_added};
      for (int side = 0; side < 2; ++side) {
        scored_[side].clear();
        for (const Offer& offer : offers_[side])
          scored_[side].emplace_back(offer.price - share * offer.value,
                                     &offer - offers_[side].data());
        keep_smallest(scored_[side], most[side]);
      }
    };
    for (int64_t size = std::max<int64_t>(degree - most_removed, 0);
         size <= degree + most_added; ++size) {
      score(size);
      // The sum of the scores is what the flips add, their prices paid.
      for (int side = 0; side < 2; ++side) {
        Sum running;
        made_[side].assign(1, 0.0);
        for (const Candidate& candidate : scored_[side]) {
          running.add(-candidate.first);
          made_[side].push_back(running.value());
        }
      }
      for (int64_t added = std::max<int64_t>(0, size - degree);
           added <= most_added; ++added) {
        const int64_t removed = added - (size - degree);
        if (removed > most_removed || added + removed > budget)
          break;
        const double worth = prices.worth(clean, added + removed, size) +
                             made_[0][removed] + made_[1][added];
        if (worth > best && added + removed > 0) {
          best = worth;
          best_added = added;
          best_removed = removed;
        }
      }
    }
    paid_[i] = 0;
    change_.lost[i] = static_cast<int32_t>(best_removed);
    if (best_added + best_removed == 0)
      return best;
    score(degree + best_added - best_removed);
    for (int64_t k = 0; k < best_removed; ++k) {
      const Offer& offer = offers_[0][scored_[0][k].second];
      change_.gone[offer.place] = 1;
      paid_[i] += offer.price;
    }
    for (int64_t k = 0; k < best_added; ++k) {
      const Offer& offer = offers_[1][scored_[1][k].second];
      change_.new_node.push_back(static_cast<int32_t>(offer.place));
      paid_[i] += offer.price;
    }
    return best;
  }

  // A row that may lose edges only.
  double remove(int64_t i, const Prices& prices, double close) {
    const int64_t degree = threat_.clean.size(i);
    const int64_t budget = threat_.max_removed[i];
    const Sum& sum = sums_[i];
    const double clean = prices.worth(sum.value(), 0, degree);
    find_removals(i);
    const size_t size = removal_.size();
    cost_.assign((size + kCosts - 1) / kCosts * kCosts,
                 std::numeric_limits<double>::infinity());
    for (size_t k = 0; k < size; ++k)
      cost_[k] = follow_ * removal_[k].first + prices.visit;
    const double bound =
        best_mean(follow_ * sum.value() + prices.bonus, degree, cost_.data(),
                  static_cast<int64_t>(cost_.size()));
    // `bound` is made of plain sums, whose error grows with the square of
    // their length.
    const double length = static_cast<double>(degree);
    const double slack = close + 0x1p-50 * length * length * (close / kClose);
    if (bound + slack - prices.step <= clean)
      return clean;  // even the best mean is not worth a single flip
    // No edge that costs more than the best mean is worth removing.
    double left = std::numeric_limits<double>::infinity();
    size_t count = 0;
    for (size_t k = 0; k < size; ++k) {
      const bool goes = cost_[k] < bound + slack;
      removal_[count] = removal_[k];
      count += goes;
      left = std::min(left, goes ? left : cost_[k]);
    }
    removal_.resize(count);
    if (prices.step == 0) {
      // The cheapest ones, all of them or as many as the budget allows, are
      // the best if each costs less than the mean that is left, and the others
      // more.
      if (static_cast<int64_t>(count) > budget) {
        std::nth_element(removal_.begin(), removal_.begin() + budget,
                         removal_.end());
        removal_.resize(budget);
      }
      const auto taken = static_cast<int64_t>(removal_.size());
      Sum rest = sum;
      double dearest = -std::numeric_limits<double>::infinity();
      for (const Candidate& candidate : removal_) {
        rest.add(-candidate.first);
        dearest = std::max(dearest, candidate.first);
      }
      const double worth =
          prices.worth(rest.value(), taken, degree - taken);
      if (degree > taken && follow_ * dearest + prices.visit < worth - close &&
          (taken == budget || left > worth + close)) {
        take(i, taken);
        return worth;
      }
    }
    sort_removals(budget);
    const Choice choice =
        best_prefix(sum, degree, removal_value_.data(),
                    static_cast<int64_t>(removal_.size()), -1, prices, close);
    take(i, choice.removed);
    return choice.worth;
  }

  // The first `count` of removal_ go.
  void take(int64_t i, int64_t count) {
    change_.lost[i] = static_cast<int32_t>(count);
    for (int64_t k = 0; k < count; ++k)
      change_.gone[removal_[k].second] = 1;
  }

  // The removable edges of a row, with the values of their targets.
  void find_removals(int64_t i) {
    removal_.clear();
    for (int64_t k = threat_.removable_ptr[i]; k < threat_.removable_ptr[i + 1];
         ++k) {
      const int64_t e = threat_.removable[k];
      removal_.emplace_back(value_[threat_.clean.node[e]], e);
    }
  }

  // Of these the smallest ones, ascending.
  void sort_removals(int64_t count) {
    keep_smallest(removal_, count);
    removal_value_.clear();
    for (const Candidate& candidate : removal_)
      removal_value_.push_back(candidate.first);
  }

  // The largest values among the nodes that a row may add, descending.
  void find_additions(int64_t i) {
    addition_.clear();
    addition_value_.clear();
    const int64_t count = threat_.max_added[i];
    if (count == 0)
      return;
    if (threat_.all_pairs) {
      const auto strike = [&](uint8_t mark) {
        for (const int32_t* j = threat_.clean.begin(i);
             j < threat_.clean.end(i); ++j)
          mark_[*j] = mark;
        mark_[i] = mark;
      };
      strike(1);
      for (size_t k = 0; static_cast<int64_t>(addition_.size()) < count; ++k) {
        if (!mark_[order_[k].second])
          addition_.push_back(static_cast<int32_t>(order_[k].second));
      }
      strike(0);
    } else {
      extra_.clear();
      for (const int32_t* j = threat_.addable.begin(i);
           j < threat_.addable.end(i); ++j)
        extra_.emplace_back(-value_[*j], *j);
      keep_smallest(extra_, count);
      for (const Candidate& candidate : extra_)
        addition_.push_back(static_cast<int32_t>(candidate.second));
    }
    for (const int32_t j : addition_)
      addition_value_.push_back(value_[j]);
  }

  // The nodes of the largest values, descending, as many as a row can need.
  void sort_all() {
    if (threat_.window == 0)
      return;
    order_.clear();
    for (int64_t i = 0; i < threat_.n; ++i)
      order_.emplace_back(-value_[i], i);
    keep_smallest(order_, threat_.window);
  }

  static void keep_smallest(std::vector<Candidate>& all, int64_t count) {
    if (count < static_cast<int64_t>(all.size())) {
      std::nth_element(all.begin(), all.begin() + count, all.end());
      all.resize(count);
    }
    std::sort(all.begin(), all.end());
  }

  const Threat& threat_;
  const double follow_;
  Operator policy_;
  Solver solver_;
  Values value_, reward_;
  Values paid_;  // by row, for single edges
  double most_ = 0;
  std::vector<Sum> sums_;
  Change change_, last_;
  std::vector<Candidate> order_, removal_, extra_;
  std::vector<int32_t> addition_;
  Values cost_, removal_value_, addition_value_, gain_, loss_;
  std::vector<uint8_t> mark_;
  std::vector<Offer> offers_[2];
  std::vector<Candidate> scored_[2];
  Values made_[2];
};

const double* rows_of(const std::optional<Tensor>& tensor, int64_t offset) {
  return tensor ? tensor->const_data_ptr<double>() + offset : nullptr;
}

// value, T V - V, and the flips of all columns: ptr, row, node.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> policy_iteration(
    const Tensor& rowptr,
    const Tensor& col,
    const Tensor& removable,
    const Tensor& budget,
    const Tensor& add_ptr,
    const Tensor& add_col,
    bool all_pairs,
    const Tensor& reward,
    const std::optional<Tensor>& bonus,
    const std::optional<Tensor>& visit_cost,
    const std::optional<Tensor>& step_cost,
    const std::optional<Tensor>& root,
    const std::optional<Tensor>& removal_cost,
    const std::optional<Tensor>& addition_cost,
    const Tensor& start,
    const Tensor& goal,
    double rounding,
    double follow,
    int64_t max_iter) {
  const Threat threat(rowptr, col, removable, budget, add_ptr, add_col,
                      all_pairs, follow);
  const int64_t n = threat.n, count = reward.size(0);
  Tensor value = torch::stable::clone(start);
  Tensor gap = torch::stable::new_empty(start, {count, n});
  auto* values = value.mutable_data_ptr<double>();
  auto* gaps = gap.mutable_data_ptr<double>();
  std::vector<Flips> made(count);
  parallel_tasks(count, count * (n + col.numel()), [&] {
    return [&, worker = Worker(threat, follow)](int64_t k) mutable {
      worker.run(reward.const_data_ptr<double>() + k * n,
                 {rows_of(bonus, k * n), rows_of(visit_cost, k * n),
                  rows_of(step_cost, k * n), rows_of(root, k * n),
                  rows_of(removal_cost, k * col.numel()),
                  rows_of(addition_cost, k * add_col.numel())},
                 goal.const_data_ptr<double>()[k], rounding, max_iter,
                 values + k * n, gaps + k * n);
      made[k] = worker.flipped();
    };
  });

  Tensor ptr = torch::stable::new_empty(rowptr, {count + 1});
  auto* start_of = ptr.mutable_data_ptr<int64_t>();
  start_of[0] = 0;
  for (int64_t k = 0; k < count; ++k)
    start_of[k + 1] = start_of[k] + static_cast<int64_t>(made[k].node.size());
  Tensor row = torch::stable::new_empty(col, {start_of[count]});
  Tensor node = torch::stable::new_empty(col, {start_of[count]});
  auto* rows = row.mutable_data_ptr<int32_t>();
  auto* nodes = node.mutable_data_ptr<int32_t>();
  for (int64_t k = 0; k < count; ++k) {
    std::copy(made[k].row.begin(), made[k].row.end(), rows + start_of[k]);
    std::copy(made[k].node.begin(), made[k].node.end(), nodes + start_of[k]);
  }
  return {value, gap, ptr, row, node};
}

// x = b + a P~ x, or of the transpose, and b + a P~ x - x, for one policy per
// column.
std::tuple<Tensor, Tensor> policy_solve(const Tensor& rowptr,
                                        const Tensor& col,
                                        const Tensor& flip_ptr,
                                        const Tensor& flip_row,
                                        const Tensor& flip_col,
                                        const Tensor& reward,
                                        const Tensor& start,
                                        const Tensor& goal,
                                        double follow,
                                        bool back) {
  const int64_t n = rowptr.numel() - 1, count = reward.size(0);
  const Rows clean{rowptr.const_data_ptr<int64_t>(),
                   col.const_data_ptr<int32_t>()};
  const auto* ptr = flip_ptr.const_data_ptr<int64_t>();
  const auto* row = flip_row.const_data_ptr<int32_t>();
  const auto* node = flip_col.const_data_ptr<int32_t>();
  Tensor value = torch::stable::new_empty(start, {count, n});
  Tensor gap = torch::stable::new_empty(start, {count, n});
  auto* values = value.mutable_data_ptr<double>();
  auto* gaps = gap.mutable_data_ptr<double>();
  parallel_tasks(count, count * (n + col.numel()), [&] {
    return [&, policy = Operator(clean, n, follow), solver = Solver(n),
            b = Values(padded(n)), x = Values(padded(n)),
            image = Values(padded(n)), change = Change()](int64_t k) mutable {
      change.clear(n, clean.ptr[n]);
      for (int64_t e = ptr[k]; e < ptr[k + 1]; ++e) {
        const int64_t i = row[e];
        const int32_t* there =
            std::lower_bound(clean.begin(i), clean.end(i), node[e]);
        if (there < clean.end(i) && *there == node[e]) {
          // Counted once, whatever comes in.
          uint8_t& gone = change.gone[there - clean.node];
          change.lost[i] += !gone;
          gone = 1;
        } else {
          change.new_ptr.resize(i + 1, change.new_ptr.back());
          change.new_node.push_back(node[e]);
          change.new_ptr.push_back(
              static_cast<int64_t>(change.new_node.size()));
        }
      }
      change.new_ptr.resize(n + 1, change.new_ptr.back());
      policy.set(change);
      const double* from = reward.const_data_ptr<double>() + k * n;
      std::copy(from, from + n, b.begin());
      const double* guess = start.const_data_ptr<double>() + k * n;
      std::copy(guess, guess + n, x.begin());
      const double tol = goal.const_data_ptr<double>()[k];
      double* left = gaps + k * n;
      if (back) {
        const auto apply = [&](const Values& in, Values& out) {
          policy.apply_back(in, out);
        };
        solver.run(apply, b, tol, x);
        apply(x, image);
        for (int64_t i = 0; i < n; ++i)
          left[i] = b[i] + image[i] - x[i];
      } else {
        solver.run(
            [&](const Values& in, Values& out) { policy.apply(in, out); }, b,
            tol, x);
        policy.exact_sums(x, [&](int64_t i, const Sum& sum) {
          const Prices prices{follow};
          left[i] =
              b[i] + prices.worth(sum.value(), 0, policy.size(i)) - x[i];
        });
      }
      std::copy(x.begin(), x.begin() + n, values + k * n);
    };
  });
  return {value, gap};
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("policy_iteration", TORCH_BOX(&pyg_trust::policy_iteration));
  m.impl("policy_solve", TORCH_BOX(&pyg_trust::policy_solve));
}
