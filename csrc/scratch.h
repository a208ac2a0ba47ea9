// Working memory for the kernels.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace pyg_trust {

constexpr size_t kHugePage = size_t{1} << 21;

enum class Pages {
  kSmall,  // taken as they are touched: for work that touches little
  kHuge,   // few, so that random access finds their addresses cached
};

// Asks for huge pages where whole ones fit, before memory is touched for the
// first time: a wish, that may fail.
inline void wish_for_huge_pages(void* start, int64_t bytes) {
#ifdef __linux__
  const auto from = reinterpret_cast<uintptr_t>(start);
  const uintptr_t first = (from + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end =
      (from + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (end > first + kHugePage)
    madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

// Pieces of huge pages that were given back while somebody keeps them
// (scratch.cpp), for whoever needs as much: the system clears every page that
// it hands out, which takes longer than a level reads or writes it.
struct Piece {
  void* start;
  size_t bytes;
};
Piece take_pages(size_t bytes);  // as many at least; throws std::bad_alloc
void give_pages(const Piece& piece) noexcept;

// `count` zeros, or whatever was there.
template <typename T>
class Scratch {
 public:
  Scratch(int64_t count, Pages pages, bool zeros = true) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
#ifdef __linux__
    if (pages == Pages::kHuge && bytes >= 2 * kHugePage) {
      const Piece taken = take_pages(bytes);
      if (zeros)
        std::memset(taken.start, 0, bytes);
      data_ = {static_cast<T*>(taken.start), Free{taken.bytes}};
      return;
    }
#endif
    const size_t least = bytes > 0 ? bytes : 1;
    data_ = {static_cast<T*>(zeros ? std::calloc(least, 1)
                                   : std::malloc(least)),
             Free{0}};
    if (data_ == nullptr)
      throw std::bad_alloc();
  }

  T* get() { return data_.get(); }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  void swap(Scratch& other) { data_.swap(other.data_); }

 private:
  struct Free {
    size_t pages = 0;  // bytes of huge ones
    void operator()(void* p) const {
      pages > 0 ? give_pages({p, pages}) : std::free(p);
    }
  };
  std::unique_ptr<T[], Free> data_;
};

}  // namespace pyg_trust
