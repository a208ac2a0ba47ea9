"""A private step against a plain step, as ratios of one interleaved run.

``step`` is the whole of it: :class:`PrivacyEngine` with its checks, exact
sums, noise and the cross-check of one unit, and Adam, on a batch of its
loader, over the same model's plain step with Adam on the plain loader's batch.
It is CPU time, as checks run in Python. ``graphs`` are steps of
:class:`GraphLoader`, 128 graphs of about 25 nodes, where units come and go.

The other columns are the gradient part alone. Both are the same model on the
same batch of disjoint subgraphs: a forward pass, a loss on the roots, a
backward pass. The plain step has the gradient of the sum; the private one has
the sum of the clipped gradients of the subgraphs. Neither has noise or an
optimizer's step, which cost the same whatever computes the sum. A column is a
way to compute it:

- ``ours``: :mod:`pyg_trust.privacy.codes` in a step that is not verified,
  and ``verified`` in one that is (the first three, and one of eight);
- ``hooks``: what per-sample libraries do, written for PyG's ``Linear`` and
  biases of nodes: hooks keep inputs and gradients, and every subgraph's
  gradient is materialised (256 subgraphs at a time) before it is clipped;
- ``vmap``: ``torch.func.vmap`` of the gradient of one subgraph with dense
  adjacency matrices, which are what can be vmapped of a GCN;
- ``loop``: one backward pass for each subgraph.

The peers are timed on the GCN. All results are compared
with each other. Memory is what one step adds to the resident set of a fresh
process, at most (``VmHWM``, set back before the step; Linux only), after a
step with few subgraphs: the kernel counts every allocation, also what
libraries keep to themselves. What the plain step adds is its activations and
gradients; the ratio is to these.

    python benchmarks/private_step.py [--quick]
"""

import argparse
import csv
import ctypes
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import interleaved, power_law, result
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch_geometric.data import Data
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GINConv,
    SAGEConv,
    global_add_pool,
)

from pyg_trust.loader import DisjointWalkLoader, GraphLoader, StepLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy.clipping import clipped_sum
from pyg_trust.privacy.codes import Attributor
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.mechanisms import clip_factors

FEATURES, CLASSES, CLIP = 500, 40, 1.0
MODELS = ('GCN', 'SAGE', 'GIN', 'GAT')
Sums = dict[str, Tensor]


class Net(nn.Module):
    """Two layers of a kind.

    Args:
        kind (str): one of :obj:`MODELS`.
        hidden (int): the width between them.
        features (int): the width of the input. (default: :obj:`FEATURES`)
    """

    def __init__(
        self, kind: str, hidden: int, features: int = FEATURES
    ) -> None:
        super().__init__()
        self.first = layer(kind, features, hidden, False)
        self.last = layer(kind, hidden, CLASSES, True)

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None
    ) -> Tensor:
        """The logits of every node, or of every graph."""
        out = self.last(self.first(x, edge_index).relu(), edge_index)
        return out if batch is None else global_add_pool(out, batch)


def layer(kind: str, fan_in: int, fan_out: int, last: bool) -> Any:
    """One layer, of :obj:`fan_out` channels in all."""
    if kind == 'GCN':
        return GCNConv(fan_in, fan_out)
    if kind == 'SAGE':
        return SAGEConv(fan_in, fan_out)
    if kind == 'GAT':
        heads = 1 if last else 8
        return GATConv(fan_in, fan_out // heads, heads)
    mlp = nn.Sequential(
        nn.Linear(fan_in, fan_out), nn.ReLU(), nn.Linear(fan_out, fan_out)
    )
    return GINConv(mlp, train_eps=True)


def make_walks(
    num_subgraphs: int, walk_length: int, num_steps: int = 1
) -> DisjointWalkLoader:
    """Walks on a power-law graph, with random features."""
    n = 8 * num_subgraphs
    data = Data(edge_index=power_law(n, 10 * n), num_nodes=n)
    generator = torch.Generator().manual_seed(1)
    data.x = torch.randn(n, FEATURES, generator=generator)
    data.y = torch.randint(CLASSES, (n,), generator=generator)
    return DisjointWalkLoader(
        data, num_subgraphs, walk_length, num_steps=num_steps, seed=0
    )


def make_graphs(num_graphs: int, num_steps: int) -> GraphLoader:
    """Ten times as many random graphs of 12 to 36 nodes, 32 features."""
    generator = torch.Generator().manual_seed(1)
    graphs = []
    for _ in range(10 * num_graphs):
        n = int(torch.randint(12, 37, (1,), generator=generator))
        half = torch.randint(n, (2, 2 * n), generator=generator)
        graphs.append(
            Data(
                x=torch.randn(n, 32, generator=generator),
                edge_index=torch.cat([half, half.flip(0)], 1),
                y=torch.randint(CLASSES, (1,), generator=generator),
            )
        )
    return GraphLoader(graphs, num_graphs, num_steps=num_steps)


def make_batch(num_subgraphs: int, walk_length: int) -> Data:
    """A batch of walks."""
    return next(iter(make_walks(num_subgraphs, walk_length)))


def call(model: nn.Module, batch: Data, pooled: bool) -> Tensor:
    """Calls a model with a batch of graphs, or of walks."""
    owner = (batch.batch,) if pooled else ()
    return model(batch.x, batch.edge_index, *owner)


def training(
    model: Net, loader: StepLoader, pooled: bool, private: bool
) -> Callable[[], None]:
    """A function that takes the next step of a training."""
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
    trained: Any = model
    batches: Any = loader
    if private:
        trained, optimizer, batches = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=CLIP,
            forward=partial(call, pooled=pooled),
        )
    batches = iter(batches)

    def step() -> None:
        batch = next(batches)
        optimizer.zero_grad()
        out = call(trained, batch, pooled)
        m = batch.batch_size if not pooled else len(out)
        F.cross_entropy(out[:m], batch.y[:m]).backward()
        optimizer.step()

    return step


