// Disjoint walks by many threads.
//
// The roots, in random order, walk in rounds. In a round, each of the first
// few roots that are left walks by itself, past what is claimed before the
// round, and bids for every node it takes: the lowest bidder, the first in the
// order, has it. A root that has all its nodes keeps them, as its subgraph.
// The others forget their walks and are first in the next round, with new
// random numbers. So
//
//   * subgraphs are disjoint: of those who want a node in one round the lowest
//     bidder alone can keep it, and from then on it is claimed;
//   * every root that is not claimed by another is the root of a subgraph: it
//     drops out only when it is claimed. The first root of a round always has
//     its nodes, so that every round ends with fewer roots;
//   * the result is a function of the graph, the roots and the seed alone:
//     walks of a round see the claims of earlier rounds only, and who bids
//     lowest does not depend on who bids first.
//
// Where walks of one round do not meet this is the sequential algorithm; where
// they do, the later root walks again, but may have to walk past a node that
// the earlier root, had it gone first, would have left, or the other way
// round. A round goes through num_nodes / (1 + R L) roots, of which those that
// are not claimed could just claim all nodes that are left: so most walks do
// not meet, and the number of rounds is about 1 + R L, times a constant.
#pragma once

#include <cstdint>

#include "device/machine.h"
#include "../walk.h"

namespace pyg_trust::device {

constexpr int64_t kRoundLeast = 32;  // roots of a round, at least
constexpr int kRowsAhead = 4;  // entries of a long row on their way, per thread

struct Walks {
  const int64_t* rowptr;
  const int32_t* col;
  int64_t num_nodes;
  const int64_t* roots;
  int64_t num_roots;
  int64_t walk_length;
  int64_t restarts;
  uint64_t seed;
};

// The nodes of one walk (all restarts): in order, and as a set, by open
// addressing in `slots` places, a power of two above the number of nodes.
struct Trail {
  int32_t* node;
  int32_t* slot;  // -1: free
  int64_t slots;
  int64_t size;

  PYG_TRUST_HD int64_t find(int32_t v) const {
    auto i = static_cast<int64_t>(mix(static_cast<uint64_t>(v)) &
                                  static_cast<uint64_t>(slots - 1));
    while (slot[i] >= 0 && slot[i] != v)
      i = (i + 1) & (slots - 1);
    return i;
  }
  PYG_TRUST_HD bool has(int64_t v) const {
    return slot[find(static_cast<int32_t>(v))] >= 0;
  }
  PYG_TRUST_RUN void take(const Team& team, int64_t v) {
    team.wait();  // for those who still look at it
    team.once([&] {
      node[size] = static_cast<int32_t>(v);
      slot[find(static_cast<int32_t>(v))] = static_cast<int32_t>(v);
    });
    ++size;
    team.wait();
  }
};

// One root's walks by a team, with the law of the sequential algorithm given
// `claimed`. Rows that are no longer than the team is large are seen at once;
// of others, as many neighbours are tried at once, and only where all of these
// are taken the team reads the row.
struct Walker {
  const int64_t* rowptr;
  const int32_t* col;
  const uint8_t* claimed;
  Trail trail;
  uint64_t key;
  uint64_t counter;

  // Whether col[e] may be taken, for one entry. All of a team at once: the
  // entry, whether it is claimed, whether it is in the trail.
  PYG_TRUST_RUN bool is_open(int64_t e) const {
    const int32_t v = col[e];
    return claimed[v] == 0 && !trail.has(v);
  }

  // Calls f(e) for the open entries begin, begin + kTeam, ... < end.
  template <typename F>
  PYG_TRUST_RUN void each_open(int64_t begin, int64_t end, const F& f) const {
    for (int64_t e = begin; e < end; e += kRowsAhead * kTeam) {
      int32_t v[kRowsAhead];
      bool open[kRowsAhead];
      for (int k = 0; k < kRowsAhead; ++k)
        v[k] = e + k * kTeam < end ? col[e + k * kTeam] : -1;
      for (int k = 0; k < kRowsAhead; ++k)
        open[k] = v[k] >= 0 && claimed[v[k]] == 0;
      for (int k = 0; k < kRowsAhead; ++k) {
        if (open[k] && !trail.has(v[k]) && !f(v[k]))
          return;
      }
    }
  }

