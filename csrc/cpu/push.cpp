// Randomized propagation on the CPU: AGP (Wang et al. 2021, Algorithm 2).
#include "push.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "gather.h"
#include "kernels.h"
#include "parallel.h"
#include "push_ops.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

constexpr int64_t kHits = 128;      // sent together

// Columns of one block: those of a cache line.
template <typename scalar_t>
constexpr int kBlock = kCacheLine / sizeof(scalar_t);

// What one block of columns knows of its residues.
template <typename scalar_t, int width>
struct Block {
  int64_t column;  // where it starts, in x and z
  int64_t count;   // how many of its columns are real
  int64_t offset;  // where it starts in a row of the buffers
  uint64_t key;
  scalar_t per_eps[width];
  // Whether residues are multiplied by `send` already, their share of z added.
  bool ready = true;
  // Whether the buffer of the next level holds old residues.
  bool stale = false;
  // Nodes with residues, unless they are many: then they are found by looking
  // everywhere.
  bool everywhere = true;
  bool outgrown = false;
  std::vector<int32_t> frontier, next_frontier;

  void enlist(int64_t v, int64_t longest) {
    if (static_cast<int64_t>(next_frontier.size()) < longest)
      next_frontier.push_back(static_cast<int32_t>(v));
    else
      outgrown = true;
  }
};

// One level that is pushed, for some blocks of a wave.
template <typename scalar_t>
struct PushLevel {
  const Dense<scalar_t>& all;
  scalar_t* residue;
  scalar_t* next;
  int64_t stride;
  int64_t longest;  // frontier that is kept as a list
  int64_t level;
  scalar_t keep;
  scalar_t ratio;
  bool last;
};

// What waits to be sent: `factor` times the values in a slot.
template <typename scalar_t, int width>
struct Waiting {
  struct Hit {
    Block<scalar_t, width>* block;
    int32_t node;
    int32_t slot;
    scalar_t factor;
  };

  int64_t hits = 0;
  int64_t slots = 0;
  Hit hit[kHits];
  alignas(kCacheLine) scalar_t value[kHits][width];
};

// Adds all that waits to the residues of the next level. One function for all
// calls: what is rounded must not depend on who calls.
template <typename scalar_t, int width>
PYG_TRUST_CLONES void deliver(const PushLevel<scalar_t>& level,
                              Waiting<scalar_t, width>& waiting) {
  for (int64_t i = 0; i < waiting.hits; ++i) {
    const auto& hit = waiting.hit[i];
    scalar_t* row = level.next + hit.node * level.stride + hit.block->offset;
    const scalar_t* value = waiting.value[hit.slot];
    if (!hit.block->outgrown) {
      bool any = false;
      for (int c = 0; c < width; ++c)
        any |= row[c] != 0;
      // Residues that cancelled to zero may enlist their node twice; the
      // second visit finds zeros and does nothing.
      if (!any)
        hit.block->enlist(hit.node, level.longest);
    }
    for (int c = 0; c < width; ++c)
      row[c] += value[c] * hit.factor;
  }
  waiting.hits = 0;
  waiting.slots = 0;
}

// Where a push goes: to what waits, so that the memory it is for is on its way
// when it is needed.
template <typename scalar_t, int width>
struct To {
  const PushLevel<scalar_t>& level;
  Waiting<scalar_t, width>& waiting;
  Block<scalar_t, width>& block;

  void prefetch(int64_t) const {}

  void add(int64_t v, scalar_t factor) const {
    __builtin_prefetch(level.next + v * level.stride + block.offset, 1);
    waiting.hit[waiting.hits++] = {&block, static_cast<int32_t>(v),
                                   static_cast<int32_t>(waiting.slots),
                                   factor};
    if (waiting.hits < kHits)
      return;
    // The node is not done: its values stay, in the first slot.
    const scalar_t* value = waiting.value[waiting.slots];
    deliver(level, waiting);
    std::copy(value, value + width, waiting.value[0]);
  }
};

// Takes the residues of a node and pushes them.
template <typename scalar_t, int width>
inline __attribute__((always_inline)) void visit(
    const PushLevel<scalar_t>& level,
    Waiting<scalar_t, width>& waiting,
    Block<scalar_t, width>& block,
    int64_t u) {
  const Dense<scalar_t>& all = level.all;
  scalar_t* row = level.residue + u * level.stride + block.offset;
  scalar_t* value = waiting.value[waiting.slots];
  bool any = false;
  for (int c = 0; c < width; ++c) {
    value[c] = row[c];
    any |= value[c] != 0;
  }
  if (!any)
    return;
  std::fill(row, row + width, scalar_t(0));
  if (!block.ready && level.keep != 0) {
    scalar_t* z = all.z + u * all.columns + block.column;
    for (int64_t c = 0; c < block.count; ++c)
      z[c] += level.keep * value[c];
  }
  if (level.last)
    return;
  const scalar_t mass = scale_to_send<width>(
      value, send_factor(block.ready, level.ratio, all.send[u]),
      block.per_eps);
  push_row(all.graph, u, mass, derive(derive(block.key, level.level), u),
           To<scalar_t, width>{level, waiting, block});
  // The next node needs a slot of its own if something of this one waits.
  const int64_t hits = waiting.hits;
  waiting.slots += hits > 0 && waiting.hit[hits - 1].slot == waiting.slots;
}

