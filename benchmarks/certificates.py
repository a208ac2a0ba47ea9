r"""What certificates cost, against straightforward peers.

Ratios of interleaved runs in one process, medians of --repeats, in CPU
time. Single-threaded: peers and package alike.

local     all nodes and pairs of classes; peer: policy iteration in scipy, one
          pair at a time, BiCGSTAB, a Python loop over nodes; plain, as the
          paper writes it, and tuned (only nodes with a budget, warm starts).
global    one target and class at a time; peer: the relaxed linear program by
          cvxpy and HiGHS, with the same upper bounds.
whole     a certificate of all nodes for one global budget, from scratch.
training  an epoch with RobustLoss against a plain one.
scaling   generated graphs of up to 100k nodes and 1.2M directed edges.
targets   20 targets under a global budget in generated graphs: the time has to
          depend on the regions around them, not on the graph.

    python benchmarks/certificates.py --data ../shared/data local global
"""

import argparse
import csv
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from common import result
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.datasets import CitationFull
from torch_geometric.transforms import Compose, LargestConnectedComponents
from torch_geometric.utils import remove_self_loops, to_undirected

from pyg_trust.certificates import RobustLoss, ThreatModel, certify
from pyg_trust.certificates.budget import (
    dual_bound,
    linear_program,
    pagerank_bounds,
)
from pyg_trust.certificates.diffusion import diffuse
from pyg_trust.certificates.policy import worst_case_margins
from pyg_trust.graph import CSRGraph
from pyg_trust.nn import PPNP

ALPHA = 0.15
PARTS = ('local', 'global', 'whole', 'training', 'scaling', 'targets')
GRAPHS = ('CiteSeer', 'Cora_ML')
ROWS: list[dict[str, Any]] = []
# Linear programs per measurement: they are slow, and all alike.
FEW = 4


def report(part: str, name: str, **numbers: float) -> None:
    """Prints and keeps a row."""
    shown = '  '.join(f'{key} {value:.4g}' for key, value in numbers.items())
    print(f'{part:9s} {name:28s} {shown}', flush=True)
    ROWS.append({'part': part, 'name': name, **numbers})


def report_nodes(part: str, name: str, taken: float, made: Any) -> None:
    """A row of a certificate, and of what it took."""
    report(
        part,
        name,
        cpu_s=taken,
        robust=made.num_robust,
        broken=made.num_broken,
        unknown=made.num_unknown,
    )


def interleave(
    peer: Callable[[], Any], ours: Callable[[], Any], repeats: int
) -> tuple[float, float, float]:
    """Median CPU seconds of both, and the median of the rounds' ratios."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        peer()
        middle = time.process_time()
        ours()
        times.append((middle - start, time.process_time() - middle))
    ratio = statistics.median(a / b for a, b in times)
    return (
        *(statistics.median(column) for column in zip(*times, strict=True)),
        ratio,
    )


def generated(num_nodes: int, seed: int = 0) -> Tensor:
    """A ring and random edges."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(
        0, num_nodes, (2, 5 * num_nodes), generator=generator
    )
    nodes = torch.arange(num_nodes)
    ring = torch.stack([nodes, (nodes + 1) % num_nodes])
    edges, _ = remove_self_loops(torch.cat([edges, ring], dim=1))
    return to_undirected(edges, num_nodes=num_nodes)


def load(folder: str | None, name: str) -> Data:
    """The largest component of a citation graph, or a generated one."""
    if folder is None:
        generator = torch.Generator().manual_seed(1)
        y = torch.randint(0, 6, (2000,), generator=generator)
        x = torch.randn(2000, 500, generator=generator)
        x[torch.arange(2000), y] += 3
        return Data(x=x, y=y, edge_index=generated(2000), num_nodes=2000)
    with tempfile.TemporaryDirectory() as scratch:
        stored = {'Cora_ML': 'cora_ml', 'CiteSeer': 'citeseer'}[name]
        shutil.copytree(
            Path(folder) / 'CitationFull' / stored,
            Path(scratch) / stored,
        )
        data = CitationFull(scratch, name)[0]
    data.edge_index = to_undirected(remove_self_loops(data.edge_index)[0])
    return Compose([LargestConnectedComponents()])(data)


def network(data: Data) -> PPNP:
    """An untrained pi-PPNP, the same every time."""
    torch.manual_seed(0)
    return PPNP(
        torch.nn.Sequential(
            torch.nn.Linear(data.x.size(1), 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, int(data.y.max()) + 1),
        )
    )


