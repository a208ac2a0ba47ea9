// Working memory for the kernels.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace pyg_trust {

enum class Pages {
  kSmall,  // taken as they are touched: for work that touches little
  kHuge,   // few, so that random access finds their addresses cached
};

// Asks for huge pages where whole ones fit, before memory is touched for the
// first time: a wish, that may fail.
inline void wish_for_huge_pages(void* start, int64_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kHugePage = uintptr_t{1} << 21;
  const auto from = reinterpret_cast<uintptr_t>(start);
  const uintptr_t first = (from + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end =
      (from + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (end > first + kHugePage)
    madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

// Blocks that wait for who asks next. To take pages from the system and to give
// them back costs more than a level of a graph that fits into the cache. Few in
// all: less than what malloc keeps. Without locks, so that a process that forks
// finds none of them taken.
class Kept {
 public:
  static constexpr size_t kLeast = size_t{1} << 15, kMost = size_t{1} << 23;

  // A block of `bytes` or somewhat more, and how many these are; or null.
  static void* take(size_t bytes, size_t* size) {
    for (std::atomic<void*>& slot : state().slots) {
      void* block = slot.exchange(nullptr);
      if (block == nullptr)
        continue;
      size_t found;
      std::memcpy(&found, block, sizeof(found));
      if (bytes <= found && found <= 2 * bytes) {
        state().bytes -= found;
        *size = found;
        return block;
      }
      leave(block, found);
    }
    return nullptr;
  }

  // Of a block that comes from malloc: kept, or freed.
  static void give(void* block, size_t size) {
    if (size < kLeast || size > kMost ||
        (state().bytes += size) > 2 * kMost) {
      if (size >= kLeast && size <= kMost)
        state().bytes -= size;
      std::free(block);
      return;
    }
    std::memcpy(block, &size, sizeof(size));
    leave(block, size);
  }

 private:
  struct State {
    std::atomic<void*> slots[8];
    std::atomic<size_t> bytes;
  };

  static State& state() {
    static State one{};
    return one;
  }

  static void leave(void* block, size_t size) {
    for (std::atomic<void*>& slot : state().slots) {
      void* none = nullptr;
      if (slot.compare_exchange_strong(none, block))
        return;
    }
    state().bytes -= size;
    std::free(block);
  }
};

// `count` zeros, or whatever was there.
template <typename T>
class Scratch {
 public:
  Scratch(int64_t count, Pages pages, bool zeros = true) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    size_t size = bytes > 0 ? bytes : 1;
    void* start = nullptr;
    if (!zeros && bytes >= Kept::kLeast && bytes <= Kept::kMost)
      start = Kept::take(bytes, &size);
    if (start == nullptr)
      start = make(pages, zeros, &size);
    if (start == nullptr)
      throw std::bad_alloc();
    data_ = {static_cast<T*>(start), Free{size}};
  }

  T* get() { return data_.get(); }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  void swap(Scratch& other) { data_.swap(other.data_); }

 private:
  struct Free {
    size_t size = 0;
    void operator()(void* p) const { Kept::give(p, size); }
  };

  static void* make(Pages pages, bool zeros, size_t* size) {
#ifdef __linux__
    constexpr size_t kHugePage = size_t{1} << 21;
    if (pages == Pages::kHuge && *size >= 2 * kHugePage) {
      *size = (*size + kHugePage - 1) / kHugePage * kHugePage;
      void* start = std::aligned_alloc(kHugePage, *size);
      if (start == nullptr)
        return nullptr;
      madvise(start, *size, MADV_HUGEPAGE);  // a wish: it may fail
      if (zeros)
        std::memset(start, 0, *size);
      return start;
    }
#endif
    return zeros ? std::calloc(*size, 1) : std::malloc(*size);
  }

  std::unique_ptr<T[], Free> data_;
};

}  // namespace pyg_trust
