"""Edits of a graph a second, by sums of integers.

edges     one edge inserted or deleted at a time, and batches of 1,000, on a
          power-law graph, CPU seconds; the bits of a fresh start at the end.
          Computing rows within two hops again, as `PropagatedFeatures` did
          before, took 1/88 s an edge, and .35 s a batch.
read      one row of the features, and all of them; a fresh build, over a
          propagation in floating point.
large     single events and rows of 2.4M nodes and 63M edges: 8 GB, minutes;
          only by name.
updates   a `NodeClassifier` gets one edge, and 1,000 edges and nodes, with a
          release and without one, CPU seconds.
shards    a training node that comes, over one that goes, from four hash
          shards of a random graph: shares of a full fit.

    python benchmarks/living.py --nodes 170000 --edges 2400000
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import mean, median, quantiles

import numpy as np
import torch
from common import interleaved, power_law, result
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from pyg_trust.agp.measures import Measure, sgc
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import PropagatedFeatures
from pyg_trust.unlearning import NodeClassifier, ShardedUnlearner
from pyg_trust.unlearning.sums import Step
from pyg_trust.update import NewNodes, Update

PARTS = ('edges', 'read', 'updates', 'shards', 'large')


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def keys_of(edges: Tensor, n: int) -> Tensor:
    """A number for each undirected edge."""
    return (edges[0] * n + edges[1])[edges[0] < edges[1]]


def edges_to_play(keys: Tensor, n: int, count: int) -> tuple[Tensor, Tensor]:
    """Edges to delete and pairs to insert, each once; keys are sorted."""
    rng = np.random.default_rng(1)
    cut = keys[torch.from_numpy(rng.permutation(keys.numel())[:count])]
    join = keys_of(torch.from_numpy(rng.integers(0, n, (2, 2 * count))), n)
    join = join.unique()
    at = torch.searchsorted(keys, join).clamp_(max=keys.numel() - 1)
    join = join[keys[at] != join]
    join = join[torch.randperm(join.numel())]
    return torch.stack([cut // n, cut % n]), torch.stack([join // n, join % n])


def one_by_one(
    features: PropagatedFeatures, cut: Tensor, join: Tensor, target: float
) -> None:
    """Insert and delete edges in turn, each in a call of its own."""
    ours: list[float] = []
    for k in range(cut.size(1)):
        some = join[:, k : k + 1], cut[:, k : k + 1]
        ours.append(seconds(partial(features.insert_edges, some[0])))
        ours.append(seconds(partial(features.remove_edges, some[1])))
    rate = len(ours) / sum(ours)
    p99 = 1e3 * quantiles(ours, n=100)[98]
    print(f'one by one {rate:.0f}/s, p99 {p99:.2f} ms, '
          f'median {1e6 * median(ours):.0f} us')  # fmt: skip
    if target:
        result('single events a second', rate, target)
    result('p99 of a single event, ms', p99, 1, at_most=True)


def read(features: PropagatedFeatures) -> tuple[float, float]:
    """Median and mean seconds of a row of random nodes."""
    rng = np.random.default_rng(2)
    rows = [
        seconds(partial(features.rows, torch.tensor([v])))
        for v in rng.integers(0, features.num_nodes, 300).tolist()
    ]
    return median(rows), mean(rows)


def run_edges(nodes: int, edges: int, columns: int, measure: Measure) -> None:
    """One by one, and in batches."""
    pairs = power_law(nodes, edges, exponent=2.2)
    graph = CSRGraph.from_edge_index(pairs, nodes)
    x = torch.randn(nodes, columns)
    degree = torch.bincount(pairs[0])
    print(f'{measure}: {nodes} nodes, {pairs.size(1)} directed edges, '
          f'largest degree {int(degree.max())}')  # fmt: skip
    features = PropagatedFeatures(graph, x, measure)
    cut, join = edges_to_play(keys_of(pairs, nodes), nodes, 20_000)
    halves = measure.b > 0
    at, target = 2000, 4_400 * halves
    one_by_one(features, cut[:, :at], join, target)
    ours = []
    for k in range(10):
        part = slice(at + 500 * k, at + 500 * (k + 1))
        step = Step(cut=cut[:, part], edges=join[:, part])
        ours.append(seconds(partial(features._live.play, [step])))
    rate = 1000 / median(ours)
    print(f'batches of 1,000: {rate:.0f} events/s')
    if halves:
        result('batches of 1,000, events a second', rate, 25_000)
    else:
        result('batches of 1,000 for b = 0, events a second', rate, 200_000)
    again = PropagatedFeatures(features.graph, x, measure)
    assert torch.equal(again.rows(), features.rows())


def run_read(nodes: int, edges: int, columns: int) -> None:
    """Rows and builds."""
    pairs = power_law(nodes, edges, exponent=2.2)
    graph = CSRGraph.from_edge_index(pairs, nodes)
    x = torch.randn(nodes, columns)
    times, made = interleaved(
        {
            'build': lambda: PropagatedFeatures(graph, x, sgc(2)),
            'propagation': lambda: propagate(graph, x, sgc(2)),
        },
        5,
        time.process_time,
    )
    features = made['build']
    usual, average = read(features)
    print(f'a row {1e6 * usual:.0f} us (mean {1e6 * average:.0f}), all rows '
          f'{seconds(features.rows):.2f} s, build {times["build"]:.2f} s, '
          f'a propagation {times["propagation"]:.2f} s')  # fmt: skip
    result('a row, us', 1e6 * usual, 60, at_most=True)
    ratio = times['build'] / times['propagation']
    result('a fresh build over a propagation', ratio, 2, at_most=True)


def run_large(columns: int) -> None:
    """A graph of the size of ogbn-products, with degrees of a power law."""
    n, count, power = 2_400_000, 64_500_000, 1 - 1 / 1.6
    ids = torch.randperm(n)
    pieces = []
    for _ in range(10):
        # Node of rank r is drawn in proportion to r^(power - 1).
        ends = torch.rand(2, count // 10, dtype=torch.float64)
        ends = (1 + ends * ((n + 1) ** power - 1)) ** (1 / power) - 1
        ends = ids[ends.long().clamp_(max=n - 1)]
        low, high = ends.aminmax(dim=0)
        pieces.append((low * n + high)[low < high])
    keys = torch.cat(pieces).unique()
    del pieces
    cut, join = edges_to_play(keys, n, 1_000)
    pairs = torch.stack([keys // n, keys % n])
    del keys
    pairs = torch.cat([pairs, pairs.flip(0)], dim=1)
    graph = CSRGraph.from_edge_index(pairs, n)
    del pairs
    degree = graph.degree.double()
    print(f'{n} nodes, {graph.num_edges // 2} edges, mean degree over ends '
          f'{float(degree @ degree / degree.sum()):.0f}')  # fmt: skip
    features = PropagatedFeatures(graph, torch.randn(n, columns), sgc(2))
    del graph
    usual, average = read(features)
    print(f'a row {1e6 * usual:.0f} us, mean {1e6 * average:.0f}')
    one_by_one(features, cut, join, 5_000)
    result('mean of a row, ms', 1e3 * average, 5, at_most=True)


def run_updates(nodes: int, edges: int, columns: int) -> None:
    """Additions to a classifier, which wait, and with a release."""
    pairs = power_law(nodes, edges, exponent=2.2)
    x = torch.randn(nodes, columns)
    x /= x.norm(dim=1, keepdim=True)
    data = Data(
        x=x,
        edge_index=pairs,
        y=torch.randint(0, 5, (nodes,)),
        train_mask=torch.arange(nodes) % 10 == 0,
    )
    model = NodeClassifier('sgc', K=2, max_pending=10**9).fit(data)
    _, join = edges_to_play(keys_of(pairs, nodes), nodes, 20_000)
    at = 0

    def update(count: int, release: bool) -> float:
        nonlocal at
        came, at = join[:, at : at + count], at + count
        new = None
        if count > 1:
            # Half of them are nodes, with an edge each.
            came = came[:, : count // 2].clone()
            first = model.graph.num_nodes
            came[0] = torch.arange(first, first + count // 2)
            new = NewNodes(x[: count // 2], torch.ones(count // 2).long())
        update = Update(nodes=new, edges=came)
        return seconds(partial(model.update, update, release=release))

    for release in (False, True):
        kind = 'with a release' if release else 'that wait'
        runs = [(update(1, release), update(1_000, release)) for _ in range(5)]
        if not release:
            model.release()
        one, many = (median(each) for each in zip(*runs, strict=True))
        print(f'additions {kind}: one {1e3 * one:.1f} ms, 1,000 '
              f'{1e3 * many:.1f} ms')  # fmt: skip
        if release:
            result('1,000 additions / one', many / one, 3, at_most=True)
    result('verified', float(model.verify().ok), 1)


def run_shards() -> None:
    """What a newcomer costs."""
    n, columns = 4_000, 64
    pairs = power_law(n, 40_000, exponent=2.2)
    y = torch.arange(n) % 3
    data = Data(x=torch.rand(n, columns), edge_index=pairs, y=y)
    data.train_mask = torch.arange(n) < n // 2
    unlearner = ShardedUnlearner(
        lambda: GCN(columns, 32, 2, 3), 4, epochs=50, num_classes=3, seed=0
    ).fit(data)
    came: list[float] = []
    went: list[float] = []
    for v in range(9):
        new = NewNodes(torch.rand(1, columns), torch.tensor([v % 3]))
        came.append(seconds(partial(unlearner.update, Update(nodes=new))))
        name = int(unlearner.n_id.max())
        gone = RemovalRequest(nodes=[name])
        went.append(seconds(partial(unlearner.remove, gone)))
    ratio = median(came) / median(went)
    print(f'a newcomer {median(came):.2f} s, a removal {median(went):.2f} s')
    result('a newcomer over a removal', ratio, 1.2, at_most=True)


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--part', choices=PARTS, action='append')
    parser.add_argument('--nodes', type=int, default=170_000)
    parser.add_argument('--edges', type=int, default=2_400_000)
    parser.add_argument('--columns', type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)
    size = args.nodes, args.edges, args.columns
    parts = args.part or PARTS[:-1]
    if 'edges' in parts:
        run_edges(*size, sgc(2))
        run_edges(*size, Measure(1, 0, (0.0, 0.0, 1.0), name='walk'))
    if 'read' in parts:
        run_read(*size)
    if 'large' in parts:
        run_large(args.columns)
    if 'updates' in parts:
        run_updates(*size)
    if 'shards' in parts:
        run_shards()


if __name__ == '__main__':
    main()
