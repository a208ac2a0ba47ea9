"""Shards of the kernel: by enumeration, and against the fast code."""

import itertools
import random

import pytest
import references
import torch
from torch_geometric.data import Data

from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.unlearning.partition import hash_partition
from pyg_trust.unlearning.shards.graph import slice_numbers, touched_slices
from pyg_trust.unlearning.shards.updating import played
from pyg_trust.update import NewNodes, Update
from pyg_trust.verify import shards

STAGES = 3


def random_graph(draw):
    names = draw.sample(range(100), 7)
    pairs = list(itertools.permutations(names, 2))
    edges = [pair for pair in pairs if draw.random() < 0.4]
    training = [v for v in names if draw.random() < 0.8]
    return names, edges, training


def random_request(draw, names, edges):
    request = {
        'nodes': draw.sample(names, draw.randint(0, 2)),
        'features': draw.sample(names, draw.randint(0, 2)),
        'edges': draw.sample(edges, draw.randint(0, min(2, len(edges)))),
    }
    return {key: value for key, value in request.items() if value}


def everything(items, division, num_shards):
    return {
        (i, r): references.seen(items, division, i, r)
        for i in range(num_shards)
        for r in range(STAGES)
    }


def test_stages_before_the_first_see_the_same_and_others_do_not():
    draw = random.Random(0)
    changed = kept = 0
    for _ in range(300):
        names, edges, training = random_graph(draw)
        items = shards.items_of(names, edges)
        division = shards.Division(
            {v: draw.randrange(3) for v in training},
            {v: draw.randrange(STAGES) for v in training},
        )
        request = random_request(draw, names, edges)
        removed = references.gone(items, request)
        first = references.again(removed, division)
        before = everything(items, division, 3)
        after = everything(items - removed, division, 3)
        for i, r in before:
            same = before[i, r] == after[i, r]
            assert same == (r < first.get(i, STAGES))
            changed, kept = changed + (not same), kept + same
    assert changed > 100
    assert kept > 100


def updated(before, old, after, new, changed=frozenset()):
    """The first stage to train again after an update, by shard."""
    moved = {
        v
        for v in before & after
        if shards.home(v, old) != shards.home(v, new) or v in changed
    }
    first = references.again(before - after | moved, old)
    for shard, stage in references.again(after - before | moved, new).items():
        first[shard] = min(stage, first.get(shard, stage))
    return first


def test_stages_before_the_first_of_an_update_see_the_same():
    draw = random.Random(4)
    changed = kept = 0
    for _ in range(300):
        sides = []
        for _ in range(2):
            names, edges, training = random_graph(draw)
            names = [v % 9 for v in names]
            edges = [(u % 9, v % 9) for u, v in edges]
            training = [v % 9 for v in training]
            division = shards.Division(
                {v: v % 2 for v in training},
                {v: v * 5 % STAGES for v in training},
            )
            items = shards.items_of(names, edges)
            sides.append((items, division))
        first = updated(*sides[0], *sides[1])
        before, after = (everything(*side, 2) for side in sides)
        for i, r in before:
            same = before[i, r] == after[i, r]
            assert same == (r < first.get(i, STAGES))
            changed, kept = changed + (not same), kept + same
    assert changed > 100
    assert kept > 100


def test_the_fast_code_trains_again_what_an_update_touches():
    draw = random.Random(6)
    slices = ((0.3, 1), (0.6, 1), (1.0, 1))
    found = 0
    for _ in range(100):
        names, edges, training = random_graph(draw)
        key, other = draw.getrandbits(63), draw.getrandbits(63)

        def divided(names, key=key, other=other):
            shares = [share for share, _ in slices]
            return shards.divided(names, 3, key, shares, other)

        place = {v: i for i, v in enumerate(sorted(names))}
        index = sorted((place[u], place[v]) for u, v in edges)
        mask = torch.tensor([v in training for v in sorted(names)])
        data = Data(
            x=torch.zeros(len(names), 1),
            y=torch.where(mask, 0, -1),
            train_mask=mask,
            edge_index=torch.tensor(index).long().view(-1, 2).t(),
            n_id=torch.tensor(sorted(names)),
            num_nodes=len(names),
        )

        def homes(names, key=key):
            home = hash_partition(names, 3, seed=key, allow_empty=True)
            return home, False

        data.shard = torch.full((len(names),), -1)
        if training:
            data.shard[mask] = homes(data.n_id[mask])[0]
        joined = [(u, 200) for u in draw.sample(names, 2)]
        labelled = draw.sample(names, 2)
        y = torch.tensor([draw.randint(-1, 1) for _ in labelled])
        update = Update(
            nodes=NewNodes(
                torch.ones(1, 1),
                torch.tensor([draw.randint(-1, 0)]),
                n_id=torch.tensor([200]),
            ),
            edges=torch.tensor(joined).t(),
            labels=(torch.tensor(labelled), y),
        )
        change = played(data, [update], homes)
        after = {int(v) for v in change.data.n_id[change.data.train_mask]}
        relabelled = {
            ('node', v)
            for v, to in zip(labelled, y.tolist(), strict=True)
            if v in training and v in after and to != 0
        }
        everyone = edges + joined + [(v, u) for u, v in joined]
        first = updated(
            shards.items_of(names, edges),
            divided(training),
            shards.items_of([*names, 200], everyone),
            divided(after),
            relabelled,
        )
        code = {}
        for side, items in (data, change.gone), (change.data, change.came):
            for i, r in touched_slices(side, *items, slices, other).items():
                code[i] = min(r, code.get(i, r))
        assert code == first
        found += len(first)
    assert found > 50


