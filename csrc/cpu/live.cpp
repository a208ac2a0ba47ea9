// Propagated features of a changing graph by exact sums of integers: with the
// grid 2^-f, degrees d, r = d^-a, s = d^-b (0^-e = 0, d^0 = 1),
//   q_0(u) = rint(2^f s_u x_u),  S_i(v) = sum over u -> v of q_i(u),
//   q_{i+1}(v) = rint(r_v s_v S_i(v)),  y_{i+1}(v) = r_v 2^-f S_i(v).
// Addition of integers is associative: differences may be sent along edges in
// any order, and the sums are those of a fresh start. S_0 .. S_{L-2} are kept.
//
// With L = 2, nodes of many receivers are "heavy": slot[u] is the row of `held`
// with their q_0, which the sums of other nodes that are heavy have, and those
// of light ones do not: there it is added where a sum is read.
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
#include "kernels.h"
#include "parallel.h"
#include "pool.h"
#include "pull.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// Doubles near this one are integers, which their last bits hold: it converts
// integers below 2^51 by an addition, and rounds to nearest, ties to even.
constexpr double kMagic = 6755399441055744.0;
constexpr int64_t kMagicBits = std::bit_cast<int64_t>(kMagic);
constexpr int64_t kHalf = int64_t{1} << 51;
constexpr int64_t kAtOnce = 64;  // columns: work memory
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
void to_grid(const scalar_t* in, double scale, int64_t count, int64_t* out) {
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

void add(int64_t* to, const int64_t* from, int64_t count) {
  for (int64_t c = 0; c < count; ++c)
    to[c] += from[c];
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
  int64_t *clock, names, columns, levels, stride, slots, *sums, *held;
  int32_t *slot, *owner;
  double a, b, grid, heavy;
  bool any_heavy;
  scalar_t* x;

  explicit Live(const State& state)
      : out(state[kRows], state[kCol], state[kFree]),
        into(state[kBackRows], state[kBackCol], state[kBackFree]),
        clock(state[kClock].mutable_data_ptr<int64_t>()),
        names(clock[kNames]),
        columns(state[kFeatures].size(1)),
        levels(state[kSums].size(0)),
        stride(state[kSums].size(1) * columns),
        slots(state[kOwner].numel()),
        sums(state[kSums].mutable_data_ptr<int64_t>()),
        held(state[kHeld].mutable_data_ptr<int64_t>()),
        slot(state[kSlot].mutable_data_ptr<int32_t>()),
        owner(state[kOwner].mutable_data_ptr<int32_t>()),
        any_heavy(std::any_of(owner, owner + slots,
                              [](int32_t u) { return u >= 0; })),
        x(state[kFeatures].mutable_data_ptr<scalar_t>()) {
    const auto* how = state[kHow].const_data_ptr<double>();
    a = how[0];
    b = how[1];
    grid = how[2];
    heavy = how[3];
    along = how[4] != 0;
  }

  const Pool& sending() const { return along ? out : into; }
  const Pool& receiving() const { return along ? into : out; }
  int64_t* sum(int64_t level, int64_t v) const {
    return sums + level * stride + v * columns;
  }

  // q_level of a node of this degree, of the columns from `first` on.
  void sent(int64_t level,
            int64_t v,
            int64_t degree,
            int64_t* to,
            int64_t first,
            int64_t count) const {
    const double s = power(degree, b);
    if (level == 0)
      to_grid(x + v * columns + first, s * grid, count, to);
    else
      to_grid(sum(level - 1, v) + first, power(degree, a) * s, count, to);
  }
  void sent(int64_t level, int64_t v, int64_t degree, int64_t* to) const {
    sent(level, v, degree, to, 0, columns);
  }

  // The slots of heavy nodes in a row: how many are now in `found`.
  int64_t heavy_in(const int32_t* row,
                   const int32_t* end,
                   std::vector<int32_t>& found) const {
    if (std::ssize(found) < end - row)
      found.resize(end - row);
    int64_t many = 0;
    for (; row < end; ++row) {
      found[many] = slot[*row];
      many += found[many] >= 0;
    }
    return many;
  }

  // Adds what heavy senders of v send on level 0; `found` is work memory.
  void add_heavy(int64_t v, int64_t* to, std::vector<int32_t>& found) const {
    const int64_t zero = 0;
    const int64_t many =
        heavy_in(receiving().begin(v), receiving().end(v), found);
    Pull<int64_t> pull{};
    pull.rows = {&zero, &many, found.data()};
    pull.in = held;
    pull.near = pull.add = true;
    pull.columns = columns;
    pull.z = to;
    if (many)
      kernels().pull_long(pull, 0, 1);
  }

  // Adds `sign` times a row to a level of the receivers in [low, high) of u, or
  // of those that are light.
  void send(int64_t level,
            int64_t u,
            const int64_t* what,
            bool minus = false,
            bool light = false,
            int64_t low = 0,
            int64_t high = INT32_MAX) const {
    const auto gets = [&](int64_t v) { return !light || slot[v] < 0; };
    const int32_t* end = sending().end(u);
    const int32_t* at = std::lower_bound(sending().begin(u), end, low);
    for (; at < end && *at < high; ++at) {
      if (at + 6 < end && gets(at[6]))
        fetch(sum(level, at[6]), columns);
      if (!gets(*at))
        continue;
      if (minus)
        subtract(sum(level, *at), what, columns);
      else
        add(sum(level, *at), what, columns);
    }
  }

  // The same of S_0 and of those that are heavy.
  void send_heavy(int64_t u,
                  const int64_t* what,
                  int64_t low,
                  int64_t high) const {
    std::vector<int32_t> found;
    const int32_t* end = sending().end(u);
    const int32_t* at = std::lower_bound(sending().begin(u), end, low);
    const int64_t many = heavy_in(at, std::lower_bound(at, end, high), found);
    for (int64_t k = 0; k < many; ++k) {
      if (k + 6 < many)
        fetch(sum(0, owner[found[k + 6]]), columns);
      add(sum(0, owner[found[k]]), what, columns);
    }
  }

  void forget_slot(int64_t u) const {
    std::fill_n(held + slot[u] * columns, columns, 0);
    owner[slot[u]] = -1;
    slot[u] = -1;
  }

  // Makes u heavy, or light again, if that has become worth it.
  void weigh(int64_t u) const {
    const auto count = static_cast<double>(sending().length[u]);
    if (slot[u] >= 0 ? 2 * count > heavy : count <= heavy)
      return;
    std::vector<int64_t> room(columns), others(columns);
    std::vector<int32_t> found;
    sent(0, u, out.length[u], room.data());
    if (slot[u] >= 0) {
      send(0, u, room.data(), false, true);
      forget_slot(u);
      add_heavy(u, others.data(), found);
      subtract(sum(0, u), others.data(), columns);
      return;
    }
    const int32_t* end = owner + slots;
    const int32_t* place = std::find(const_cast<const int32_t*>(owner), end, -1);
    if (place == end) {
      clock[kFull] = 1;  // it stays in the sums
      return;
    }
    add_heavy(u, sum(0, u), found);
    slot[u] = static_cast<int32_t>(place - owner);
    owner[slot[u]] = static_cast<int32_t>(u);
    std::copy_n(room.data(), columns, held + slot[u] * columns);
    send(0, u, room.data(), true, true);
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
      by_tasks(names, [&](int64_t begin, int64_t end) {
        for (int64_t v = begin; v < end; ++v)
          // Heavy ones are in no sum that is kept.
          if (named[v] && !z && level == 0 && slot[v] >= 0)
            std::fill_n(&sent_rows[v * some], some, 0);
          else if (named[v])
            sent(level, v, out.length[v], &sent_rows[v * some], first, some);
      });
      by_tasks(count, [&, sums = std::vector<int64_t>(task * some)](
                          int64_t begin, int64_t end) mutable {
        Pull<int64_t> pull{};
        pull.rows = {rows.start, rows.length, rows.col};
        pull.list = list + begin;
        pull.in = sent_rows.get();
        pull.columns = some;
        pull.z = sums.data();
        kernels().pull_long(pull, 0, end - begin);
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

  // Sums of a level of all nodes.
  void whole(int64_t level, double* z = nullptr, double weight = 0) const {
    std::vector<int64_t> every(names);
    std::iota(every.begin(), every.end(), 0);
    whole(level, every.data(), names, z, weight);
    std::vector<int32_t> found;
    for (int64_t s = 0; s < slots && !z; ++s)
      if (owner[s] >= 0)
        add_heavy(owner[s], sum(0, owner[s]), found);
  }

  // Adds heavy senders to S_0 of all nodes, or takes them away.
  void heavy_everywhere(bool minus) const {
    constexpr int64_t task = 4096;
    parallel_tasks((names + task - 1) / task, names * columns, [&] {
      return [&](int64_t k) {
        for (int64_t s = 0; s < slots; ++s)
          if (owner[s] >= 0)
            send(0, owner[s], held + s * columns, minus, true, k * task,
                 (k + 1) * task);
      };
    });
  }

  void build() const {
    std::fill_n(slot, names, -1);
    std::fill_n(owner, slots, -1);
    std::fill_n(held, slots * columns, 0);
    int64_t next = 0;
    for (int64_t v = 0; levels == 1 && v < names && next < slots; ++v)
      if (static_cast<double>(sending().length[v]) > heavy) {
        slot[v] = static_cast<int32_t>(next);
        owner[next] = static_cast<int32_t>(v);
        sent(0, v, out.length[v], held + next++ * columns);
      }
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
    const auto place = [&](int64_t u) {
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
        if (slot[u] >= 0)
          std::copy_n(row, columns, held + slot[u] * columns);
        subtract(row, &old[j * columns], columns);
        moved[j] = std::any_of(row, row + columns, [](auto q) { return q; });
      }
      int64_t work = 0;
      for (size_t j = 0; j < senders.size(); ++j)
        if (moved[j]) {
          const int64_t u = senders[j], count = sending().length[u];
          work += slot[u] >= 0 ? std::min(count, slots) : count;
        }
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
        size_t at = 0;
        for (size_t j = 0; j < next.size(); ++j) {
          while (at < named.size() && named[at] < next[j])
            ++at;
          const bool known = at < named.size() && named[at] == next[j];
          sent(level + 1, next[j], known ? degrees[at] : out.length[next[j]],
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
            const int64_t u = senders[j], *what = &more[j * columns];
            if (moved[j] && slot[u] >= 0)
              send_heavy(u, what, low, high);
            else if (moved[j])
              send(level, u, what, false, false, low, high);
          }
          for (const Arc& arc : arcs) {
            const int64_t u = along ? arc.row : arc.target;
            const int64_t v = along ? arc.target : arc.row;
            if (v < low || v >= high || (slot[u] >= 0 && slot[v] < 0))
              continue;
            const int64_t* row = &old[place(u) * columns];
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
    for (size_t j = 0; j < named.size() && levels == 1; ++j)
      weigh(named[j]);
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
      if (any_heavy && slot[v] < 0)
        add_heavy(v, total, found);
    } else {
      std::fill_n(total, columns, 0);
      for (const int32_t* at = rows.begin(v); at < rows.end(v); ++at) {
        if (levels && at + 4 < rows.end(v))
          fetch(sum(levels - 1, at[4]), columns);
        const int64_t u = *at, degree = out.length[u];
        if (any_heavy && slot[u] < 0) {
          std::copy_n(sum(0, u), columns, part);
          add_heavy(u, part, found);
          to_grid(part, power(degree, a) * power(degree, b), columns, part);
        } else {
          sent(levels, u, degree, part);
        }
        add(total, part, columns);
      }
    }
    const double scale = power(out.length[v], a) / grid;
    for (int64_t c = 0; c < columns; ++c)
      z[c] += weight * (scale * static_cast<double>(total[c]));
  }
};

void live_build(const State& state) {
  with_real(state[kFeatures], [&](auto zero) {
    const Live<decltype(zero)> live(state);
    live.build();
    live.clock[kBroken] = 0;
  });
}

int64_t live_rows(const State& state,
                  const Tensor& weights,
                  const std::optional<Tensor>& list,
                  const Tensor& z) {
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
    // With heavy nodes, many rows are read as all of them.
    const bool some = list && live.any_heavy && 8 * list->numel() > names;
    const bool all = !list || some;
    const auto* nodes = list ? list->const_data_ptr<int64_t>() : nullptr;
    const int64_t count = all ? names : list->numel();
    const int64_t size = some ? names * columns : 0;
    const std::unique_ptr<double[]> every(new double[size]);
    auto* to = some ? every.get() : z.mutable_data_ptr<double>();
    // With all of them, the last level is read as a whole.
    const bool heavy = all && live.levels == 1;
    live.clock[kBroken] |= heavy;
    if (heavy)
      live.heavy_everywhere(false);
    // Many rows are read together: what their neighbours send is made once.
    int64_t entries = 0;
    for (int64_t k = 0; !all && k < count; ++k)
      entries += live.receiving().length[nodes[k]];
    const bool whole = all || (!live.any_heavy && 2 * entries > live.names);
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
            if (!whole) {
              live.level_row(level, v, w[level], total.data(), part.data(),
                             found, row);
              continue;
            }
            const double scale = power(live.out.length[v], live.a) / live.grid;
            const int64_t* sum = live.sum(level - 1, v);
            for (int64_t c = 0; c < columns; ++c)
              row[c] += w[level] * (scale * static_cast<double>(sum[c]));
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
    if (heavy) {
      live.heavy_everywhere(true);
      live.clock[kBroken] = 0;
    }
    for (int64_t k = 0; some && k < list->numel(); ++k)
      std::copy_n(to + nodes[k] * columns, columns,
                  z.mutable_data_ptr<double>() + k * columns);
  });
  return -1;
}

void live_mark(const State& state, const Tensor& nodes, const Tensor& mark) {
  const bool along = state[kHow].const_data_ptr<double>()[4] != 0;
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