// Pushes blocks of one level. Blocks that look everywhere do so together.
template <int width, typename scalar_t>
PYG_TRUST_CLONES void push_blocks(
    const PushLevel<scalar_t>& level,
    const std::vector<Block<scalar_t, width>*>& blocks) {
  Waiting<scalar_t, width> waiting;
  std::vector<Block<scalar_t, width>*> everywhere;
  for (auto* block : blocks) {
    if (block->everywhere) {
      everywhere.push_back(block);
      continue;
    }
    for (const int32_t u : block->frontier)
      visit(level, waiting, *block, u);
  }
  if (!everywhere.empty()) {
    for (int64_t u = 0; u < level.all.num_nodes; ++u) {
      for (auto* block : everywhere)
        visit(level, waiting, *block, u);
    }
  }
  deliver(level, waiting);
}

// Some blocks of `width` columns, which go through the levels side by side: a
// row of the buffers holds the residues of a node in all of them. What a block
// does depends on no other, only how fast it is done.
template <typename scalar_t, int width>
class Wave {
 public:
  using Columns = Block<scalar_t, width>;

  Wave(const Dense<scalar_t>& all, int64_t num_blocks)
      : all_(all),
        stride_(num_blocks * width),
        residue_(all.num_nodes * stride_, Pages::kHuge),
        next_(all.num_nodes * stride_, Pages::kHuge) {}

  // Blocks [begin, end).
  void run(int64_t begin, int64_t end) {
    load(begin, end);
    for (int64_t level = 0; level <= all_.levels; ++level) {
      const bool last = level == all_.levels;
      const auto keep = static_cast<scalar_t>(all_.keep[level]);
      const auto ratio =
          last ? scalar_t(0) : static_cast<scalar_t>(all_.ratio[level]);
      std::vector<Columns*> pull, push;
      for (Columns& block : blocks_) {
        if (block.everywhere && !last && costs_more(block, ratio))
          pull.push_back(&block);
        else
          push.push_back(&block);
      }
      if (all_.only_pull && !last && !push.empty()) {
        all_.pushed[push[0]->column / kBlock<scalar_t>] = -1;
        return;
      }
      for (Columns* block : push)
        all_.pushed[block->column / kBlock<scalar_t>] += !last;
      prepare(pull, push, keep);
      advance(pull, level);
      send(push, {all_, residue_.get(), next_.get(), stride_,
                  few_nodes(all_.num_nodes), level, keep, ratio, last});
      residue_.swap(next_);
    }
  }

 private:
  // Level 0. Old residues of another wave are overwritten.
  void load(int64_t begin, int64_t end) {
    blocks_.resize(end - begin);
    for (int64_t b = begin; b < end; ++b) {
      Columns block;
      block.column = b * kBlock<scalar_t>;
      block.count = std::min<int64_t>(width, all_.columns - block.column);
      block.offset = (b - begin) * width;
      block.key = derive(all_.seed, all_.first + b);
      block.stale = used_;
      for (int64_t c = 0; c < width; ++c)
        block.per_eps[c] =
            scalar_t(1) /
            (c < block.count ? all_.eps[block.column + c] : scalar_t(0));
      blocks_[b - begin] = std::move(block);
    }
    used_ = true;
    const int64_t first = begin * kBlock<scalar_t>;
    const int64_t count =
        std::min<int64_t>((end - begin) * width, all_.columns - first);
    const auto keep = static_cast<scalar_t>(all_.keep[0]);
    by_rows(all_.num_nodes, stride_, [&](int64_t from, int64_t to) {
      for (int64_t u = from; u < to; ++u) {
        const scalar_t* x = all_.x + u * all_.columns + first;
        scalar_t* z = all_.z + u * all_.columns + first;
        scalar_t* row = residue_.get() + u * stride_;
        for (int64_t c = 0; c < count; ++c) {
          z[c] = keep * x[c];
          row[c] = all_.send[u] * x[c];
        }
        std::fill(row + count, row + stride_, scalar_t(0));
      }
    });
  }

  // Whether pushing this level is expected to cost more than doing it exactly,
  // from evenly spaced nodes. No more of them than that takes.
  bool costs_more(const Columns& block, scalar_t ratio) {
    const int64_t step = sample_step(all_.num_nodes);
    double cost = 0;
    for (int64_t u = step / 2; u < all_.num_nodes; u += step) {
      const scalar_t* row = residue_.get() + u * stride_ + block.offset;
      scalar_t value[width];
      std::copy(row, row + width, value);
      const scalar_t mass = scale_to_send<width>(
          value, send_factor(block.ready, ratio, all_.send[u]),
          block.per_eps);
      cost += visit_cost(all_.graph, u, mass);
      if (cost * static_cast<double>(step) > all_.above())
        return true;
    }
    return false;
  }

