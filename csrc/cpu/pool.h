// The graph of unlearning/sums.py: rows in a pool of blocks, edited in O(degree).
//
// Row v is `length[v]` ascending entries from start[v] on, in a block of
// room[v] = 2^k entries; free blocks of a size are a list, which goes by
// negative numbers through them. So is all that is free: no name stays behind.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace pyg_trust {

constexpr int64_t kLeast = 4;  // entries of the smallest block
constexpr int64_t kEnd = 40;   // free[kEnd]: where the unused part begins

// The tensors of an object of unlearning/sums.py, in this order.
enum Part : size_t {
  kRows, kCol, kFree, kBackRows, kBackCol, kBackFree, kClock, kFlags,
  kFeatures, kSums, kRank, kLimit, kHow
};
using State = std::vector<torch::stable::Tensor>;

// Kernels go by first addresses alone. unlearning/sums.py comes here without
// the checks of ops.py, so these are here.
inline void check_flat(
    const State& state,
    std::initializer_list<const torch::stable::Tensor*> given) {
  for (const auto& part : state)
    STD_TORCH_CHECK(part.is_contiguous(), "'state' needs to be contiguous");
  for (const auto* each : given)
    STD_TORCH_CHECK(each->is_contiguous(),
                    "what a living graph is given needs to be contiguous");
}

// Of `clock`: names, edits so far, and whether one broke off in the sums.
enum Clock : int64_t { kNames, kEdits, kBroken };

constexpr int64_t kRanks = 64;  // of nodes, by their number of receivers
constexpr int8_t kEvery = 127;  // a limit that no rank is above

inline void tidy(std::vector<int64_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

struct Arc {
  int64_t row, target, sign;
};

// Rows in a pool of blocks: `rows` is int64 [3, n], start, length and room.
struct Pool {
  int64_t *start, *length, *room;
  int32_t* col;
  int64_t* free;
  int64_t size;

  using Tensor = torch::stable::Tensor;
  Pool(const Tensor& rows, const Tensor& entries, const Tensor& lists)
      : start(rows.mutable_data_ptr<int64_t>()),
        length(start + rows.size(1)),
        room(length + rows.size(1)),
        col(entries.mutable_data_ptr<int32_t>()),
        free(lists.mutable_data_ptr<int64_t>()),
        size(entries.numel()) {}

  const int32_t* begin(int64_t v) const { return col + start[v]; }
  const int32_t* end(int64_t v) const { return begin(v) + length[v]; }

  static int64_t block(int64_t count) {
    return std::max<int64_t>(kLeast, std::bit_ceil<uint64_t>(count));
  }

  // How much of the pool an edit by sorted arcs may need at most.
  int64_t needs(const std::vector<Arc>& arcs) const {
    int64_t need = 0;
    for (size_t k = 0; k < arcs.size();) {
      const int64_t v = arcs[k].row;
      int64_t count = length[v];
      for (; k < arcs.size() && arcs[k].row == v; ++k)
        count += arcs[k].sign;
      if (count > room[v])
        need += block(count);
    }
    return std::max<int64_t>(0, free[kEnd] + need - size);
  }

  // Moves row v to a block of `count` entries at least; the old one is free.
  void move(int64_t v, int64_t count) {
    const int64_t wanted = block(count);
    int64_t& head = free[std::countr_zero<uint64_t>(wanted)];
    int64_t at = head;
    if (at >= 0) {
      // The list: -1 at its end, else -2 - the next block over kLeast.
      head = col[at] == -1 ? -1 : (-2 - int64_t{col[at]}) * kLeast;
      col[at] = -1;
    } else {
      at = free[kEnd];
      free[kEnd] += wanted;
    }
    std::copy(begin(v), end(v), col + at);
    if (room[v]) {
      std::fill(col + start[v], col + start[v] + room[v], -1);
      int64_t& list = free[std::countr_zero<uint64_t>(room[v])];
      if (list >= 0)
        col[start[v]] = static_cast<int32_t>(-2 - list / kLeast);
      list = start[v];
    }
    start[v] = at;
    room[v] = wanted;
  }

  // Plays arcs, sorted, each once, that fit; there is room in the pool.
  void edit(const std::vector<Arc>& arcs) {
    for (size_t k = 0; k < arcs.size();) {
      const int64_t v = arcs[k].row;
      size_t stop = k;
      int64_t more = 0;
      for (; stop < arcs.size() && arcs[stop].row == v; ++stop)
        more += arcs[stop].sign > 0;
      int32_t* entry = col + start[v];
      const int64_t before = length[v];
      int64_t to = 0;
      size_t m = k;
      for (int64_t from = 0; from < before; ++from) {
        while (m < stop && (arcs[m].sign > 0 || arcs[m].target < entry[from]))
          ++m;
        if (m < stop && arcs[m].target == entry[from])
          ++m;
        else
          entry[to++] = entry[from];
      }
      std::fill(entry + to, entry + before, -1);
      length[v] = to;
      if (to + more > room[v])
        move(v, to + more);
      entry = col + start[v];
      int64_t from = to - 1;
      length[v] = to = to + more;
      for (size_t m = stop; m-- > k;) {
        if (arcs[m].sign < 0)
          continue;
        while (from >= 0 && entry[from] > arcs[m].target)
          entry[--to] = entry[from--];
        entry[--to] = static_cast<int32_t>(arcs[m].target);
      }
      k = stop;
    }
  }
};

}  // namespace pyg_trust
