// Propagated features of a changing graph by exact sums of integers: with the
// grid 2^-f, degrees d, r = d^-a, s = d^-b (0^-e = 0, d^0 = 1),
//   q_0(u) = rint(2^f s_u x_u),  S_i(v) = sum over u -> v of q_i(u),
//   q_{i+1}(v) = rint(r_v s_v S_i(v)),  y_{i+1}(v) = r_v 2^-f S_i(v).
// Addition of integers is associative: differences may be sent along edges in
// any order, and the sums are those of a fresh start. S_0 .. S_{L-2} are kept.
//
// With L = 2, S_0(v) is kept of the senders u that rank[u] <= limit[rank[v]]
// says, and the rest is added where it is read. The rank of a node is the width
// of its number of receivers in bits, and stays while that is little less.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "dispatch.h"
#include "gather.h"
#include "kernels.h"
#include "parallel.h"
#include "pool.h"
#include "pull.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

constexpr int64_t kAtOnce = 64;  // columns: work memory

// Doubles near this one are integers, which their last bits hold: it converts
// integers below 2^51 by an addition, and rounds to nearest, ties to even.
constexpr double kMagic = 6755399441055744.0;
constexpr int64_t kMagicBits = __builtin_bit_cast(int64_t, kMagic);
constexpr int64_t kHalf = int64_t{1} << 51;

double power(int64_t degree, double e) {
  if (e == 0)
    return 1;
  if (degree == 0)
    return 0;
  const auto d = static_cast<double>(degree);
  return e == 0.5 ? 1 / std::sqrt(d) : e == 1 ? 1 / d : std::pow(d, -e);
}

// out = rint(scale * in), of numbers.
template <typename scalar_t>
PYG_TRUST_CLONES void to_grid(const scalar_t* in,
                              double scale,
                              int64_t count,
                              int64_t* out) {
  uint64_t wide = 0;
  for (int64_t c = 0; c < count; ++c) {
    const double value = scale * static_cast<double>(in[c]);
    out[c] = std::bit_cast<int64_t>(value + kMagic) - kMagicBits;
    wide |= static_cast<uint64_t>(out[c] + kHalf);
  }
  if (wide >> 52)
    for (int64_t c = 0; c < count; ++c)
      out[c] = std::llrint(scale * static_cast<double>(in[c]));
}

// The same, of integers; may be in place.
void to_grid(const int64_t* in, double scale, int64_t count, int64_t* out) {
  uint64_t wide = 0;
  for (int64_t c = 0; c < count; ++c)
    wide |= static_cast<uint64_t>(in[c] + kHalf);
  if (wide >> 52) {
    for (int64_t c = 0; c < count; ++c)
      out[c] = std::llrint(scale * static_cast<double>(in[c]));
    return;
  }
  // Here |scale| <= 1, so that what comes out is no larger.
  for (int64_t c = 0; c < count; ++c) {
    const double value = std::bit_cast<double>(in[c] + kMagicBits) - kMagic;
    out[c] = std::bit_cast<int64_t>(scale * value + kMagic) - kMagicBits;
  }
}

PYG_TRUST_CLONES void add(int64_t* to, const int64_t* from, int64_t count) {
  for (int64_t c = 0; c < count; ++c)
    to[c] += from[c];
}

// to += rint(scale * in), of numbers.
template <typename scalar_t>
PYG_TRUST_CLONES void add_grid(const scalar_t* in,
                               double scale,
                               int64_t count,
                               int64_t* to) {
  const auto near = [&](int64_t c) __attribute__((always_inline)) {
    const double value = scale * static_cast<double>(in[c]);
    return std::bit_cast<int64_t>(value + kMagic) - kMagicBits;
  };
  uint64_t wide = 0;
  for (int64_t c = 0; c < count; ++c) {
    to[c] += near(c);
    wide |= static_cast<uint64_t>(near(c) + kHalf);
  }
  for (int64_t c = 0; wide >> 52 && c < count; ++c)
    to[c] += std::llrint(scale * static_cast<double>(in[c])) - near(c);
}

void subtract(int64_t* to, const int64_t* from, int64_t count) {
  for (int64_t c = 0; c < count; ++c)
    to[c] -= from[c];
}

