// An order of the nodes in which neighbours stand near each other: parts of
// equal size with few edges between them, by restreaming linear deterministic
// greedy partitioning (Stanton and Kliot 2012; Nishimura and Ugander 2013).
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pyg_trust {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A node goes to the part with the largest
//   (neighbours in it) * (1 - size / capacity),
// the smallest part on ties. In the first round neighbours that were not yet
// placed count nothing, later they count where they were in the last round.
Tensor partition_nodes(const Tensor& rowptr_,
                       const Tensor& col_,
                       int64_t parts,
                       int64_t rounds) {
  const auto* rowptr = rowptr_.const_data_ptr<int64_t>();
  const auto* col = col_.const_data_ptr<int32_t>();
  const int64_t n = rowptr_.numel() - 1;
  const int64_t capacity = (n + parts - 1) / parts;
  std::vector<int32_t> part(n, -1);
  std::vector<int64_t> size(parts);
  std::vector<int32_t> count(parts, 0), seen;
  for (int64_t round = 0; round < rounds; ++round) {
    std::fill(size.begin(), size.end(), 0);
    int64_t smallest = 0;
    for (int64_t v = 0; v < n; ++v) {
      seen.clear();
      for (int64_t e = rowptr[v]; e < rowptr[v + 1]; ++e) {
        const int32_t p = part[col[e]];
        if (p >= 0 && count[p]++ == 0)
          seen.push_back(p);
      }
      int64_t best = -1;
      double most = 0;
      for (const int32_t p : seen) {
        const double score =
            count[p] * (1.0 - static_cast<double>(size[p]) /
                                  static_cast<double>(capacity));
        if (score > most ||
            (score == most && best >= 0 && size[p] < size[best])) {
          most = score;
          best = p;
        }
        count[p] = 0;
      }
      if (best < 0) {
        // Nothing known, or all full: where there is room.
        while (size[smallest] >= capacity)
          smallest = smallest + 1 < parts ? smallest + 1 : 0;
        best = smallest;
        smallest = smallest + 1 < parts ? smallest + 1 : 0;
      }
      part[v] = static_cast<int32_t>(best);
      ++size[best];
    }
  }
  Tensor out = torch::stable::new_empty(rowptr_, {n}, ScalarType::Int);
  std::copy(part.begin(), part.end(), out.mutable_data_ptr<int32_t>());
  return out;
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("partition_nodes", TORCH_BOX(&pyg_trust::partition_nodes));
}
