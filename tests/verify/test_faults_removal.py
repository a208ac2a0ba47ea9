"""Faults in the fast removal: refused by a kernel that knows of none.

Each fault is planted in code that removes, and goes unnoticed there. What is
asked is the kernel alone: whether a release is paid for, at once; and a report
with what is handed in beside it, as an auditor checks it.
"""

import json

import pytest
import references
import torch
from forgetting import forgotten
from sharded import make, make_data

from pyg_trust import rng
from pyg_trust.check import FAILS, HOLDS, UNPROVED, check_report
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import TrustReport, save_tensors
from pyg_trust.unlearning import certified, heads, node, node_releases
from pyg_trust.unlearning.heads import Refined
from pyg_trust.unlearning.node_rows import NodeState
from pyg_trust.unlearning.shards import building
from pyg_trust.unlearning.shards import unlearner as unlearners
from pyg_trust.unlearning.shards.building import Builder
from pyg_trust.unlearning.sums import Sums
from pyg_trust.verify import shards as kernel

# Found at once, when the release is paid for.
PAID = 'would be paid for'
RESIDUAL, LEFT = 'the residual is within', 'is still there'


def wrapped(owner, name, change):
    """A fault: what a function returns is changed."""

    def plant(patch):
        held = getattr(owner, name)
        patch.setattr(owner, name, lambda *a, **k: change(held(*a, **k), *a))

    return plant


def replaced(owner, name, made):
    def plant(patch):
        patch.setattr(owner, name, made)

    return plant


def smaller(gradient, *_):
    """A norm of one entry in a thousand."""
    norm = gradient.norm._replace(
        measured=gradient.norm.measured / 1e4, upper=gradient.norm.upper / 1e4
    )
    return gradient._replace(norm=norm)


def stale(self, old, *_):
    return old


def none_touched(self, changed, features):
    return changed[:0]


def one_more(self):
    return self.settings.lam * self.names.numel()


def no_labels(self, rows):
    pass


def first_step(found, problem, W, *_):
    return Refined(W, found.gradient, found.factor, 0)


def one_way(patch):
    # Of an edge that is named, the other direction stays.
    held = Sums._edit

    def edit(self, arcs, *args):
        some = arcs[:, :-1].contiguous() if arcs.size(1) == 2 else arcs
        held(self, some, *args)

    patch.setattr(Sums, '_edit', edit)


FAULTS = {
    'a residual that is not followed': (
        replaced(NodeState, '_follow', stale),
        RESIDUAL,
    ),
    'a norm that is too small': (
        wrapped(heads.Objective, 'gradient', smaller),
        RESIDUAL,
    ),
    'steps that are not taken': (
        wrapped(node_releases, 'refine', first_step),
        RESIDUAL,
    ),
    'features that are not made anew': (
        replaced(Sums, 'touched', none_touched),
        RESIDUAL,
    ),
    'a penalty of the nodes there were': (
        replaced(NodeState, 'mu', property(one_more)),
        RESIDUAL,
    ),
    'a label that still counts': (
        replaced(NodeState, '_drop', no_labels),
        LEFT,
    ),
    'a loss with other slopes': (
        wrapped(heads, 'slopes', lambda found, *_: found * 0.999),
        RESIDUAL,
    ),
    'an edge that goes one way alone': (one_way, LEFT),
    'a release without its grid and residual': (
        replaced(node.NodeClassifier, '_spent', lambda *_: 1e-13),
        PAID,
    ),
    'a deviation that is counted twice': (
        wrapped(
            node.NodeClassifier,
            '_spent',
            lambda spent, self, *_: spent * self.release_std,
        ),
        PAID,
    ),
    'more than the budget': (
        wrapped(
            node.NodeClassifier,
            '_spent',
            lambda spent, self, *_: self.budget * (1 + 1e-12),
        ),
        'BudgetExceeded',
    ),
    'a sum of releases that is the last of them': (
        replaced(
            certified.CertifiedClassifier,
            '_transcript',
            lambda self, ledger: self._epsilon(ledger.spent),
        ),
        'epsilon_transcript',
    ),
    'an epsilon of half the shift': (
        wrapped(
            certified.CertifiedClassifier,
            '_epsilon',
            lambda found, *_: found / 2,
        ),
        'epsilon: ',
    ),
    'noise of a fiftieth of the deviation': (
        wrapped(
            certified.CertifiedClassifier,
            '_release',
            lambda found, self, W, *_: W + (found - W) / 50,
        ),
        'the noise between',
    ),
    'a release of the weights of before': (
        wrapped(
            certified.CertifiedClassifier,
            '_release',
            lambda found, self, W, *_: (
                found - W + self._model.W if self._model is not None else found
            ),
        ),
        'the noise between',
    ),
}


