// One randomized push of AGP (Wang et al. 2021, Algorithm 2), shared by every
// device.
#pragma once

#include <cmath>
#include <cstdint>

#include "rng.h"

namespace pyg_trust {

constexpr int64_t kPushAhead = 6;  // entries to prefetch

constexpr int64_t kSamples = 1024;  // nodes that estimate a level's cost

// What a push and a visited node cost, where an entry of an exact level costs
// one (benchmarks/push.py, 200 thousand and a million nodes).
constexpr double kPushCost = 8;
constexpr double kVisitCost = 16;

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

// The points of the pieces [piece, stop_piece) of the line that push_row lays
// from entry e of row u on.
template <typename scalar_t, typename Col, typename To>
PYG_TRUST_HD inline void push_points(const PushGraph<scalar_t, Col>& graph,
                                     int64_t u,
                                     int64_t e,
                                     scalar_t mass,
                                     uint64_t key,
                                     uint64_t piece,
                                     uint64_t stop_piece,
                                     To&& to) {
  const int64_t end = graph.rowptr[u + 1];
  double t = static_cast<double>(piece) + uniform(key, piece);
  if (graph.scale == nullptr) {  // a = 0: every entry alike
    const double p = mass;
    const double total = p * static_cast<double>(end - e);
    const scalar_t factor = scalar_t(1) / mass;
    while (t < total) {
      const int64_t hit = e + static_cast<int64_t>(t / p);
      to.add(graph.col[hit < end ? hit : end - 1], factor);
      if (++piece == stop_piece)
        return;
      t = static_cast<double>(piece) + uniform(key, piece);
    }
    return;
  }
  // Most pushes end here: entry e has the largest scale of all that is left.
  if (piece == 0 && t >= static_cast<double>(mass) * graph.scale[e] *
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
      if (++piece == stop_piece)
        return;
      t = static_cast<double>(piece) + uniform(key, piece);
    }
    start = top;
  }
}

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
//
// The units of this work are the deterministic entries, then the pieces of the
// line. `part` is for threads that share a row: each calls push_row for some
// units (push_units), and together they make the calls of one that does all.
struct PushPart {
  int64_t from;  // the units [from, stop)
  int64_t stop;
  int64_t sure;  // PushUnits::sure
};

// All units: constants, which cost a push nothing.
struct PushWhole {
  static constexpr int64_t from = 0;
  static constexpr int64_t stop = INT64_MAX;
  static constexpr int64_t sure = INT64_MAX;
};

template <typename scalar_t,
          typename Col,
          typename To,
          typename Part = PushWhole>