template <typename T>
void fetch(const T* row, int64_t count) {
  for (int64_t c = 0; c < count; c += 64 / int64_t{sizeof(T)})
    __builtin_prefetch(row + c);
}

// Graph, features and sums of such an object.
template <typename scalar_t>
struct Live {
  Pool out, into;
  bool along;
  int64_t *clock, names, columns, levels, stride, *sums;
  int8_t* rank;
  const int8_t* limit;
  double a, b, grid;
  bool partial;
  scalar_t* x;

  explicit Live(const State& state)
      : out(state[kRows], state[kCol], state[kFree]),
        into(state[kBackRows], state[kBackCol], state[kBackFree]),
        clock(state[kClock].mutable_data_ptr<int64_t>()),
        names(clock[kNames]),
        columns(state[kFeatures].size(1)),
        levels(state[kSums].size(0)),
        stride(state[kSums].size(1) * columns),
        sums(state[kSums].mutable_data_ptr<int64_t>()),
        rank(state[kRank].mutable_data_ptr<int8_t>()),
        limit(state[kLimit].const_data_ptr<int8_t>()),
        partial(limit[0] < kEvery),
        x(state[kFeatures].mutable_data_ptr<scalar_t>()) {
    const auto* how = state[kHow].const_data_ptr<double>();
    a = how[0];
    b = how[1];
    grid = how[2];
    along = how[3] != 0;
  }

  const Pool& sending() const { return along ? out : into; }
  const Pool& receiving() const { return along ? into : out; }
  int64_t* sum(int64_t level, int64_t v) const {
    return sums + level * stride + v * columns;
  }

  // q_level of a node of this degree from what is stored.
  void sent(int64_t level, int64_t v, int64_t degree, int64_t* to) const {
    const double s = power(degree, b);
    if (level == 0)
      to_grid(x + v * columns, s * grid, columns, to);
    else
      to_grid(sum(level - 1, v), power(degree, a) * s, columns, to);
  }

  // The same of all that is received, of the columns from `first` on; `found`
  // is work memory.
  void sent_now(int64_t level,
                int64_t v,
                int64_t* to,
                std::vector<int32_t>& found,
                int64_t first,
                int64_t count) const {
    const double s = power(out.length[v], b);
    if (level == 0) {
      to_grid(x + v * columns + first, s * grid, count, to);
      return;
    }
    const int64_t* from = sum(level - 1, v) + first;
    if (lacks(v)) {
      std::copy_n(from, count, to);
      add_rest(v, to, found, first, count);
      from = to;
    }
    to_grid(from, power(out.length[v], a) * s, count, to);
  }

  // Whether senders of v may not be in S_0(v).
  bool lacks(int64_t v) const { return limit[rank[v]] < kEvery; }

  // Adds q_0 of the senders of v that are not in S_0(v).
  void add_rest(int64_t v,
                int64_t* to,
                std::vector<int32_t>& found,
                int64_t first,
                int64_t count) const {
    found.clear();
    const int8_t most = limit[rank[v]];
    append(receiving(), v, found, [&](int64_t u) { return rank[u] > most; });
    for (size_t k = 0; k < found.size(); ++k) {
      if (k + 4 < found.size()) {
        fetch(x + found[k + 4] * columns + first, count);
        __builtin_prefetch(out.length + found[k + 4]);
      }
      const int64_t u = found[k];
      add_grid(x + u * columns + first, power(out.length[u], b) * grid, count,
               to);
    }
  }

  // Appends the entries of a row that are as asked.
  template <typename Is>
  static void append(const Pool& rows,
                     int64_t v,
                     std::vector<int32_t>& found,
                     const Is& is) {
    const auto before = std::ssize(found);
    const int32_t *at = rows.begin(v), *end = rows.end(v);
    found.resize(before + (end - at));
    int32_t* to = found.data() + before;
    for (; at < end; ++at) {
      *to = *at;
      to += is(*at);
    }
    found.resize(to - found.data());
  }

