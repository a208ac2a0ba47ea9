"""Checks of the models of shards: their start, their repeats, shortcuts."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data, HeteroData

from pyg_trust import rng
from pyg_trust._checks.starts import same_start, tensors_of
from pyg_trust.unlearning.shards.models import (
    Factory,
    Recipe,
    Shard,
    Shortcuts,
    Weights,
    build,
    equal_tensors,
    evaluate,
    fit,
    restore,
    single_thread,
    snapshot,
    train_one,
)

__all__ = [
    'UnrepeatableModelError',
    'check_model',
    'check_start',
    'find_shortcuts',
]

# How models refuse what they can't do.
_REFUSALS = (
    AttributeError,
    IndexError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


class UnrepeatableModelError(ValueError):
    """Raised if a model is not a function of its data and seed."""


def _two(factory: Factory, one: Shard, two: Shard) -> tuple[Module, Module]:
    first, second = build(factory, one), build(factory, two)
    if first is second:
        raise UnrepeatableModelError(
            "'model_factory' needs to make a new model at every call (got "
            'the same one twice)'
        )
    return first, second


def check_start(factory: Factory, shard: Shard) -> None:
    """Refuse models that start from something that was passed in."""
    other = shard._replace(seed=rng.derive(shard.seed, 7))
    name = same_start(*map(tensors_of, _two(factory, shard, other)))
    if name is not None:
        raise ValueError(
            f"'model_factory' makes models whose {name!r} is the same under "
            'two seeds of torch, and neither 0 nor 1. If it was trained on, '
            'or computed from, data of people who may ask for removal, it '
            'would keep them: draw it anew in the factory. If it comes from '
            'public data or is a constant, state so: ShardedUnlearner(..., '
            'start_is_public=True)'
        )


def check_model(
    factory: Factory, shard: Shard, recipe: Recipe, ways: Shortcuts
) -> list[Weights]:
    """Train a shard twice, and check that the same model comes of it."""
    with single_thread():
        one, two = _two(factory, shard, shard)
        if not equal_tensors(snapshot(one), snapshot(two)):
            raise UnrepeatableModelError(
                "'model_factory' makes models that differ, with the "
                'generators of torch, numpy and Python at the same seed: it '
                'needs to draw from these alone'
            )
        made, again = (
            train_one(module, shard, recipe, ways) for module in (one, two)
        )
        if not all(map(equal_tensors, made, again)):
            name = 'model_factory' if recipe.train is None else 'train'
            raise UnrepeatableModelError(
                "two trainings of a model of 'model_factory' from one seed "
                f"differ: '{name}' needs to draw from the default generators "
                "of torch, numpy and Python, or from the 'generator' that "
                "'train' gets, and nothing may be kept from call to call"
            )
        if not shard.stages and recipe.train is None and made[-1]:
            fresh = build(factory, shard)
            restore(fresh, made[-1])
            each = [
                evaluate(m, shard, Shortcuts()) for m in (one, fresh, fresh)
            ]
            if not all(torch.equal(each[0], out) for out in each):
                raise UnrepeatableModelError(
                    "the outputs of a model of 'model_factory' depend on more "
                    'than its parameters and buffers: register all other '
                    'state as a buffer'
                )
    return made


def find_shortcuts(
    factory: Factory, shard: Shard, recipe: Recipe
) -> Shortcuts:
    """Try on a made-up graph which faster ways train the same model."""
    if isinstance(shard.data, HeteroData):
        return Shortcuts()
    made = Shard(0, _made_up(shard.data), torch.zeros(8, dtype=torch.int64))
    steps = replace(recipe, epochs=3, slices=(), train=None)

    def trained(ways: Shortcuts) -> tuple[Weights, Tensor]:
        module = fit(build(factory, made), made, steps, ways)
        return snapshot(module), evaluate(module, made, ways)

    def holds(**way: bool) -> bool:
        try:
            weights, found = trained(Shortcuts(**way))
        except _REFUSALS:
            return False
        if 'cached' in way:
            return equal_tensors(weights, plain) and torch.equal(found, out)
        return float((found - out).abs().max()) <= 1e-4 * float(
            out.abs().max()
        )

    with single_thread():
        try:
            plain, out = trained(Shortcuts())
        except _REFUSALS:
            return Shortcuts()
        return Shortcuts(
            cached=recipe.train is None and holds(cached=True),
            matrix=holds(matrix=True),
            sparse=holds(sparse=True),
        )


def _made_up(like: Data) -> Data:
    n, width = 8, like.x.size(1)
    value = torch.arange(n * width).view(n, -1)
    ring = torch.arange(n)
    ends = torch.stack([ring.repeat(2), torch.cat([ring + 1, ring + 3]) % n])
    data = Data(
        x=((value % 19 == 0) * (1 + value % 7) / 7).to(like.x.dtype),
        edge_index=torch.cat([ends, ends.flip(0)], 1),
        num_nodes=n,
    )
    if 'edge_weight' in like:
        weight = (1 + torch.arange(2 * n) % 5).to(like.edge_weight) / 5
        data.edge_weight = weight.repeat(2)
    return data