  // A uniform neighbour of `u` among those that are open, -1 if there is none.
  PYG_TRUST_RUN int64_t step(const Team& team, int64_t u) {
    const int64_t begin = rowptr[u], end = rowptr[u + 1];
    const int64_t degree = end - begin;
    if (degree <= kTeam) {
      const uint32_t open = team.ask(
          [&](int lane) { return lane < degree && is_open(begin + lane); });
      if (open == 0)
        return -1;
      const int64_t chosen = below(key, counter++, count_bits(open));
      return col[begin + nth_bit(open, chosen)];
    }
    // Those that are tried first and open are as likely one as another.
    const uint64_t first = counter;
    counter += kTeam;
    const uint32_t lucky = team.ask([&](int lane) {
      return is_open(begin + below(key, first + lane, degree));
    });
    if (lucky != 0)
      return col[begin + below(key, first + first_bit(lucky), degree)];
    Team::Each<int64_t> count, found;
    team.each([&](int lane) {
      count[lane] = 0;
      each_open(begin + lane, end, [&](int32_t) {
        ++count[lane];
        return true;
      });
    });
    int64_t all;
    const Team::Each<int64_t> before = team.before(count, all);
    if (all == 0)
      return -1;
    const int64_t chosen = below(key, counter++, all);
    const int owner = first_bit(team.ask([&](int lane) {
      return before[lane] <= chosen && chosen < before[lane] + count[lane];
    }));
    team.each([&](int lane) {
      found[lane] = -1;
      if (lane != owner)
        return;
      int64_t left = chosen - before[lane];
      each_open(begin + lane, end, [&](int32_t w) {
        found[lane] = w;
        return left-- > 0;
      });
    });
    return team.get(found, owner);
  }

  PYG_TRUST_RUN void run(const Team& team,
                         int64_t root,
                         int64_t walk_length,
                         int64_t restarts) {
    trail.take(team, root);
    for (int64_t walk = 0; walk_length > 0 && walk < restarts; ++walk) {
      int64_t v = step(team, root);
      if (v < 0)
        return;  // no later walk finds a neighbour either
      trail.take(team, v);
      for (int64_t i = 1; i < walk_length; ++i) {
        v = step(team, v);
        if (v < 0)
          break;
        trail.take(team, v);
      }
    }
  }
};

// What came of it, on the machine: subgraph i (in the order of the roots) has
// the nodes node[ptr[i]] to node[ptr[i + 1] - 1].
struct Subgraphs {
  int64_t count;
  int64_t size;         // of all together
  const int64_t* from;  // of each root, in order: where in `node` it starts,
  const int32_t* length;  // how many there are, 0 if claimed by another root,
  const int64_t* rank;    // how many subgraphs
  const int64_t* start;   // and how many nodes come before
  const int32_t* node;
  int64_t num_roots;
  int64_t rounds;
};

template <typename Machine>
Subgraphs disjoint_walks(Machine& machine, const Walks& p) {
  const int64_t n = p.num_nodes, count = p.num_roots;
  const int64_t* rowptr = p.rowptr;
  const int32_t* col = p.col;
  const int64_t* roots = p.roots;
  const int64_t length = p.walk_length, restarts = p.restarts;
  if (n == 0 || count == 0)
    return {};
  // 1 + R L, or all nodes: the product may overflow.
  const bool all = length > 0 && restarts > (n - 1) / length;
  const int64_t most = all ? n : 1 + length * restarts;
  int64_t slots = 2;
  while (slots <= most)
    slots *= 2;
  // Memory for the trails of a round is that of a few numbers per node.
  int64_t most_round = n / most > kRoundLeast ? n / most : kRoundLeast;
  if (most_round > (4 * n + (int64_t{1} << 20)) / (most + slots))
    most_round = (4 * n + (int64_t{1} << 20)) / (most + slots);
  most_round = most_round > count ? count : most_round;
  most_round = most_round > 1 ? most_round : 1;

  auto* order = machine.template make<int64_t>(count);
  auto* order_key = machine.template make<uint64_t>(count);
  auto* from = machine.template make<int64_t>(count);
  auto* found = machine.template make<int32_t>(count);
  auto* rank = machine.template make<int64_t>(count + 1);
  auto* start = machine.template make<int64_t>(count + 1);
  auto* node = machine.template make<int32_t>(n);
  auto* claimed = machine.template make<uint8_t>(n);
  auto* bid = machine.template make<uint64_t>(n);
  auto* left = machine.template make<int64_t>(most_round);
  auto* next_left = machine.template make<int64_t>(most_round);
  auto* trail_node = machine.template make<int32_t>(most_round * most);
  auto* trail_slot = machine.template make<int32_t>(most_round * slots);
  auto* trail_size = machine.template make<int64_t>(most_round);
  // Roots left over from the round, and nodes claimed in all.
  auto* counts = machine.template make<int64_t>(2);
  machine.zero(found, count);
  machine.zero(claimed, n);
  machine.zero(counts, 2);
  machine.zero(rank, count + 1);
  machine.zero(start, count + 1);

  // A random order: by random keys, of which no two are likely to be alike
  // (and if they are, the order given decides).
  const uint64_t order_stream = derive(p.seed, 0);
  const uint64_t walk_stream = derive(p.seed, 1);
  machine.run(n, 1, [=] PYG_TRUST_RUN(int64_t v, int64_t) {
    bid[v] = ~uint64_t{0};
  });
  machine.run(count, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
    order[i] = roots[i];
    order_key[i] = derive(order_stream, static_cast<uint64_t>(roots[i]));
  });
  machine.sort(order_key, order, count);

