"""States of shards: in memory, in files, after failures and attacks."""

import contextlib
import copy
import json
import os
import pickle

import pytest
import torch
from sharded import (
    CHANNELS,
    CLASSES,
    NODES,
    SHARDS,
    TRAIN,
    Wrapped,
    make,
    make_data,
    snapshot,
    weights,
)
from states import same, without_chance
from torch_geometric.nn import GCN, GIN, GraphSAGE, SGConv

from pyg_trust.files.commit import StaleStateError
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import store
from pyg_trust.unlearning.shards import (
    building,
    unlearner,
)
from pyg_trust.unlearning.shards import state as states_of

FAST = {'epochs': 1, 'aggregator': 'mean'}


def sgc():
    return Wrapped(SGConv(CHANNELS, CLASSES, K=2))


def small(**kwargs):
    return make(sgc, **FAST, **kwargs)


def reloaded(folder, **kwargs):
    return make(seed=1, **kwargs).load(folder)


def removed(nodes, **kwargs):
    """The state after a removal, of another unlearner."""
    done = make(**kwargs).fit(make_data())
    done.remove(nodes=nodes)
    return snapshot(done)


# States and files ###########################################################


def test_a_state_of_an_earlier_version_is_trained_again(tmp_path):
    done = make().fit(make_data())
    done.remove(nodes=[3, 9])
    old = {**done.state_dict(), 'format': 3, 'salts': {'names': 1}}
    for key in ('class', 'rows', 'trace'):
        del old[key]
    old['config'] |= {'version': 2, 'sparse_x': False, 'aggregator': {}}
    for made in old['checkpoints'].values():
        made['weights'] = {k: 0 * v for k, v in made['weights'].items()}
    again = make()
    again.load_state_dict(old)
    assert same(weights(again), weights(done))
    assert again.verify().ok
    assert again.predict().numel() == NODES - 2
    assert len(again.ledger.entries) == len(done.ledger.entries) + 1
    store.ShardStore(tmp_path).write(*states_of.to_files(old))
    make(folder=tmp_path).load().remove(nodes=[5])
    assert make(folder=tmp_path).load().verify().ok
    with pytest.raises(ValueError, match="'lr' = "):
        make(lr=0.5).load_state_dict(old)
    old['partition'] = {'name': 'a tensor'}
    given = make(partition=torch.arange(TRAIN) % SHARDS)
    with pytest.raises(ValueError, match='fit a new unlearner'):
        given.load_state_dict(old)


def test_nobody_reaches_what_is_in_force():
    one = make().fit(make_data())
    before = copy.deepcopy(one.state_dict())
    for each in (one.data.x, one.data.edge_index, one.n_id, one.outputs):
        each.zero_()
    one.shard_state(0)['convs.0.bias'].fill_(9)
    one.ledger.record('retrain', 0.0)
    state = one.state_dict()
    state['data']['y'].zero_()
    state['checkpoints'][0]['weights']['convs.0.bias'].fill_(9)
    state['ledger']['entries'].clear()
    assert same(before, one.state_dict())
    assert one.verify().ok


def test_a_folder_holds_the_present_state(tmp_path):
    one = make(folder=tmp_path).fit(make_data())
    assert same(snapshot(one), snapshot(reloaded(tmp_path)))
    assert one.remove(nodes=[3]).shards
    loaded = reloaded(tmp_path)
    assert same(snapshot(one), snapshot(loaded))
    # The old checkpoints are gone.
    assert one.verify().ok
    assert loaded.verify().ok
    manifest = json.loads((tmp_path / 'manifest.json').read_text())
    # Ids and ledger tell who was removed; nothing else is there.
    assert {*manifest} == {'format', 'files', 'ledger'}
    named = [entry['file'] for entry in manifest['files'].values()]
    assert sum(name.startswith('shard-') for name in named) == SHARDS
    here = {path.name for path in tmp_path.iterdir()}
    assert here == {'manifest.json', *named}


