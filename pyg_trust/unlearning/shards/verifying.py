"""Verification of a sharded unlearner: retraining, and a search for traces."""

from collections.abc import Iterable, Sequence

import torch
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust.removal import Part
from pyg_trust.transforms.shards import Shards
from pyg_trust.unlearning.reports import VerifyReport
from pyg_trust.unlearning.shards.building import SLICE, Builder
from pyg_trust.unlearning.shards.models import equal_tensors
from pyg_trust.unlearning.shards.state import (
    Checkpoint,
    State,
    hash_of_shards,
)
from pyg_trust.verify import shards as kernel


def verified(
    builder: Builder,
    state: State,
    shards: Sequence[int],
    files: list[str],
) -> VerifyReport:
    """Train shards and the aggregator from scratch, and compare."""
    parts = builder.parts(state, range(builder.num_shards))
    fresh = builder.trained(state, parts, dict.fromkeys(shards, 0))
    differing = tuple(
        shard
        for shard, made in fresh.items()
        if not _equal(made, state.checkpoints[shard])
    )
    keys = not state.seals.differing(builder.contents(state, parts)) and all(
        torch.equal(made.n_id, parts[shard][-1].n_id)
        for shard, made in enumerate(state.checkpoints)
    )
    outputs = builder.outputs(state)
    aggregator = builder.aggregate(state, outputs)
    leftovers = [
        *_leftovers(state),
        *files,
        *_strangers(builder, state, parts),
        *['the state is not that of the ledger'] * (not state.is_sealed),
    ]
    same_outputs = torch.equal(outputs, state.outputs)
    same_aggregator = equal_tensors(
        aggregator.state_dict(), state.aggregator.state_dict()
    )
    return VerifyReport(
        ok=keys
        and same_outputs
        and same_aggregator
        and not (differing or leftovers),
        shards=tuple(shards),
        differing=differing,
        keys_match=keys,
        outputs_equal=same_outputs,
        aggregator_equal=same_aggregator,
        leftovers=tuple(leftovers),
        weights=hash_of_shards(state),
    )


def _equal(one: Checkpoint, two: Checkpoint) -> bool:
    both = (*one.stages, one.weights), (*two.stages, two.weights)
    return all(equal_tensors(a, b) for a, b in zip(*both, strict=True))


def _leftovers(state: State) -> list[str]:
    # Items that the ledger lists as removed, and that are there.
    gone = state.ledger.removed.request()
    part, data = Part() if gone is None else gone.parts[0], state.data
    rows = {v: row for row, v in enumerate(data.n_id.tolist())}
    trained = {
        v: shard
        for shard, made in enumerate(state.checkpoints)
        for v in made.n_id.tolist()
    }
    found = [f'node {v}' for v in part.nodes if v in rows]
    found += [
        f'node {v} in the checkpoint of shard {trained[v]}'
        for v in part.nodes
        if v in trained
    ]
    found += [f'the label of node {v}' for v in part.labels if v in trained]
    found += [
        f'features of node {v}'
        for v in part.features
        if v in rows and bool(data.x[rows[v]].any())
    ]
    if part.arcs:
        edges = {*map(tuple, data.n_id[data.edge_index].t().tolist())}
        found += [f'edge {u} -> {v}' for u, v in part.arcs if (u, v) in edges]
    if 'persons' in data:
        held = data.persons
        there = {*held.graph[held.person].n_id.tolist()}
        found += [
            f'node {v} in the typed graph' for v in part.nodes if v in there
        ]
    return found


def _strangers(
    builder: Builder, state: State, parts: dict[int, list[Data]]
) -> list[str]:
    # Items that a stage was trained on and should not have been, or lacks, by
    # the rules of pyg_trust.verify.shards.
    data, given = state.data, builder.method(state.partition, state.seed)
    training = data.shard >= 0
    ids = data.n_id[training].tolist()
    shares = [share for share, _ in builder.recipe.slices] or [1.0]
    exact = isinstance(given, Shards) and given.exact
    division = kernel.divided(
        ids,
        builder.num_shards,
        given.seed if exact else 0,
        shares,
        rng.derive(state.seed, SLICE),
    )
    if not exact:
        shard = data.shard[training].tolist()
        division = division._replace(shard=dict(zip(ids, shard, strict=True)))
    trained = {
        (shard, stage): _items(each)
        for shard, seen in parts.items()
        for stage, each in enumerate(seen)
    }
    found = kernel.strangers(trained, _items(data), division)
    return [
        f'stage {stage} of shard {shard}, which sees {len(items)} items that '
        'it should not, or does not see them'
        for (shard, stage), items in found.items()
    ]


def _items(data: Data) -> Iterable[kernel.Item]:
    # Features that were removed are zeros: items that are there for all.
    ends = data.n_id[data.edge_index]
    return kernel.items_of(
        data.n_id.tolist(), zip(*ends.tolist(), strict=True)
    )