def train(data: Data, epochs: int = 60) -> Any:
    """Logits of a quickly trained pi-PPNP."""
    model = network(data)
    graph = CSRGraph.from_data(data)
    num_classes = int(data.y.max()) + 1
    labelled = torch.cat(
        [(data.y == c).nonzero().view(-1)[:20] for c in range(num_classes)]
    )
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-2, weight_decay=1e-3
    )
    for _ in range(epochs):
        optimizer.zero_grad()
        z = model(data.x, graph)
        F.cross_entropy(z[labelled], data.y[labelled]).backward()
        optimizer.step()
    return model.logits(data.x).detach().double(), graph, labelled


def scipy_policy_iteration(
    threat: ThreatModel, reward: Any, fragile: Any, tuned: bool
) -> Any:
    """The peer: Algorithm 1 for one reward, in numpy and scipy.

    As the paper writes it: solve, score every fragile edge, let every node
    keep its best ones. Tuned, it scores the edges of nodes with a budget
    alone and starts each solve at the last solution.
    """
    graph = threat.graph
    n = graph.num_nodes
    clean = scipy.sparse.csr_array(
        (np.ones(graph.num_edges), graph.col.numpy(), graph.rowptr.numpy()),
        shape=(n, n),
    )
    budget = threat.local_budget.numpy()
    row, col, sign, start = fragile
    nodes = budget.nonzero()[0] if tuned else range(n)
    flips: dict[Any, Any] = {}
    x = None
    while True:
        last = flips
        i = np.repeat(list(flips), [len(js) for js in flips.values()])
        j = np.concatenate([np.zeros(0, int), *flips.values()])
        change = scipy.sparse.csr_array(
            (np.ones(len(i)), (i.astype(int), j.astype(int))), shape=(n, n)
        )
        # A flip turns 1 into 0 and 0 into 1.
        adj = clean + change - 2 * clean.multiply(change)
        step = scipy.sparse.diags_array((1 - ALPHA) / adj.sum(1)) @ adj
        system = scipy.sparse.eye_array(n, format='csr') - step
        x, _ = scipy.sparse.linalg.bicgstab(
            system, reward, x0=x if tuned else None, rtol=1e-12
        )
        level = (x - reward) / (1 - ALPHA)
        if not tuned:
            score = sign * (x[col] - level[row])
        flips = {}
        for v in nodes:
            mine = slice(start[v], start[v + 1])
            gain = (
                sign[mine] * (x[col[mine]] - level[v])
                if tuned
                else score[mine]
            )
            b = min(budget[v], len(gain))
            if b == 0:
                continue
            best = np.argpartition(-gain, b - 1)[:b]
            best = best[gain[best] > 1e-12]
            if len(best):
                flips[int(v)] = np.sort(col[mine][best])
        same = last.keys() == flips.keys() and all(
            np.array_equal(flips[v], last[v]) for v in flips
        )
        if same:
            return -ALPHA * x


def fragile_edges(threat: ThreatModel) -> Any:
    """All fragile edges as arrays: source, target, sign, start of rows."""
    graph, n = threat.graph, threat.num_nodes
    removable = threat.perturbations.removable.numpy()
    row, col = graph.row.numpy(), graph.col.numpy()
    if threat.perturbations.all_pairs:
        free = np.ones((n, n), dtype=bool)
        np.fill_diagonal(free, False)
        free[row[~removable], col[~removable]] = False
        signs = np.ones((n, n))
        signs[row, col] = -1
        row, col = free.nonzero()
        sign = signs[row, col]
    else:
        row, col = row[removable], col[removable]
        sign = -np.ones(len(row))
    return row, col, sign, np.searchsorted(row, np.arange(n + 1))


def peer_margins(
    threat: ThreatModel, logits: Tensor, pairs: Any, fragile: Any, tuned: bool
) -> Any:
    """The peer for some pairs of classes."""
    return {
        (c1, c2): scipy_policy_iteration(
            threat, (logits[:, c2] - logits[:, c1]).numpy(), fragile, tuned
        )
        for c1, c2 in pairs
    }