  // Gives a node the rank of its present number of receivers, if that has
  // become worth it.
  void place(int64_t u) const {
    const int64_t count = sending().length[u];
    const auto now = static_cast<int8_t>(std::bit_width<uint64_t>(count));
    const int8_t before = rank[u];
    if (now == before || (now < before && 8 * count >= 3 << before))
      return;
    std::vector<int64_t> row(columns);
    sent(0, u, out.length[u], row.data());
    const int32_t* end = sending().end(u);
    for (const int32_t* at = sending().begin(u); at < end; ++at) {
      const int8_t then = rank[*at];
      const bool had = before <= limit[then];
      const bool has = now <= limit[*at == u ? now : then];
      if (has && !had)
        add(sum(0, *at), row.data(), columns);
      else if (had && !has)
        subtract(sum(0, *at), row.data(), columns);
    }
    for (const int32_t* at = receiving().begin(u); at < receiving().end(u);
         ++at) {
      const bool had = rank[*at] <= limit[before];
      const bool has = rank[*at] <= limit[now];
      if (had == has || *at == u)
        continue;
      sent(0, *at, out.length[*at], row.data());
      if (has)
        add(sum(0, u), row.data(), columns);
      else
        subtract(sum(0, u), row.data(), columns);
    }
    rank[u] = now;
  }

  // Sums of a level of the nodes in a list: kept, or times weight * r * 2^-f
  // added to rows of z.
  void whole(int64_t level,
             const int64_t* list,
             int64_t count,
             double* z,
             double weight) const {
    const Pool& rows = receiving();
    std::vector<char> named(names, count == names);
    for (int64_t k = 0; k < count && count < names; ++k)
      for (const int32_t *at = rows.begin(list[k]), *end = rows.end(list[k]);
           at < end; ++at)
        named[*at] = 1;
    // Not zeroed: it is as large as what is read.
    const int64_t wide = std::min(columns, kAtOnce);
    const std::unique_ptr<int64_t[]> sent_rows(new int64_t[names * wide]);
    constexpr int64_t task = 64;
    const auto by_tasks = [&](int64_t size, const auto& run) {
      parallel_tasks((size + task - 1) / task, size * columns, [&] {
        return [&, run = run](int64_t k) mutable {
          run(k * task, std::min(size, (k + 1) * task));
        };
      });
    };
    for (int64_t first = 0; first < columns; first += kAtOnce) {
      const int64_t some = std::min(kAtOnce, columns - first);
      by_tasks(names, [&, found = std::vector<int32_t>()](
                          int64_t begin, int64_t end) mutable {
        for (int64_t v = begin; v < end; ++v)
          if (named[v])
            sent_now(level, v, &sent_rows[v * some], found, first, some);
      });
      by_tasks(count, [&, sums = std::vector<int64_t>(task * some)](
                          int64_t begin, int64_t end) mutable {
        Pull<int64_t> pull{};
        pull.rows = {rows.start, rows.length, rows.col};
        pull.list = list + begin;
        pull.in = sent_rows.get();
        pull.columns = some;
        pull.z = sums.data();
        kernels_of<PullKernel<int64_t>>().pull(pull, 0, end - begin);
        for (int64_t k = begin; k < end; ++k) {
          const int64_t v = list[k], *row = &sums[(k - begin) * some];
          const double scale = z ? power(out.length[v], a) / grid : 1;
          for (int64_t c = 0; c < some; ++c)
            if (z)
              z[k * columns + first + c] +=
                  weight * (scale * static_cast<double>(row[c]));
            else
              sum(level, v)[first + c] = row[c];
        }
      });
    }
  }

  // S_0 of all nodes, from x: rows that are sent take twice the memory.
  void first() const {
    std::vector<double> scale(names);
    for (int64_t v = 0; v < names; ++v)
      scale[v] = power(out.length[v], b) * grid;
    constexpr int64_t task = 64, soon = 8;
    parallel_tasks((names + task - 1) / task, names * columns, [&] {
      return [&, found = std::vector<int32_t>(),
              ends = std::vector<size_t>(task)](int64_t k) mutable {
        const int64_t begin = k * task, end = std::min(names, begin + task);
        found.clear();
        for (int64_t v = begin; v < end; ++v) {
          const int8_t most = limit[rank[v]];
          append(receiving(), v, found,
                 [&](int64_t u) { return rank[u] <= most; });
          ends[v - begin] = found.size();
        }
        size_t e = 0;
        for (int64_t v = begin; v < end; ++v) {
          std::fill_n(sum(0, v), columns, 0);
          for (; e < ends[v - begin]; ++e) {
            if (e + soon < found.size())
              fetch(x + found[e + soon] * columns, columns);
            add_grid(x + found[e] * columns, scale[found[e]], columns,
                     sum(0, v));
          }
        }
      };
    });
  }

