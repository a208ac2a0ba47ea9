// What the algorithms for many threads are written in, without torch and
// without CUDA: atomic operations, and the machine that runs them.
//
// A *machine* (csrc/cuda/machine.cuh; tests/emulation.cpp for the host) has
//
//   make<T>(count)           memory, uninitialised, for as long as it lives
//   zero(data, count)        zeros
//   run(rows, lanes, f)      f(row, lane) for all pairs, in any order and at
//                            the same time; consecutive lanes side by side
//   run_upto(most, count, lanes, f)
//                            the same for `*count` rows, which the machine
//                            reads when it gets there; at most `most`
//   run_sum<parts>(rows, lanes, part, end)
//                            end(row, lane, sum of part(row, lane, p) over
//                            p < parts), by a fixed tree
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

inline __device__ void add(float* to, float value) {
  atomicAdd(to, value);
}
inline __device__ void add(double* to, double value) {
  atomicAdd(to, value);
}
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
inline __device__ void largest(uint64_t* to, uint64_t value) {
  atomicMax(reinterpret_cast<unsigned long long*>(to),
            static_cast<unsigned long long>(value));
}
// Sets a flag; whether it was not set.
inline __device__ bool raise(uint32_t* flag) {
  // A look first: most flags are up already, and looking is cheaper. It may
  // be late, but a flag that is seen up is up: none goes down meanwhile.
  if (*reinterpret_cast<volatile uint32_t*>(flag) != 0)
    return false;
  return atomicExch(flag, 1u) == 0;
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

template <typename T>
inline void add_float(T* to, T value) {
  std::atomic_ref<T>(*to).fetch_add(value, std::memory_order_relaxed);
}
inline void add(float* to, float value) {
  add_float(to, value);
}
inline void add(double* to, double value) {
  add_float(to, value);
}
inline int64_t add(int64_t* to, int64_t value) {
  return std::atomic_ref<int64_t>(*to).fetch_add(value,
                                                 std::memory_order_relaxed);
}
template <typename Better>
inline void improve(uint64_t* to, uint64_t value, const Better& better) {
  std::atomic_ref<uint64_t> word(*to);
  uint64_t old = word.load(std::memory_order_relaxed);
  while (better(value, old) &&
         !word.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
}
inline void least(uint64_t* to, uint64_t value) {
  improve(to, value, [](uint64_t a, uint64_t b) { return a < b; });
}
inline void largest(uint64_t* to, uint64_t value) {
  improve(to, value, [](uint64_t a, uint64_t b) { return a > b; });
}
inline bool raise(uint32_t* flag) {
  std::atomic_ref<uint32_t> word(*flag);
  return word.load(std::memory_order_relaxed) == 0 &&
         word.exchange(1, std::memory_order_relaxed) == 0;
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

}  // namespace pyg_trust::device
