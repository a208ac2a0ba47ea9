// Playing events on a graph that stays as it is, to see what changes in the
// end: what comes and goes again is nothing.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "pool.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// What an event is, and why one is refused.
enum Kind : int64_t {
  kRemoveEdge,
  kInsertEdge,
  kRemoveNode,
  kAddNode,
  kChangeNode
};
enum Reason : int64_t { kNode, kMissing, kThere, kDegree };

// Plays events on rows that stay as they are; what has changed in the end.
std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t> live_net(
    const State& state,
    const Tensor& events,
    double most) {
  check_flat(state, {&events});
  const Pool out(state[kRows], state[kCol], state[kFree]);
  const Pool into(state[kBackRows], state[kBackCol], state[kBackFree]);
  const auto* how = state[kHow].const_data_ptr<double>();
  const bool both = out.start == into.start;
  const bool along = how[3] != 0, self_loops = how[4] != 0;
  const int64_t before = state[kClock].const_data_ptr<int64_t>()[kNames];
  const int64_t count = events.size(1);
  const auto* kind = events.const_data_ptr<int64_t>();
  const bool* alive = state[kFlags].const_data_ptr<bool>();
  const bool* own = alive + state[kFlags].size(1);
  int64_t names = before;
  const int64_t base = before + count + 1;
  struct Held {
    bool was, is;
  };
  std::unordered_map<int64_t, Held> arcs, loops, lives;
  std::unordered_map<int64_t, std::vector<int64_t>> put;
  const auto flag = [&](auto& map, const bool* held, int64_t v) -> Held& {
    const bool was = v < before && held[v];
    return map.try_emplace(v, Held{was, was}).first->second;
  };
  const auto there = [&](int64_t v) {
    return v >= 0 && v < names && flag(lives, alive, v).is;
  };
  const auto arc = [&](int64_t u, int64_t v) -> Held& {
    if (both && u > v)
      std::swap(u, v);
    const auto [at, made] = arcs.try_emplace(u * base + v, Held{});
    if (made && u < before && v < before) {
      const bool was = std::binary_search(out.begin(u), out.end(u),
                                          static_cast<int32_t>(v));
      at->second = {was, was};
    }
    return at->second;
  };
  const auto lists = [&](const std::vector<int64_t>& found) {
    Tensor made = torch::stable::new_empty(
        events, {static_cast<int64_t>(found.size())});
    std::copy(found.begin(), found.end(), made.mutable_data_ptr<int64_t>());
    return made;
  };
  const auto refused = [&](int64_t k, Reason reason) {
    const Tensor none = lists({});
    return std::make_tuple(none, none, none, none, k * 4 + reason);
  };
  for (int64_t k = 0; k < count; ++k) {
    const int64_t u = kind[count + k], v = kind[2 * count + k];
    if (kind[k] == kAddNode) {
      ++names;
      flag(lives, alive, u).is = true;
      if (self_loops)
        arc(u, u).is = true;
    } else if (kind[k] == kChangeNode) {
      if (!there(u))
        return refused(k, kNode);
    } else if (kind[k] == kRemoveNode) {
      if (!there(u))
        return refused(k, kNode);
      flag(lives, alive, u).is = false;
      if (u < before) {
        for (const int32_t* at = out.begin(u); at < out.end(u); ++at)
          arc(u, *at).is = false;
        for (const int32_t* at = into.begin(u); at < into.end(u); ++at)
          arc(*at, u).is = false;
      }
      for (const int64_t key : put[u])
        arcs[key].is = false;
      arc(u, u).is = false;
      flag(loops, own, u).is = false;
    } else {
      const bool insert = kind[k] == kInsertEdge;
      if (!there(u) || !there(v))
        return refused(k, insert ? kNode : kMissing);
      Held& edge = u == v ? flag(loops, own, u) : arc(u, v);
      if (edge.is == insert)
        return refused(k, insert ? kThere : kMissing);
      edge.is = insert;
      if (u == v && !self_loops)
        arc(u, u).is = insert;
      if (insert && u != v) {
        const bool turn = both && u > v;
        const int64_t key = turn ? v * base + u : u * base + v;
        put[u].push_back(key);
        put[v].push_back(key);
      }
    }
  }
  std::vector<Arc> made;
  for (const auto& [key, state] : arcs) {
    if (state.was == state.is)
      continue;
    const int64_t u = key / base, v = key % base, sign = state.is ? 1 : -1;
    made.push_back({u, v, sign});
    if (both && u != v)
      made.push_back({v, u, sign});
  }
  std::sort(made.begin(), made.end(), [](const Arc& p, const Arc& q) {
    return std::tie(p.row, p.target) < std::tie(q.row, q.target);
  });
  // No receiver may have more senders than its sum has bits for.
  std::unordered_map<int64_t, int64_t> more;
  for (const Arc& each : made)
    more[along ? each.target : each.row] += each.sign;
  for (const auto& [v, by] : more) {
    const int64_t now = v < before ? (along ? into : out).length[v] : 0;
    if (by > 0 && static_cast<double>(now + by) >= most)
      return refused(v, kDegree);
  }
  const auto size = static_cast<int64_t>(made.size());
  Tensor changed = torch::stable::new_empty(events, {3, size});
  auto* to = changed.mutable_data_ptr<int64_t>();
  for (int64_t k = 0; k < size; ++k) {
    to[k] = made[k].row;
    to[size + k] = made[k].target;
    to[2 * size + k] = made[k].sign;
  }
  std::vector<int64_t> touched;
  for (const Arc& each : made)
    touched.push_back(each.row), touched.push_back(each.target);
  for (int64_t k = 0; k < count; ++k)
    if (kind[k] == kChangeNode || kind[k] == kAddNode)
      touched.push_back(kind[count + k]);
  const Tensor none = lists({});
  const auto flips = [&](const auto& map) {
    std::vector<int64_t> found;
    for (const auto& [v, state] : map)
      if (state.was != state.is)
        found.push_back(v);
    touched.insert(touched.end(), found.begin(), found.end());
    return found.empty() ? none : lists(found);
  };
  const Tensor turned = flips(loops), moved = flips(lives);
  tidy(touched);
  return {changed, turned, moved, lists(touched), -1};
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("live_net", TORCH_BOX(&pyg_trust::live_net));
}
