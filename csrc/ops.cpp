// Every op of pyg_trust: the whole C++ surface on one page. The Python side,
// with checks and documentation, is pyg_trust/ops.py.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(pyg_trust, m) {
  // z = sum_i weights[i] (D_recv B D_send)^i x, exactly. Row v of
  // (rowptr, col) lists the nodes that v receives from.
  m.def(
      "propagate(Tensor rowptr, Tensor col, Tensor x, Tensor recv, "
      "Tensor send, Tensor weights) -> Tensor");

  // The same sum, estimated by randomized pushes. Row u of (rowptr, col)
  // lists the nodes that u pushes to, in ascending degree; one row of `x` and
  // of the result per signal.
  m.def(
      "push(Tensor rowptr, Tensor col, Tensor? scale, Tensor group_ptr, "
      "Tensor group_end, Tensor send, Tensor x, Tensor eps, Tensor ratio, "
      "Tensor keep, int seed, int first) -> Tensor");

  // `push` for sparse signals (CSR rows sig_ptr, sig_node, sig_value), with
  // sparse rows (ptr, node, value) as the result: per row the top_k entries
  // (all if top_k < 0) of magnitude above `threshold`.
  m.def(
      "push_sparse(Tensor rowptr, Tensor col, Tensor? scale, "
      "Tensor group_ptr, Tensor group_end, Tensor send, Tensor sig_ptr, "
      "Tensor sig_node, Tensor sig_value, Tensor eps, Tensor ratio, "
      "Tensor keep, int seed, int first, int top_k, float threshold) "
      "-> (Tensor, Tensor, Tensor)");
}
