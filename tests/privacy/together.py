"""What a process of a private training does in the tests of several."""

import json
import math
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch_geometric.nn import GINConv

from pyg_trust import noise
from pyg_trust.audit import canary_graph
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy.group import Group
from pyg_trust.privacy.spending import Spending

WIDTH = 500
SIZES = {'noise': (WIDTH, 8), 'law': (12, 2), 'killed': (12, 4)}


def prepare(kind, ledger=None, seed=0, **kwargs):
    width, batch_size = SIZES[kind]
    data = canary_graph(12, 3)
    generator = torch.Generator().manual_seed(5)
    data.x = torch.zeros(36, width)
    if kind != 'noise':
        data.x = torch.randn(36, width, generator=generator)
    torch.manual_seed(7 + Group.current().rank)
    module = GINConv(nn.Linear(width, 1, bias=False))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loader = DisjointWalkLoader(
        data,
        batch_size,
        1,
        2,
        data.train_mask,
        num_steps=6,
        seed=seed,
        sampling='without_replacement' if kind == 'noise' else 'poisson',
    )
    engine = PrivacyEngine(ledger=ledger)
    made = engine.make_private(
        module=module,
        optimizer=optimizer,
        data_loader=loader,
        **{
            'noise_multiplier': 2.0,
            'max_grad_norm': 0.7,
            'loss_reduction': 'sum',
            **kwargs,
        },
    )
    return engine, made


def train(made, after=lambda: None, most=math.inf):
    model, optimizer, loader = made
    units, grads = [], []
    for batch in loader:
        optimizer.zero_grad()
        model(batch.x, batch.edge_index)[: batch.batch_size].sum().backward()
        optimizer.step()
        units.append(batch.input_id.tolist())
        grads.append(model.nn.weight.grad.clone())
        after()
        if len(units) >= most:
            break
    return units, grads


def noise_of(planted=''):
    """The p-value of all noise that was released, of six steps."""
    kept = Group.adds_noise, Group.spread
    if planted == 'every rank adds noise':
        Group.adds_noise = property(lambda self: True)
        spread = Group.spread

        def add_up(self, values, *numbers):
            for value in values:
                dist.all_reduce(value)
            return spread(self, values, *numbers)

        Group.spread = add_up
    _, made = prepare('noise')
    if planted == 'no rank does':
        Group.adds_noise = property(lambda self: False)
    try:
        _, grads = train(made)
    finally:
        Group.adds_noise, Group.spread = kept
    drawn = torch.cat(grads).double() / (2.0 * 0.7)
    return noise.p_value(drawn) if float(drawn.abs().max()) else 0.0


def law(folder):
    """Six steps by coins: who was drawn where, and one account for all."""
    ledger = folder / 'law.ledger' if Group.current().first else None
    engine, made = prepare('law', ledger=ledger)
    units, grads = train(made)
    out = {
        'units': units,
        'grads': torch.cat(grads).tolist(),
        'weights': made.model.nn.weight.tolist(),
        'epsilon': engine.get_epsilon(1e-5),
        'steps': engine.steps,
        'processes': engine.report(1e-5).processes,
    }
    engine.close()
    return out


def fixed():
    """The weights after six steps of known batches without noise."""
    kept = noise.SecureNoise.cells, Spending._choose
    noise.SecureNoise.cells = lambda self, shape: torch.zeros(
        shape, dtype=torch.int64
    )
    Spending._choose = lambda self, step, count, size: torch.arange(count)[
        torch.arange(count) % 3 < step % 3
    ].numpy()
    try:
        _, made = prepare('law')
        # The weights of the first, whoever began with others.
        before = made.model.nn.weight.tolist()
        units, _ = train(made)
        return [units, before, made.model.nn.weight.tolist()]
    finally:
        noise.SecureNoise.cells, Spending._choose = kept


def refused(call):
    try:
        call()
    except (ValueError, TypeError, RuntimeError) as error:
        return str(error)
    return ''


def main():
    what, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    folder = Path(sys.argv[4])
    if size > 1:
        dist.init_process_group(
            'gloo',
            init_method=f'file://{folder}/store',
            rank=rank,
            world_size=size,
        )
    if what == 'killed':
        when, count = sys.argv[5], int(sys.argv[6])
        victim = 0 if when == 'spread' else size - 1
        ledger = folder / 'killed.ledger' if rank == 0 else None
        engine, made = prepare('killed', ledger=ledger)
        call, asked = getattr(Group, when), [0]

        def die(self, *args):
            asked[0] += 1
            if rank == victim and asked[0] == count:
                os._exit(9)
            return call(self, *args)

        setattr(Group, when, die)
        seen = folder / f'seen{rank}'
        train(made, lambda: seen.write_text(str(engine.steps)))
        return
    out = {'noise': noise_of(), 'law': law(folder), 'fixed': fixed()}
    if size > 1:
        for planted in ('every rank adds noise', 'no rank does'):
            out[planted] = noise_of(planted)
        out['seeds'] = refused(lambda: prepare('law', seed=rank))
        for name, value in (
            ('noise_multiplier', 2.0 + rank),
            ('max_grad_norm', 0.7 + rank),
            ('clipping', ('flat', 'automatic')[rank % 2]),
            ('max_physical_batch_size', 2 + rank),
        ):
            out[name] = refused(
                lambda given={name: value}: prepare('law', **given)
            )
        for what in ('weights', 'optimizer'):
            _, made = prepare('law')
            if rank == 0 and what == 'weights':
                state = made.model.state_dict()
                made.model.load_state_dict(
                    {k: v + 1 for k, v in state.items()}
                )
            if rank == 0 and what == 'optimizer':
                made.optimizer.param_groups[0]['lr'] = 0.2
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter('always')
                train(made)
            out[what] = (
                [str(one.message) for one in said],
                made.model.nn.weight.tolist(),
            )
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        out['wrapped'] = refused(
            lambda: PrivacyEngine().make_private(
                module=wrapped,
                optimizer=torch.optim.SGD(wrapped.parameters(), lr=0.1),
                data_loader=DisjointWalkLoader(canary_graph(12, 3), 4, 1),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
            )
        )
    (folder / f'out{rank}.json').write_text(json.dumps(out))


if __name__ == '__main__':
    main()
