// Huge pages that calls leave to the calls after them.
#include "scratch.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace pyg_trust {
namespace {

struct Piece {
  void* start;
  size_t bytes;
};

// Both lists are short: a call has two or three pieces.
struct Kept {
  std::mutex changing;
  int64_t keepers = 0;
  std::vector<Piece> used, idle;
};

Kept& kept() {
  // Never destroyed: a thread may give pages back after the end of main.
  static Kept& all = *new Kept;
  return all;
}

void* fresh(size_t bytes) {
  void* start = std::aligned_alloc(kHugePage, bytes);
  if (start == nullptr)
    throw std::bad_alloc();
  wish_for_huge_pages(start, static_cast<int64_t>(bytes));
  return start;
}

void keep_pages(bool keep) {
  std::vector<Piece> unused;
  Kept& all = kept();
  {
    const std::lock_guard<std::mutex> lock(all.changing);
    all.keepers += keep ? 1 : -1;
    if (all.keepers == 0)
      unused.swap(all.idle);
  }
  for (const Piece& piece : unused)
    std::free(piece.start);
}

}  // namespace

// The smallest piece that is large enough. Where all are too small they make
// room for a new one: what is kept is never more than what was in use.
void* take_pages(size_t bytes) {
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  Kept& all = kept();
  const std::lock_guard<std::mutex> lock(all.changing);
  all.used.reserve(all.used.size() + 1);
  all.idle.reserve(all.used.size() + all.idle.size() + 1);
  Piece* best = nullptr;
  for (Piece& piece : all.idle)
    if (piece.bytes >= bytes && (best == nullptr || piece.bytes < best->bytes))
      best = &piece;
  Piece taken{};
  if (best != nullptr) {
    taken = *best;
    *best = all.idle.back();
    all.idle.pop_back();
  } else {
    for (const Piece& piece : all.idle)
      std::free(piece.start);
    all.idle.clear();
    taken = {fresh(bytes), bytes};
  }
  all.used.push_back(taken);
  return taken.start;
}

void give_pages(void* pages) noexcept {
  Kept& all = kept();
  {
    const std::lock_guard<std::mutex> lock(all.changing);
    const auto found =
        std::find_if(all.used.begin(), all.used.end(),
                     [&](const Piece& piece) { return piece.start == pages; });
    const Piece piece = *found;
    *found = all.used.back();
    all.used.pop_back();
    if (all.keepers > 0) {
      all.idle.push_back(piece);  // has room: take_pages saw to it
      return;
    }
  }
  std::free(pages);
}

}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CompositeExplicitAutograd, m) {
  m.impl("keep_pages", TORCH_BOX(&pyg_trust::keep_pages));
}
