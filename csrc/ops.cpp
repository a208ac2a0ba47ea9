// Every op of pyg_trust, with the layout of its arguments and results. The
// functions of the same names in pyg_trust/ops.py say what they cost.
//
// n is the number of nodes, m of edges, C of columns, L of levels. `real` is
// float32 or float64, one of both in a call. Tensors are contiguous and on the
// device that the op runs on; the weights of levels (weights, ratio, keep) stay
// on the CPU. Rows are (rowptr, col): int64 [n + 1], ascending from 0 to m, and
// int32 [m] with nodes in [0, n), ascending in every row where "sorted". What
// is marked (a!) is written in place; all else that comes out is new.
//
// Ops trust what they get: it is checked in Python. Random numbers are those of
// a stream of counters (rng.h), keyed by `seed` and by what is drawn.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(pyg_trust, m) {
  // z = sum_i weights[i] P^i x, P = D_recv B D_send, exactly; with
  // `three_term` sum_i weights[i] T_i(P) x in Chebyshev polynomials. Row v of
  // (rowptr, col) lists the nodes that v receives from, and with `loops` v
  // itself if it is not among them: recv and send count it. x is dense, or
  // none and the rows (ptr, index, value) of a sparse one. `half` keeps the
  // levels of a float32 x in float16, each column times its `scale` (powers of
  // two). Of z only the rows in `rows` if given; written over x if `in_place`:
  // dense, all rows. CPU only, as all down to `instruction_set`.
  // x: real [n, columns]; ptr: int64 [n + 1]; index: int64 [nnz]; value: real
  // [nnz]; recv, send: real [n]; weights: float64 [L + 1]; scale: float32
  // [columns]; rows: int64 [k], any nodes. Returns real [n or k, columns].
  m.def(
      "propagate(Tensor rowptr, Tensor col, Tensor(a!)? x, Tensor? ptr, "
      "Tensor? index, Tensor? value, int columns, Tensor recv, Tensor send, "
      "Tensor weights, bool half, Tensor? scale, bool three_term, "
      "Tensor? rows, bool loops, bool in_place) -> Tensor");

  // Sorted rows of lists of edges (row, col: int64 or int32, [m]), of which the
  // numbers may be any.
  //
  // count[index[e]] += 1; the first e whose index is no node, or -1.
  // count: int64 [n].
  m.def("count_rows(Tensor index, Tensor(a!) count) -> int");
  // Puts col[e] in the next place of its row, from cursor[row[e] - first] on,
  // and e in perm; edges of other rows are left out. False if these are not
  // the edges that were counted.
  // cursor: int64, one for each row from `first` on; out: int32, and perm:
  // int64, a place for each of their edges.
  m.def(
      "place_rows(Tensor row, Tensor col, Tensor(a!) cursor, Tensor(b!) out, "
      "Tensor(c!)? perm, int first, int num_nodes) -> bool");
  // Sorts every row, and perm (int64 [m]) with it. How many entries repeat the
  // one before, and the first that does, or -1.
  m.def(
      "sort_rows(Tensor rowptr, Tensor(a!) col, Tensor(b!)? perm) "
      "-> (int, int)");
  // One of equal entries of a sorted row stays; how many entries are left:
  // what is behind them in col means nothing.
  m.def("merge_rows(Tensor(a!) rowptr, Tensor(b!) col) -> int");
  // 0 for sorted rows; 1: rowptr is none, 2: no node, 3: not sorted.
  m.def("check_rows(Tensor rowptr, Tensor col) -> int");
  // Whether every entry of sorted rows is there in both directions, weights
  // (real [m]) alike.
  m.def("is_symmetric(Tensor rowptr, Tensor col, Tensor? weight) -> bool");
  // rowptr and col of the reversed edges, sorted, and the position of each in
  // col before: int64 [m], or [0] without `with_perm`.
  m.def(
      "transpose_rows(Tensor rowptr, Tensor col, bool with_perm) "
      "-> (Tensor, Tensor, Tensor)");
  // A mask of the nodes in their own rows, bool [n]; the sorted rows with the
  // others put in, and the position of each entry in col before, -1 for what
  // was put in (int64, or [0] without `with_perm`).
  m.def("own_loops(Tensor rowptr, Tensor col) -> Tensor");
  m.def(
      "add_loops(Tensor rowptr, Tensor col, Tensor own, bool with_perm) "
      "-> (Tensor, Tensor, Tensor)");

  // The largest magnitude in every column of a float32 matrix; NaN where one
  // is in it.
  // x: float32 [n, C]. Returns float32 [C].
  m.def("column_magnitudes(Tensor x) -> Tensor");

  // Which kernels the CPU runs: 0 for those of every processor, 1 with AVX2
  // and F16C, 2 with AVX-512.
  m.def("instruction_set() -> int");

  // Whether working memory in huge pages stays with the process when a call
  // ends: from the first True to as many False.
  m.def("keep_pages(bool keep) -> ()");

  // The same sum, estimated by randomized pushes, in blocks of columns that
  // share what is sampled. Row u of (rowptr, col) lists the nodes that u
  // pushes to, in ascending degree; row v of (pull_rowptr, pull_col) those
  // that v receives from. A level of a block is done exactly where pushing it
  // is expected to cost more than `pull_above` times as much. Also returns how
  // many levels of each block were pushed. `only_pull` (CPU): ends at the first
  // level that is pushed, with the number -1; of (rowptr, col) only the rows
  // that costs are estimated from are read then. Block k, of 64 bytes of
  // columns, draws from (seed, first + k).
  // scale: real [m], descending in every row; group_ptr: int64 [n + 1], of
  // group_end: int64; recv, send: real [n]; x: real [n, C]; eps: real [C];
  // ratio: float64 [L]; keep: float64 [L + 1]. Returns real [n, C] and int64,
  // one for each block.
  m.def(
      "push(Tensor rowptr, Tensor col, Tensor? scale, Tensor group_ptr, "
      "Tensor group_end, Tensor pull_rowptr, Tensor pull_col, Tensor recv, "
      "Tensor send, Tensor x, Tensor eps, Tensor ratio, Tensor keep, int seed, "
      "int first, float pull_above, bool only_pull) -> (Tensor, Tensor)");

  // `push` for sparse signals (CSR rows sig_ptr, sig_node, sig_value), each by
  // itself, with sparse rows (ptr, node, value) as the result: per row the
  // top_k entries (all if top_k < 0) of magnitude above `threshold`. Residues
  // with |r| * send < prune are not pushed. Signal k draws from
  // (seed, first + k).
  // CPU only.
  // sig_ptr: int64 [S + 1]; sig_node: int64 [nnz]; sig_value: real [nnz]; eps,
  // prune: real [S]. Returns int64 [S + 1], int64 [out], ascending in every
  // row, and real [out].
  m.def(
      "push_sparse(Tensor rowptr, Tensor col, Tensor? scale, "
      "Tensor group_ptr, Tensor group_end, Tensor send, Tensor sig_ptr, "
      "Tensor sig_node, Tensor sig_value, Tensor eps, Tensor prune, "
      "Tensor ratio, Tensor keep, int seed, int first, int top_k, "
      "float threshold) -> (Tensor, Tensor, Tensor)");

  // Node-disjoint subgraphs (ptr, node), one after the other, each from a root
  // (first) that is uniform among those of `roots` not yet in a subgraph:
  // `restarts` walks of `walk_length` steps, each step uniform among the
  // neighbours (row of rowptr, col) not yet in a subgraph. On CUDA, roots go in
  // rounds, with a law that is near to this one (device/walk.h). Roots are
  // drawn from (seed, 0), the walks of root r from (seed, 1, r).
  // roots: int64, distinct nodes. Returns int64 [subgraphs + 1] and int64.
  m.def(
      "disjoint_walks(Tensor rowptr, Tensor col, Tensor roots, "
      "int walk_length, int restarts, int seed) -> (Tensor, Tensor)");

  // `num_samples` noisy copies of a matrix of bits (rowptr, col), one below
  // the other: every 0 becomes 1 with probability p_plus, every 1 becomes 0
  // with p_minus, all by themselves. `cells`: 0 for all entries, 1 for those
  // off the diagonal (a directed graph), 2 for pairs of an undirected graph;
  // graphs come as blocks on a diagonal, and their self-loops stay. Copy s
  // depends on (seed, first + s) alone. Rows are sorted, without repetitions,
  // of columns in [0, num_cols). Returns int64 [num_samples * n + 1] and int32.
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
  // column: ptr, row, col. CPU only, and so is policy_solve.
  // Rows are sorted, without repetitions. removable: bool [m]; budget: int64
  // [n]; (add_ptr, add_col): rows of what is in no row; reward, start, bonus,
  // visit_cost, step_cost, root: float64 [C, n]; removal_cost: float64 [C, m];
  // addition_cost: float64 [C, pairs]; goal: float64 [C]. Returns float64
  // [C, n] twice, int64 [C + 1], int32 [flips] and int32 [flips].
  m.def(
      "policy_iteration(Tensor rowptr, Tensor col, Tensor removable, "
      "Tensor budget, Tensor add_ptr, Tensor add_col, bool all_pairs, "
      "Tensor reward, Tensor? bonus, Tensor? visit_cost, Tensor? step_cost, "
      "Tensor? root, Tensor? removal_cost, Tensor? addition_cost, "
      "Tensor start, Tensor goal, float rounding, float follow, int max_iter) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");

  // x = r + a P x (or P', `back`) for the policy of each column, given by its
  // flips, from `start` to a residual within goal. Returns x and the residual.
  // (flip_ptr, flip_row, flip_col): int64 [C + 1], int32, int32, by column,
  // sorted; reward, start: float64 [C, n]; goal: float64 [C]. Returns float64
  // [C, n] twice.
  m.def(
      "policy_solve(Tensor rowptr, Tensor col, Tensor flip_ptr, "
      "Tensor flip_row, Tensor flip_col, Tensor reward, Tensor start, "
      "Tensor goal, float follow, bool back) -> (Tensor, Tensor)");

  // Rows of one level of `propagate`, in place: for the rows v in `list` (all
  // if none), y(v) = recv[v] * the sum of in(u) over row v; out(v) = send[v] *
  // y(v); z(k) += weight * y(list[k]). Row v is the `length[v]` entries of col
  // from start[v] on, ascending; behind them there may be room. CPU only, as all
  // that follows.
  // start, length: int64 [n]; list: int64 [k]; x, out: real [n, C]; recv, send:
  // real [n]; z: real [k, C].
  m.def(
      "pull_rows(Tensor start, Tensor length, Tensor col, Tensor? list, "
      "Tensor x, Tensor recv, Tensor send, Tensor(a!)? out, Tensor(b!)? z, "
      "float weight) -> ()");

  // Features of a changing graph by exact sums of integers (cpu/live.cpp). The
  // state, 13 tensors: rows (int64 [3, n]: start, length, room), col (int32, a
  // pool) and its lists of free blocks (int64 [41]); the same three of the rows
  // of the other direction, or the same tensors; clock (int64 [3]: names, edits,
  // broken); alive and own loops (bool [2, n]); x (real [n, C]); sums (int64
  // [levels kept, n, C]); ranks (int8 [n]) and, for each rank of a receiver,
  // the highest one of the senders that are in its sum (int8 [64], ascending);
  // and float64 [5]: a, b, the grid, along, self-loops. Names are below clock[0].
  //
  // All sums from graph and features.
  m.def("live_build(Tensor(a!)[] state) -> ()");
  // sum_i weights[i] P^i x of nodes (all names if none), in float64 [k, C].
  // Returns -1, or the first place of a name that is not there: then nothing
  // is written.
  m.def(
      "live_rows(Tensor(a!)[] state, Tensor weights, Tensor? list, "
      "Tensor(b!) z) -> int");
  // mark[v] = true, bool [names], for all receivers v of `nodes`.
  m.def("live_mark(Tensor[] state, Tensor nodes, Tensor(a!) mark) -> ()");
  // Plays events (kind, u, v), int64 [3, k], of which nothing changes yet: the
  // arcs (row, target, sign) that differ in the end, sorted, int64 [3, m]; the
  // nodes whose own loop and that themselves come or go, int64; all that are
  // touched, sorted; and -1, or four times the first that does not fit, and why.
  m.def(
      "live_net(Tensor[] state, Tensor events, float most) "
      "-> (Tensor, Tensor, Tensor, Tensor, int)");
  // Puts these in force, `names`, the features of `named` and the number of
  // edits so far, and sends the differences. Returns 0, or how much a pool
  // lacks: then nothing has changed.
  m.def(
      "live_edit(Tensor(a!)[] state, Tensor arcs, Tensor loops, Tensor nodes, "
      "int names, Tensor named, Tensor values, int edits) -> int");

  // Pushes residues of z = alpha sum_i follow^i P^i x until each row of R is
  // within its limit, theta times the root of the row's length. Returns the
  // rows that changed as they were before, (node, R) and (node, z), and the
  // number of pushes. With x, R of the seeds is made first, alpha x + follow P
  // z - z; then rows have the same entries both ways.
  // seeds: int64, all nodes that may be above their limit; recv, send: float64
  // [n]; z, residue, x: float64 [n, C].
  m.def(
      "push_rows(Tensor start, Tensor length, Tensor col, Tensor seeds, "
      "Tensor recv, Tensor send, float theta, float follow, Tensor(a!) z, "
      "Tensor(b!) residue, Tensor? x=None, float alpha=0) "
      "-> (Tensor, Tensor, Tensor, Tensor, int)");

  // x W' + b, each number by one chain of fused multiply-adds over k ascending,
  // to which b is added: the bits of a row are those of the row alone. CPU only.
  // x: real [R, K]; weight: real [C, K], of any strides; bias: real [C].
  // Returns real [R, C].
  m.def("row_linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");

  // Rows of a gradient that are not zero, or have an input that is not finite.
  // CPU only, as the next two.
  // grad: real [n, d]; inners: I of real [n, w]. Returns int64 [m].
  m.def("clip_rows(Tensor grad, Tensor[] inners) -> Tensor");

  // Bounds of what the rows `rows` of pairs of a gradient and an input, linear
  // maps, add to each of `units` units; without inputs each gradient is one of
  // copies of a parameter. A row's unit is in `owner`.
  // grads: G of real [n, d]; inners; rows, owner: int64 [m]; pairs: int64
  // [P, 2].
  // Returns, in float64, sums [5, P, units]: what tau is of, kappa, products of
  // the lengths, lengths of inputs, lengths of gradients; the weight [units];
  // of the inputs 2^-k [I, m]; and the sums of the rows of copies
  // [P, units, d].
  m.def(
      "clip_sizes(Tensor[] grads, Tensor[] inners, Tensor rows, Tensor owner, "
      "Tensor pairs, int units) -> (Tensor, Tensor, Tensor, Tensor)");

  // The sums in integers of the same, each unit's gradients times `each`;
  // units with zero, or others than `only` if that is not negative, are left
  // out. scale: float64 [I, m]; each: float64 [units].
  // Returns int64 [P, d, w], of copies [P, d, 1].
  m.def(
      "clip_sums(Tensor[] grads, Tensor[] inners, Tensor rows, Tensor owner, "
      "Tensor pairs, Tensor scale, Tensor each, int only) -> Tensor");
}
