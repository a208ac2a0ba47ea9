// The best flips of one row: the inner step of policy iteration. A row whose
// out-neighbours are S, after k flips, is worth
//
//   (follow * sum_{j in S} V_j + bonus - visit * k) / |S| + root / sqrt |S|
//     - step * k,
//
// (an empty S counts as one edge that leads nowhere) and what is wanted is its
// maximum over the admissible S. For given numbers of additions and removals
// the best S adds the largest V_j and takes away the smallest ones, so only
// those come here, sorted.
//
// Roundoff, with unit u and |V_j| <= M: where a row may only lose or only win
// edges, every worth that is compared comes from a sum with compensation, whose
// error is 2 u |sum| + O(L^2 u^2) M for L terms, and a few operations on means.
// Where it may do both, sums of prefixes add up to 6 u L M, and a comparison of
// a V_j with a level, which may go wrong where the two are within 8 u M, can
// misplace every flip: another 8 u L M. Both are divided by |S|. With all
// factors, what is found is within
//
//   64 u (kappa M + |bonus| + |root|),  kappa = 1 or largest L / smallest |S|,
//
// of the maximum: kappa is 1 for rows of the first kind, without prices of
// single edges. (With those, the flips of a size are the best by computed
// scores, each off by 4 u (M / |S| + price), and no price that is paid exceeds
// 2 M.) Where a shortcut
// stands on a comparison, it asks for a distance of kClose, or the row is done
// the long way.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gather.h"

namespace pyg_trust {

// A running sum with the roundoff of every addition kept (Knuth's two-sum).
struct Sum {
  double high = 0, low = 0;

  void add(double x) {
    const double sum = high + x;
    const double part = sum - high;
    low += (high - (sum - part)) + (x - part);
    high = sum;
  }
  double value() const { return high + low; }
};

struct Prices {
  double follow;
  double bonus = 0, visit = 0, step = 0, root = 0;