  // Sums of a level of all nodes.
  void whole(int64_t level, double* z = nullptr, double weight = 0) const {
    if (level == 0 && !z) {
      first();
      return;
    }
    std::vector<int64_t> every(names);
    std::iota(every.begin(), every.end(), 0);
    whole(level, every.data(), names, z, weight);
  }

  void build() const {
    for (int64_t v = 0; v < names; ++v)
      rank[v] = static_cast<int8_t>(
          std::bit_width<uint64_t>(sending().length[v]));
    for (int64_t level = 0; level < levels; ++level)
      whole(level);
  }

  // One edit of the sums; rows and features are edited already.
  void follow(std::vector<int64_t> senders,
              std::vector<int64_t> old,
              const std::vector<int64_t>& degrees,
              const std::vector<Arc>& arcs,
              const std::vector<char>& changed) const {
    const std::vector<int64_t> named = senders;
    std::vector<int64_t> more(old.size()), receivers, next;
    std::vector<char> moved = changed;
    std::vector<int32_t> kept;
    std::vector<int64_t> from;
    const auto at = [&](int64_t u) {
      return std::lower_bound(senders.begin(), senders.end(), u) -
             senders.begin();
    };
    for (int64_t level = 0; level < levels; ++level) {
      for (size_t j = 0; j < senders.size(); ++j) {
        if (!moved[j])
          continue;
        const int64_t u = senders[j];
        int64_t* row = &more[j * columns];
        sent(level, u, out.length[u], row);
        subtract(row, &old[j * columns], columns);
        moved[j] = std::any_of(row, row + columns, [](auto q) { return q; });
      }
      // Who receives them: those of j are from[j] to from[j + 1].
      kept.clear();
      from.assign(1, 0);
      for (size_t j = 0; j < senders.size(); ++j) {
        const int64_t u = senders[j];
        const auto least = static_cast<int8_t>(
            std::lower_bound(limit, limit + kRanks, rank[u]) - limit);
        if (moved[j])
          append(sending(), u, kept,
                 [&](int64_t v) { return rank[v] >= least; });
        from.push_back(std::ssize(kept));
      }
      auto work = std::ssize(kept);
      if (work > names &&
          3 * work > std::accumulate(out.length, out.length + names,
                                     int64_t{0})) {
        // So many differences cost more than to make the sums anew.
        for (; level < levels; ++level)
          whole(level);
        break;
      }
      work *= columns;
      std::vector<int64_t> other;
      if (level + 1 < levels) {
        next = named;
        for (size_t j = 0; j < senders.size(); ++j)
          if (moved[j])
            next.insert(next.end(), sending().begin(senders[j]),
                        sending().end(senders[j]));
        tidy(next);
        other.resize(next.size() * columns);
        size_t i = 0;
        for (size_t j = 0; j < next.size(); ++j) {
          while (i < named.size() && named[i] < next[j])
            ++i;
          const bool known = i < named.size() && named[i] == next[j];
          sent(level + 1, next[j], known ? degrees[i] : out.length[next[j]],
               &other[j * columns]);
        }
      }
      // By ranges of receivers: each sum is written by one thread.
      const int64_t tasks = work < (int64_t{1} << 22) ? 1 : 32;
      const int64_t wide = (names + tasks - 1) / tasks;
      parallel_tasks(tasks, work, [&] {
        return [&](int64_t k) {
          const int64_t low = k * wide, high = (k + 1) * wide;
          for (size_t j = 0; j < senders.size(); ++j) {
            const int32_t* end = kept.data() + from[j + 1];
            const int32_t* at =
                std::lower_bound(end - (from[j + 1] - from[j]), end, low);
            for (; at < end && *at < high; ++at) {
              if (at + 6 < end)
                fetch(sum(level, at[6]), columns);
              add(sum(level, *at), &more[j * columns], columns);
            }
          }
          for (const Arc& arc : arcs) {
            const int64_t u = along ? arc.row : arc.target;
            const int64_t v = along ? arc.target : arc.row;
            if (v < low || v >= high ||
                (partial && rank[u] > limit[rank[v]]))
              continue;
            const int64_t* row = &old[at(u) * columns];
            if (arc.sign > 0)
              add(sum(level, v), row, columns);
            else
              subtract(sum(level, v), row, columns);
          }
        };
      });
      if (level + 1 < levels) {
        senders = next;
        old = std::move(other);
        more.resize(old.size());
        moved.assign(senders.size(), 1);
      }
    }
    for (size_t j = 0; j < named.size() && partial; ++j)
      place(named[j]);
  }

