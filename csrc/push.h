// One randomized push of AGP (Wang et al. 2021, Algorithm 2), shared by every
// device.
#pragma once

#include <cstdint>

#include "rng.h"

namespace pyg_trust {

constexpr int64_t kPushAhead = 6;  // entries to prefetch

// Row u: the nodes that u pushes to, in ascending degree, in groups of
// doubling degree. Entry e carries d^-a of its node (scale; null: a = 0).
// `Col` is what gives the node of an entry.
template <typename scalar_t, typename Col = const int32_t*>
struct PushGraph {
  const int64_t* rowptr;
  Col col;
  const scalar_t* scale;
  const int64_t* group_ptr;  // the groups of row u: group_ptr[u] and on
  const int64_t* group_end;  // where in `col` each group ends
};

// Sends c_k * scale[e] along every entry e of row u, in expectation, for all
// signals k of a block at once. `mass` is the largest |c_k| / eps_k. Calls
// to.add(node, factor) for what is sent, c_k * factor, and to.prefetch(node)
// some time before. Entries with mass * scale[e] >= 1 are sent as they are, the
// others as X_k,e with
//
//   E[X_k,e] = c_k * scale[e],  Var[X_k,e] <= eps_k * |E[X_k,e]|,
//   Cov[X_k,e, X_k,f] <= 0.
//
// How: lay the entries of a group end to end, each with the length
// p = mass * (largest scale left in the group) <= 1, the groups one after the
// other, cut the line at the integers, and draw one point, uniformly and
// independently, in every unit piece. Entry e gets c_k * scale[e] / p for each
// point that falls on it.
// Proof: the expected number of points on e is p, hence the mean. The number
// is a sum of independent 0/1 variables, one a piece, of total mean p, so its
// variance is at most p, and that of X at most
//   p * (c_k * scale[e] / p)^2 = |mean| * |c_k| * scale[e] / p
//                             <= |mean| * eps_k,
// as p >= mass * scale[e] >= |c_k| / eps_k * scale[e]. Two entries are
// independent in different pieces and exclude each other in one, and a signal
// sends to all with one sign, hence the sign of the covariance. These three
// facts are all that the variance bound of Lemma 4.2 uses; full independence,
// as in the paper, is not needed.
//
// Cost: the deterministic entries, the points (at most 2^a times the expected
// number of samples of the paper, plus one), and the groups passed.
template <typename scalar_t, typename Col, typename To>
PYG_TRUST_HD inline void push_row(const PushGraph<scalar_t, Col>& graph,
                                  int64_t u,
                                  scalar_t mass,
                                  uint64_t key,
                                  To&& to) {
  int64_t e = graph.rowptr[u];
  const int64_t end = graph.rowptr[u + 1];
  if (e == end)
    return;
  // The last entry that may be looked at ahead of time.
  const int64_t last = end - 1;
  const auto ahead = [&] {
    to.prefetch(graph.col[e + kPushAhead < last ? e + kPushAhead : last]);
  };

  if (graph.scale == nullptr) {  // a = 0: every entry alike
    if (mass >= 1) {
      for (; e < end; ++e) {
        ahead();
        to.add(graph.col[e], scalar_t(1));
      }
      return;
    }
    const double p = mass;
    const double total = p * static_cast<double>(end - e);
    const scalar_t factor = scalar_t(1) / mass;
    for (uint64_t piece = 0; static_cast<double>(piece) < total; ++piece) {
      const double t = static_cast<double>(piece) + uniform(key, piece);
      if (t >= total)
        return;
      const int64_t hit = e + static_cast<int64_t>(t / p);
      to.add(graph.col[hit < end ? hit : end - 1], factor);
    }
    return;
  }

  for (; e < end && mass * graph.scale[e] >= 1; ++e) {
    ahead();
    to.add(graph.col[e], graph.scale[e]);
  }
  if (e == end)
    return;

  uint64_t piece = 0;
  double t = uniform(key, piece);
  // Most pushes end here: entry e has the largest scale of all that is left.
  if (t >= static_cast<double>(mass) * graph.scale[e] *
               static_cast<double>(end - e))
    return;
  int64_t group = graph.group_ptr[u];
  while (graph.group_end[group] <= e)
    ++group;
  double start = 0;
  for (; e < end; e = graph.group_end[group], ++group) {
    const int64_t stop = graph.group_end[group];
    if (graph.scale[e] == 0)
      return;
    const double p = static_cast<double>(mass) * graph.scale[e];
    const double top = start + p * static_cast<double>(stop - e);
    while (t < top) {
      const int64_t hit = e + static_cast<int64_t>((t - start) / p);
      const int64_t v = hit < stop ? hit : stop - 1;
      to.add(graph.col[v], static_cast<scalar_t>(graph.scale[v] / p));
      ++piece;
      t = static_cast<double>(piece) + uniform(key, piece);
    }
    start = top;
  }
}

// The expected cost of push_row: the entries and points it would send.
template <typename scalar_t>
PYG_TRUST_HD inline double push_cost(const PushGraph<scalar_t>& graph,
                                     int64_t u,
                                     scalar_t mass) {
  int64_t e = graph.rowptr[u];
  const double degree = static_cast<double>(graph.rowptr[u + 1] - e);
  if (graph.scale == nullptr)
    return mass >= 1 ? degree : mass * degree;
  double cost = 0;
  for (int64_t group = graph.group_ptr[u]; group < graph.group_ptr[u + 1];
       e = graph.group_end[group], ++group) {
    const double p = static_cast<double>(mass) * graph.scale[e];
    cost += static_cast<double>(graph.group_end[group] - e) *
            (p < 1 ? p : 1.0);
  }
  return cost;
}

}  // namespace pyg_trust
