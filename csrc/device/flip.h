// Noisy copies of a matrix of bits by many threads: those of csrc/cpu/flip.cpp,
// bit for bit. Gaps are drawn side by side, and summed to the cells that they
// lead to; what is set is listed in any order, and sorted.
#pragma once

#include <cmath>
#include <cstdint>

#include "../flip.h"
#include "device/policy.h"

namespace pyg_trust::device {

struct Flips {
  Matrix x;
  int64_t num_entries;
  double p_plus;
  double p_minus;
  uint64_t seed;
  int64_t first;
  int64_t num_samples;
};

// The bits that are set, as row << 32 | column, ascending; rows of one sample
// stand behind those of another.
struct Bits {
  const uint64_t* key;
  int64_t count;
};

// The last i in [0, size) with value(i) <= wanted; there is one.
template <typename Value>
PYG_TRUST_RUN inline int64_t last_at_most(int64_t size,
                                         int64_t wanted,
                                         const Value& value) {
  int64_t low = 0, high = size;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (value(middle) <= wanted)
      low = middle;
    else
      high = middle;
  }
  return low;
}

PYG_TRUST_HD inline bool is_set(const Matrix& x, int64_t i, int64_t j) {
  int64_t low = x.rowptr[i], high = x.rowptr[i + 1];
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (x.col[middle] < j)
      low = middle + 1;
    else
      high = middle;
  }
  return low < x.rowptr[i + 1] && x.col[low] == j;
}

// Gaps for a sample: more are hardly ever needed (twelve standard deviations).
inline int64_t gaps_for(double p_plus, int64_t cells) {
  if (!(p_plus > 0) || cells == 0)
    return 0;
  const double mean = p_plus * static_cast<double>(cells);
  const auto most =
      static_cast<int64_t>(mean + 12 * std::sqrt(mean)) + 64;
  return most < cells + 1 ? most : cells + 1;
}

// With `gaps` gaps for each sample. Waits, and then once more if there are too
// few of these.
template <typename Machine>
Bits flip_with(Machine& machine, const Flips& p, int64_t gaps, bool& enough) {
  const Matrix x = p.x;
  const int64_t n = x.rows, samples = p.num_samples, cells = x.count();
  const int64_t entries = p.num_entries, first = p.first;
  const uint64_t seed = p.seed, below = threshold(p.p_minus);
  const GapLaw law(p.p_plus);
  auto* end = machine.template make<int64_t>(samples * gaps + 1);
  auto* row = machine.template make<int32_t>(entries);
  auto* key = machine.template make<uint64_t>(
      samples * (entries + (x.cells == kUndirected ? 2 : 1) * gaps));
  auto* counts = machine.template make<int64_t>(2);  // bits, samples cut off
  machine.zero(counts, 2);
  machine.zero(end + samples * gaps, 1);
  const auto emit = [=] PYG_TRUST_RUN(int64_t s, int64_t i, int64_t j) {
    key[next(counts)] =
        static_cast<uint64_t>(s * n + i) << 32 | static_cast<uint64_t>(j);
  };

  // Zeros that become ones.
  machine.run(samples * gaps, 1, [=] PYG_TRUST_RUN(int64_t at, int64_t) {
    const int64_t s = at / gaps, k = at % gaps;
    const uint64_t stream = derive(derive(seed, first + s), 0);
    end[at] = 1 + law.gap(stream, k, cells);
  });
  machine.sum_before(end, samples * gaps + 1);
  machine.run(samples * gaps, 1, [=] PYG_TRUST_RUN(int64_t at, int64_t) {
    const int64_t s = at / gaps, k = at % gaps;
    const int64_t cell = end[at + 1] - end[s * gaps] - 1;
    if (cell >= cells)
      return;
    if (k == gaps - 1 && cell < cells - 1)
      add(counts + 1, int64_t{1});
    const int64_t i = last_at_most(
        n, cell, [&](int64_t other) { return x.start(other); });
    const int64_t j = x.column(i, cell - x.start(i));
    if (is_set(x, i, j))
      return;  // what is drawn for a one alone counts
    emit(s, i, j);
    if (x.cells == kUndirected)
      emit(s, j, i);
  });

  // Ones that stay.
  machine.run(entries, 1, [=] PYG_TRUST_RUN(int64_t e, int64_t) {
    row[e] = static_cast<int32_t>(last_at_most(
        n, e, [&](int64_t other) { return x.rowptr[other]; }));
  });
  machine.run(samples * entries, 1, [=] PYG_TRUST_RUN(int64_t at, int64_t) {
    const int64_t s = at / entries, e = at % entries;
    const int64_t i = row[e], j = x.col[e];
    const bool loop = x.cells != kAll && i == j;
    if (x.cells == kUndirected && j < i)
      return;  // with the other direction
    if (!loop && deleted(derive(derive(seed, first + s), 1), e, below))
      return;
    emit(s, i, j);
    if (x.cells == kUndirected && !loop)
      emit(s, j, i);
  });

  enough = machine.read(counts + 1) == 0;
  if (!enough)
    return {};
  const int64_t count = machine.read(counts);
  machine.sort(key, nullptr, count,
               32 + bits_for(static_cast<uint64_t>(samples * n)));
  return {key, count};
}

template <typename Machine>
Bits flip_bits(Machine& machine, const Flips& p) {
  const int64_t cells = p.x.count();
  if (p.x.rows == 0)
    return {nullptr, 0};
  int64_t gaps = gaps_for(p.p_plus, cells);
  for (;;) {
    bool enough;
    const Bits bits = flip_with(machine, p, gaps, enough);
    if (enough)
      return bits;
    gaps = 2 * gaps < cells + 1 ? 2 * gaps : cells + 1;
  }
}

// Writes them down: `ptr` has zeros for every row and one more.
template <typename Machine>
void write_bits(Machine& machine,
                const Flips& p,
                const Bits& bits,
                int64_t* ptr,
                int32_t* col) {
  const uint64_t* key = bits.key;
  const int64_t n = p.x.rows;
  const bool graph = p.x.cells != kAll;
  machine.run(bits.count, 1, [=] PYG_TRUST_RUN(int64_t i, int64_t) {
    const auto row = static_cast<int64_t>(key[i] >> 32);
    const auto j = static_cast<int64_t>(key[i] & 0xFFFFFFFFu);
    add(ptr + row, int64_t{1});
    col[i] = static_cast<int32_t>(j + (graph ? row / n * n : 0));
  });
  machine.sum_before(ptr, p.num_samples * n + 1);
}

}  // namespace pyg_trust::device
