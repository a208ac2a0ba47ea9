// Rows of a pull, for the instruction set of the file that includes this.
#pragma once

#include <type_traits>

#include "gather.h"
#include "pull.h"

namespace pyg_trust {
namespace {

// The rows of `in` that the rows [begin, end) of the list receive from, each
// fetched once, kLinesAhead before it is needed.
template <int width, typename scalar_t>
class Ahead {
 public:
  Ahead(const Pull<scalar_t>& pull,
        const scalar_t* in,
        int64_t begin,
        int64_t end)
      : pull_(pull), in_(in), end_(end), row_(begin) {
    fetch(kLinesAhead / lines);
  }

  int64_t node(int64_t k) const {
    return pull_.list == nullptr ? k : pull_.list[k];
  }

  // So many more entries.
  PYG_TRUST_INLINE void fetch(int64_t count) {
    while (count > 0 && row_ < end_) {
      const int64_t v = node(row_);
      const int32_t* col = pull_.rows.col + pull_.rows.start[v];
      const int64_t length = pull_.rows.length[v];
      const int64_t far = entry_ + count;
      const int64_t stop = far < length ? far : length;
      count -= stop - entry_;
      for (; entry_ < stop; ++entry_) {
        const auto* ahead =
            reinterpret_cast<const char*>(in_ + col[entry_] * pull_.columns);
        for (int64_t b = 0; b < lines * kCacheLine; b += kCacheLine)
          __builtin_prefetch(ahead + b);
      }
      if (entry_ == length) {
        ++row_;
        entry_ = 0;
        announce();
      }
    }
  }

 private:
  static constexpr int64_t lines =
      (width * int64_t{sizeof(scalar_t)} + kCacheLine - 1) / kCacheLine;

  void announce() const {
    if (pull_.list == nullptr)
      return;  // the processor sees a stream
    if (row_ + kBeginAhead < end_) {
      const int64_t v = node(row_ + kBeginAhead);
      __builtin_prefetch(pull_.rows.start + v);
      __builtin_prefetch(pull_.rows.length + v);
      __builtin_prefetch(pull_.recv + v);
      if (pull_.out != nullptr)
        __builtin_prefetch(pull_.send + v);
    }
    if (row_ + kNamedAhead < end_) {
      const int64_t v = node(row_ + kNamedAhead);
      __builtin_prefetch(pull_.rows.col + pull_.rows.start[v]);
    }
  }

  const Pull<scalar_t>& pull_;
  const scalar_t* in_;
  int64_t end_, row_, entry_ = 0;
};

template <int width, typename scalar_t>
PYG_TRUST_INLINE void pull_columns(const Pull<scalar_t>& pull,
                                   int64_t begin,
                                   int64_t end,
                                   int64_t first) {
  const auto* in = pull.in + first;
  Ahead<width, scalar_t> ahead(pull, in, begin, pull.near ? begin : end);
  for (int64_t k = begin; k < end; ++k) {
    const int64_t v = ahead.node(k);
    ahead.fetch(pull.rows.length[v]);
    const int64_t start = pull.rows.start[v];
    Row<scalar_t, width> sums[width / kRowLanes<scalar_t, width>];
    sum_row<width, scalar_t, false>(pull.rows.col, 0, in, pull.columns, start,
                                    start + pull.rows.length[v], sums);
    alignas(kCacheLine) scalar_t sum[width];
    std::memcpy(sum, sums, sizeof(sum));
    // Sums of integers are taken as they are, and written over what was there.
    constexpr bool plain = std::is_integral_v<scalar_t>;
    const scalar_t recv = plain ? 1 : pull.recv[v];
    const scalar_t weight = plain ? 1 : pull.weight;
    for (int c = 0; c < width; ++c)
      sum[c] *= recv;
    if (pull.z != nullptr) {
      scalar_t* z = pull.z + k * pull.columns + first;
      for (int c = 0; c < width; ++c)
        z[c] = (plain ? 0 : z[c]) + weight * sum[c];
    }
    if (pull.out != nullptr) {
      const scalar_t send = pull.send[v];
      scalar_t* out = pull.out + v * pull.columns + first;
      for (int c = 0; c < width; ++c)
        out[c] = send * sum[c];
    }
  }
}

template <typename scalar_t>
void pull_all_columns(const Pull<scalar_t>& pull, int64_t begin, int64_t end) {
  in_tiles<scalar_t>(0, pull.columns, PYG_TRUST_WIDTH(first) {
    pull_columns<width>(pull, begin, end, first);
  });
}

}  // namespace
}  // namespace pyg_trust
