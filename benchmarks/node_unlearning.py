"""Certified unlearning of node classifiers: time, soundness, accuracy.

Times are CPU seconds of one thread, all methods in one run. The peers of a
request are what a user of this package could do instead: *(i)* propagate all
features and retrain exactly from zero, *(ii)* propagate and take one exact
Newton step; both on a graph that is given ready. Requests are mixed: 40 %
nodes, 30 % edges, 20 % feature rows, 10 % labels; half of the nodes train;
every request is refined to a residual of 1e-6 and ends with a release.

    python benchmarks/node_unlearning.py --root DATA speed sound accuracy push
    python benchmarks/node_unlearning.py large
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import block_model, interleaved, result
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust.agp.measures import Measure, appnp, sgc
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import NodeClassifier
from pyg_trust.unlearning.heads import (
    Gradient,
    Objective,
    refine,
    slopes,
    targets,
)
from pyg_trust.unlearning.incremental import ColumnProblem, SeriesState
from pyg_trust.unlearning.node_releases import PART
from pyg_trust.unlearning.node_rows import Edit
from pyg_trust.unlearning.shifts import gaussian_budget
from pyg_trust.unlearning.sums import Step

GRAPHS = ('Cora', 'CiteSeer', 'facebook', 'lastfm', 'twitch_de', 'github')
EPSILON, DELTA, LAM = 1.0, 1e-4, 1e-4
MEASURES: dict[str, Measure] = {
    'sgc': sgc(2),
    'appnp': appnp(0.2, K=4),
    'gbp': Measure(0.3, 0.7, (0.3, 0.3, 0.4), True, True, name='gbp'),
}


def load(root: Path, name: str, d: int = 96, seed: int = 0) -> Data:
    """A graph with features of a random public projection, half of it train.

    Args:
        root (Path): the folder of the data.
        name (str): one of :data:`GRAPHS`.
        d (int): the number of features. (default: :obj:`96`)
        seed (int): of projection and split. (default: :obj:`0`)
    """
    random = torch.Generator().manual_seed(seed)
    if name in ('Cora', 'CiteSeer'):
        edges, x, y = planetoid(root / 'Planetoid' / name / 'raw', name)
    else:
        edges, x, y = musae(root / 'MUSAE' / f'{name}.npz')
    n = y.numel()
    edges = edges[:, edges[0] != edges[1]]
    edges = torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1)
    if x is None:
        made = torch.randn((n, d), generator=random).double() / math.sqrt(d)
    else:
        row, col, width = x
        count = row.bincount(minlength=n).clamp(min=1).double()
        projection = torch.randn((width, d), generator=random).double()
        made = torch.zeros((n, d), dtype=torch.float64)
        made.index_add_(0, row, projection[col] / math.sqrt(d))
        made /= count.sqrt().unsqueeze(1)
    train = torch.zeros(n, dtype=torch.bool)
    train[torch.randperm(n, generator=random)[: n // 2]] = True
    return Data(
        x=made, edge_index=edges, y=y, train_mask=train, test_mask=~train
    )


def musae(path: Path) -> tuple[Tensor, Any, Tensor]:
    """Edges, entries of the binary features if any, and labels."""
    held = np.load(path)
    y = torch.from_numpy(held['y']).long()
    edges = torch.from_numpy(held['edges']).long().t()
    if 'x_indptr' not in held.files:
        return edges, None, y
    count = torch.from_numpy(held['x_indptr']).long().diff()
    row = torch.arange(y.numel()).repeat_interleave(count)
    col = torch.from_numpy(held['x_indices']).long()
    return edges, (row, col, int(held['num_features'])), y


def planetoid(raw: Path, name: str) -> tuple[Tensor, Any, Tensor]:
    """As :func:`musae`, read by PyG from a copy of the folder."""
    import shutil
    import tempfile

    from torch_geometric.datasets import Planetoid

    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(raw, Path(folder) / name / 'raw')
        data = Planetoid(folder, name)[0]
    row, col = data.x.nonzero().t()
    return data.edge_index, (row, col, data.x.size(1)), data.y


def std_for(residual: float, num_train: int, lam: float = LAM) -> float:
    """The noise with which steps go on until such a residual."""
    return residual / (
        PART * gaussian_budget(EPSILON, DELTA) * lam * num_train
    )


def classifier(data: Data, residual: float = 1e-6, **kwargs: Any) -> Any:
    """A fitted one, whose steps reach a residual."""
    count = int(data.train_mask.sum())
    kwargs = {'measure': 'sgc', 'weight_decay': LAM, 'seed': 0, **kwargs}
    std = std_for(residual, count, kwargs['weight_decay'])
    return NodeClassifier(release_std=std, **kwargs).fit(data)


class Requests:
    """Mixed requests for what is there, drawn without looking at a model."""

    def __init__(self, data: Data, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.edges = data.edge_index[
            :, data.edge_index[0] < data.edge_index[1]
        ]
        self.train = data.train_mask.nonzero().view(-1)
        self.n = int(data.num_nodes)
        self.gone: set[Any] = set()

    def draw(self, kind: str) -> RemovalRequest:
        """A request of a kind."""
        while True:
            if kind == 'edge':
                at = self._below(self.edges.size(1))
                u, v = self.edges[:, at].tolist()
                names: tuple[Any, ...] = (u, v, (u, v))
                made: dict[str, Any] = {'edges': [(u, v)]}
            elif kind == 'label':
                u = int(self.train[self._below(self.train.numel())])
                names, made = (u, ('y', u)), {'labels': [u]}
            else:
                u = self._below(self.n)
                names = (u,) if kind == 'node' else (u, ('x', u))
                made = {'nodes' if kind == 'node' else 'features': [u]}
            if self.gone.isdisjoint(names):
                self.gone.add(names[-1])
                return RemovalRequest(**made)

    def mixed(self, count: int) -> list[RemovalRequest]:
        """40 % nodes, 30 % edges, 20 % feature rows, 10 % labels."""
        kinds = ['node'] * 4 + ['edge'] * 3 + ['feature'] * 2 + ['label']
        order = torch.rand(count, generator=self.random).mul(10).long()
        return [self.draw(kinds[k]) for k in order.tolist()]

    def _below(self, count: int) -> int:
        return int(torch.randint(count, (), generator=self.random))


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds and result."""
    start = time.process_time()
    made = call()
    return time.process_time() - start, made