PYG_TRUST_HD inline void push_row(const PushGraph<scalar_t, Col>& graph,
                                  int64_t u,
                                  scalar_t mass,
                                  uint64_t key,
                                  To&& to,
                                  const Part& part = {}) {
  const int64_t begin = graph.rowptr[u], end = graph.rowptr[u + 1];
  const int64_t skipped = part.from < part.sure ? part.from : part.sure;
  int64_t e = begin + skipped;
  const int64_t stop = part.stop < end - begin ? begin + part.stop : end;
  // The last entry that may be looked at ahead of time.
  const int64_t last = end - 1;
  const auto ahead = [&] {
    to.prefetch(graph.col[e + kPushAhead < last ? e + kPushAhead : last]);
  };

  if (graph.scale != nullptr) {
    for (; e < stop && mass * graph.scale[e] >= 1; ++e) {
      ahead();
      to.add(graph.col[e], graph.scale[e]);
    }
  } else if (mass >= 1) {
    for (; e < stop; ++e) {
      ahead();
      to.add(graph.col[e], scalar_t(1));
    }
  }
  if (e == stop)
    return;
  const auto stop_piece = part.stop == PushWhole::stop
                              ? ~uint64_t{0}
                              : static_cast<uint64_t>(part.stop - (e - begin));
  push_points(graph, u, e, mass, key,
              static_cast<uint64_t>(part.from - skipped), stop_piece, to);
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

// How many units push_row has.
struct PushUnits {
  int64_t sure;  // entries that are sent as they are
  int64_t all;   // these and the pieces
};

template <typename scalar_t>
PYG_TRUST_HD inline PushUnits push_units(const PushGraph<scalar_t>& graph,
                                         int64_t u,
                                         scalar_t mass) {
  const int64_t begin = graph.rowptr[u], end = graph.rowptr[u + 1];
  if (begin == end || !(mass > 0))
    return {0, 0};
  int64_t sure = 0;
  double total = 0;  // the length of the line
  if (graph.scale == nullptr) {
    if (mass >= 1)
      return {end - begin, end - begin};
    total = static_cast<double>(mass) * static_cast<double>(end - begin);
  } else {
    int64_t e = begin, after = end;  // where the first that is not sure lies
    while (e < after) {
      const int64_t middle = e + (after - e) / 2;
      if (mass * graph.scale[middle] >= 1)
        e = middle + 1;
      else
        after = middle;
    }
    sure = e - begin;
    int64_t group = graph.group_ptr[u];
    while (e < end && graph.group_end[group] <= e)
      ++group;
    while (e < end && graph.scale[e] != 0) {
      const int64_t stop = graph.group_end[group++];
      const double p = static_cast<double>(mass) * graph.scale[e];
      total += p * static_cast<double>(stop - e);
      e = stop;
    }
  }
  const auto whole = static_cast<int64_t>(total);
  return {sure, sure + whole + (static_cast<double>(whole) < total)};
}

// What is sampled depends on which levels are done exactly, and on every bit of
// a mass. All that decides it is here, for every device:
//
// A level is done exactly if its residues are not few and pushing them is
// expected to cost more than `above`. They are not few at level 0, after an
// exact level, and where more than few_nodes() nodes have some. The expected
// cost is sample_step() times the sum of visit_cost() over the nodes
// sample_step() / 2, sample_step() / 2 + sample_step(), ..., in any order.
//
// Residues r are *raw*, as they arrive, or, at level 0 and after an exact
// level, *ready*: kept in part, and multiplied by `send`, as
//
//   send * x,    send * (sum of what is received * (recv * ratio)).
PYG_TRUST_HD inline int64_t few_nodes(int64_t num_nodes) {
  return num_nodes / 16 + 1;
}

PYG_TRUST_HD inline int64_t sample_step(int64_t num_nodes) {
  return num_nodes / kSamples + 1;
}

template <typename scalar_t>
PYG_TRUST_HD inline double visit_cost(const PushGraph<scalar_t>& graph,
                                      int64_t u,
                                      scalar_t mass) {
  if (!(mass > 0))
    return 0;
  // In whole 2^-8, of which 2^45 are the most there can be: such numbers add
  // without rounding, so that every order of additions decides alike.
  const double cost = kVisitCost + kPushCost * push_cost(graph, u, mass);
  return floor(cost * 256 + 0.5) * 0x1p-8;
}

// Times residues, this is what is sent to a node of degree one.
template <typename scalar_t>
PYG_TRUST_HD inline scalar_t send_factor(bool ready,
                                         scalar_t ratio,
                                         scalar_t send) {
  return ready ? ratio : ratio * send;
}

// Residues become what is sent to a node of degree one; returns the largest in
// units of its quantum, `per_eps` being 1 / eps.
template <int width, typename scalar_t>
PYG_TRUST_HD inline scalar_t scale_to_send(scalar_t* value,
                                           scalar_t factor,
                                           const scalar_t* per_eps) {
  scalar_t mass = 0;
  for (int c = 0; c < width; ++c) {
    value[c] *= factor;
    // 0 / 0, a signal without a quantum, is no larger than anything.
    const scalar_t size = std::abs(value[c]) * per_eps[c];
    mass = size > mass ? size : mass;
  }
  return mass;
}

// Whether |r| * send < prune, where `below` is prune * ratio.
template <typename scalar_t>
PYG_TRUST_HD inline bool is_pruned(scalar_t sent, scalar_t below) {
  return below > 0 && std::abs(sent) < below;
}

// At most what row u sends in all, per unit of residue: all that push_row
// sends is bounded by |c| * (spread + 1 / mass).
template <typename scalar_t>
PYG_TRUST_HD inline double push_spread(const PushGraph<scalar_t>& graph,
                                       int64_t u) {
  int64_t e = graph.rowptr[u];
  if (graph.scale == nullptr)
    return static_cast<double>(graph.rowptr[u + 1] - e);
  double spread = 0;
  for (int64_t group = graph.group_ptr[u]; group < graph.group_ptr[u + 1];
       e = graph.group_end[group], ++group)
    spread += static_cast<double>(graph.group_end[group] - e) *
              static_cast<double>(graph.scale[e]);
  return spread;
}

// All that a push of dense signals reads and writes; `ratio` and `keep` are on
// the host.
template <typename scalar_t>
struct Dense {
  PushGraph<scalar_t> graph;
  const int64_t* pull_rowptr;
  const int32_t* pull_col;
  const scalar_t* recv;
  const scalar_t* send;
  int64_t num_nodes;
  int64_t num_entries;
  const scalar_t* x;
  const scalar_t* eps;
  scalar_t* z;
  int64_t columns;
  const double* ratio;
  const double* keep;
  int64_t levels;
  uint64_t seed;
  int64_t first;      // number of the first block
  double pull_above;  // in pushes per entry
  int64_t* pushed;    // levels, for each block
  bool only_pull = false;  // CPU: whether it ends where something is pushed

  // What a level that is pushed may cost.
  double above() const { return pull_above * static_cast<double>(num_entries); }
};

}  // namespace pyg_trust
