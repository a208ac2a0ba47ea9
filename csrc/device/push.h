// Longer than 700 lines because dense and sparse levels of one algorithm have
// to draw the same.
//
// Randomized propagation (AGP, Wang et al. 2021, Algorithm 2) by many threads.
// It samples what the CPU samples for the same seed, and does the same levels
// exactly: what decides both is in csrc/push.h, once for all devices.
//
// Residues of the next level are summed in fixed point, which adds exactly and
// so in any order alike: repeatable, bit by bit, on every machine. Each signal
// has, at every level, the unit 2^-60 * 2^ceil(log2 S), where S bounds all that
// is sent together, so that no sum can overflow. The error of one addition is
// at most half a unit, about 1e-18 S.
//
// The CPU adds floats in another order. So residues agree up to rounding, and what is
// sampled is the same but where rounding decides: for a point that falls on the
// border of two entries, an entry whose mass is exactly one quantum, a residue
// that is exactly the least not to be pruned, or a cost that is exactly the
// limit. Of few_nodes(), a node whose residues cancel is none here; the CPU,
// which lists nodes as they get some, has listed it.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "device/machine.h"
#include "device/gather.h"
#include "../push.h"

namespace pyg_trust::device {

// Units of a push that one thread does; what is left goes to others.
constexpr int64_t kPushAtOnce = 32;
constexpr int kFixedBits = 60;

// 2^shift and 2^-shift, which take numbers of a level to fixed point and back.
struct Unit {
  double up;
  double down;
};

// For sums of at most `bound`. Without a bound nothing is summed, and what is
// read is NaN, as a sum that overflows should be.
PYG_TRUST_HD inline Unit unit_for(double bound) {
  if (!(bound < HUGE_VAL))
    return {0, static_cast<double>(NAN)};
  if (!(bound > 0))
    return {1, 1};
  int exponent;
  frexp(bound, &exponent);  // bound <= 2^exponent
  int shift = kFixedBits - exponent;
  shift = shift > 1000 ? 1000 : shift;
  return {ldexp(1.0, shift), ldexp(1.0, -shift)};
}

template <typename scalar_t>
PYG_TRUST_HD inline scalar_t residue(int64_t sum, const Unit& unit) {
  return static_cast<scalar_t>(static_cast<double>(sum) * unit.down);
}
// A residue that is known as it is, and not summed.
template <typename scalar_t>
PYG_TRUST_HD inline int64_t exact(scalar_t value) {
  return bits<int64_t>(static_cast<double>(value));
}
template <typename scalar_t>
PYG_TRUST_HD inline scalar_t known(int64_t sum) {
  return static_cast<scalar_t>(bits<double>(sum));
}

// Only in what a machine runs.
#ifdef __CUDACC__
__device__
#endif
    inline void
    send_to(int64_t* to, double value, double factor, const Unit& unit) {
  if (unit.up != 0)
    add(to, to_integer(value * factor * unit.up));
}

// The stream of one push.
PYG_TRUST_HD inline uint64_t push_key(uint64_t seed,
                                      int64_t number,
                                      int64_t level,
                                      int64_t u) {
  return derive(derive(derive(seed, number), level), u);
}

// Where push_row sends: to one column of the next level.
template <typename scalar_t>
struct ToColumn {
  int64_t* sums;  // of node 0
  int64_t stride;
  scalar_t value;
  Unit unit;

#ifdef __CUDACC__
  __device__
#endif
  void add(int64_t v, scalar_t factor) const {
    send_to(sums + v * stride, value, factor, unit);
  }
  PYG_TRUST_HD void prefetch(int64_t) const {}
};

// What a block sends together, at most, in each column, and how many of its
// nodes have residues.
template <int width>
struct Total {
  double most[width];
  double active;
};
template <int width>
PYG_TRUST_HD inline Total<width> join(const Total<width>& x,
                                      const Total<width>& y) {
  Total<width> sum;
  for (int c = 0; c < width; ++c)
    sum.most[c] = x.most[c] + y.most[c];
  sum.active = x.active + y.active;
  return sum;
}

// Nodes (or sums) that a team adds up: one after the other as many as a team
// has threads, and then by a tree.
constexpr int64_t kTogether = kTeam * kTeam;

// The sums of `count` rows of `lanes` numbers, by a fixed tree: where they are.
template <typename T, typename Machine>
const T* sum_all(Machine& machine,
                 const T* data,
                 int64_t count,
                 int64_t lanes,
                 T* room) {
  while (count > 1) {
    const int64_t sums = (count + kTogether - 1) / kTogether;
    const T* from = data;
    T* to = room;
    machine.template run_parts<kTeam, T>(
        sums, lanes,
        [=] PYG_TRUST_RUN(int64_t i, int64_t lane, int64_t part) {
          T sum{};
          const int64_t left = count - i * kTogether;
          const int64_t stop = left < kTogether ? left : kTogether;
          for (int64_t k = part; k < stop; k += kTeam)
            sum = join(sum, from[(i * kTogether + k) * lanes + lane]);
          return sum;
        },
        [=] PYG_TRUST_RUN(int64_t i, int64_t lane, const T& sum) {
          to[i * lanes + lane] = sum;
        });
    data = room;
    room += sums * lanes;
    count = sums;
  }
  return data;
}
// Of which that is so much.
inline int64_t room_for_sums(int64_t count) {
  int64_t room = 0;
  while (count > 1) {
    count = (count + kTogether - 1) / kTogether;
    room += count;
  }
  return room;
}

// The blocks [begin, end) of `width` columns, of which the last may have
// fewer.
template <int width, typename scalar_t, typename Machine>
void push_blocks(Machine& machine,
                 const Dense<scalar_t>& p,
                 int64_t block_size,
                 int64_t begin,
                 int64_t end) {
  // Columns that one thread loads, and threads of a row of a block.
  constexpr int wide = 16 / sizeof(scalar_t) < width
                           ? 16 / static_cast<int>(sizeof(scalar_t))
                           : width;
  constexpr int lanes = width / wide;
  static_assert(width % wide == 0 && kTeam % lanes == 0);
  using Some = Pack<scalar_t, wide>;
  const int64_t n = p.num_nodes, blocks = end - begin;
  const int64_t stride = blocks * width, columns = p.columns;
  const int64_t offset = begin * block_size;  // the first column
  const bool can_pull = p.pull_above < HUGE_VAL;
  const PushGraph<scalar_t> graph = p.graph;

  auto* sums = machine.template make<int64_t>(n * stride);
  auto* value = machine.template make<scalar_t>(n * stride);  // residues
  auto* mass = machine.template make<scalar_t>(n * blocks);   // < 0: none
  auto* units = machine.template make<PushUnits>(n * blocks);
  auto* per_eps = machine.template make<scalar_t>(stride);
  auto* unit = machine.template make<Unit>(stride);
  // Whether residues are ready (csrc/push.h), and so will be the next.
  auto* ready = machine.template make<int32_t>(blocks);
  auto* pulled = machine.template make<int32_t>(blocks);
  auto* spread = machine.template make<double>(n);
  // What is pushed, in parts: (node, block) and which part of it.
  const int64_t most_parts =
      n * blocks + blocks * (2 * (p.num_entries / kPushAtOnce) + 1);
  auto* part_at = machine.template make<int64_t>(most_parts);
  auto* part_number = machine.template make<int32_t>(most_parts);
  auto* num_parts = machine.template make<int64_t>(1);
  const int64_t pieces = (n + kTogether - 1) / kTogether;
  auto* total = machine.template make<Total<width>>(
      (pieces + room_for_sums(pieces)) * blocks);
  const int64_t step = sample_step(n);
  const int64_t samples = (n - step / 2 + step - 1) / step;
  using Cost = Pack<double, 1>;
  auto* cost = machine.template make<Cost>(
      can_pull ? (samples + room_for_sums(samples)) * blocks : 0);
  auto* pull_rows = machine.template make<uint64_t>(1);  // all or none
  const LongRows rows =
      can_pull ? find_long_rows<scalar_t>(machine, p.pull_rowptr, n,
                                          p.num_entries, stride)
               : LongRows{};

  machine.zero(sums, n * stride);
  const scalar_t* eps = p.eps;
  machine.run(1, stride, [=] PYG_TRUST_RUN(int64_t, int64_t c) {
    per_eps[c] = scalar_t(1) /
                 (offset + c < columns ? eps[offset + c] : scalar_t(0));
    unit[c] = {1, 1};
    if (c % width == 0)
      ready[c / width] = 1;
  });
  machine.run(n, 1, [=] PYG_TRUST_RUN(int64_t u, int64_t) {
    spread[u] = push_spread(graph, u);
  });

  const scalar_t* x = p.x;
  const scalar_t* send = p.send;
  const scalar_t* recv = p.recv;
  scalar_t* z = p.z;
  const bool whole_x = is_aligned<wide>(x + offset, columns);
  const bool whole_z = is_aligned<wide>(z + offset, columns);
  int64_t* pushed = p.pushed + begin;
  const auto seed = p.seed;
  const int64_t number = p.first + begin;
  const double above = p.above();
  for (int64_t level = 0; level <= p.levels; ++level) {
    const bool start = level == 0, last = level == p.levels;
    const auto keep = static_cast<scalar_t>(p.keep[level]);
    const auto ratio =
        last ? scalar_t(0) : static_cast<scalar_t>(p.ratio[level]);

    // Residues are taken, and kept in part.
    machine.template run_parts<lanes, Largest<scalar_t>>(
        n, blocks,
        [=] PYG_TRUST_RUN(int64_t u, int64_t block, int64_t lane) {
          Some row = {};
          const int64_t first = block * width + lane * wide;
          const int64_t left = columns - offset - first;  // that are real
          const bool is_ready = ready[block] != 0;
          scalar_t* kept = z + u * columns + offset + first;
          if (start) {
            const Some from = load_pack<wide>(x + u * columns + offset + first,
                                              left, whole_x);
            Some to;
            for (int c = 0; c < wide; ++c) {
              to.at[c] = keep * from.at[c];
              row.at[c] = send[u] * from.at[c];
            }
            store_pack(kept, to, left, whole_z);
          } else {
            auto* from =
                reinterpret_cast<Pack<int64_t, wide>*>(sums + u * stride + first);
            const Pack<int64_t, wide> got = *from;
            bool some = false;
            for (int c = 0; c < wide; ++c) {
              row.at[c] = is_ready
                              ? known<scalar_t>(got.at[c])
                              : residue<scalar_t>(got.at[c], unit[first + c]);
              some |= got.at[c] != 0;
            }
            if (some)
              *from = {};
          }
          bool any = false;
          for (int c = 0; c < wide; ++c)
            any |= row.at[c] != 0;
          if (any && !is_ready && keep != 0) {
            Some to = load_pack<wide>(kept, left, whole_z);
            for (int c = 0; c < wide; ++c)
              to.at[c] += keep * row.at[c];
            store_pack(kept, to, left, whole_z);
          }
          if (last)
            return Largest<scalar_t>{-1};
          *reinterpret_cast<Some*>(value + u * stride + first) = row;
          return Largest<scalar_t>{
              any ? scale_to_send<wide>(row.at,
                                        send_factor(is_ready, ratio, send[u]),
                                        per_eps + first)
                  : scalar_t(-1)};
        },
        [=] PYG_TRUST_RUN(int64_t u, int64_t block,
                          const Largest<scalar_t>& largest) {
          if (!last)
            mass[u * blocks + block] = largest.value;
        });
    if (last)
      break;

    const auto sent = [=] PYG_TRUST_RUN(int64_t u, int64_t c) {
      return value[u * stride + c] *
             send_factor(ready[c / width] != 0, ratio, send[u]);
    };

    // What all nodes send together, at most, and how many they are.
    machine.template run_parts<kTeam, Total<width>>(
        pieces, blocks,
        [=] PYG_TRUST_RUN(int64_t k, int64_t block, int64_t part) {
          Total<width> sum{};
          const int64_t left = n - k * kTogether;
          const int64_t stop = left < kTogether ? left : kTogether;
          for (int64_t i = part; i < stop; i += kTeam) {
            const int64_t u = k * kTogether + i;
            const scalar_t m = mass[u * blocks + block];
            sum.active += m >= 0 ? 1 : 0;
            if (m > 0) {
              const double most = spread[u] + 1 / static_cast<double>(m);
              for (int c = 0; c < width; ++c) {
                const double r = sent(u, block * width + c);
                sum.most[c] += (r < 0 ? -r : r) * most;
              }
            }
          }
          return sum;
        },
        [=] PYG_TRUST_RUN(int64_t k, int64_t block, const Total<width>& sum) {
          total[k * blocks + block] = sum;
        });
    const Total<width>* all_sent =
        sum_all(machine, static_cast<const Total<width>*>(total), pieces,
                blocks, total + pieces * blocks);
    const Cost* all_cost = cost;
    if (can_pull) {
      machine.run(samples, blocks, [=] PYG_TRUST_RUN(int64_t s, int64_t b) {
        const int64_t u = step / 2 + s * step;
        cost[s * blocks + b] = {visit_cost(graph, u, mass[u * blocks + b])};
      });
      all_cost = sum_all(machine, static_cast<const Cost*>(cost), samples,
                         blocks, cost + samples * blocks);
      machine.zero(pull_rows, 1);
    }
    machine.zero(num_parts, 1);
    machine.run(1, stride, [=] PYG_TRUST_RUN(int64_t, int64_t c) {
      const int64_t block = c / width;
      unit[c] = unit_for(all_sent[block].most[c % width]);
      if (c % width != 0)
        return;
      bool pull = false;
      if (can_pull &&
          (ready[block] != 0 ||
           all_sent[block].active > static_cast<double>(few_nodes(n))))
        pull = all_cost[block].at[0] * static_cast<double>(step) > above;
      pulled[block] = pull;
      pushed[block] += !pull;
      if (pull)
        largest(pull_rows, static_cast<uint64_t>(n));
    });

    // List what is pushed, or make residues ready to be pulled.
    machine.run(n, blocks * lanes, [=] PYG_TRUST_RUN(int64_t u, int64_t at) {
      const int64_t block = at / lanes;
      if (pulled[block] != 0) {
        if (ready[block] == 0) {
          auto* row =
              reinterpret_cast<Some*>(value + u * stride + at * wide);
          Some one = *row;
          for (int c = 0; c < wide; ++c)
            one.at[c] *= send[u];
          *row = one;
        }
        return;
      }
      const scalar_t m = mass[u * blocks + block];
      if (at % lanes != 0 || !(m > 0))
        return;
      const PushUnits all = push_units(graph, u, m);
      units[u * blocks + block] = all;
      for (int64_t from = 0; from < all.all; from += kPushAtOnce) {
        const int64_t i = next(num_parts);
        part_at[i] = u * blocks + block;
        part_number[i] = static_cast<int32_t>(from / kPushAtOnce);
      }
    });
    machine.run(
        most_parts, width,
        [=] PYG_TRUST_RUN(int64_t i, int64_t lane) {
          const int64_t at = part_at[i];
          const int64_t u = at / blocks, block = at % blocks;
          const int64_t from = part_number[i] * kPushAtOnce;
          const int64_t c = block * width + lane;
          const PushUnits all = units[at];
          const int64_t to =
              from + kPushAtOnce < all.all ? from + kPushAtOnce : all.all;
          push_row(graph, u, mass[at],
                   push_key(seed, number + block, level, u),
                   ToColumn<scalar_t>{sums + c, stride, sent(u, c),
                                             unit[c]},
                   PushPart{from, to, all.sure});
        },
        num_parts);

    // Or do the level exactly, and keep a part of what comes out.
    if (can_pull) {
      const auto weight = static_cast<scalar_t>(p.keep[level + 1]);
      gather<width == 1 ? 8 : 1, wide, scalar_t>(
          machine, p.pull_rowptr, p.pull_col, rows, n, value, stride,
          [=] PYG_TRUST_RUN(int64_t group) {
            return pulled[group * wide / width] != 0;
          },
          [=] PYG_TRUST_RUN(int64_t v, int64_t group, const Some& sum) {
            const scalar_t factor = recv[v] * ratio;
            const int64_t first = group * wide;
            int64_t* to = sums + v * stride + first;
            scalar_t* out = z + v * columns + offset + first;
            for (int c = 0; c < wide; ++c) {
              const scalar_t received = sum.at[c] * factor;
              to[c] = exact(send[v] * received);
              if (weight != 0 && offset + first + c < columns)
                out[c] += weight * received;
            }
          },
          reinterpret_cast<const int64_t*>(pull_rows));
    }
    std::swap(ready, pulled);
  }
}

// Estimates sum_i keep-weighted levels for all columns, block after block.
template <typename scalar_t, typename MakeMachine>
void push(const MakeMachine& make_machine, const Dense<scalar_t>& p) {
  constexpr int block = 64 / sizeof(scalar_t);
  constexpr int64_t kCells = int64_t{1} << 26;  // residues at a time
  const int64_t whole = p.columns / block, rest = p.columns % block;
  if (p.num_nodes == 0)
    return;
  int64_t together = kCells / (p.num_nodes * block);
  together = together > 1 ? together : 1;
  for (int64_t begin = 0; begin < whole; begin += together) {
    auto machine = make_machine();
    push_blocks<block>(
        machine, p, block, begin,
        begin + together < whole ? begin + together : whole);
  }
  if (rest == 0)
    return;
  auto machine = make_machine();
  if (rest > 4)
    push_blocks<block>(machine, p, block, whole, whole + 1);
  else if (rest > 1)
    push_blocks<4>(machine, p, block, whole, whole + 1);
  else
    push_blocks<1>(machine, p, block, whole, whole + 1);
}

// Where results go.
template <typename scalar_t>
struct Entries {
  int64_t* node;
  scalar_t* value;
};
template <typename scalar_t>
using Allocate = std::function<Entries<scalar_t>(int64_t)>;

// Where push_row sends: to the next residues of one signal, and its frontier.
template <typename scalar_t>
struct ToSignal {
  int64_t* sums;     // of node 0
  uint32_t* listed;  // of node 0: whether it is in `list`
  int32_t* list;
  int64_t* count;
  int64_t cell;  // of node 0
  scalar_t value;
  Unit unit;

#ifdef __CUDACC__
  __device__
#endif
  void add(int64_t v, scalar_t factor) const {
    send_to(sums + v, value, factor, unit);
    if (raise(listed + v))
      list[next(count)] = static_cast<int32_t>(cell + v);
  }
  PYG_TRUST_HD void prefetch(int64_t) const {}
};

// What counts there are of a push of sparse signals.
enum { kNow, kNext, kParts, kResults, kCounts };

// Between two levels: makes the units from the bounds, and what was next is
// now.
template <typename Machine>
void turn(Machine& machine,
          int64_t signals,
          Unit* unit,
          uint64_t* largest_bound,
          int64_t* sum_bound,
          int64_t* counts) {
  machine.run(1, signals, [=] PYG_TRUST_RUN(int64_t, int64_t k) {
    unit[k] = unit_for(bits<double>(largest_bound[k]) *
                       (static_cast<double>(sum_bound[k]) / 2147483648.0));
    largest_bound[k] = 0;
    sum_bound[k] = 0;
    if (k == 0) {
      counts[kNow] = counts[kNext];
      counts[kNext] = 0;
      counts[kParts] = 0;
    }
  });
}

// The signals [begin, end), each of which has its own residues for all nodes
// (a cell for each of both) and a frontier that lists the cells to visit: time
// is that of the pushes, but for the zeros of the first level. The
// results, `count` entries in ascending order, go to out = allocate(count);
// their number to row[k] for signal k.
template <typename scalar_t, typename Machine>
void push_signals(Machine& machine,
                  const Sparse<scalar_t>& p,
                  int64_t begin,
                  int64_t end,
                  int64_t* row,
                  const Allocate<scalar_t>& allocate) {
  const int64_t n = p.num_nodes, signals = end - begin, cells = signals * n;
  const PushGraph<scalar_t> graph = p.graph;
  auto* sums = machine.template make<int64_t>(cells);
  auto* reserve = machine.template make<scalar_t>(cells);
  auto* listed = machine.template make<uint32_t>(cells);
  auto* kept = machine.template make<uint8_t>(cells);  // in the result
  auto* list = machine.template make<int32_t>(cells);
  auto* next_list = machine.template make<int32_t>(cells);
  auto* result = machine.template make<int32_t>(cells);
  // Of each entry of the list:
  auto* value = machine.template make<scalar_t>(cells);
  auto* mass = machine.template make<scalar_t>(cells);
  auto* units = machine.template make<PushUnits>(cells);
  const int64_t most_parts = signals * (p.num_entries / kPushAtOnce) + 1;
  auto* part_at = machine.template make<int64_t>(most_parts);
  auto* part_from = machine.template make<int64_t>(most_parts);
  auto* counts = machine.template make<int64_t>(kCounts);
  // Of each signal: the largest bound of what a node sends (as bits, which
  // order as the numbers do), and the sum of all in units of 2^-31 of it.
  auto* largest_bound = machine.template make<uint64_t>(signals);
  auto* sum_bound = machine.template make<int64_t>(signals);
  auto* unit = machine.template make<Unit>(signals);
  machine.zero(sums, cells);
  machine.zero(reserve, cells);
  machine.zero(listed, cells);
  machine.zero(kept, cells);
  machine.zero(counts, kCounts);
  machine.zero(largest_bound, signals);
  machine.zero(sum_bound, signals);
  int64_t* const num_now = counts + kNow;
  int64_t* const num_next = counts + kNext;
  int64_t* const num_parts = counts + kParts;
  int64_t* const num_results = counts + kResults;

  const auto add_up = [=] PYG_TRUST_RUN(int64_t k, double one) {
    const double all = bits<double>(largest_bound[k]);
    // Rounded up; 1 stands for 2^31, so that 2^31 of them do not overflow.
    if (one > 0 && all < HUGE_VAL)
      add(sum_bound + k,
          static_cast<int64_t>(one / all * 2147483648.0) + int64_t{1});
  };
  // Level 0: the signals.
  const int64_t* ptr = p.ptr + begin;
  const int64_t* node = p.node;
  const scalar_t* given = p.value;
  const int64_t nnz = p.nnz;
  const auto entry = [=] PYG_TRUST_RUN(int64_t i) {
    // The last signal that starts at i or before: empty ones start there too.
    int64_t low = 0, high = signals;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (ptr[middle] <= i)
        low = middle;
      else
        high = middle;
    }
    return low;
  };
  const auto size_of = [=] PYG_TRUST_RUN(int64_t i) {
    const double r = given[i];
    return r < 0 ? -r : r;
  };
  machine.run(nnz, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
    if (i >= ptr[0] && i < ptr[signals])
      largest(largest_bound + entry(i), bits<uint64_t>(size_of(i)));
  });
  machine.run(nnz, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
    if (i >= ptr[0] && i < ptr[signals])
      add_up(entry(i), size_of(i));
  });
  turn(machine, signals, unit, largest_bound, sum_bound, counts);
  machine.run(nnz, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
    if (i < ptr[0] || i >= ptr[signals])
      return;
    const int64_t k = entry(i);
    const ToSignal<scalar_t> to{sums + k * n, listed + k * n, next_list,
                                       num_next,     k * n,          given[i],
                                       unit[k]};
    to.add(node[i], scalar_t(1));
  });

  const scalar_t* send = p.send;
  const scalar_t* eps = p.eps + begin;
  const scalar_t* prune = p.prune + begin;
  const auto seed = p.seed;
  const int64_t number = p.first + begin;
  for (int64_t level = 0; level <= p.levels; ++level) {
    const bool last = level == p.levels;
    const auto keep = static_cast<scalar_t>(p.keep[level]);
    const auto ratio =
        last ? scalar_t(0) : static_cast<scalar_t>(p.ratio[level]);
    std::swap(list, next_list);
    const int32_t* now = list;
    int32_t* later = next_list;
    // The first pass needs the units of the level before, so that the lists
    // turn, and the units change, after it.
    machine.run(
        cells, 1,
        [=] PYG_TRUST_RUN(int64_t i, int64_t) {
          const int64_t cell = now[i], k = cell / n, u = cell % n;
          scalar_t r = residue<scalar_t>(sums[cell], unit[k]);
          sums[cell] = 0;
          listed[cell] = 0;
          mass[i] = 0;
          if (r == 0)
            return;
          if (keep != 0) {
            reserve[cell] += keep * r;
            if (kept[cell] == 0) {
              kept[cell] = 1;
              result[next(num_results)] = static_cast<int32_t>(cell);
            }
          }
          if (last)
            return;
          const scalar_t per_eps = scalar_t(1) / eps[k];
          const scalar_t m = scale_to_send<1>(
              &r, send_factor(false, ratio, send[u]), &per_eps);
          if (!(m > 0) || is_pruned(r, prune[k] * ratio))
            return;
          value[i] = r;
          mass[i] = m;
          units[i] = push_units(graph, u, m);
          largest(largest_bound + k,
                  bits<uint64_t>(static_cast<double>(std::abs(r)) *
                                 (push_spread(graph, u) +
                                  1 / static_cast<double>(m))));
        },
        num_next);
    if (last)
      break;
    machine.run(
        cells, 1,
        [=] PYG_TRUST_RUN(int64_t i, int64_t) {
          if (!(mass[i] > 0))
            return;
          const int64_t k = now[i] / n, u = now[i] % n;
          const double r = value[i];
          add_up(k, (r < 0 ? -r : r) * (push_spread(graph, u) +
                                        1 / static_cast<double>(mass[i])));
        },
        num_next);
    turn(machine, signals, unit, largest_bound, sum_bound, counts);
    machine.run(
        cells, 1,
        [=] PYG_TRUST_RUN(int64_t i, int64_t) {
          if (!(mass[i] > 0))
            return;
          for (int64_t from = kPushAtOnce; from < units[i].all;
               from += kPushAtOnce) {
            const int64_t at = next(num_parts);
            part_at[at] = i;
            part_from[at] = from;
          }
        },
        num_now);
    const auto push_from = [=] PYG_TRUST_RUN(int64_t i, int64_t from) {
      const PushUnits all = units[i];
      const int64_t to =
          from + kPushAtOnce < all.all ? from + kPushAtOnce : all.all;
      if (from >= to)
        return;
      const int64_t cell = now[i], k = cell / n, u = cell % n;
      push_row(graph, u, mass[i], push_key(seed, number + k, level, u),
               ToSignal<scalar_t>{sums + k * n, listed + k * n, later,
                                         num_next, k * n, value[i], unit[k]},
               PushPart{from, to, all.sure});
    };
    machine.run(
        cells, 1,
        [=] PYG_TRUST_RUN(int64_t i, int64_t) {
          if (mass[i] > 0)
            push_from(i, 0);
        },
        num_now);
    machine.run(
        most_parts, 1,
        [=] PYG_TRUST_RUN(int64_t i, int64_t) {
          push_from(part_at[i], part_from[i]);
        },
        num_parts);
  }

  // The results: above the threshold, the largest, in order.
  const int64_t count = machine.read(num_results);
  auto* key = machine.template make<uint64_t>(count);
  auto* at = machine.template make<int64_t>(count);
  auto* num_kept = machine.template make<int64_t>(1);
  const double threshold = p.threshold;
  const auto all_cells = static_cast<uint64_t>(cells);
  machine.zero(num_kept, 1);
  // Dropped entries come last: behind all cells.
  machine.run(count, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
    const int64_t cell = result[i];
    const double q = reserve[cell];
    const bool stays = (q < 0 ? -q : q) > threshold;
    key[i] = stays ? static_cast<uint64_t>(cell) : all_cells;
    at[i] = cell;
    if (stays)
      next(num_kept);
  });
  machine.sort(key, at, count, bits_for(all_cells + 1));
  int64_t number_kept = machine.read(num_kept);
  if (p.top_k >= 0 && number_kept > 0) {
    // By signal, by size, by node: stable sorts, the last criterion first.
    const int64_t top_k = p.top_k;
    machine.run(number_kept, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
      const double q = reserve[at[i]];
      key[i] = ~bits<uint64_t>(q < 0 ? -q : q);
    });
    machine.sort(key, at, number_kept, 64);
    machine.run(number_kept, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
      key[i] = static_cast<uint64_t>(at[i] / n);
    });
    machine.sort(key, at, number_kept,
                 bits_for(static_cast<uint64_t>(signals)));
    auto* before = machine.template make<int64_t>(signals);
    machine.zero(before, signals);
    machine.run(number_kept, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
      add(before + key[i], int64_t{1});
    });
    machine.sum_before(before, signals);
    machine.zero(num_kept, 1);
    machine.run(number_kept, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
      const bool stays = i - before[key[i]] < top_k;
      key[i] = stays ? static_cast<uint64_t>(at[i]) : all_cells;
      if (stays)
        next(num_kept);
    });
    machine.sort(key, at, number_kept, bits_for(all_cells + 1));
    number_kept = machine.read(num_kept);
  }
  const Entries<scalar_t> out = allocate(number_kept);
  machine.run(number_kept, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
    out.node[i] = at[i] % n;
    out.value[i] = reserve[at[i]];
    add(row + begin + at[i] / n, int64_t{1});
  });
}

// All signals, as many at a time as have no more than kCells cells. `ptr`,
// zeros for every signal and one more, becomes that of the results.
template <typename scalar_t, typename MakeMachine>
void push_sparse(const MakeMachine& make_machine,
                 const Sparse<scalar_t>& p,
                 int64_t* ptr,
                 const std::type_identity_t<Allocate<scalar_t>>& allocate) {
  constexpr int64_t kCells = int64_t{1} << 24;
  int64_t together = p.num_nodes > 0 ? kCells / p.num_nodes : p.num_signals;
  together = together > 1 ? together : 1;
  for (int64_t begin = 0; begin < p.num_signals; begin += together) {
    auto machine = make_machine();
    push_signals(machine, p, begin,
                        begin + together < p.num_signals ? begin + together
                                                         : p.num_signals,
                        ptr, allocate);
  }
  auto machine = make_machine();
  machine.sum_before(ptr, p.num_signals + 1);
}

}  // namespace pyg_trust::device