def test_checkpoints_are_kept_and_can_not_be_guessed(tmp_path):
    # A removal leaves the files of other shards, byte for byte.
    def found(name):
        return {
            path.name: path.stat().st_ino
            for path in (tmp_path / name).iterdir()
            if path.name.startswith('shard-')
        }

    data = make_data()
    one = make().fit(data)
    one.save(tmp_path / 'one')
    home, before = int(one.data.shard[0]), found('one')
    one.remove(nodes=[0])
    one.save(tmp_path / 'one')
    (changed,) = found('one').items() - before.items()
    assert changed[0].startswith(f'shard-{home}-')
    # Names can't be guessed: of the same data and settings they are others.
    again = make().fit(data)
    again.save(tmp_path / 'two')
    assert found('two').keys().isdisjoint(before)
    # A file that was cut short is written again.
    path = next((tmp_path / 'two').glob('shard-0-*'))
    path.write_bytes(path.read_bytes()[:-1])
    again.save(tmp_path / 'two')
    assert make().load(tmp_path / 'two').verify().ok


@pytest.mark.parametrize(
    'request_',
    [
        RemovalRequest(nodes=[5]),
        RemovalRequest(features=[5]),
        RemovalRequest(edges=[(0, 2)]),
    ],
)
def test_nothing_that_was_removed_is_left_on_the_disk(tmp_path, request_):
    data = make_data()
    data.edge_index = torch.cat([data.edge_index, torch.tensor([[0], [2]])], 1)
    data.edge_index = data.edge_index.unique(dim=1)
    for name in ('model.pt', 'notes.tmp', 'shard.pt', 'data.pt'):
        (tmp_path / name).write_bytes(b'mine')
    one = make(folder=tmp_path, **FAST).fit(data)
    before = {path.name for path in tmp_path.iterdir()}
    report = one.remove(request_)
    # Everything but the shards that hold nothing of it is another file.
    kept = before & {path.name for path in tmp_path.iterdir()}
    shards = {int(n.split('-')[1]) for n in kept if n.startswith('shard-')}
    assert shards == {*range(SHARDS)} - {*report.shards}
    # And files of others are left alone.
    others = {name for name in kept if not name.startswith('shard-')}
    assert others == {
        *('manifest.json', 'model.pt', 'notes.tmp', 'shard.pt', 'data.pt')
    }
    assert (tmp_path / 'model.pt').read_bytes() == b'mine'
    assert one.verify().ok


def test_what_a_killed_process_left_is_deleted(tmp_path):
    make(folder=tmp_path, **FAST).fit(make_data())
    whole = {path.name for path in tmp_path.iterdir()}
    name = next(name for name in whole if name.startswith('shard-0'))
    for left in (f'.{name}.tmp', f'.{name}.writing', f'shard-0-{"0" * 16}.pt'):
        (tmp_path / left).write_bytes(b'left')
    make(folder=tmp_path, **FAST).load()
    assert {path.name for path in tmp_path.iterdir()} == whole


def test_a_folder_does_not_go_back(tmp_path):
    data = make_data()
    one = make(folder=tmp_path, **FAST).fit(data)
    old = make(seed=0, **FAST).load(tmp_path)
    one.remove(nodes=[0])
    before = snapshot(one)
    for other in (old, make(seed=9, **FAST).fit(data)):
        with pytest.raises((StaleStateError, ValueError), match=r'load'):
            other.save(tmp_path)
    with pytest.raises(ValueError, match="'folder'"):
        old.save()
    with pytest.raises(ValueError, match='manifest'):
        make().load(tmp_path / 'empty')
    # A fit does not undo what a folder holds.
    again = make(folder=tmp_path, **FAST)
    with pytest.raises(ValueError, match='holds a state'):
        again.fit(data)
    assert same(before, snapshot(again.load()))
    # Nor does one that knows of it: to start over is another folder.
    with pytest.raises(ValueError, match='holds a state'):
        again.fit(data)
    assert again.report().removals == 1