def test_any_sequence_ends_where_a_fresh_start_does():
    draw = random.Random(1)
    shares = (0.3, 0.6, 1.0)
    for _ in range(100):
        names, edges, training = random_graph(draw)
        items = shards.items_of(names, edges)
        key, other = draw.getrandbits(63), draw.getrandbits(63)
        division = shards.divided(training, 3, key, shares, other)
        held = everything(items, division, 3)
        for _ in range(3):
            nodes = [item[1] for item in items if item[0] == 'node']
            left = [item[1:] for item in items if item[0] == 'edge']
            featured = {item[1] for item in items if item[0] == 'features'}
            request = random_request(draw, nodes or [0], left)
            if 'features' in request:
                request['features'] = list({*request['features']} & featured)
            if not nodes:
                break
            removed = references.gone(items, request)
            first = references.again(removed, division)
            items = items - removed
            there = {item[1] for item in items if item[0] == 'node'}
            training = [v for v in training if v in there]
            division = shards.divided(training, 3, key, shares, other)
            for i, r in held:
                if r >= first.get(i, STAGES):
                    held[i, r] = references.seen(items, division, i, r)
        assert not shards.strangers(held, items, division)


def test_the_fast_code_trains_again_what_the_kernel_names():
    draw = random.Random(2)
    slices = ((0.3, 1), (0.6, 1), (1.0, 1))
    shares = [share for share, _ in slices]
    found = 0
    for _ in range(200):
        names, edges, training = random_graph(draw)
        if not edges or not training:
            continue
        key, other = draw.getrandbits(63), draw.getrandbits(63)
        place = {v: i for i, v in enumerate(names)}
        index = [[place[u], place[v]] for u, v in edges]
        data = Data(
            x=torch.zeros(len(names), 1),
            edge_index=torch.tensor(index).t(),
            n_id=torch.tensor(names),
            num_nodes=len(names),
        )
        rows = torch.tensor([place[v] for v in training])
        data.shard = torch.full((len(names),), -1)
        data.shard[rows] = hash_partition(
            torch.tensor(training), 3, seed=key, allow_empty=True
        )
        division = shards.divided(training, 3, key, shares, other)
        number = slice_numbers(data.n_id, slices, other)
        for v in training:
            assert division.shard[v] == int(data.shard[place[v]])
            assert division.stage[v] == int(number[place[v]])
        request = random_request(draw, names, edges)
        if not request:
            continue
        part = RemovalRequest(**request).parts[0]
        items = shards.items_of(names, edges)
        # As the request has it: what goes with a node is not named twice.
        removed = references.gone(items, part.to_dict())
        first = references.again(removed, division)
        one_stage = division._replace(stage=dict.fromkeys(training, 0))
        touched = (
            torch.tensor([*part.nodes, *part.features]).long(),
            torch.tensor(part.arcs).long().view(-1, 2).t(),
        )
        assert touched_slices(data, *touched, (), other) == references.again(
            removed, one_stage
        )
        assert touched_slices(data, *touched, slices, other) == first
        left = remove_from_data(data, part)
        kept = {('node', int(v)) for v in left.n_id}
        kept |= {
            ('edge', int(left.n_id[u]), int(left.n_id[v]))
            for u, v in left.edge_index.t()
        }
        there = items - removed
        assert kept == {item for item in there if item[0] != 'features'}
        found += len(first)
    assert found > 100


def test_a_stage_that_kept_an_item_is_found():
    items = shards.items_of([1, 2, 3], [(1, 2), (2, 1), (2, 3)])
    division = shards.Division({1: 0, 2: 0, 3: 1}, {1: 0, 2: 1, 3: 0})
    held = {
        (i, r): references.seen(items, division, i, r)
        for i in range(2)
        for r in range(2)
    }
    assert held[0, 0] == {('node', 1), ('features', 1)}
    assert ('edge', 1, 2) in held[0, 1]
    # Between shards: nobody sees it.
    assert all(('edge', 2, 3) not in had for had in held.values())
    removed = references.gone(items, {'edges': [(2, 1)]})
    assert removed == {('edge', 1, 2), ('edge', 2, 1)}
    assert references.again(removed, division) == {0: 1}
    held = {stage: list(had) for stage, had in held.items()}
    wrong = shards.strangers(held, items - removed, division)
    assert wrong == {(0, 1): removed}


@pytest.mark.parametrize(
    'request_', [{'nodes': [9]}, {'features': [9]}, {'edges': [(1, 3)]}]
)
def test_what_is_not_there_is_refused(request_):
    items = shards.items_of([1, 2, 3], [(1, 2)], featureless=[3])
    with pytest.raises(ValueError, match='not there'):
        references.gone(items, request_)
    with pytest.raises(ValueError, match='not there'):
        references.gone(items, {'features': [3]})


def test_the_hash_is_the_published_one():
    # The first numbers of SplitMix64 from the state 1234567, as published
    # with its code (Vigna 2015): a state goes on by the golden ratio.
    outputs = 6457827717110365317, 3203168211198807973, 9817491932198370423
    for step, out in enumerate(outputs):
        state = (1234567 + step * 0x9E3779B97F4A7C15) % 2**64
        for other, wanted in enumerate(outputs):
            after = (1234567 + other * 0x9E3779B97F4A7C15) % 2**64
            assert shards.hashed(out ^ after, state) == wanted >> 1
            # Of longer numbers the last 64 bits count.
            long = (out ^ after) + 2**64
            assert shards.hashed(long, state + 2**70) == wanted >> 1