class Peer:
    """Full propagation, then exact retraining or one exact step."""

    def __init__(self, model: Any) -> None:
        data = model._model.data
        edges = data.graph.edge_index()
        n = data.graph.num_nodes
        self.graph = CSRGraph.from_edge_index(edges, n)
        # Layouts are given.
        propagate(self.graph, torch.ones(n).double(), model.measure)
        self.x, self.measure = data.levels.x, model.measure
        there = data.names >= 0
        self.train = data.names[there]
        self.Y = targets(data.y[there], len(data.classes))
        self.mu, self.W = data.mu, model._model.W

    def objective(self) -> Objective:
        """All rows computed, those of the training nodes taken."""
        Z = propagate(self.graph, self.x, self.measure)[self.train]
        return Objective(Z, self.Y, self.mu)

    def retrain(self) -> Tensor:
        """Method (i)."""
        zero = torch.zeros_like(self.W)
        return refine(self.objective(), zero, 1e-8, 50).W

    def step(self) -> Gradient:
        """Method (ii)."""
        objective = self.objective()
        W = self.W
        grad = objective.gradient(W).value
        W = W - objective.factor(W).solve(grad)
        return objective.gradient(W)


def speed(args: argparse.Namespace) -> None:
    """A request against propagating and training again."""
    goals = {'Cora': 10, 'CiteSeer': 10, 'facebook': 10, 'lastfm': 5}
    held = {'Cora': 50, 'facebook': 100}
    for name in args.graphs:
        wide = name in ('lastfm', 'github')
        data = load(args.root, name, 64 if wide else 96)
        model = classifier(data)
        ours, again, steps, holds = [], [], [], []
        rows, counts = [], []
        requests = Requests(data, 1).mixed(args.requests)
        for k, request in enumerate(requests):
            holds.append(timed(partial(model.plan, request))[0])
            seconds, report = timed(partial(model.remove, request))
            assert report.bound <= 1.01e-6
            ours.append(seconds)
            rows.append(report.rows_touched)
            counts.append(report.iterations)
            if k % max(1, args.requests // 12) == 0:
                peer = Peer(model)
                again.append(timed(peer.retrain)[0])
                steps.append(timed(peer.step)[0])
        mine, full = statistics.median(ours), statistics.median(again)
        p90 = sorted(ours)[int(0.9 * len(ours))]
        print(
            f'{name} ovr: {1e3 * mine:.1f} ms (90 %: {1e3 * p90:.1f}), '
            f'(i) {1e3 * full:.1f} ms, (ii) '
            f'{1e3 * statistics.median(steps):.1f} ms, rows '
            f'{statistics.median(rows):.0f}, steps '
            f'{statistics.mean(counts):.1f}, plan (no step) '
            f'{1e3 * statistics.median(holds):.2f} ms'
        )
        result(
            f'{name} ovr: retraining / a request',
            full / mine,
            goals.get(name, 1.5),
        )
        # Edit, rows and residual, taken back: what a request costs that
        # needs no step.
        if name in held:
            result(
                f'{name} ovr: retraining / a request without a step',
                full / statistics.median(holds),
                held[name],
            )


def sound(args: argparse.Namespace) -> None:
    """Counts of everything that must not happen, recomputed from scratch."""
    count = bad = differ = far = retrained = 0
    share = math.ceil(args.total / (len(args.graphs) * len(MEASURES)))
    for name in args.graphs:
        data = load(args.root, name, 16)
        for measure in MEASURES.values():
            model = classifier(data, measure=measure)
            for request in Requests(data, 2).mixed(share):
                report = model.remove(request)
                found = model.verify()
                count += 1
                bad += not found.bound_holds
                far += found.distance_to_retrain > found.distance_bound
                differ += found.feature_error != 0
                retrained += report.action == 'retrain'
                assert not found.leftovers
        print(name, count, 'requests', flush=True)
    result('requests verified', count, args.total)
    for what, number in (
        ('residuals above the bound', bad),
        ('weights beyond the bound', far),
        ('requests with a row that differs by a bit', differ),
        ('retrainings', retrained),
    ):
        result(what, number, 0, at_most=True)


def accuracy(args: argparse.Namespace) -> None:
    """After 10 % of the training nodes are gone."""
    for name in args.graphs:
        wide = name in ('lastfm', 'github')
        data = load(args.root, name, 64 if wide else 96)
        model = classifier(data)
        random = torch.Generator().manual_seed(3)
        train = data.train_mask.nonzero().view(-1)
        order = train[torch.randperm(train.numel(), generator=random)]
        size = 10 if order.numel() < 20_000 else 50
        for batch in order[: order.numel() // 10].split(size):
            report = model.remove(RemovalRequest(nodes=batch))
        peer = Peer(model)
        exact = peer.retrain()
        nodes = data.test_mask.nonzero().view(-1)
        y = data.y[nodes]
        z = model._model.data.levels.rows(nodes)

        def score(W: Tensor, z: Tensor = z, y: Tensor = y) -> float:
            margin = z @ W
            one = margin.size(1) == 1
            found = (margin > 0).long().view(-1) if one else margin.argmax(1)
            return 100 * float((found == y).double().mean())

        released = score(model.weight)
        print(
            f'{name}: exact {score(exact):.2f} %, released {released:.2f} %, '
            f'before noise {score(model._model.W):.2f} %, noise '
            f'{model.release_std:.2g}, epsilon {report.epsilon:.3g}, '
            f'transcript {report.epsilon_transcript:.3g}'
        )
        gap = abs(released - score(exact))
        result(f'{name}: points from retraining', gap, 0.2, at_most=True)
        cost = score(model._model.W) - released
        result(f'{name}: points that noise costs', cost, 0.1, at_most=True)


def column_residual(
    graph: CSRGraph,
    measure: Measure,
    x: Tensor,
    W: Tensor,
    Y: Tensor,
    train: Tensor,
) -> Tensor:
    """The gradient at exact features, by two propagations of few columns."""
    margin = propagate(graph, x @ W, measure)[train]
    spread = x.new_zeros((x.size(0), W.size(1)))
    spread[train] = slopes(margin, Y)
    return x.t() @ propagate(graph, spread, measure.adjoint()) + W


def push(args: argparse.Namespace) -> None:
    """Residual pushes on the infinite series."""
    data = load(args.root, 'facebook', 64)
    alpha, theta = 0.2, 1e-5
    model = NodeClassifier(
        'appnp',
        alpha=alpha,
        features='push',
        theta=theta,
        weight_decay=LAM,
        seed=0,
    )
    held: Any = model.fit(data)._model
    W, held = held.W, held.data
    state: SeriesState = held.levels
    seconds, full, errors, loose = [], [], [], []
    tail = 1e-9
    for k, request in enumerate(Requests(data, 4).mixed(40)):
        part = request.parts[0]
        gone = torch.tensor(part.nodes, dtype=torch.int64)
        rows = torch.tensor(part.features, dtype=torch.int64)
        arcs = torch.tensor(part.arcs, dtype=torch.int64).view(-1, 2).t()
        step = Step(gone, arcs[:, arcs[0] <= arcs[1]], nodes=rows)
        step = step._replace(x=data.x.new_zeros(len(rows), 64))

        def update(step: Step = step) -> None:
            state.play([step], held.undo)
            held.done()

        seconds.append(timed(update)[0])
        if k % 8 == 7:
            full.append(timed(partial(state.solve, state.x, tail))[0])
            exact = state.solve(state.x, 1e-12)
            error = float((exact - state.z).norm())
            errors.append(error / state.error_bound)
            loose.append(state.error_bound / error)
    whole, median = statistics.median(full), statistics.median(seconds)
    print(
        f'full solve {whole:.2f} s, update {1e3 * median:.2f} ms, bound '
        f'{state.error_bound:.2g}'
    )
    result('full solve / update', whole / median, 500)
    result('error / bound', max(errors), 1, at_most=True)
    result('bound / error', statistics.median(loose), 3, at_most=True)
    # The residual at exact features: two solves of as many columns as outputs.
    edges = held.graph.edge_index()
    graph = CSRGraph.from_edge_index(edges, held.graph.num_nodes)
    measure = appnp(alpha, K=91)
    y = data.y[data.train_mask]
    Y = targets(y, 4)
    train = data.train_mask.nonzero().view(-1)
    x = data.x
    problem = ColumnProblem(state, train, Y, 1.0, 1e-9)
    cost, made = interleaved(
        {
            'all columns': partial(propagate, graph, x, measure),
            'functional': partial(
                column_residual, graph, measure, x, W, Y, train
            ),
            'all columns, solved': partial(state.solve, state.x, tail),
            'request': partial(problem.gradient, W),
        },
        5,
        time.process_time,
    )
    direct = Objective(made['all columns'][train], Y, 1.0).gradient(W)
    gap = float((made['functional'] - direct.value).norm())
    result('column residual, from the direct one', gap, 1e-10, at_most=True)
    for name, against in (
        ('functional', 'all columns'),
        ('request', 'all columns, solved'),
    ):
        share = cost[name] / cost[against]
        result(f'column residual / {against}', share, 0.3, at_most=True)


def large(args: argparse.Namespace) -> None:
    """A million nodes, ten million edges."""
    n, d, classes = args.nodes, 32, 10
    edges, y = block_model(n, 20 * n, classes, exponent=args.exponent)
    random = torch.Generator().manual_seed(0)
    centre = torch.randn((classes, d), generator=random).double()
    x = torch.randn((n, d), generator=random).double()
    x.mul_(0.5).add_(centre[y], alpha=1 / 6)
    train = torch.zeros(n, dtype=torch.bool)
    train[torch.randperm(n, generator=random)[: n // 10]] = True
    data = Data(x=x, edge_index=edges, y=y, train_mask=train)
    for levels in args.levels:
        model = classifier(data, K=levels)
        degree = int(model._model.data.graph.degree.max())
        peer = Peer(model)
        rows, _ = timed(partial(propagate, peer.graph, peer.x, peer.measure))
        runs = sorted(timed(peer.retrain)[0] for _ in range(3))
        step = sorted(timed(peer.step)[0] for _ in range(3))[1]
        print(
            f'{n} nodes, {edges.size(1) // 2} edges, largest degree {degree}, '
            f'levels {levels}: propagation {rows:.2f} s, (i) {runs[1]:.2f} s, '
            f'(ii) {step:.2f} s'
        )
        requests = Requests(data, 5)
        for kind, goal in (('edge', 50), ('feature', 50), ('node', 15)):
            ours, touched, features = [], [], []
            for _ in range(args.requests // 6):
                request = requests.draw(kind)
                features.append(feature_seconds(model, request))
                seconds, report = timed(partial(model.remove, request))
                ours.append(seconds)
                touched.append(report.rows_touched)
            median = statistics.median(ours)
            alone = rows / statistics.median(features)
            print(
                f'{kind}: {1e3 * median:.1f} ms, (ii) / ours '
                f'{step / median:.1f}, features alone {alone:.0f}, rows '
                f'{statistics.median(touched):.0f}'
            )
            if levels == 2:
                result(f'{kind}: retraining / ours', runs[1] / median, goal)
                least = {'edge': 300, 'feature': 1000, 'node': 20}[kind]
                result(f'{kind}: all features / those touched', alone, least)


def feature_seconds(model: Any, request: RemovalRequest) -> float:
    """CPU seconds of the edit and the rows of training nodes, taken back."""
    data = model._model.data
    part = request.parts[0]
    W = model._model.W

    def edit() -> None:
        data.play(Edit(part))
        data.follow(W, model._model.gradient)

    try:
        return timed(edit)[0]
    finally:
        data.back()


MODES: dict[str, Callable[[argparse.Namespace], None]] = {
    'speed': speed,
    'sound': sound,
    'accuracy': accuracy,
    'push': push,
    'large': large,
}


def main() -> None:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('modes', nargs='*', default=list(MODES))
    parser.add_argument('--root', type=Path, default=Path('data'))
    parser.add_argument('--graphs', nargs='*', default=list(GRAPHS))
    parser.add_argument('--requests', type=int, default=120)
    parser.add_argument('--total', type=int, default=1000)
    parser.add_argument('--nodes', type=int, default=1_000_000)
    parser.add_argument('--exponent', type=float, default=2.6)
    parser.add_argument('--levels', type=int, nargs='*', default=[2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for mode in args.modes:
        print(f'# {mode}: {MODES[mode].__doc__}')
        MODES[mode](args)


if __name__ == '__main__':
    main()
