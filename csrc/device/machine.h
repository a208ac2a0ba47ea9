// What the algorithms for many threads are written in, without torch and
// without CUDA: atomic operations, and the machine that runs them.
//
// A *machine* (csrc/cuda/machine.cuh; tests/emulation.cpp for the host) has
//
//   make<T>(count)           memory, uninitialised, for as long as it lives
//   zero(data, count)        zeros
//   run(rows, lanes, f, count = null)
//                            f(row, lane) for all pairs, in any order and at
//                            the same time; consecutive lanes side by side.
//                            With a count, for `*count` rows, at most `rows`,
//                            which the machine reads when it gets there
//   run_parts<parts>(rows, lanes, part, end, count = null)
//                            end(row, lane, all part(row, lane, p), p < parts,
//                            joined by a fixed tree): threads side by side
//   run_team(rows, f)        f(row, team), by a team of threads that agree
//   sort(key, value, count)  stable, ascending by `key`
//   sum_before(data, count)  data[i] becomes the sum of data[j] over j < i
//   read(data)               what `data` points to, for the host
//
// Each of them sees all that the one before it has written. Inside of one,
// threads may touch the same word only through the functions below.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef __CUDACC__
#include <atomic>
#endif

#include "../rng.h"

// In front of the body of a lambda that a machine runs.
#ifdef __CUDACC__
#define PYG_TRUST_RUN __device__
#else
#define PYG_TRUST_RUN
#endif

namespace pyg_trust::device {

// Where a lambda that runs on the machine needs it.
#ifdef __CUDACC__

// Signed numbers in two's complement add as unsigned ones do.
inline __device__ int64_t add(int64_t* to, int64_t value) {
  return static_cast<int64_t>(
      atomicAdd(reinterpret_cast<unsigned long long*>(to),
                static_cast<unsigned long long>(value)));
}
inline __device__ void least(uint64_t* to, uint64_t value) {
  atomicMin(reinterpret_cast<unsigned long long*>(to),
            static_cast<unsigned long long>(value));
}
// The next free place of a list: one atomic operation for all threads of the
// warp that are here together.
inline __device__ int64_t next(int64_t* count) {
  const unsigned here = __activemask();
  const int leader = __ffs(static_cast<int>(here)) - 1;
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  const int before = __popc(here & ((1u << lane) - 1u));
  unsigned long long first = 0;
  if (static_cast<int>(lane) == leader)
    first = atomicAdd(reinterpret_cast<unsigned long long*>(count),
                      static_cast<unsigned long long>(__popc(here)));
  first = __shfl_sync(here, first, leader);
  return static_cast<int64_t>(first) + before;
}
inline __device__ int64_t to_integer(double value) {
  return __double2ll_rn(value);
}

#else

inline int64_t add(int64_t* to, int64_t value) {
  return std::atomic_ref<int64_t>(*to).fetch_add(value,
                                                 std::memory_order_relaxed);
}
inline void least(uint64_t* to, uint64_t value) {
  std::atomic_ref<uint64_t> word(*to);
  uint64_t old = word.load(std::memory_order_relaxed);
  while (value < old &&
         !word.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
}
inline int64_t next(int64_t* count) {
  return add(count, 1);
}
inline int64_t to_integer(double value) {
  return __builtin_llrint(value);
}

#endif

template <typename To, typename From>
PYG_TRUST_HD inline To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  memcpy(&out, &value, sizeof(out));
  return out;
}

// `width` numbers that are loaded and stored at once.
template <typename T, int width>
struct alignas(sizeof(T) * width) Pack {
  T at[width];
};

// Whether packs of a matrix with rows of `columns` numbers lie where they can
// be loaded at once. What users give may start anywhere.
template <int width, typename T>
inline bool is_aligned(const T* data, int64_t columns) {
  return columns % width == 0 &&
         reinterpret_cast<uintptr_t>(data) % sizeof(Pack<T, width>) == 0;
}

// A pack of which the first `count` numbers are there; the others are zeros.
template <int width, typename T>
PYG_TRUST_HD inline Pack<T, width> load_pack(const T* from,
                                             int64_t count,
                                             bool aligned) {
  if (aligned && count >= width)
    return *reinterpret_cast<const Pack<T, width>*>(from);
  Pack<T, width> pack = {};
  for (int c = 0; c < width; ++c) {
    if (c < count)
      pack.at[c] = from[c];
  }
  return pack;
}

template <int width, typename T>
PYG_TRUST_HD inline void store_pack(T* to,
                                    const Pack<T, width>& pack,
                                    int64_t count,
                                    bool aligned) {
  if (aligned && count >= width) {
    *reinterpret_cast<Pack<T, width>*>(to) = pack;
    return;
  }
  for (int c = 0; c < width; ++c) {
    if (c < count)
      to[c] = pack.at[c];
  }
}

// How what threads side by side have becomes one: sums, or the largest.
template <typename T, int width>
PYG_TRUST_HD inline Pack<T, width> join(const Pack<T, width>& x,
                                        const Pack<T, width>& y) {
  Pack<T, width> sum;
  for (int c = 0; c < width; ++c)
    sum.at[c] = x.at[c] + y.at[c];
  return sum;
}

template <typename T>
struct Largest {
  T value;
};
template <typename T>
PYG_TRUST_HD inline Largest<T> join(const Largest<T>& x, const Largest<T>& y) {
  return {y.value > x.value ? y.value : x.value};
}

// A team: threads that run the same function and agree on what it decides. In
// it, everything is done by all of them alike, but for what is asked or done
// per lane.
constexpr int kTeam = 32;

#ifdef __CUDACC__

// A warp, all of it.
struct Team {
  int lane;

