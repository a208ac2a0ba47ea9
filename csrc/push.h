// One randomized push of AGP (Wang et al. 2021, Algorithm 2), shared by every
// device.
#pragma once

#include <cmath>
#include <cstdint>

#include "rng.h"

namespace pyg_trust {

// Row u: the nodes that u pushes to, in ascending degree, in groups of
// doubling degree. Entry e carries d^-a of its node (scale; null: a = 0).
template <typename scalar_t>
struct PushGraph {
  const int64_t* rowptr;
  const int32_t* col;
  const scalar_t* scale;
  const int64_t* group_ptr;  // the groups of row u: group_ptr[u] and on
  const int64_t* group_end;  // where in `col` each group ends
};

// Sends c * scale[e] along every entry e of row u, in expectation: entries
// with |c| * scale[e] >= eps get exactly that, the others X_e with
//
//   E[X_e] = c * scale[e],  Var[X_e] <= eps * |E[X_e]|,  Cov[X_e, X_f] <= 0.
//
// How: lay the entries of a group end to end, each with the length
// p = |c| * (largest scale left in the group) / eps <= 1, the groups one after
// the other, cut the line at the integers, and draw one point, uniformly and
// independently, in every unit piece. An entry e gets
// sign(c) * eps * scale[e] / (largest scale) for each point that falls on it.
// Proof: the expected number of points on e is p, hence the mean. The number
// is a sum of independent 0/1 variables, one a piece, of total mean p, so its
// variance is at most p; times the squared value, (eps * scale / largest)^2,
// that is eps * |mean| * (scale / largest) <= eps * |mean|. Two entries are
// independent in different pieces and exclude each other in one, hence the
// sign of the covariance. These three facts are all that the variance bound
// of Lemma 4.2 uses; full independence, as in the paper, is not needed.
//
// Cost: the deterministic entries, the points (at most 2^a times the expected
// number of samples of the paper, plus one), and the groups passed.
template <typename scalar_t, typename Add>
PYG_TRUST_HD inline void push_row(const PushGraph<scalar_t>& graph,
                                  int64_t u,
                                  scalar_t c,
                                  scalar_t eps,
                                  uint64_t key,
                                  Add&& add) {
  int64_t e = graph.rowptr[u];
  const int64_t end = graph.rowptr[u + 1];
  const scalar_t mass = std::abs(c);
  if (e == end || mass == 0)
    return;
  const scalar_t quantum = c < 0 ? -eps : eps;

  if (graph.scale == nullptr) {  // a = 0: every entry alike
    if (mass >= eps) {
      for (; e < end; ++e)
        add(graph.col[e], c);
      return;
    }
    const double p = static_cast<double>(mass) / eps;
    const double total = p * static_cast<double>(end - e);
    for (uint64_t piece = 0; static_cast<double>(piece) < total; ++piece) {
      const double t = static_cast<double>(piece) + uniform(key, piece);
      if (t >= total)
        return;
      const int64_t hit = e + static_cast<int64_t>(t / p);
      add(graph.col[hit < end ? hit : end - 1], quantum);
    }
    return;
  }

  for (; e < end && mass * graph.scale[e] >= eps; ++e)
    add(graph.col[e], c * graph.scale[e]);
  if (e == end)
    return;

  const double per_scale = static_cast<double>(mass) / eps;
  uint64_t piece = 0;
  double t = uniform(key, piece);
  // Most pushes end here: entry e has the largest scale of all that is left.
  if (t >= per_scale * graph.scale[e] * static_cast<double>(end - e))
    return;
  int64_t group = graph.group_ptr[u];
  while (graph.group_end[group] <= e)
    ++group;
  double start = 0;
  for (; e < end; e = graph.group_end[group], ++group) {
    const int64_t stop = graph.group_end[group];
    const scalar_t largest = graph.scale[e];
    if (largest == 0)
      return;
    const double p = per_scale * largest;
    const double top = start + p * static_cast<double>(stop - e);
    while (t < top) {
      const int64_t hit = e + static_cast<int64_t>((t - start) / p);
      const int64_t v = hit < stop ? hit : stop - 1;
      add(graph.col[v], quantum * (graph.scale[v] / largest));
      ++piece;
      t = static_cast<double>(piece) + uniform(key, piece);
    }
    start = top;
  }
}

}  // namespace pyg_trust
