// Huge pages that calls leave to the calls after them.
#include "scratch.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace pyg_trust {
namespace {

struct Kept {
  std::mutex changing;
  int64_t keepers = 0;
  std::vector<Piece> idle;  // few: a call has two or three

  void free() {
    for (const Piece& piece : idle)
      std::free(piece.start);
    idle.clear();
  }
};

Kept& kept() {
  // Never destroyed: a thread may give pages back after the end of main.
  static Kept& all = *new Kept;
  return all;
}

void keep_pages(bool keep) {
  const std::lock_guard<std::mutex> lock(kept().changing);
  kept().keepers += keep ? 1 : -1;
  if (kept().keepers == 0)
    kept().free();
}

}  // namespace

// The smallest piece that is large enough. Where all are too small they make
// room for a new one: what is kept is never more than what was in use.
Piece take_pages(size_t bytes) {
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  auto& idle = kept().idle;
  const std::lock_guard<std::mutex> lock(kept().changing);
  const auto fits = [bytes](const Piece& piece) { return piece.bytes >= bytes; };
  const auto best = std::min_element(
      idle.begin(), idle.end(), [&](const Piece& a, const Piece& b) {
        return fits(a) != fits(b) ? fits(a) : a.bytes < b.bytes;
      });
  if (best != idle.end() && fits(*best)) {
    const Piece taken = *best;
    idle.erase(best);
    return taken;
  }
  kept().free();
  void* start = std::aligned_alloc(kHugePage, bytes);
  if (start == nullptr)
    throw std::bad_alloc();
  wish_for_huge_pages(start, static_cast<int64_t>(bytes));
  return {start, bytes};
}

void give_pages(const Piece& piece) noexcept {
  {
    const std::lock_guard<std::mutex> lock(kept().changing);
    if (kept().keepers > 0) {
      kept().idle.push_back(piece);
      return;
    }
  }
  std::free(piece.start);
}

}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CompositeExplicitAutograd, m) {
  m.impl("keep_pages", TORCH_BOX(&pyg_trust::keep_pages));
}
