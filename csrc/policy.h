// The best flips of one row: the inner step of policy iteration. A row whose
// out-neighbours are S, after k flips, is worth
//
//   (follow * sum_{j in S} V_j + bonus - visit * k) / |S| - step * k,
//
// and what is wanted is its maximum over the admissible S. For given numbers of
// additions and removals the best S adds the largest V_j and takes away the
// smallest ones, so only those come here, sorted.
//
// Roundoff, with unit u and |V_j| <= M: where a row may only lose or only win
// edges, every worth that is compared comes from a sum with compensation, whose
// error is 2 u |sum| + O(L^2 u^2) M for L terms, and a few operations on means.
// Where it may do both, sums of prefixes add up to 6 u L M, and a comparison of
// a V_j with a level, which may go wrong where the two are within 8 u M, can
// misplace every flip: another 8 u L M. Both are divided by |S|. With all
// factors, what is found is within
//
//   64 u (kappa M + |bonus|),  kappa = 1 or largest L / smallest |S|,
//
// of the maximum: kappa is 1 for rows of the first kind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

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
  double bonus = 0, visit = 0, step = 0;

  double worth(double sum, int64_t flips, int64_t size) const {
    const auto k = static_cast<double>(flips);
    // No S is empty, but for nodes without any edge.
    const double mean =
        size > 0 ? (follow * sum + bonus - visit * k) / static_cast<double>(size)
                 : 0.0;
    return mean - step * k;
  }
};

struct Choice {
  int64_t added, removed;
  double worth;
};

// `value` is sorted, best first; flips change the size by `sign`.
inline Choice best_prefix(Sum sum,
                          int64_t degree,
                          const double* value,
                          int64_t count,
                          int sign,
                          const Prices& prices) {
  Choice best{0, 0, prices.worth(sum.value(), 0, degree)};
  for (int64_t k = 1; k <= count && degree + sign * k > 0; ++k) {
    sum.add(sign * value[k - 1]);
    const double worth = prices.worth(sum.value(), k, degree + sign * k);
    if (worth > best.worth)
      best = {sign > 0 ? k : 0, sign > 0 ? 0 : k, worth};
  }
  return best;
}

// Additions (descending) and removals (ascending), up to `budget` together.
//
// Dinkelbach's method: whether any S is worth more than f is decided at the
// level m_k = f + step * k by the k largest of a V_j - m_k (additions) and m_k
// - a V_j (removals); the best worth that this finds becomes f, until it grows
// no more. The t-th addition belongs to the k largest if a (A_t + R_{k-t+1})
// >= 2 m_k, which falls with t. Any first guess of f will do.
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
                         double* gain,
                         double* loss) {
  const auto prefix = [](const double* value, int64_t count, double* out) {
    Sum running;
    out[0] = 0;
    for (int64_t k = 0; k < count; ++k) {
      running.add(value[k]);
      out[k + 1] = running.value();
    }
  };
  prefix(addition, num_additions, gain);
  prefix(removal, num_removals, loss);
  const double clean = sum.value();
  budget = std::min(budget, num_additions + num_removals);
  Choice found{0, 0, -std::numeric_limits<double>::infinity()};
  // A level that nothing reaches, NaN too, ends the search at once.
  while (true) {
    Choice best{0, 0, prices.worth(clean, 0, degree)};
    int64_t added = 0;
    for (int64_t k = 1; k <= budget; ++k) {
      const double level =
          2 * (guess + prices.step * static_cast<double>(k));
      const auto wanted = [&](int64_t t) {
        return prices.follow * (addition[t - 1] + removal[k - t]) >= level;
      };
      const int64_t least = std::max<int64_t>(0, k - num_removals);
      const int64_t most = std::min(k, num_additions);
      added = std::clamp(added, least, most);
      while (added < most && wanted(added + 1))
        ++added;
      while (added > least && !wanted(added))
        --added;
      const int64_t size = degree + 2 * added - k;
      if (size < 1)
        continue;
      const double worth =
          prices.worth(clean + gain[added] - loss[k - added], k, size);
      if (worth > best.worth)
        best = {added, k - added, worth};
    }
    if (!(best.worth > found.worth))
      return found;
    found = best;
    guess = best.worth;
  }
}

}  // namespace pyg_trust