  // z += weight * y_level of one node.
  void level_row(int64_t level,
                 int64_t v,
                 double weight,
                 int64_t* total,
                 int64_t* part,
                 std::vector<int32_t>& found,
                 double* z) const {
    const Pool& rows = receiving();
    if (level <= levels) {
      std::copy_n(sum(level - 1, v), columns, total);
      if (lacks(v))
        add_rest(v, total, found, 0, columns);
    } else {
      std::fill_n(total, columns, 0);
      for (const int32_t* at = rows.begin(v); at < rows.end(v); ++at) {
        if (levels && at + 4 < rows.end(v)) {
          fetch(sum(levels - 1, at[4]), columns);
          if (partial)
            __builtin_prefetch(rows.begin(at[4]));
        }
        if (partial && at + 8 < rows.end(v))
          __builtin_prefetch(rows.start + at[8]);
        sent_now(levels, *at, part, found, 0, columns);
        add(total, part, columns);
      }
    }
    const double scale = power(out.length[v], a) / grid;
    for (int64_t c = 0; c < columns; ++c)
      z[c] += weight * (scale * static_cast<double>(total[c]));
  }
};

void live_build(const State& state) {
  check_flat(state, {});
  with_real(state[kFeatures], [&](auto zero) {
    const Live<decltype(zero)> live(state);
    live.clock[kBroken] = 1;
    live.build();
    live.clock[kBroken] = 0;
  });
}

int64_t live_rows(const State& state,
                  const Tensor& weights,
                  const std::optional<Tensor>& list,
                  const Tensor& z) {
  check_flat(state, {&weights, &z, list ? &*list : &z});
  const int64_t names = state[kClock].const_data_ptr<int64_t>()[kNames];
  const bool* alive = state[kFlags].const_data_ptr<bool>();
  for (int64_t k = 0; list && k < list->numel(); ++k) {
    const int64_t v = list->const_data_ptr<int64_t>()[k];
    if (v < 0 || v >= names || !alive[v])
      return k;
  }
  with_real(state[kFeatures], [&](auto zero) {
    using scalar_t = decltype(zero);
    const Live<scalar_t> live(state);
    const auto* w = weights.const_data_ptr<double>();
    const int64_t top = weights.numel() - 1, columns = live.columns;
    const bool all = !list;
    const auto* nodes = list ? list->const_data_ptr<int64_t>() : nullptr;
    const int64_t count = all ? names : list->numel();
    auto* to = z.mutable_data_ptr<double>();
    // Many rows are read together: what their neighbours send is made once.
    int64_t entries = 0;
    for (int64_t k = 0; !all && k < count; ++k)
      entries += live.receiving().length[nodes[k]];
    const bool whole = all || 2 * entries > live.names;
    constexpr int64_t task = 8;
    parallel_tasks((count + task - 1) / task, count * columns * 16, [&] {
      std::vector<int64_t> total(columns), part(columns);
      std::vector<int32_t> found;
      return [&, total, part, found](int64_t k) mutable {
        for (int64_t j = k * task; j < std::min(count, (k + 1) * task); ++j) {
          const int64_t v = all ? j : nodes[j];
          double* row = to + j * columns;
          for (int64_t c = 0; c < columns; ++c)
            row[c] = w[0] * static_cast<double>(live.x[v * columns + c]);
          for (int64_t level = 1; level <= top; ++level) {
            if (w[level] == 0 || (whole && level > live.levels))
              continue;
            live.level_row(level, v, w[level], total.data(), part.data(),
                           found, row);
          }
        }
      };
    });
    if (whole && top > 0 && w[top] != 0) {
      if (all)
        live.whole(live.levels, to, w[top]);
      else
        live.whole(live.levels, nodes, count, to, w[top]);
    }
  });
  return -1;
}