def audited(folder, name='appnp'):
    """The findings of somebody who was handed all, of the last removal."""
    model, _, data = forgotten(name, release_std=1e-5)
    train = data.train_mask.nonzero().view(-1).tolist()
    if name == 'appnp':
        u, v = data.edge_index
        u, v = (int(part[(u > 100) & (v > u)][3]) for part in (u, v))
        request = RemovalRequest(edges=[(u, v)], labels=train[-1:])
    else:
        request = RemovalRequest(labels=train[-1:])
    report = model.remove(request)
    TrustReport.of(report).save(folder / 'trust.json')
    model.save_for_check(folder / 'proof.npz')
    save_tensors(folder / 'weights.pt', {'weight': model.weight})
    (folder / 'ledger').write_text(json.dumps(model.ledger.state_dict()))
    return check_report(
        folder / 'trust.json',
        data=folder / 'proof.npz',
        model=folder / 'weights.pt',
        ledger=folder / 'ledger',
    )


@pytest.mark.parametrize('name', ['appnp', 'two classes'])
def test_without_a_fault_all_holds(tmp_path, name):
    found = audited(tmp_path, name)
    assert {each.status for each in found} == {HOLDS}


@pytest.mark.parametrize('name', sorted(FAULTS))
def test_a_fault_is_refused(name, tmp_path, monkeypatch):
    plant, caught = FAULTS[name]
    plant(monkeypatch)
    try:
        # What is followed is a label: few rows.
        kind = 'two classes' if 'followed' in name else 'appnp'
        found = audited(tmp_path, kind)
    except (RuntimeError, ValueError) as error:
        said = f'{type(error).__name__}: {error}'
        # The fast code refuses some before the kernel is asked.
        early = ['numbers are out of range', 'nodes that are there', 'itself']
        early.append('neighbours of a node')
        assert any(text in said for text in (caught, *early))
        return
    wrong = [e.text for e in found if e.status in (FAILS, UNPROVED)]
    assert any(caught in text for text in wrong), wrong


# Shards ######################################################################


def of_another(found, *_):
    """Every shard has the nodes of the first."""
    return dict.fromkeys(found, next(iter(found.values())))


def by_position(names, num_shards, *, seed, allow_empty):
    return torch.arange(names.numel()) % num_shards


def later(found, *_):
    return {i: [*seen[1:], seen[-1]] for i, seen in found.items()}


def stages_too_late(found, *_):
    after, first, request = found
    return after, {shard: r + 1 for shard, r in first.items()}, request


def one_less(found, *_):
    after, first, request = found
    return after, dict(list(first.items())[1:]), request


SEEN, AGAIN = 'items that it should not', 'again'
OF_SHARDS = {
    'a shard with the nodes of another': (
        wrapped(Builder, 'parts', of_another),
        SEEN,
    ),
    'a shard by the place of a node': (
        replaced(building, 'hash_partition', by_position),
        SEEN,
    ),
    'a stage that sees the next one': (wrapped(Builder, 'parts', later), SEEN),
    'slices by another key': (
        wrapped(building, 'slice_numbers', lambda found, *_: found.flip(0)),
        SEEN,
    ),
    'a stage that begins too late': (
        wrapped(unlearners, 'applied', stages_too_late),
        AGAIN,
    ),
    'a shard that is forgotten': (
        wrapped(unlearners, 'applied', one_less),
        AGAIN,
    ),
}


def shards_refuse():
    """What the kernel says of shards and stages, before and after."""
    slices = [(0.5, 1), (1, 1)]
    unlearner = make(
        epochs=None, slices=slices, aggregator='mean', num_classes=3
    ).fit(make_data())
    state = unlearner._state
    if any(SEEN in text for text in unlearner.verify([]).leftovers):
        return SEEN
    builder, data = unlearner._builder, state.data
    key = builder.method(state.partition, state.seed).seed
    names = data.n_id[data.train_mask].tolist()
    slicing = rng.derive(state.seed, building.SLICE)
    division = kernel.divided(
        names, unlearner.num_shards, key, [0.5, 1.0], slicing
    )
    request = RemovalRequest(nodes=names[:2], features=[names[5]])
    ends = data.n_id[data.edge_index].tolist()
    items = kernel.items_of(data.n_id.tolist(), zip(*ends, strict=True))
    part = {'nodes': names[:2], 'features': [names[5]]}
    wanted = references.again(references.gone(items, part), division)
    return '' if unlearner.plan(request).stages == wanted else AGAIN


def test_shards_without_a_fault_are_accepted():
    assert shards_refuse() == ''


@pytest.mark.parametrize('name', sorted(OF_SHARDS))
def test_a_fault_of_shards_is_refused(name, monkeypatch):
    plant, caught = OF_SHARDS[name]
    plant(monkeypatch)
    assert shards_refuse() == caught