  double worth(double sum, int64_t flips, int64_t size) const {
    const auto k = static_cast<double>(flips);
    // A price that overflowed charges nothing where nothing is flipped.
    const double paid = flips > 0 ? visit * k : 0.0;
    // An empty row leads nowhere.
    const double gain = (size > 0 ? follow * sum : 0.0) + bonus - paid;
    const auto edges = static_cast<double>(size > 0 ? size : 1);
    const double mean = gain / edges + root / std::sqrt(edges);
    return flips > 0 ? mean - step * k : mean;
  }
};

struct Choice {
  int64_t added, removed;
  double worth;
};

// Values that differ by less than this, relative to all that is in them, may
// be in any order: it is far above what roundoff does to them.
constexpr double kClose = 1e-13;

// `value` is sorted, best first; flips change the size by `sign`. `close` is
// kClose times the largest magnitude of a value and of the prices.
inline Choice best_prefix(Sum sum,
                          int64_t degree,
                          const double* value,
                          int64_t count,
                          int sign,
                          const Prices& prices,
                          double close) {
  Choice best{0, 0, prices.worth(sum.value(), 0, degree)};
  double mean = best.worth;
  for (int64_t k = 1; k <= count && degree + sign * k > 0; ++k) {
    // The k-th flip, and so any later one, takes the mean down.
    if (degree + sign * (k - 1) > 0 &&
        sign * prices.follow * value[k - 1] - prices.visit <
        sign * mean - close)
      break;
    sum.add(sign * value[k - 1]);
    const double worth = prices.worth(sum.value(), k, degree + sign * k);
    mean = worth + prices.step * static_cast<double>(k);
    if (worth > best.worth)
      best = {sign > 0 ? k : 0, sign > 0 ? 0 : k, worth};
  }
  return best;
}

// A bound on what removals can make of the mean of a row, without a sort:
// `numerator` is that of the clean row, removing edge k takes cost[k] from it.
// Dinkelbach's method over all subsets: those with cost[k] below the mean go.
// Infinite if no edge would be left. `cost` is padded with infinities to a
// multiple of kCosts.
constexpr int kCosts = 4;

inline double best_mean(double numerator,
                        int64_t degree,
                        const double* cost,
                        int64_t padded_count) {
  // This file is compiled for every processor: two numbers a register.
  constexpr int lanes = kVectorBytes / int{sizeof(double)};
  constexpr int parts = kCosts / lanes;
  using Costs = Vector<double, lanes>::type;
  double mean = numerator / static_cast<double>(degree);
  while (true) {
    Costs sums[parts] = {};
    Vector<int64_t, lanes>::type counts[parts] = {};
    for (int64_t k = 0; k < padded_count; k += kCosts) {
      for (int p = 0; p < parts; ++p) {
        const auto costs = load<lanes>(cost + k + p * lanes);
        const auto goes = costs < mean;  // -1 where it is true
        sums[p] += goes ? costs : Costs{};
        counts[p] += goes;
      }
    }
    double lost = 0;
    int64_t size = degree;
    for (int k = 0; k < kCosts; ++k) {
      lost += sums[k / lanes][k % lanes];
      size += counts[k / lanes][k % lanes];
    }
    if (size < 1)
      return std::numeric_limits<double>::infinity();
    const double better = (numerator - lost) / static_cast<double>(size);
    if (!(better > mean))
      return mean;
    mean = better;
  }
}

// The sums of the first 0, ..., count values.
inline void sum_prefixes(const double* value, int64_t count, double* out) {
  Sum running;
  out[0] = 0;
  for (int64_t k = 0; k < count; ++k) {
    running.add(value[k]);
    out[k + 1] = running.value();
  }
}

// The long way: all numbers of additions (descending) and removals
// (ascending), an empty row among them. `gain` and `loss` have room for one
// more than these.
inline Choice best_of_all(const Sum& sum,
                          int64_t degree,
                          const double* addition,
                          int64_t num_additions,
                          const double* removal,
                          int64_t num_removals,
                          int64_t budget,
                          const Prices& prices,
                          double* gain,
                          double* loss) {
  sum_prefixes(addition, num_additions, gain);
  sum_prefixes(removal, num_removals, loss);
  const double clean = sum.value();
  Choice best{0, 0, prices.worth(clean, 0, degree)};
  for (int64_t added = 0; added <= std::min(num_additions, budget); ++added) {
    for (int64_t removed = 0;
         removed <= std::min(num_removals, budget - added); ++removed) {
      const double worth =
          prices.worth(clean + gain[added] - loss[removed], added + removed,
                       degree + added - removed);
      if (worth > best.worth)
        best = {added, removed, worth};
    }
  }
  return best;
}

// Additions (descending) and removals (ascending), up to `budget` together.
// The row cannot be emptied, and there is no root.
//
// Dinkelbach's method: whether any S is worth more than f is decided at the
// level m_k = f + step * k by the k largest of a V_j - visit - m_k (additions)
// and m_k - a V_j - visit (removals); the best worth that this finds becomes f,
// until it grows no more. Any first guess of f will do. Without a price per
// step the level is the same for all k, and the best k takes all that gain.
// Otherwise the t-th addition belongs to the k largest if a (A_t + R_{k-t+1})
// >= 2 m_k, which falls with t.
//
// `gain` and `loss` have room for one more than the additions and removals.
inline Choice best_flips(const Sum& sum,
                         int64_t degree,
                         const double* addition,
                         int64_t num_additions,
                         const double* removal,
                         int64_t num_removals,
                         int64_t budget,
                         const Prices& prices,
                         double guess,
                         double close,
                         double* gain,
                         double* loss) {
  sum_prefixes(addition, num_additions, gain);
  sum_prefixes(removal, num_removals, loss);
  const double clean = sum.value(), follow = prices.follow;
  budget = std::min(budget, num_additions + num_removals);
  const auto worth = [&](int64_t added, int64_t removed, const Prices& at) {
    return at.worth(clean + gain[added] - loss[removed], added + removed,
                    degree + added - removed);
  };
  constexpr double kNone = -std::numeric_limits<double>::infinity();

  // A guess that is NaN ends the search at once.
  Prices free = prices;
  free.step = 0;
  Choice found{0, 0, kNone};
  for (double level = guess;;) {
    int64_t added = 0, removed = 0;
    while (added + removed < budget) {
      const double in = added < num_additions
                            ? follow * addition[added] - level
                            : kNone;
      const double out =
          removed < num_removals ? level - follow * removal[removed] : kNone;
      if (!(std::max(in, out) > prices.visit))
        break;
      ++(in > out ? added : removed);
    }
    const double made = worth(added, removed, free);
    if (!(made > found.worth))
      break;
    found = {added, removed, made};
    level = made;
  }
  if (prices.step == 0)
    return found;

  const Choice none{0, 0, prices.worth(clean, 0, degree)};
  if (found.worth + close - prices.step <= none.worth)
    return none;  // even the best mean is not worth a single flip
  guess = none.worth;
  found = none;
  while (true) {
    Choice best = none;
    int64_t added = 0;
    for (int64_t k = 1; k <= budget; ++k) {
      const double level = 2 * (guess + prices.step * static_cast<double>(k));
      const auto wanted = [&](int64_t t) {
        return follow * (addition[t - 1] + removal[k - t]) >= level;
      };
      const int64_t least = std::max<int64_t>(0, k - num_removals);
      const int64_t most = std::min(k, num_additions);
      added = std::clamp(added, least, most);
      while (added < most && wanted(added + 1))
        ++added;
      while (added > least && !wanted(added))
        --added;
      const double made = worth(added, k - added, prices);
      if (made > best.worth)
        best = {added, k - added, made};
    }
    if (!(best.worth > found.worth))
      return found;
    found = best;
    guess = best.worth;
  }
}

}  // namespace pyg_trust