def test_a_damaged_folder_is_found_out(tmp_path):
    make(folder=tmp_path, **FAST).fit(make_data())
    path = next(tmp_path.glob('shard-2-*'))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match='was changed'):
        make(**FAST).load(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match='missing'):
        make(**FAST).load(tmp_path)
    (tmp_path / 'manifest.json').write_text('{')
    with pytest.raises(ValueError, match='no manifest'):
        make(**FAST).load(tmp_path)


# What states reveal #########################################################


def test_removed_features_can_not_be_guessed_from_a_folder(tmp_path):
    # The attacker has the folder after the removal of features of which there
    # are few: tries all, drops the line of the removal, and looks at how what
    # comes of it is refused.
    data = make_data()
    kinds = torch.eye(CHANNELS)[:3]
    data.x[5] = kinds[1]
    one = make(folder=tmp_path, **FAST).fit(data)
    first = one.state_dict()['ledger']['entries'][0]['data']
    one.remove(features=[5])
    state = make(**FAST).load(tmp_path).state_dict()
    answers = set()
    for kind in kinds:
        forged = copy.deepcopy(state)
        forged['data']['x'][5] = kind
        del forged['data']['x_removed']
        del forged['ledger']['entries'][1:]
        with pytest.raises(ValueError, match='state') as error:
            make(**FAST).load_state_dict(forged)
        answers.add(str(error.value))
        # And with the sealed contents recomputed, by the salts there are.
        data = one.data
        data.x = forged['data']['x']
        del data.x_removed
        guess = one._state._replace(data=data)
        parts = one._builder.parts(guess, range(SHARDS))
        contents = one._builder.contents(guess, parts)
        seals = type(guess.seals).of(state['salts'], contents)
        assert seals.root != first
    assert len(answers) == 1


@pytest.mark.parametrize('kind', ['tensor', 'lists'])
def test_nothing_tells_which_shard_a_removed_node_was_given(tmp_path, kind):
    data, kept = make_data(), []
    for guess in (0, 1):
        given = torch.arange(TRAIN) % SHARDS
        given[5] = guess
        if kind == 'lists':
            given = [(given == i).nonzero().view(-1) for i in range(SHARDS)]
        one = small(partition=given).fit(data)
        one.remove(nodes=[5])
        one.save(tmp_path / str(guess))
        again = small(partition=given).load(tmp_path / str(guess))
        assert same(snapshot(again), snapshot(one))
        for each in (one, pickle.loads(pickle.dumps(again)), again):
            partition = each.state_dict()['partition']
            kept.append(
                (each._given, each._state.partition, *partition.items())
            )
            assert each.verify([]).ok
            with pytest.raises(ValueError, match='forgotten'):
                each.fit(data)
    assert len({*kept}) == 1
    with pytest.raises(ValueError, match="state's partition is another"):
        small().load(tmp_path / '1')


def test_a_state_does_not_tell_what_was_trained_last(tmp_path):
    told = []
    for order in ((3, 9), (9, 3)):
        one = small().fit(make_data())
        for node in order:
            one.remove(nodes=[node])
        state = without_chance(one.state_dict())
        del state['ledger']
        told.append(state)
    assert same(*told)
    # Nor are there times that nobody has seen.
    request = RemovalRequest(nodes=[4])
    assert one.plan(request).seconds
    one.save(tmp_path)
    loaded = small().load(tmp_path)
    plan = loaded.plan(request)
    assert plan.seconds == loaded.report().seconds == {}
    assert plan.fraction == plan.node_epochs / plan.full_node_epochs
    report = loaded.remove(request)
    assert sum(report.seconds.values()) > 0
    assert 0 < report.fraction < 1


# Failures ###################################################################


