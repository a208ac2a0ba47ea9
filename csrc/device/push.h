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
// border of two entries, an entry whose mass is exactly one quantum, or a cost
// that is exactly the limit. Of few_nodes(), a node whose residues cancel is
// none here; the CPU, which lists nodes as they get some, has listed it.
#pragma once

#include <cmath>
#include <cstdint>
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
  void add(int64_t v, double factor) const {
    if (unit.up != 0)
      device::add(sums + v * stride, to_integer(value * factor * unit.up));
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
          });
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

}  // namespace pyg_trust::device