def whole(
    kind: str, hidden: int, repeats: int, make: Callable[[int], StepLoader]
) -> tuple[float, float]:
    """CPU seconds of a plain step, and those of a private one over them."""
    pooled = isinstance(make(1), GraphLoader)
    features = 32 if pooled else FEATURES
    torch.manual_seed(0)
    steps = {
        name: training(
            *(Net(kind, hidden, features), make(repeats + 2), pooled),
            private=name == 'private',
        )
        for name in ('plain', 'private')
    }
    seconds, _ = interleaved(steps, repeats, time.process_time)
    return seconds['plain'], seconds['private'] / seconds['plain']


def loss_of(out: Tensor, batch: Data) -> Tensor:
    """The sum over the roots."""
    m = batch.batch_size
    return F.cross_entropy(out[:m], batch.y[:m], reduction='sum')


def plain(model: Net, batch: Data) -> Sums:
    """The gradient of the sum."""
    params = dict(model.named_parameters())
    loss = loss_of(model(batch.x, batch.edge_index), batch)
    grads = torch.autograd.grad(loss, list(params.values()))
    return dict(zip(params, grads, strict=True))


def private(units: Attributor, batch: Data, verify: bool = False) -> Sums:
    """The sum of clipped gradients, by us."""
    owner = batch.batch
    given = [owner, owner[batch.edge_index[0]]]
    out = units.run(
        lambda: units.module(batch.x, batch.edge_index),
        given,
        batch.batch_size,
    )
    loss = loss_of(out, batch)
    (grad_out,) = torch.autograd.grad(loss, out, retain_graph=True)
    found = units.attribute(out, grad_out, owner, verify=verify)
    clipped = clipped_sum(found, CLIP)
    grid = clip.grid(CLIP)
    return {n: v.double() * grid for n, v in clipped.integers.items()}


def loop(model: Net, batch: Data) -> Sums:
    """One backward pass for each subgraph."""
    m, owner = batch.batch_size, batch.batch
    params = dict(model.named_parameters())
    out = model(batch.x, batch.edge_index)
    (grad,) = torch.autograd.grad(loss_of(out, batch), out, retain_graph=True)
    sums = {n: torch.zeros_like(p) for n, p in params.items()}
    for i in range(m):
        mine = grad * (owner == i).view(-1, 1)
        each = torch.autograd.grad(
            out, list(params.values()), mine, retain_graph=True
        )
        one = dict(zip(params, (g.unsqueeze(0) for g in each), strict=True))
        add_clipped(sums, one)
    return sums