@pytest.mark.parametrize('error', [OSError, KeyboardInterrupt])
@pytest.mark.parametrize('call', ['replace', 'fsync', 'open'])
def test_a_disk_that_fails(tmp_path, monkeypatch, call, error):
    new = removed([0], **FAST)
    one = make(folder=tmp_path, **FAST).fit(make_data())
    old, real, outcomes = snapshot(one), getattr(os, call), []
    for at in range(40):
        left = [at]

        def failing(*args, left=left, **kwargs):
            left[0] -= 1
            if left[0] == -1:
                raise error
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            with contextlib.suppress(error):
                one.remove(nodes=[0])
        state = snapshot(one)
        assert same(state, old) or same(state, new)
        assert same(snapshot(reloaded(tmp_path, **FAST)), state)
        outcomes.append(same(state, new))
        if outcomes[-1]:
            break
    assert outcomes[0] is False
    assert outcomes[-1] is True


@pytest.mark.parametrize(
    ('module', 'name'),
    [
        (building, 'train'),
        (building, 'evaluate_all'),
        (unlearner, 'applied'),
        (building, 'content'),
        (unlearner.RemovalLedger, 'record'),
        (building.ShardAggregator, 'fit'),
        (unlearner.ShardStore, 'write'),
    ],
)
def test_whatever_fails_nothing_has_changed(
    tmp_path, monkeypatch, module, name
):
    one = make(folder=tmp_path).fit(make_data())
    before = snapshot(one)

    def failing(*args, **kwargs):
        raise RuntimeError('injected')

    with monkeypatch.context() as patch:
        patch.setattr(module, name, failing)
        calls = [lambda: one.remove(nodes=[0, 1]), one.repartition]
        for call in calls[: 1 if name == 'applied' else 2]:
            with pytest.raises(RuntimeError, match='injected'):
                call()
            assert same(before, snapshot(one))
    assert same(before, snapshot(reloaded(tmp_path)))
    one.remove(nodes=[9])
    one.load()
    assert one.verify().ok


def test_loading_finishes_what_was_interrupted(tmp_path, monkeypatch):
    one = make(folder=tmp_path, **FAST).fit(make_data())

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store.ShardStore, '_delete_strangers', killed)
        with pytest.raises(KeyboardInterrupt):
            one.remove(nodes=[5])
    # After the switch: the removal is done, its traces are not yet gone.
    assert 5 not in one.n_id.tolist()
    assert not one.verify().ok
    again = make(folder=tmp_path, **FAST).load()
    assert 5 not in again.n_id.tolist()
    assert again.verify().ok
    assert one.verify().ok


def test_who_comes_second_is_told(tmp_path):
    options = {'folder': tmp_path, **FAST}
    make(**options).fit(make_data())
    one, two = make(**options).load(), make(**options).load()
    one.remove(nodes=[3])
    for change in (
        lambda: two.remove(nodes=[4]),
        two.repartition,
        two.save,
        lambda: two.fit(make_data()),
    ):
        with pytest.raises(RuntimeError, match=r'nodes.: \[3\].*load\(\)'):
            change()
    assert 3 in two.n_id.tolist()
    two.load()
    two.remove(nodes=[4])
    with pytest.raises(RuntimeError, match=r'nodes.: \[4\]'):
        one.remove(nodes=[7])
    assert not {3, 4} & {*make(**FAST).load(tmp_path).n_id.tolist()}


class Autocast(torch.nn.Module):
    """Runs a model in bfloat16, as one does for speed."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, edge_index):
        with torch.autocast('cpu', dtype=torch.bfloat16):
            return self.model(x, edge_index).float()


@pytest.mark.parametrize('kind', [GCN, GraphSAGE, GIN])
def test_models_under_autocast_can_be_removed_from(kind):
    one = make(lambda: Autocast(kind(CHANNELS, 8, 2, CLASSES)), **FAST)
    before = weights(one.fit(make_data()))
    one.remove(nodes=[3])
    assert one.verify().ok
    assert not same(before, weights(one))
    assert bool(one.outputs.isfinite().all())
