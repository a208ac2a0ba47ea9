// Every op of pyg_trust: the whole C++ surface on one page. The Python side,
// with checks and documentation, is pyg_trust/ops.py. On CUDA, the weights of
// levels (weights, ratio, keep) stay on the CPU, as they go into the launches.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(pyg_trust, m) {
  // z = sum_i weights[i] P^i x, P = D_recv B D_send, exactly; with
  // `three_term` sum_i weights[i] T_i(P) x in Chebyshev polynomials. Row v of
  // (rowptr, col) lists the nodes that v receives from. `half` keeps the
  // levels of a float32 x in float16, each column times its `scale` (powers of
  // two). Of z only the rows in `rows` if given. `order` names the rows of
  // the graph in x, recv, send and z, but not in `rows`.
  m.def(
      "propagate(Tensor rowptr, Tensor col, Tensor x, Tensor recv, "
      "Tensor send, Tensor weights, bool half, Tensor? scale, "
      "bool three_term, Tensor? rows, Tensor? order) -> Tensor");

  // The same for the rows (ptr, index, value) of a sparse x.
  m.def(
      "propagate_entries(Tensor rowptr, Tensor col, Tensor ptr, "
      "Tensor index, Tensor value, int columns, Tensor recv, Tensor send, "
      "Tensor weights, bool half, Tensor? scale, bool three_term, "
      "Tensor? rows, Tensor? order) -> Tensor");

  // Of lists of edges (int64 or int32), sorted rows; CPU only, as all of
  // these. count[index[e]] += 1; the first e whose index is no node, or -1.
  m.def("count_rows(Tensor index, Tensor(a!) count) -> int");
  // Puts col[e] in the next place of its row, from cursor[row[e] - first] on,
  // and first_edge + e in perm; edges of other rows are left out. False if
  // these are not the edges that were counted.
  m.def(
      "place_rows(Tensor row, Tensor col, Tensor(a!) cursor, Tensor(b!) out, "
      "Tensor(c!)? perm, int first, int num_nodes, int first_edge) -> bool");
  // Sorts every row. How many entries repeat the one before, and the first.
  m.def(
      "sort_rows(Tensor rowptr, Tensor(a!) col, Tensor(b!)? perm) "
      "-> (int, int)");
  // One of equal entries of a row stays; how many entries are left.
  m.def("merge_rows(Tensor(a!) rowptr, Tensor(b!) col) -> int");
  // 0 for sorted rows; 1: rowptr is none, 2: no node, 3: not sorted.
  m.def("check_rows(Tensor rowptr, Tensor col) -> int");
  // Whether every entry is there in both directions, weights alike.
  m.def("is_symmetric(Tensor rowptr, Tensor col, Tensor? weight) -> bool");
  // rowptr and col of the reversed edges, and their positions in col.
  m.def(
      "transpose_rows(Tensor rowptr, Tensor col, bool with_perm) "
      "-> (Tensor, Tensor, Tensor)");
  // A mask of the nodes in their own rows; the rows with the others put in.
  m.def("own_loops(Tensor rowptr, Tensor col) -> Tensor");
  m.def(
      "add_loops(Tensor rowptr, Tensor col, Tensor own, bool with_perm) "
      "-> (Tensor, Tensor, Tensor)");

  // `propagate` (or `propagate_entries`, if x is none) on the CPU, with an
  // entry more in every row that has none of its own node, if `loops`: recv
  // and send count it. Written over x if `in_place`.
  m.def(
      "propagate_looped(Tensor rowptr, Tensor col, Tensor(a!)? x, Tensor? ptr, "
      "Tensor? index, Tensor? value, int columns, Tensor recv, Tensor send, "
      "Tensor weights, bool half, Tensor? scale, bool three_term, "
      "Tensor? rows, Tensor? order, bool loops, bool in_place) -> Tensor");

  // The largest magnitude in every column of a float32 matrix; NaN where one
  // is in it.
  m.def("column_magnitudes(Tensor x) -> Tensor");

  // The part of each node (int32) in a partition into parts of equal size with
  // few edges between them.
  m.def(
      "partition_nodes(Tensor rowptr, Tensor col, int parts, int rounds) "
      "-> Tensor");

  // Which kernels the CPU runs: 0 for those of every processor, 1 with AVX2
  // and F16C, 2 with AVX-512.
  m.def("instruction_set() -> int");

  // The same sum, estimated by randomized pushes, in blocks of columns that
  // share what is sampled. Row u of (rowptr, col) lists the nodes that u
  // pushes to, in ascending degree; row v of (pull_rowptr, pull_col) those
  // that v receives from. A level of a block is done exactly where pushing it
  // is expected to cost more than `pull_above` times as much. Also returns how
  // many levels of each block were pushed. `deterministic`: on CUDA, sums are
  // repeatable.
  m.def(
      "push(Tensor rowptr, Tensor col, Tensor? scale, Tensor group_ptr, "
      "Tensor group_end, Tensor pull_rowptr, Tensor pull_col, Tensor recv, "
      "Tensor send, Tensor x, Tensor eps, Tensor ratio, Tensor keep, int seed, "
      "int first, float pull_above, bool deterministic) -> (Tensor, Tensor)");

  // `push` as long as it pushes nothing: else the number of levels pushed is
  // -1, and the result nothing. Of (rowptr, col) only the rows that costs are
  // estimated from are read.
  m.def(
      "pull(Tensor rowptr, Tensor col, Tensor? scale, Tensor group_ptr, "
      "Tensor group_end, Tensor pull_rowptr, Tensor pull_col, Tensor recv, "
      "Tensor send, Tensor x, Tensor eps, Tensor ratio, Tensor keep, "
      "float pull_above) -> (Tensor, Tensor)");

  // `push` for sparse signals (CSR rows sig_ptr, sig_node, sig_value), each by
  // itself, with sparse rows (ptr, node, value) as the result: per row the
  // top_k entries (all if top_k < 0) of magnitude above `threshold`. Residues
  // with |r| * send < prune are not pushed.
  m.def(
      "push_sparse(Tensor rowptr, Tensor col, Tensor? scale, "
      "Tensor group_ptr, Tensor group_end, Tensor send, Tensor sig_ptr, "
      "Tensor sig_node, Tensor sig_value, Tensor eps, Tensor prune, "
      "Tensor ratio, Tensor keep, int seed, int first, int top_k, "
      "float threshold, bool deterministic) -> (Tensor, Tensor, Tensor)");

  // Node-disjoint subgraphs (ptr, node), one after the other, each from a root
  // (first) that is uniform among those of `roots` not yet in a subgraph:
  // `restarts` walks of `walk_length` steps, each step uniform among the
  // neighbours (row of rowptr, col) not yet in a subgraph. On CUDA, roots go in
  // rounds, with a law that is near to this one (device/walk.h).
  m.def(
      "disjoint_walks(Tensor rowptr, Tensor col, Tensor roots, "
      "int walk_length, int restarts, int seed) -> (Tensor, Tensor)");

  // `num_samples` noisy copies of a matrix of bits (rowptr, col), one below
  // the other: every 0 becomes 1 with probability p_plus, every 1 becomes 0
  // with p_minus, all by themselves. `cells`: 0 for all entries, 1 for those
  // off the diagonal (a directed graph), 2 for pairs of an undirected graph;
  // graphs come as blocks on a diagonal, and their self-loops stay. Copy s
  // depends on (seed, first + s) alone.
  m.def(
      "flip_bits(Tensor rowptr, Tensor col, int num_cols, float p_plus, "
      "float p_minus, int cells, int seed, int first, int num_samples) "
      "-> (Tensor, Tensor)");

  // Maximizes V = r + max_policy [(a P V + bonus - visit k) / |S|
  // + root / sqrt |S| - step k - prices of the edges that are flipped], every
  // column by itself, from `start`: row i of the policy is row i of
  // (rowptr, col) after k flips, at most budget[i], of edges that are
  // `removable` and of pairs (add_ptr, add_col), or of all pairs. Stops where
  // T V - V is within goal and within rounding |V|, in the largest entry.
  // Returns V, T V - V and the flips of the maximizing policy, sorted, by
  // column: ptr, row, col.
  m.def(
      "policy_iteration(Tensor rowptr, Tensor col, Tensor removable, "
      "Tensor budget, Tensor add_ptr, Tensor add_col, bool all_pairs, "
      "Tensor reward, Tensor? bonus, Tensor? visit_cost, Tensor? step_cost, "
      "Tensor? root, Tensor? removal_cost, Tensor? addition_cost, "
      "Tensor start, Tensor goal, float rounding, float follow, int max_iter) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");

  // x = r + a P x (or P', `back`) for the policy of each column, given by its
  // flips, from `start` to a residual within goal. Returns x and the residual.
  m.def(
      "policy_solve(Tensor rowptr, Tensor col, Tensor flip_ptr, "
      "Tensor flip_row, Tensor flip_col, Tensor reward, Tensor start, "
      "Tensor goal, float follow, bool back) -> (Tensor, Tensor)");

  // Rows of one level of `propagate`, in place: for the rows v in `list` (all
  // if none), y(v) = recv[v] * the sum of in(u) over row v; out(v) = send[v] *
  // y(v); z(k) += weight * y(list[k]). Row v is the `length[v]` entries of col
  // from start[v] on, ascending; behind them there may be room.
  m.def(
      "pull_rows(Tensor start, Tensor length, Tensor col, Tensor? list, "
      "Tensor x, Tensor recv, Tensor send, Tensor(a!)? out, Tensor(b!)? z, "
      "float weight) -> ()");

  // The nodes of `extra` and those in the rows of `seeds`, each once;
  // stamp[v] = mark for them.
  m.def(
      "touched_rows(Tensor start, Tensor length, Tensor col, Tensor seeds, "
      "Tensor extra, Tensor(a!) stamp, int mark) -> Tensor");

  // Takes entries (row, target), sorted, out of such rows, or puts them in.
  // Returns -1, or the first one that is not there (is there already): then
  // nothing has changed.
  m.def(
      "edit_rows(Tensor start, Tensor(a!) length, Tensor(b!) col, Tensor row, "
      "Tensor target, bool insert) -> int");

  // Pushes residues of z = alpha sum_i follow^i P^i x until each row of R is
  // within its limit. Returns the rows that changed as they were before, (node,
  // R) and (node, z), and the number of pushes.
  m.def(
      "push_rows(Tensor start, Tensor length, Tensor col, Tensor seeds, "
      "Tensor recv, Tensor send, Tensor limit, float follow, Tensor(a!) z, "
      "Tensor(b!) residue) -> (Tensor, Tensor, Tensor, Tensor, int)");

  // Z' G, G the derivative of the loss of a linear head in the margins Z W,
  // and the sum of the squares of G. `head`: 0 for one-versus-rest logistic, 1
  // for softmax, 2 for squared. CPU only.
  m.def(
      "loss_gradient(Tensor Z, Tensor Y, Tensor W, int head) "
      "-> (Tensor, Tensor)");
}