  // A number that each of them has.
  template <typename T>
  struct Each {
    T mine;
    __device__ T& operator[](int) { return mine; }
    __device__ const T& operator[](int) const { return mine; }
  };

  template <typename F>
  __device__ void each(const F& f) const {
    f(lane);
  }
  // Once, by one of them; the others see it after wait().
  template <typename F>
  __device__ void once(const F& f) const {
    if (lane == 0)
      f();
  }
  __device__ void wait() const { __syncwarp(); }
  // Bit i: what lane i says.
  template <typename F>
  __device__ uint32_t ask(const F& f) const {
    return __ballot_sync(~0u, f(lane));
  }
  template <typename T>
  __device__ T get(const Each<T>& number, int from) const {
    return __shfl_sync(~0u, number.mine, from);
  }
  // Of the lanes before each.
  __device__ Each<int64_t> before(const Each<int64_t>& number,
                                  int64_t& all) const {
    int64_t sum = number.mine;
    for (int offset = 1; offset < kTeam; offset *= 2) {
      const int64_t other = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset)
        sum += other;
    }
    all = __shfl_sync(~0u, sum, kTeam - 1);
    return {sum - number.mine};
  }
};

#else

struct Team {
  template <typename T>
  struct Each {
    T all[kTeam];
    T& operator[](int i) { return all[i]; }
    const T& operator[](int i) const { return all[i]; }
  };

  bool down = false;  // the order in which lanes come

  template <typename F>
  void each(const F& f) const {
    for (int i = 0; i < kTeam; ++i)
      f(down ? kTeam - 1 - i : i);
  }
  template <typename F>
  void once(const F& f) const {
    f();
  }
  void wait() const {}
  template <typename F>
  uint32_t ask(const F& f) const {
    uint32_t bits = 0;
    each([&](int i) { bits |= static_cast<uint32_t>(f(i)) << i; });
    return bits;
  }
  template <typename T>
  T get(const Each<T>& number, int from) const {
    return number[from];
  }
  Each<int64_t> before(const Each<int64_t>& number, int64_t& all) const {
    Each<int64_t> sum;
    all = 0;
    for (int i = 0; i < kTeam; ++i) {
      sum[i] = all;
      all += number[i];
    }
    return sum;
  }
};

#endif

// The place of the n-th bit (from 0) that is set, and how many are.
PYG_TRUST_HD inline int nth_bit(uint32_t word, int64_t n) {
  for (int i = 0; i < 32; ++i) {
    if ((word >> i & 1) != 0 && n-- == 0)
      return i;
  }
  return -1;
}
PYG_TRUST_HD inline int64_t count_bits(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __popc(word);
#else
  return __builtin_popcount(word);
#endif
}
PYG_TRUST_HD inline int first_bit(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(word)) - 1;
#else
  return __builtin_ctz(word);
#endif
}

}  // namespace pyg_trust::device