def hooks(model: Net, batch: Data, chunk: int = 256) -> Sums:
    """Materialised gradients of a GCN, from hooks."""
    kept: dict[str, list[Tensor]] = {}
    handles = []
    for i in ('first', 'last'):
        conv = getattr(model, i)

        def save(
            module: nn.Module, args: tuple, out: Tensor, name: str
        ) -> None:
            kept[name] = [args[0].detach()]
            out.register_hook(lambda g: kept[name].append(g))

        for part, name in ((conv.lin, f'{i}.lin'), (conv, f'{i}')):
            handles.append(
                part.register_forward_hook(partial(save, name=name))
            )
    loss = loss_of(model(batch.x, batch.edge_index), batch)
    loss.backward()
    for handle in handles:
        handle.remove()
    model.zero_grad()
    names = [
        (f'{i}.{what}', kept[key])
        for i in ('first', 'last')
        for what, key in (('lin.weight', f'{i}.lin'), ('bias', f'{i}'))
    ]
    sums = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    node = batch.batch.argsort(stable=True)
    count = batch.batch.bincount(minlength=batch.batch_size)
    end = count.cumsum(0)
    for first in range(0, batch.batch_size, chunk):
        last = min(first + chunk, batch.batch_size)
        low = int(end[first] - count[first])
        rows = node[low : int(end[last - 1])]
        owner = batch.batch[rows] - first
        most = int(count[first:last].max())
        place = torch.arange(rows.numel()) + low
        place = place - (end - count)[batch.batch[rows]]
        each = {}
        for name, (inner, upstream) in names:
            g = upstream.new_zeros(last - first, most, upstream.size(1))
            g[owner, place] = upstream[rows]
            if name.endswith('bias'):
                each[name] = g.sum(1)
                continue
            a = inner.new_zeros(last - first, most, inner.size(1))
            a[owner, place] = inner[rows]
            each[name] = torch.einsum('nsi,nsj->nij', g, a)
        add_clipped(sums, each)
    return sums


