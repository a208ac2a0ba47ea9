// Disjoint random walks on the CPU: DRW and DRW-R (Ayle et al. 2023,
// Algorithms 2 and 3).
#include "walk.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

class Walker {
 public:
  Walker(const int64_t* rowptr, const int32_t* col, int64_t num_nodes)
      : rowptr_(rowptr), col_(col), claimed_(num_nodes, Pages::kHuge) {}

  bool claimed(int64_t v) { return claimed_[v] != 0; }

  void prefetch(int64_t v) {
    __builtin_prefetch(claimed_.get() + v);
    __builtin_prefetch(rowptr_ + v);
  }

  // Appends the subgraph of `root` to `out`. A node that is not the root is
  // walked from once, and scans its row at most once; the root keeps the
  // neighbours that its one scan left and only ever strikes some off. So all
  // subgraphs of a graph cost no more than its nodes and edges together.
  void run(int64_t root,
           int64_t walk_length,
           int64_t restarts,
           uint64_t key,
           std::vector<int32_t>& out) {
    uint64_t counter = 0;
    claim(root, out);
    bool listed = false;
    for (int64_t walk = 0; walk_length > 0 && walk < restarts; ++walk) {
      int64_t v = step(root, key, counter, from_root_, listed);
      if (v < 0)
        return;  // no later walk finds a neighbour either
      claim(v, out);
      for (int64_t i = 1; i < walk_length; ++i) {
        bool fresh = false;
        v = step(v, key, counter, from_other_, fresh);
        if (v < 0)
          break;
        claim(v, out);
      }
    }
  }

 private:
  void claim(int64_t v, std::vector<int32_t>& out) {
    claimed_[v] = 1;
    out.push_back(static_cast<int32_t>(v));
  }

  // A uniform neighbour of `u` among those that are not claimed, -1 if there
  // is none. `open` has, once `listed`, all that may not be claimed.
  int64_t step(int64_t u,
               uint64_t key,
               uint64_t& counter,
               std::vector<int32_t>& open,
               bool& listed) {
    const int64_t begin = rowptr_[u], end = rowptr_[u + 1];
    if (begin == end)
      return -1;
    if (!listed) {
      const int64_t v =
          try_neighbours(col_, begin, end, key, counter,
                         [&](int64_t w) { return claimed(w); });
      if (v >= 0)
        return v;
      open.clear();
      for (int64_t e = begin; e < end; ++e) {
        if (!claimed(col_[e]))
          open.push_back(col_[e]);
      }
      listed = true;
    }
    while (!open.empty()) {
      const int64_t i =
          below(key, counter++, static_cast<int64_t>(open.size()));
      const int32_t v = std::exchange(open[i], open.back());
      open.pop_back();
      if (!claimed(v))
        return v;
    }
    return -1;
  }

  const int64_t* rowptr_;
  const int32_t* col_;
  Scratch<uint8_t> claimed_;
  std::vector<int32_t> from_root_, from_other_;
};

std::tuple<Tensor, Tensor> disjoint_walks(const Tensor& rowptr,
                                          const Tensor& col,
                                          const Tensor& roots,
                                          int64_t walk_length,
                                          int64_t restarts,
                                          int64_t seed) {
  constexpr int64_t kAhead = 16;  // roots to prefetch
  const int64_t count = roots.numel();
  const auto* root = roots.const_data_ptr<int64_t>();
  // A random order, skipping what is claimed meanwhile, is a uniform draw
  // from the rest, root after root.
  std::vector<int32_t> order(root, root + count);
  const uint64_t order_key = derive(seed, 0), walk_key = derive(seed, 1);
  for (int64_t i = 0; i + 1 < count; ++i)
    std::swap(order[i], order[i + below(order_key, i, count - i)]);

  Walker walker(rowptr.const_data_ptr<int64_t>(),
                col.const_data_ptr<int32_t>(), rowptr.numel() - 1);
  std::vector<int64_t> start{0};
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) {
    walker.prefetch(order[std::min(i + kAhead, count - 1)]);
    if (walker.claimed(order[i]))
      continue;
    walker.run(order[i], walk_length, restarts, derive(walk_key, order[i]),
               out);
    start.push_back(static_cast<int64_t>(out.size()));
  }

  Tensor ptr = torch::stable::new_empty(
      roots, {static_cast<int64_t>(start.size())});
  Tensor node =
      torch::stable::new_empty(roots, {static_cast<int64_t>(out.size())});
  std::copy(start.begin(), start.end(), ptr.mutable_data_ptr<int64_t>());
  std::copy(out.begin(), out.end(), node.mutable_data_ptr<int64_t>());
  return {ptr, node};
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("disjoint_walks", TORCH_BOX(&pyg_trust::disjoint_walks));
}