void live_mark(const State& state, const Tensor& nodes, const Tensor& mark) {
  check_flat(state, {&nodes, &mark});
  const bool along = state[kHow].const_data_ptr<double>()[3] != 0;
  const size_t at = along ? kRows : kBackRows;
  const Pool sending(state[at], state[at + kCol], state[at + kFree]);
  const auto* list = nodes.const_data_ptr<int64_t>();
  auto* marked = mark.mutable_data_ptr<bool>();
  for (int64_t k = 0; k < nodes.numel(); ++k)
    for (auto* to = sending.begin(list[k]); to < sending.end(list[k]); ++to)
      marked[*to] = true;
}

int64_t live_edit(const State& state,
                  const Tensor& arcs,
                  const Tensor& loops,
                  const Tensor& nodes,
                  int64_t names,
                  const Tensor& named,
                  const Tensor& values,
                  int64_t edits) {
  check_flat(state, {&arcs, &loops, &nodes, &named, &values});
  const auto* given = arcs.const_data_ptr<int64_t>();
  const int64_t count = arcs.size(1);
  std::vector<Arc> there, back;
  std::vector<int64_t> senders;
  for (int64_t k = 0; k < count; ++k) {
    there.push_back({given[k], given[count + k], given[2 * count + k]});
    senders.push_back(given[k]);
    senders.push_back(given[count + k]);
  }
  const auto* list = named.const_data_ptr<int64_t>();
  senders.insert(senders.end(), list, list + named.numel());
  tidy(senders);
  int64_t need = 0;
  with_real(state[kFeatures], [&](auto zero) {
    using scalar_t = decltype(zero);
    Live<scalar_t> live(state);
    int64_t* now = live.clock;
    // Names that come have rows already, of nothing.
    live.names = std::max(live.names, names);
    if (live.out.start != live.into.start) {
      for (const Arc& arc : there)
        back.push_back({arc.target, arc.row, arc.sign});
      std::sort(back.begin(), back.end(), [](const Arc& p, const Arc& q) {
        return std::tie(p.row, p.target) < std::tie(q.row, q.target);
      });
    }
    need = std::max(live.out.needs(there), live.into.needs(back));
    if (need > 0)
      return;
    const int64_t columns = live.columns;
    std::vector<int64_t> old, degrees(senders.size());
    std::vector<char> changed(senders.size(), live.b > 0);
    if (live.levels)
      old.resize(senders.size() * columns);
    for (size_t j = 0; j < senders.size(); ++j) {
      degrees[j] = live.out.length[senders[j]];
      if (live.levels)
        live.sent(0, senders[j], degrees[j], &old[j * columns]);
    }
    // From here on nothing fails that leaves graph and features between.
    now[kBroken] = 1;
    live.out.edit(there);
    live.into.edit(back);
    auto* alive = state[kFlags].mutable_data_ptr<bool>();
    bool* own = alive + state[kFlags].size(1);
    for (int64_t k = 0; k < loops.numel(); ++k)
      own[loops.const_data_ptr<int64_t>()[k]] ^= true;
    for (int64_t k = 0; k < nodes.numel(); ++k)
      alive[nodes.const_data_ptr<int64_t>()[k]] ^= true;
    const auto* rows_of = values.const_data_ptr<scalar_t>();
    for (int64_t k = 0; k < named.numel(); ++k) {
      std::copy_n(rows_of + k * columns, columns, live.x + list[k] * columns);
      changed[std::lower_bound(senders.begin(), senders.end(), list[k]) -
              senders.begin()] = 1;
    }
    now[kNames] = names;
    now[kEdits] = edits;
    for (size_t j = 0; j < senders.size(); ++j)
      if (degrees[j] == 0 || live.out.length[senders[j]] == 0)
        changed[j] = 1;
    live.follow(senders, std::move(old), degrees, there, changed);
    now[kBroken] = 0;
  });
  return need;
}
}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("live_build", TORCH_BOX(&pyg_trust::live_build));
  m.impl("live_rows", TORCH_BOX(&pyg_trust::live_rows));
  m.impl("live_mark", TORCH_BOX(&pyg_trust::live_mark));
  m.impl("live_edit", TORCH_BOX(&pyg_trust::live_edit));
}