  // Makes residues ready to be pulled, and room for what is pushed.
  void prepare(const std::vector<Columns*>& pull,
               const std::vector<Columns*>& push,
               scalar_t keep) {
    std::vector<Columns*> raw, stale;
    for (Columns* block : pull) {
      if (!block->ready)
        raw.push_back(block);
    }
    for (Columns* block : push) {
      if (std::exchange(block->stale, false))
        stale.push_back(block);
    }
    if (raw.empty() && stale.empty())
      return;
    by_rows(all_.num_nodes, stride_, [&](int64_t from, int64_t to) {
      for (int64_t u = from; u < to; ++u) {
        for (const Columns* block : raw) {
          scalar_t* row = residue_.get() + u * stride_ + block->offset;
          scalar_t* z = all_.z + u * all_.columns + block->column;
          if (keep != 0) {
            for (int64_t c = 0; c < block->count; ++c)
              z[c] += keep * row[c];
          }
          for (int c = 0; c < width; ++c)
            row[c] *= all_.send[u];
        }
        for (const Columns* block : stale) {
          scalar_t* row = next_.get() + u * stride_ + block->offset;
          std::fill(row, row + width, scalar_t(0));
        }
      }
    });
  }

  // Does a level exactly, for neighbouring blocks together.
  void advance(const std::vector<Columns*>& blocks, int64_t index) {
    for (size_t i = 0; i < blocks.size();) {
      size_t j = i + 1;
      while (j < blocks.size() && blocks[j] == blocks[j - 1] + 1)
        ++j;
      const Columns& one = *blocks[i];
      const Columns& two = *blocks[j - 1];
      Level<scalar_t> level;
      level.rowptr = all_.pull_rowptr;
      level.col = all_.pull_col;
      level.num_entries = all_.pull_rowptr[all_.num_nodes];
      level.in = residue_.get();
      level.out = index + 1 < all_.levels ? next_.get() : nullptr;
      level.recv = all_.recv;
      level.send = all_.send;
      level.ratio = static_cast<scalar_t>(all_.ratio[index]);
      level.z = all_.z + one.column - one.offset;
      level.z_stride = all_.columns;
      level.weight = static_cast<scalar_t>(all_.keep[index + 1]);
      level.stride = stride_;
      level.first = one.offset;
      level.end = two.offset + width;
      level.columns = two.column + two.count - one.column;
      by_rows(all_.num_nodes, stride_, [&](int64_t begin, int64_t end) {
        kernels_of<RowKernels<scalar_t>>().advance(level, begin, end);
      });
      for (; i < j; ++i) {
        blocks[i]->ready = true;
        blocks[i]->everywhere = true;
        blocks[i]->stale = true;  // what is in `residue_`
      }
    }
  }

  // Pushes a level.
  void send(const std::vector<Columns*>& blocks,
            const PushLevel<scalar_t>& level) {
    if (level.last) {
      std::vector<Columns*> open;
      for (Columns* block : blocks) {
        if (!block->ready)
          open.push_back(block);
      }
      push_groups(open, level);
      return;
    }
    push_groups(blocks, level);
    for (Columns* block : blocks) {
      block->ready = false;
      block->frontier.swap(block->next_frontier);
      block->next_frontier.clear();
      block->everywhere = std::exchange(block->outgrown, false);
    }
  }

  void push_groups(const std::vector<Columns*>& blocks,
                   const PushLevel<scalar_t>& level) {
    const auto count = static_cast<int64_t>(blocks.size());
    const int64_t groups =
        std::min<int64_t>(torch::stable::get_num_threads(), count);
    parallel_tasks(groups, all_.num_nodes * stride_, [&] {
      return [&](int64_t group) {
        push_blocks<width>(
            level, std::vector<Columns*>(
                       blocks.begin() + group * count / groups,
                       blocks.begin() + (group + 1) * count / groups));
      };
    });
  }

  const Dense<scalar_t>& all_;
  const int64_t stride_;
  Scratch<scalar_t> residue_, next_;
  std::vector<Columns> blocks_;
  bool used_ = false;
};

template <int width, typename scalar_t>
void run_waves(const Dense<scalar_t>& all, int64_t num_blocks) {
  if (num_blocks == 0)
    return;
  // As many as go through an exact level together, and enough for all threads.
  const int64_t together = std::min(
      num_blocks,
      std::max<int64_t>(kColumns<scalar_t> / width,
                        torch::stable::get_num_threads()));
  Wave<scalar_t, width> wave(all, together);
  for (int64_t begin = 0; begin < num_blocks; begin += together)
    wave.run(begin, std::min(num_blocks, begin + together));
}

struct PushOnCpu {
  template <typename scalar_t>
  static void push(const Tensor&, const Dense<scalar_t>& all) {
    constexpr int block = kBlock<scalar_t>;
    const int64_t num_blocks = (all.columns + block - 1) / block;
    if (all.columns == 1)
      run_waves<1>(all, 1);
    else if (all.columns <= 4)
      run_waves<4>(all, num_blocks);
    else
      run_waves<block>(all, num_blocks);
  }
};

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("push", TORCH_BOX(&pyg_trust::PushOp<pyg_trust::PushOnCpu>::push));
}