def run_local(
    name: str, logits: Tensor, graph: CSRGraph, repeats: int
) -> None:
    """Exact certificates of all nodes under local budgets."""
    classes = range(logits.size(1))
    pairs = [(c1, c2) for c1 in classes for c2 in classes if c1 != c2]
    for scenario, strength in (
        ('removals', 1),
        ('removals', 6),
        ('removals', 10),
        ('both', 1),
        ('both', 6),
    ):
        threat = ThreatModel(graph, scenario, strength=strength)
        # Every pair takes the peer about as long: a few stand for all.
        few = pairs[:: len(pairs) // (10 if scenario == 'removals' else 2)]
        scale = len(pairs) / len(few)
        fragile = fragile_edges(threat)
        ours = partial(worst_case_margins, logits, threat.perturbations, ALPHA)
        found = ours()
        measured = {}
        for tuned in (False, True):
            peer = partial(peer_margins, threat, logits, few, fragile, tuned)
            slow, fast, ratio = interleave(peer, ours, repeats)
            kind = 'tuned' if tuned else 'plain'
            measured[f'ratio_{kind}'] = ratio * scale
            measured[f'{kind}_s'] = slow * scale
            measured['ours_s'] = fast
            measured['difference'] = max(
                float(np.abs(found[pair].numpy() - margins).max())
                for pair, margins in peer().items()
            )
        report('local', f'{name} {scenario} s={strength}', **measured)
        result(
            f'{name}, {scenario} s={strength}: plain policy iteration over '
            'ours',
            measured['ratio_plain'],
            15 if scenario == 'removals' else 50,
        )


def peer_bounds(problems: Any, budget: int) -> Any:
    """The peer for some targets: the value of each linear program."""
    perturbations, reward, targets, upper = problems
    return [
        linear_program(
            perturbations, reward[k], int(targets[k]), upper[k], budget, ALPHA
        )[0]
        for k in range(FEW)
    ]


def run_global(
    name: str, logits: Tensor, graph: CSRGraph, repeats: int
) -> None:
    """Bounds under a global budget, given the upper bounds."""
    generator = torch.Generator().manual_seed(0)
    for strength in (6, 10):
        perturbations = ThreatModel(graph, strength=strength).perturbations
        local = worst_case_margins(logits, perturbations, ALPHA)
        pred = certify(logits, ThreatModel(graph, local_budget=0)).predicted
        worst, against = local[pred, :, torch.arange(len(pred))].min(1)
        # Targets that the local budgets leave open.
        open_ = (worst < 0).nonzero().view(-1)
        order = torch.randperm(open_.numel(), generator=generator)
        targets = open_[order[:64]]
        reward = logits[:, against[targets]] - logits[:, pred[targets]]
        upper = pagerank_bounds(perturbations, targets, ALPHA, cost='visits')
        problems = (
            perturbations,
            reward.t().contiguous(),
            targets,
            upper,
        )
        scale = len(targets) / FEW
        start = -local[pred[targets], against[targets]] / ALPHA
        z = diffuse(graph, logits, ALPHA)[targets]
        one, two = against[targets, None], pred[targets, None]
        clean = (z.gather(1, one) - z.gather(1, two)).view(-1)
        for budget in (5, 20):
            peer = partial(peer_bounds, problems, budget)
            # Known, by one solve for all targets: the local worst case, and
            # the margins of the graph as it is.
            ours = partial(
                dual_bound,
                *problems,
                budget,
                ALPHA,
                cost='visits',
                tol=1e-8,
                start=start,
                clean=clean,
            )
            bound = ours().bound[:FEW].numpy()
            slow, fast, ratio = interleave(peer, ours, repeats)
            _, sign, sign_ratio = interleave(
                peer, partial(ours, sign_only=True), repeats
            )
            report(
                'global',
                f'{name} s={strength} B={budget}',
                ratio=ratio * scale,
                sign_ratio=sign_ratio * scale,
                ours_ms=1e3 * fast / len(targets),
                sign_ms=1e3 * sign / len(targets),
                peer_ms=1e3 * slow / FEW,
                difference=float(np.abs(bound - peer()).max()),
            )
            case = f'{name} s={strength} B={budget}'
            result(f'{case}: cvxpy + HiGHS over the dual', ratio * scale, 20)
            result(
                f'{case}: cvxpy + HiGHS over the sign alone',
                sign_ratio * scale,
                200,
            )


def run_whole(name: str, logits: Tensor, graph: CSRGraph) -> None:
    """All nodes under a global budget."""
    for strength in (6, 10):
        for budget in (1, 5, 20):
            threat = ThreatModel(
                graph, strength=strength, global_budget=budget
            )
            start = time.process_time()
            made = certify(logits, threat, method='dual', sign_only=True)
            taken = time.process_time() - start
            case = f'{name} s={strength} B={budget}'
            report_nodes('whole', case, taken, made)
            result(f'{case}: all nodes, CPU s', taken, 100, at_most=True)


def run_training(
    name: str,
    data: Data,
    logits: Tensor,
    graph: CSRGraph,
    labelled: Tensor,
    repeats: int,
) -> None:
    """A robust epoch against a plain one."""
    model = network(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    threat = ThreatModel(graph, strength=10)
    predicted = diffuse(graph, logits, ALPHA).argmax(1)
    losses = {
        (kind, pseudo is not None): partial(
            RobustLoss(threat, ALPHA, kind=kind), pseudo=pseudo
        )
        for pseudo in (None, predicted)
        for kind in ('rce', 'cem')
    }

    def epochs(kind: Any) -> Any:
        for _ in range(5):
            optimizer.zero_grad()
            logits = model.logits(data.x)
            if kind is None:
                z = model.diffuse(logits, graph)
                loss = F.cross_entropy(z[labelled], data.y[labelled])
            else:
                loss = losses[kind](logits, data.y, labelled)
            loss.backward()
            optimizer.step()

    for kind, unlabelled in losses:
        epochs((kind, unlabelled))
        robust, plain, ratio = interleave(
            partial(epochs, (kind, unlabelled)),
            partial(epochs, None),
            repeats,
        )
        nodes = 'all nodes' if unlabelled else 'labelled nodes'
        report(
            'training',
            f'{name} {kind} {nodes} s=10',
            ratio_to_plain=ratio,
            robust_s=robust / 5,
            plain_s=plain / 5,
        )
        what = f'{name} {kind} s=10: an epoch, in plain epochs'
        result(what, ratio, 6, at_most=True)


def run_scaling() -> None:
    """Time against size."""
    first: dict[Any, Any] = {}
    for n in (12_500, 25_000, 50_000, 100_000):
        graph = CSRGraph.from_edge_index(generated(n), n)
        logits = torch.randn(
            n,
            3,
            generator=torch.Generator().manual_seed(0),
            dtype=torch.float64,
        )
        for scenario, strength in (('removals', 6), ('both', 3)):
            threat = ThreatModel(graph, scenario, strength=strength)
            start = time.process_time()
            worst_case_margins(logits, threat.perturbations, ALPHA)
            taken = time.process_time() - start
            per_edge = taken / graph.num_edges
            first.setdefault(scenario, per_edge)
            report(
                'scaling',
                f'{scenario} n={n} m={graph.num_edges}',
                seconds_per_pair=taken / 6,
                per_edge_to_smallest=per_edge / first[scenario],
            )
            if n == 100_000:
                result(
                    f'{scenario}: time per edge, {n} nodes over 12500',
                    per_edge / first[scenario],
                    2,
                    at_most=True,
                )


def run_targets() -> None:
    """A few targets of a large graph under a global budget."""
    for n in (25_000, 100_000):
        graph = CSRGraph.from_edge_index(generated(n), n)
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        targets = torch.randperm(n, generator=generator)[:20]
        for undirected in (False, True):
            for budget in (3, 10):
                threat = ThreatModel(
                    graph,
                    strength=6,
                    global_budget=budget,
                    undirected=undirected,
                )
                start = time.process_time()
                made = certify(logits, threat, nodes=targets, sign_only=True)
                taken = time.process_time() - start
                kind = 'undirected' if undirected else 'directed'
                case = f'{n} nodes, B={budget} {kind}'
                report_nodes('targets', case, taken, made)
                result(f'{case}: 20 targets, CPU s', taken, 180, at_most=True)


def main() -> None:
    """Runs the chosen parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument('parts', nargs='*', default=PARTS)
    parser.add_argument('--data', help='folder that holds CitationFull')
    parser.add_argument('--graphs', nargs='+', default=GRAPHS, choices=GRAPHS)
    parser.add_argument('--repeats', type=int, default=3)
    parser.add_argument('--csv')
    args = parser.parse_args()
    if not set(args.parts) <= set(PARTS):
        parser.error(f'parts are {PARTS}')
    torch.set_num_threads(1)
    names = args.graphs if args.data else ['generated']
    for name in names:
        if set(args.parts) <= {'scaling', 'targets'}:
            break
        data = load(args.data, name)
        logits, graph, labelled = train(data)
        if 'local' in args.parts:
            run_local(name, logits, graph, args.repeats)
        if 'global' in args.parts:
            run_global(name, logits, graph, args.repeats)
        if 'whole' in args.parts:
            run_whole(name, logits, graph)
        if 'training' in args.parts:
            run_training(name, data, logits, graph, labelled, args.repeats)
    if 'scaling' in args.parts:
        run_scaling()
    if 'targets' in args.parts:
        run_targets()
    if args.csv:
        keys = list(dict.fromkeys(key for row in ROWS for key in row))
        with open(args.csv, 'w', newline='') as file:
            writer = csv.DictWriter(file, keys)
            writer.writeheader()
            writer.writerows(ROWS)


if __name__ == '__main__':
    main()