  int64_t head = 0, carried = 0, round = 0;
  while (carried > 0 || head < count) {
    // Those left over walk, and then new ones.
    int64_t take = carried + count - head;
    take = take < most_round ? take : most_round;
    const int64_t old = carried, begin = head;
    // A later round bids lower than any before: its bids need no clearing.
    const uint64_t high = ~static_cast<uint64_t>(round) << 32;
    const uint64_t stream =
        derive(walk_stream, static_cast<uint64_t>(round));
    machine.run_team(take, [=] PYG_TRUST_RUN(int64_t i, const Team& team) {
      const int64_t place = i < old ? left[i] : begin + i - old;
      const int64_t root = order[place];
      if (claimed[root] != 0) {
        team.once([&] { trail_size[i] = 0; });
        return;
      }
      Walker walker{rowptr,
                    col,
                    claimed,
                    {trail_node + i * most, trail_slot + i * slots, slots, 0},
                    derive(stream, static_cast<uint64_t>(root)),
                    0};
      const Trail& trail = walker.trail;
      team.each([&](int lane) {
        for (int64_t k = lane; k < slots; k += kTeam)
          trail.slot[k] = -1;
      });
      walker.run(team, root, length, restarts);
      team.once([&] { trail_size[i] = trail.size; });
      team.each([&](int lane) {
        for (int64_t k = lane; k < trail.size; k += kTeam)
          least(bid + trail.node[k], high | static_cast<uint64_t>(place));
      });
    });
    machine.zero(counts, 1);
    machine.run_team(take, [=] PYG_TRUST_RUN(int64_t i, const Team& team) {
      const int64_t size = trail_size[i];
      if (size == 0)
        return;
      const int64_t place = i < old ? left[i] : begin + i - old;
      const int32_t* mine = trail_node + i * most;
      const uint32_t lost = team.ask([&](int lane) {
        bool any = false;
        for (int64_t k = lane; k < size; k += kTeam)
          any |= bid[mine[k]] != (high | static_cast<uint64_t>(place));
        return any;
      });
      if (lost != 0) {
        team.once([&] { next_left[next(counts)] = place; });
        return;
      }
      Team::Each<int64_t> start_at;
      start_at[0] = 0;
      team.once([&] {
        start_at[0] = add(counts + 1, size);
        from[place] = start_at[0];
        found[place] = static_cast<int32_t>(size);
      });
      const int64_t to = team.get(start_at, 0);
      team.each([&](int lane) {
        for (int64_t k = lane; k < size; k += kTeam) {
          claimed[mine[k]] = 1;
          node[to + k] = mine[k];
        }
      });
    });
    head += take - carried;
    carried = machine.read(counts);
    int64_t* const swapped = left;
    left = next_left;
    next_left = swapped;
    ++round;
  }

  machine.run(count, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
    rank[i] = found[i] > 0;
    start[i] = found[i];
  });
  machine.sum_before(rank, count + 1);
  machine.sum_before(start, count + 1);
  return {machine.read(rank + count),
          machine.read(start + count),
          from,
          found,
          rank,
          start,
          node,
          count,
          round};
}

// Writes them down.
template <typename Machine>
void write_subgraphs(Machine& machine,
                     const Subgraphs& s,
                     int64_t* ptr,
                     int64_t* node) {
  machine.run(1, 1, [=] PYG_TRUST_RUN(int64_t, int64_t) {
    ptr[s.count] = s.size;
  });
  machine.run(s.num_roots, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
    if (s.length[i] == 0)
      return;
    ptr[s.rank[i]] = s.start[i];
    for (int64_t k = 0; k < s.length[i]; ++k)
      node[s.start[i] + k] = s.node[s.from[i] + k];
  });
}

}  // namespace pyg_trust::device