def dense(batch: Data) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Subgraphs padded to one size, with normalised adjacency matrices."""
    m, owner = batch.batch_size, batch.batch
    count = owner.bincount(minlength=m)
    order = owner.argsort(stable=True)
    place = torch.empty_like(owner)
    place[order] = (
        torch.arange(owner.numel()) - ((count.cumsum(0) - count)[owner[order]])
    )
    most = int(count.max())
    adj = torch.zeros(m, most, most)
    source, target = batch.edge_index
    adj[owner[source], place[target], place[source]] = 1
    adj[owner, place, place] = 1
    scale = adj.sum(2).clamp(min=1).rsqrt()
    adj = scale.unsqueeze(2) * adj * scale.unsqueeze(1)
    x = torch.zeros(m, most, FEATURES)
    x[owner, place] = batch.x
    return list(
        zip(x.split(256), adj.split(256), batch.y[:m].split(256), strict=True)
    )


class DenseGCN(nn.Module):
    """The same GCN of one dense subgraph, for vmap."""

    def __init__(self, model: Net) -> None:
        super().__init__()
        self.first, self.last = model.first, model.last

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        """The logits of the root."""
        x = (adj @ self.first.lin(x) + self.first.bias).relu()
        return (adj @ self.last.lin(x) + self.last.bias)[0]


def vmapped(
    model: DenseGCN, parts: list[tuple[Tensor, Tensor, Tensor]]
) -> Sums:
    """Gradients by vmap, clipped chunk by chunk."""
    weights = {n: p.detach() for n, p in model.named_parameters()}

    def loss(w: Sums, x: Tensor, adj: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, w, (x, adj)), y)

    sums = {n: torch.zeros_like(p) for n, p in weights.items()}
    each = vmap(grad(loss), in_dims=(None, 0, 0, 0))
    for part in parts:
        add_clipped(sums, each(weights, *part))
    return sums


def add_clipped(sums: Sums, each: Sums) -> None:
    """Clips materialised gradients and adds them."""
    square = torch.stack([g.flatten(1).square().sum(1) for g in each.values()])
    factors = clip_factors(square.sum(0).sqrt(), CLIP)
    for name, value in each.items():
        sums[name] += torch.tensordot(factors, value, 1)


def difference(sums: Sums, other: Sums) -> float:
    """Relative, over all parameters."""
    square = sum(float((sums[n] - other[n]).square().sum()) for n in sums)
    total = sum(float(value.square().sum()) for value in other.values())
    return (square / total) ** 0.5


def measure(
    kind: str,
    num_subgraphs: int,
    walk_length: int,
    hidden: int,
    repeats: int,
    peers: bool,
) -> dict[str, object]:
    """The times of all methods, as multiples of the plain step's."""
    torch.manual_seed(0)
    model, batch = Net(kind, hidden), make_batch(num_subgraphs, walk_length)
    ours = Attributor(model)
    steps: dict[str, Callable[[], Sums]] = {
        'plain': partial(plain, model, batch),
        'ours': partial(private, ours, batch),
        'verified': partial(private, ours, batch, True),
    }
    seconds, results = interleaved(steps, repeats)
    slow: dict[str, Callable[[], Sums]] = {'plain': steps['plain']}
    if peers and kind == 'GCN':
        slow['hooks'] = partial(hooks, model, batch)
        slow['vmap'] = partial(vmapped, DenseGCN(model), dense(batch))
        slow['loop'] = partial(loop, model, batch)
    row: dict[str, object] = {
        'model': kind,
        'subgraphs': num_subgraphs,
        'L': walk_length,
        'hidden': hidden,
        'nodes': batch.num_nodes,
        'plain_ms': 1e3 * seconds['plain'],
        'ours': seconds['ours'] / seconds['plain'],
        'verified': seconds['verified'] / seconds['plain'],
        'step': whole(
            *(kind, hidden, repeats),
            partial(make_walks, num_subgraphs, walk_length),
        )[1],
    }
    if len(slow) > 1:
        times, others = interleaved(slow, max(1, repeats // 5))
        for name, sums in others.items():
            if name != 'plain':
                row[name] = times[name] / times['plain']
                row[f'{name}_error'] = difference(results['ours'], sums)
    return row


def peak(
    step: str, kind: str, num_subgraphs: int, walk_length: int, hidden: int
) -> None:
    """Runs one kind of step and prints the largest resident set, in kB."""
    torch.manual_seed(0)
    model, batch = Net(kind, hidden), make_batch(num_subgraphs, walk_length)
    small = make_batch(10, walk_length)
    gradients = Attributor(model)
    run: Callable[[Data], Sums] = partial(plain, model)
    if step == 'ours':
        run = partial(private, gradients)
    run(small)
    gc.collect()
    # What is free would be used again and not be seen.
    ctypes.CDLL(None).malloc_trim(0)
    before = resident('VmRSS')
    Path('/proc/self/clear_refs').write_text('5')
    run(batch)
    print(resident('VmHWM') - before)


def resident(what: str) -> int:
    """The resident set of this process, in kB."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1])
    raise RuntimeError(f'{what} is not known here')


def memory(*case: object) -> tuple[float, float]:
    """What the plain and the private step add, in MB."""
    added = []
    for step in ('plain', 'ours'):
        out = subprocess.run(
            [sys.executable, __file__, '--peak', step, *map(str, case)],
            check=True,
            capture_output=True,
            text=True,
            # What is freed goes back at once.
            env={**os.environ, 'MALLOC_MMAP_THRESHOLD_': '65536'},
        ).stdout
        added.append(int(out) / 1024)
    return added[0], added[1]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--repeats', type=int, default=15)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--csv', type=Path)
    parser.add_argument('--peak', nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peak:
        step, kind, *numbers = args.peak
        peak(step, kind, *map(int, numbers))
        return
    cases = [
        (kind, m, length, hidden)
        for m in ((1000,) if args.quick else (1000, 5000))
        for length, hidden in ((1, 256), (2, 512))
        for kind in MODELS
    ]
    rows = []
    for case in cases:
        first = not args.quick and case[1] == 1000
        row = measure(*case, args.repeats, peers=first)
        before, after = memory(*case)
        row |= {'plain_mb': before, 'memory': after / before}
        rows.append(row)
        print(
            ', '.join(
                f'{key} {value:.3g}'
                if isinstance(value, float)
                else f'{key} {value}'
                for key, value in row.items()
            ),
            flush=True,
        )
        told = f'{case[0]}, {case[1]} subgraphs, L={case[2]}, h={case[3]}'
        limit = 3.5 if case[0] == 'GAT' else 2
        for key, target in (
            ('ours', limit),
            ('step', 3.5),
            ('memory', 2),
            ('vjp', 30),
        ):
            if key in row:
                value = float(str(row[key]))
                what = f'{told}: {key}, in plain steps'
                result(what, value, target, at_most=True)
    for kind in ('GCN', 'SAGE', 'GIN'):
        make = partial(make_graphs, 128)
        plain_s, ratio = whole(kind, 64, args.repeats, make)
        print(
            f'{kind}, graphs, plain_ms {1e3 * plain_s:.3g}, step {ratio:.3g}'
        )
        what = f'{kind}, 128 graphs, h=64: step, in plain steps'
        result(what, ratio, 4.5, at_most=True)
    if args.csv:
        with args.csv.open('w', newline='') as file:
            names = list(dict.fromkeys(k for row in rows for k in row))
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == '__main__':
    main()
