r"""Sharded unlearning: what it costs, and what it does to accuracy.

Ratios of one run on one thread: 20 shards, random 0.7 / 0.2 / 0.1 splits,
several seeds.

- *accuracy*: micro-F1 on the test nodes of a model that is trained on the
  whole training graph (retrain), of the shards under each aggregator, and of
  the control: a plain model that is trained on the training graph with the
  aggregator's own labels alone. What an attentive aggregator gains over the
  mean is to be read beside it.
- *cost*: medians of interleaved runs of a full retraining (by this package,
  with the shortcuts of shards), one shard, ten
  shards, and requests of one node and of 0.5 % of the nodes, with the
  aggregator and the models' outputs included. The larger request touches
  almost every shard: retraining without shards is then as cheap, which is
  printed, not a target.
- *removal*: requests to hash shards, in CPU seconds, over the full training
  of version 0.1.0 (layers that normalise the graph in every epoch), and over
  that of today, which shards have to beat to pay.

    python benchmarks/sharding.py --root DATA
    python benchmarks/sharding.py --root DATA --what cost --datasets facebook
    python benchmarks/sharding.py --root DATA --what removal \\
        --datasets facebook twitch_engb

Also written to ``--csv``.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from common import interleaved, result
from scattering import write_csv
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GCN, GraphSAGE
from torch_geometric.utils import degree, subgraph, to_undirected

from pyg_trust.nn import make_aggregator
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import ShardedUnlearner
from pyg_trust.unlearning.shards.graph import kept_rows
from pyg_trust.unlearning.shards.models import (
    Recipe,
    Shard,
    Shortcuts,
    build,
    evaluate,
    find_shortcuts,
    train,
)

SHARDS = 20
DATASETS = ('Cora', 'CiteSeer', 'lastfm', 'facebook')
MODELS = {'GCN': GCN, 'SAGE': GraphSAGE}
# At least so much of a full training's F1, on Cora.
TARGETS = {
    'mean': {'GCN': 0.78, 'SAGE': 0.75},
    'attentive': {'GCN': 0.95, 'SAGE': 0.85},
}
# Shares of the full training of 0.1.0. A fit was .398 and .979 of it then.
REMOVALS = {
    'facebook': {
        'fit, attentive': 0.398,
        'one node, attentive': 0.055,
        'one node, mean': 0.04,
        'one node, mean, 50 epochs': 0.03,
        'one node, attentive: inference': 0.025,
        '0.5 %, attentive': 0.33,
    },
    'twitch_engb': {
        'fit, attentive': 0.979,
        'one node, attentive': 0.12,
        '0.5 %, attentive': 0.72,
    },
}
AGGREGATORS = ('mean', 'majority', 'lbaggr', 'attentive')


def load(root: Path, name: str) -> Data:
    """A graph with row-normalised features."""
    if name in ('Cora', 'CiteSeer'):
        # PyG writes beside the raw files.
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(root / 'Planetoid' / name, Path(folder) / name)
            data = Planetoid(folder, name)[0]
        x = data.x
        y, edge_index = data.y, data.edge_index
    else:
        raw = np.load(root / 'MUSAE' / f'{name}.npz', allow_pickle=True)
        y = torch.as_tensor(raw['y']).long()
        edge_index = torch.as_tensor(raw['edges']).long()
        if edge_index.size(0) != 2:
            edge_index = edge_index.t()
        edge_index = edge_index[:, edge_index[0] != edge_index[1]]
        edge_index = to_undirected(edge_index.contiguous())
        if 'x_indices' in raw:
            count = np.diff(raw['x_indptr'])
            x = torch.zeros(y.numel(), int(raw['num_features']))
            x[np.repeat(np.arange(y.numel()), count), raw['x_indices']] = 1
        else:
            # One-hot degrees, which would need to be derived anew after a
            # removal: here for their accuracy only.
            d = degree(edge_index[0], y.numel()).long().clamp(max=127)
            x = torch.nn.functional.one_hot(d, 128).float()
    x = x / x.sum(1, keepdim=True).clamp(min=1e-12)
    return Data(x=x, edge_index=edge_index, y=y)


def split(data: Data, seed: int) -> Data:
    """0.7 for training, 0.2 for validation (left out here), 0.1 for tests."""
    n = data.num_nodes
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    data.train_mask = torch.zeros(n, dtype=torch.bool)
    data.train_mask[order[: int(0.7 * n)]] = True
    data.test_mask = torch.zeros(n, dtype=torch.bool)
    data.test_mask[order[int(0.9 * n) :]] = True
    return data


def factory(kind: str, data: Data) -> Callable[[], Module]:
    """Two layers of 64 and a linear head, as in the paper.

    The head matters: a shard has few edges and a model without one loses a
    tenth of its F1 over shards, and nothing on the whole graph.
    """
    width, classes = data.x.size(1), int(data.y.max()) + 1
    return lambda: MODELS[kind](width, 64, 2, classes, dropout=0.5, jk='last')


def training_graph(data: Data, seed: int) -> Shard:
    """All shards in one, without cuts."""
    index = data.train_mask.nonzero().view(-1)
    edge_index, _ = subgraph(
        index, data.edge_index, relabel_nodes=True, num_nodes=data.num_nodes
    )
    return shard_of(seed, data.x[index], data.y[index], edge_index)


def shard_of(seed: int, x: Tensor, y: Tensor, edge_index: Tensor) -> Shard:
    """The input of a model."""
    data = Data(x=kept_rows(x), edge_index=edge_index, num_nodes=y.numel())
    return Shard(seed, data, y)


def trained(make: Callable[[], Module], parts: list[Shard]) -> list:
    """Models with the shortcuts that leave them alone, as shards are."""
    recipe = Recipe()
    return train(make, parts, recipe, find_shortcuts(make, parts[0], recipe))


def unlearner_of(
    data: Data, kind: str, seed: int, **kwargs: Any
) -> ShardedUnlearner:
    """A sharded unlearner with random equal shards, as in SISA."""
    options = {'partition': 'random', 'seed': seed}
    return ShardedUnlearner(
        factory(kind, data), SHARDS, **{**options, **kwargs}
    )


def f1(out: Tensor, data: Data) -> float:
    """Micro-F1, in percent: for one label per node, the accuracy."""
    hit = out.argmax(1)[data.test_mask] == data.y[data.test_mask]
    return 100 * float(hit.double().mean())


def on_labels_of(
    make: Callable[[], Module], whole: Shard, labelled: Tensor
) -> Module:
    """An ordinary model on the training graph, with some of the labels."""
    model = build(make, whole)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=0.01, weight_decay=5e-4
    )
    torch.manual_seed(whole.seed)
    inputs = whole.inputs(Shortcuts(), True)
    for _ in range(100):
        optimizer.zero_grad()
        out = model(*inputs)[labelled]
        loss = torch.nn.functional.cross_entropy(out, whole.y[labelled])
        loss.backward()
        optimizer.step()
    return model


def accuracy(name: str, data: Data, kind: str, seeds: int) -> list[dict]:
    """F1 of everything, over seeds."""
    scores: dict[str, list[float]] = {}
    make = factory(kind, data)
    for seed in range(seeds):
        split(data, seed)
        whole = training_graph(data, seed)
        ((state,),) = trained(make, [whole])
        model = build(make, whole)
        model.load_state_dict(state)
        whole_graph = shard_of(0, data.x, data.y, data.edge_index)
        ways = Shortcuts()
        found = {'retrain': f1(evaluate(model, whole_graph, ways), data)}
        unlearner = unlearner_of(data, kind, seed, aggregator='mean').fit(data)
        outputs, index = (
            unlearner.outputs,
            unlearner.n_id[unlearner._builder.sample(unlearner._state)],
        )
        for which in AGGREGATORS:
            made = make_aggregator(which).fit(
                outputs, data.y, index, seed=seed
            )
            with torch.no_grad():
                found[which] = f1(made(outputs), data)
        rows = data.train_mask.nonzero().view(-1)
        labelled = torch.searchsorted(rows, index)
        control = on_labels_of(make, whole, labelled)
        found['control'] = f1(evaluate(control, whole_graph, ways), data)
        for which, value in found.items():
            scores.setdefault(which, []).append(value)
        report = unlearner.report()
        print(
            f'    seed {seed}: '
            + ', '.join(f'{k} {v:.1f}' for k, v in found.items())
            + f'; largest / mean shard {report.imbalance:.2f}',
            flush=True,
        )
    base = statistics.mean(scores['retrain'])
    rows_ = []
    print(f'{name} {kind}: F1 of {seeds} seeds, and over retrain')
    for which, values in scores.items():
        mean = statistics.mean(values)
        spread = statistics.stdev(values) if seeds > 1 else 0.0
        print(
            f'    {which:10s} {mean:5.1f} +- {spread:3.1f} {mean / base:.2f}'
        )
        if name == 'Cora' and which in TARGETS:
            result(
                f'Cora {kind}: F1 by {which} over that of a full training',
                mean / base,
                TARGETS[which][kind],
            )
        rows_.append(
            {
                'dataset': name,
                'model': kind,
                'what': f'F1 {which}',
                'value': mean,
                'ratio': mean / base,
            }
        )
    return rows_


def cost(name: str, data: Data, kind: str, repeats: int) -> list[dict]:
    """What a request costs, as shares of a full retraining."""
    split(data, 0)
    make = factory(kind, data)
    whole = training_graph(data, 0)
    unlearner = unlearner_of(data, kind, 0).fit(data)
    state = unlearner.state_dict()
    shard = unlearner.data.shard
    parts = []
    for i in range(10):
        index = (shard == i).nonzero().view(-1)
        edge_index, _ = subgraph(
            index,
            data.edge_index,
            relabel_nodes=True,
            num_nodes=data.num_nodes,
        )
        parts.append(shard_of(i, data.x[index], data.y[index], edge_index))
    train_nodes = data.train_mask.nonzero().view(-1)
    pick = torch.randperm(
        train_nodes.numel(), generator=torch.Generator().manual_seed(0)
    )
    gone = train_nodes[pick[: max(data.num_nodes // 200, 1)]]
    reports: dict[str, list] = {'request': [], 'one': []}

    def request(which: str, nodes: Tensor) -> None:
        fresh = unlearner_of(data, kind, 0)
        fresh.load_state_dict(state)
        reports[which].append(fresh.remove(RemovalRequest(nodes=nodes)))

    seconds, _ = interleaved(
        {
            'full': lambda: trained(make, [whole]),
            'shard': lambda: trained(make, parts[:1]),
            'ten': lambda: trained(make, parts),
            'request': partial(request, 'request', gone),
            'one': partial(request, 'one', gone[:1]),
        },
        repeats,
    )
    # Without the loading of the state, which is no part of it.
    profile, single = (
        {
            part: statistics.median(r.seconds[part] for r in made[1:])
            for part in made[0].seconds
        }
        for made in reports.values()
    )
    full = seconds['full']
    touched = len(reports['request'][0].shards)
    print(
        f'{name} {kind}: full retraining {full:.2f} s; '
        f'{gone.numel()} nodes touch {touched} shards'
    )
    ratios = {
        'one shard / full': seconds['shard'] / full,
        'ten shards / full': seconds['ten'] / full,
        'one node / full': sum(single.values()) / full,
        'request / full': sum(profile.values()) / full,
    }
    ratios |= {f'    {k} / full': v / full for k, v in profile.items()}
    for label, value in ratios.items():
        print(f'    {label:30s} {value:.2f}', flush=True)
    case = f'{name} {kind}'
    one, _, node = list(ratios.values())[:3]
    result(f'{case}: one shard over all', one, 0.2, at_most=True)
    result(f'{case}: one node over all', node, 0.5, at_most=True)
    return [
        {
            'dataset': name,
            'model': kind,
            'what': label.strip(),
            'value': '',
            'ratio': value,
        }
        for label, value in ratios.items()
    ]


def plainly(make: Callable[[], Module], whole: Shard) -> None:
    """The full training of version 0.1.0: features sparse, all else plain."""
    model = build(make, whole)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=0.01, weight_decay=5e-4, fused=True
    )
    x, edge_index = whole.inputs(Shortcuts())
    x = x.to_sparse_coo().coalesce()
    torch.manual_seed(whole.seed)
    for _ in range(100):
        optimizer.zero_grad()
        out = model(x, edge_index)
        torch.nn.functional.cross_entropy(out, whole.y).backward()
        optimizer.step()


def removal(name: str, data: Data, repeats: int) -> list[dict]:
    """What exact requests cost, as shares of the old full training."""
    split(data, 0)
    make, case = factory('GCN', data), f'{name} GCN'
    whole = training_graph(data, 0)
    pick = torch.randperm(
        whole.y.numel(), generator=torch.Generator().manual_seed(0)
    )
    nodes = data.train_mask.nonzero().view(-1)[pick]
    many = nodes[: max(data.num_nodes // 200, 1)]
    setups: dict[str, dict[str, Any]] = {
        'attentive': {},
        'mean': {'aggregator': 'mean'},
        'mean, 50 epochs': {'aggregator': 'mean', 'epochs': 50},
    }
    found: dict[str, list[float]] = {}

    def count(what: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        out = work()
        found.setdefault(what, []).append(time.process_time() - start)
        return out

    # Parts of reports, too, in CPU seconds.
    with mock.patch.object(time, 'perf_counter', time.process_time):
        states: dict[str, dict] = {}
        for i in range(repeats):
            count('full, 0.1.0', lambda: plainly(make, whole))
            count(
                'full',
                lambda: trained(make, [whole]),
            )
            for setup, given in setups.items():

                def new(given: dict = given) -> ShardedUnlearner:
                    return unlearner_of(
                        data, 'GCN', 0, partition='hash', **given
                    )

                if setup not in states:
                    fitted = count(f'fit, {setup}', partial(new().fit, data))
                    states[setup] = fitted.state_dict()
                # Another node each time, from another shard.
                requests = {'one node': nodes[-1 - i :][:1], '0.5 %': many}
                for what, gone in requests.items():
                    if what == '0.5 %' and setup != 'attentive':
                        continue
                    fresh = new()
                    fresh.load_state_dict(states[setup])
                    label = f'{what}, {setup}'
                    request = RemovalRequest(nodes=gone)
                    report = count(label, partial(fresh.remove, request))
                    for part, seconds in report.seconds.items():
                        found.setdefault(f'{label}: {part}', []).append(
                            seconds
                        )
                    print(f'    {label}: {len(report.shards)} shards')
    seconds = {what: min(runs) for what, runs in found.items()}
    old, today = seconds.pop('full, 0.1.0'), seconds.pop('full')
    print(f'{case}: full training {old:.2f} s in 0.1.0, {today:.2f} s today')
    rows = []
    for what, value in seconds.items():
        print(
            f'    {what:34s} {value:7.3f} s, {value / old:.3f} of the full '
            f'training of 0.1.0, {value / today:.3f} of that of today'
        )
        rows.append(
            {
                'dataset': name,
                'model': 'GCN',
                'what': what,
                'value': value,
                'ratio': value / old,
            }
        )
    for what, target in REMOVALS.get(name, {}).items():
        result(
            f'{case}: {what}, over the full training of 0.1.0',
            seconds[what] / old,
            target,
            at_most=True,
        )
    if name in REMOVALS:
        # A larger request touches all shards, which cost more than no shards:
        # printed above, and no target.
        result(
            f'{case}: one node, attentive, over the full training of today',
            seconds['one node, attentive'] / today,
            1,
            at_most=True,
        )
    return rows


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--root', type=Path, default=Path('../shared/data'))
    parser.add_argument('--datasets', nargs='+', default=DATASETS)
    parser.add_argument('--models', nargs='+', default=list(MODELS))
    parser.add_argument(
        '--what', nargs='+', default=('accuracy', 'cost'), metavar='WHAT'
    )
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--repeats', type=int, default=3)
    parser.add_argument('--csv', type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in args.datasets:
        data = load(args.root, name)
        if 'removal' in args.what:
            rows += removal(name, data, args.repeats)
        for kind in args.models:
            if name == 'facebook' and kind == 'SAGE':
                # It sums neighbours' 4,714 features before it multiplies:
                # 6 GB of messages at inference.
                print('facebook SAGE: left out, for its memory')
                continue
            if 'accuracy' in args.what:
                rows += accuracy(name, data, kind, args.seeds)
            if 'cost' in args.what:
                rows += cost(name, data, kind, args.repeats)
    if args.csv is not None:
        write_csv(args.csv, rows)


if __name__ == '__main__':
    main()
