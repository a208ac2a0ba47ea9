"""Checks of the models of shards: their start, their repeats, shortcuts."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data, HeteroData

from pyg_trust import rng
from pyg_trust.unlearning.shards.models import (
    Recipe,
    Shard,
    Shortcuts,
    Weights,
    build,
    cache,
    equal_tensors,
    evaluate,
    fit,
    restore,
    single_thread,
    snapshot,
    train_one,
)

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


def handed_in(one: Weights, two: Weights) -> str | None:
    """Return the name of a tensor that comes from neither seed nor constants.

    Args:
        one (dict): the tensors of a model that was built with one seed.
        two (dict): those of a model that was built with another seed.

    Returns:
        str: the first tensor of which more than one percent is equal in both
        and no constant; or is one number that nobody would write, such as a
        mean: one of more than four digits.
    """
    for name, value in one.items():
        other = two.get(name)
        if other is None or other.shape != value.shape or not value.numel():
            continue
        same = value[value == other]
        if same.numel() <= value.numel() / 100:
            continue
        first = same[0]
        short = torch.tensor(float(f'{float(first):.4g}'), dtype=first.dtype)
        if bool((same != first).any()) or not torch.equal(first, short):
            return name
    return None


def tensors_of(module: Module) -> Weights:
    """Return all tensors of a model: also those that are plain attributes."""
    found = {n: v.detach() for n, v in snapshot(module).items()}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                found[f'{path}.{name}'.lstrip('.')] = value.detach()
    return {n: v for n, v in found.items() if v.layout == torch.strided}


def check_start(factory: Callable[[], Module], shard: Shard) -> None:
    """Refuse a factory whose models start from something that is handed in.

    Raises:
        TypeError: if the factory makes no module.
        ValueError: if models of two seeds have the same weights, or buffers
            that are no constants: they may come from data that are removed.
        UnrepeatableModelError: if the factory makes one model twice.
    """
    seeds = (shard.seed, rng.derive(shard.seed, 7))
    one, two = (build(factory, shard._replace(seed=s)) for s in seeds)
    if one is two:
        raise UnrepeatableModelError(
            "'model_factory' needs to make a new model at every call "
            '(got the same one twice)'
        )
    name = handed_in(tensors_of(one), tensors_of(two))
    if name is not None:
        raise ValueError(
            f"'model_factory' makes models whose {name!r} is the same under "
            'two seeds of torch and no constant. If it was trained on, or '
            'computed from, data of people who may ask for removal, it would '
            'keep them: draw it anew in the factory. If it comes from public '
            'data alone, say so: ShardedUnlearner(..., start_is_public=True)'
        )


def check_model(
    factory: Callable[[], Module],
    shard: Shard,
    recipe: Recipe,
    ways: Shortcuts,
) -> list[Weights]:
    """Train a shard twice, and check that the same model comes of it.

    Returns:
        list: the states after the stages of the shard.

    Raises:
        UnrepeatableModelError: if two models of one seed differ before or
            after training, or a state does not say what its model does.
    """
    with single_thread():
        one, two = build(factory, shard), build(factory, shard)
        if one is two:
            raise UnrepeatableModelError(
                "'model_factory' needs to make a new model at every call "
                '(got the same one twice)'
            )
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
            out = evaluate(one, shard, Shortcuts())
            for each in (fresh, fresh):
                if not torch.equal(out, evaluate(each, shard, Shortcuts())):
                    raise UnrepeatableModelError(
                        "the outputs of a model of 'model_factory' depend on "
                        'more than its parameters and buffers: register all '
                        'other state as a buffer'
                    )
    return made


def find_shortcuts(
    factory: Callable[[], Module], shard: Shard, recipe: Recipe
) -> Shortcuts:
    """Find the shortcuts that leave models as they are, on a made-up graph.

    Args:
        factory (Callable): the function that makes a model.
        shard (Shard): a graph with the width, the types and the weights of
            the others; nothing else of it is used.
        recipe (Recipe): the settings of the training.
    """
    if isinstance(shard.data, HeteroData):
        return Shortcuts()
    n, (_, width), dtype = 8, shard.data.x.shape, shard.data.x.dtype
    like = torch.arange(n * width).view(n, -1)
    ring = torch.arange(n)
    ends = torch.stack([ring.repeat(2), torch.cat([ring + 1, ring + 3]) % n])
    data = Data(
        x=((like % 19 == 0) * (1 + like % 7) / 7).to(dtype),
        edge_index=torch.cat([ends, ends.flip(0)], 1),
        num_nodes=n,
    )
    if 'edge_weight' in shard.data:
        weight = (1 + torch.arange(2 * n) % 5).to(shard.data.edge_weight) / 5
        data.edge_weight = weight.repeat(2)
    made = Shard(0, data, torch.zeros(n, dtype=torch.int64))
    steps = replace(recipe, epochs=3, slices=(), train=None)

    def trained(ways: Shortcuts) -> Module:
        return fit(build(factory, made), made, steps, ways)

    def holds(check: Callable[[], bool]) -> bool:
        try:
            return check()
        except _REFUSALS:
            return False

    def caches() -> bool:
        both = Shortcuts(cached=True)
        module = trained(both)
        again = evaluate(module, made, both)
        same = equal_tensors(snapshot(module), snapshot(plain))
        return same and torch.equal(again, out)

    def close(module: Module, ways: Shortcuts) -> bool:
        # Wherever this reads sparse features, it takes them as such.
        fresh = build(factory, made)
        restore(fresh, snapshot(module))
        cache(fresh, False)
        there = evaluate(fresh, made, ways)
        return float((there - out).abs().max()) <= 1e-4 * float(
            out.abs().max()
        )

    with single_thread():
        try:
            plain = trained(Shortcuts())
            out = evaluate(plain, made, Shortcuts())
        except _REFUSALS:
            return Shortcuts()
        own, sparse = recipe.train is not None, Shortcuts(sparse=True)
        return Shortcuts(
            cached=not own and holds(caches),
            matrix=holds(lambda: close(plain, Shortcuts(matrix=True))),
            sparse=holds(lambda: close(plain, sparse))
            and (own or holds(lambda: close(trained(sparse), Shortcuts()))),
        )
