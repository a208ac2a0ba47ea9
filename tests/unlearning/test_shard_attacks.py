"""Attacks on the state of ShardedUnlearner by somebody who knows its code."""

import copy
import threading

import pytest
import torch
from states import same
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GIN, GCNConv, GraphSAGE

from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import ShardedUnlearner

N = 24


def make_data():
    ring = torch.arange(N)
    one = torch.stack([ring, (ring + 1) % N])
    return Data(
        x=torch.eye(3)[ring % 3],
        edge_index=torch.cat([one, one.flip(0)], dim=1),
        y=ring % 2,
        train_mask=torch.ones(N, dtype=torch.bool),
        num_nodes=N,
    )


def make(**kwargs):
    kwargs = {'epochs': 1, 'aggregator': 'mean', 'seed': 0, **kwargs}
    return ShardedUnlearner(lambda: GCNConv(3, 2), num_shards=3, **kwargs)


def test_removed_features_can_not_be_guessed_from_a_folder(tmp_path):
    # The attacker has the folder after the removal of one-hot features: tries
    # all there are, drops the line of the removal, and looks at how what
    # comes of it is refused.
    unlearner = make(folder=tmp_path).fit(make_data())
    first = unlearner.state_dict()['ledger']['entries'][0]['data']
    unlearner.remove(RemovalRequest(features=[5]))
    state = make().load(tmp_path).state_dict()
    answers = set()
    for kind in range(3):
        forged = copy.deepcopy(state)
        forged['data']['x'][5] = torch.eye(3)[kind]
        del forged['data']['x_removed']
        del forged['ledger']['entries'][1:]
        with pytest.raises(ValueError, match='state') as error:
            make().load_state_dict(forged)
        answers.add(str(error.value))
        # And with the sealed contents recomputed, by the salts there are.
        data = unlearner.data
        data.x = forged['data']['x']
        del data.x_removed
        builder = unlearner._builder
        guess = unlearner._state._replace(data=data)
        parts = builder.parts(guess, range(3))
        contents = builder.contents(guess, parts)
        seals = type(guess.seals).of(state['salts'], contents)
        assert seals.root != first
    assert len(answers) == 1


def files_of(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    'request_',
    [
        RemovalRequest(nodes=[5]),
        RemovalRequest(features=[5]),
        RemovalRequest(edges=[(5, 6)]),
    ],
)
def test_nothing_that_was_removed_is_left_on_the_disk(tmp_path, request_):
    unlearner = make(folder=tmp_path).fit(make_data())
    before = files_of(tmp_path)
    report = unlearner.remove(request_)
    after = files_of(tmp_path)
    # Everything but the shards that hold nothing of it is another file.
    untouched = {
        name
        for name in before
        if name.startswith('shard-')
        and int(name.split('-')[1]) not in report.shards
    }
    assert (before & after) - {'manifest.json'} == untouched
    assert unlearner.verify().ok
    assert 'earlier states' not in str(report.guarantee())


def test_files_of_others_are_left_alone(tmp_path):
    for name in ('model.pt', 'notes.tmp', 'shard.pt', 'data.pt'):
        (tmp_path / name).write_bytes(b'mine')
    unlearner = make(folder=tmp_path).fit(make_data())
    unlearner.remove(RemovalRequest(nodes=[5]))
    for name in ('model.pt', 'notes.tmp', 'shard.pt', 'data.pt'):
        assert (tmp_path / name).read_bytes() == b'mine'


def test_loading_finishes_what_was_interrupted(tmp_path, monkeypatch):
    unlearner = make(folder=tmp_path).fit(make_data())

    def killed(self):
        raise KeyboardInterrupt

    store = type(unlearner._store(None))
    with monkeypatch.context() as patch:
        patch.setattr(store, '_delete_strangers', killed)
        with pytest.raises(KeyboardInterrupt):
            unlearner.remove(RemovalRequest(nodes=[5]))
    # After the switch: the removal is done, its traces are not yet gone.
    assert 5 not in unlearner.n_id.tolist()
    assert not unlearner.verify().ok
    again = make(folder=tmp_path).load()
    assert 5 not in again.n_id.tolist()
    assert again.verify().ok
    assert unlearner.verify().ok


def test_who_comes_second_is_told(tmp_path):
    make(folder=tmp_path).fit(make_data())
    one, two = make(folder=tmp_path).load(), make(folder=tmp_path).load()
    one.remove(RemovalRequest(nodes=[3]))
    for change in (
        lambda: two.remove(RemovalRequest(nodes=[4])),
        two.repartition,
        two.save,
        lambda: two.fit(make_data()),
    ):
        with pytest.raises(RuntimeError, match=r'nodes.: \[3\].*load\(\)'):
            change()
    assert 3 in two.n_id.tolist()
    two.load()
    two.remove(RemovalRequest(nodes=[4]))
    with pytest.raises(RuntimeError, match=r'nodes.: \[4\]'):
        one.remove(RemovalRequest(nodes=[7]))
    assert not {3, 4} & set(make().load(tmp_path).n_id.tolist())


def test_threads_lose_no_removal():
    unlearner = make().fit(make_data())
    gate, failed = threading.Barrier(2), []

    def work(names):
        gate.wait()
        try:
            for name in names:
                unlearner.remove(RemovalRequest(nodes=[name]))
        except Exception as error:
            failed.append(error)

    threads = [
        threading.Thread(target=work, args=(range(i, 12, 2),)) for i in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(unlearner.n_id.tolist()) == list(range(12, N))
    assert unlearner.verify().ok


def test_no_half_of_an_edge_stays():
    data = make_data()
    stray = torch.tensor([[0], [9]])
    data.edge_index = torch.cat([data.edge_index, stray], dim=1)
    unlearner = make().fit(data)
    unlearner.remove(RemovalRequest(edges=[(5, 6)]))
    left = {tuple(e) for e in unlearner.data.edge_index.t().tolist()}
    assert not left & {(5, 6), (6, 5)}
    assert (0, 9) in left
    assert unlearner.verify().ok
    # One direction alone, if that is what is asked.
    other = make()
    other.load_state_dict(unlearner.state_dict())
    other.remove(RemovalRequest(edges=[(6, 7)], directed=True))
    left = {tuple(e) for e in other.data.edge_index.t().tolist()}
    assert (6, 7) not in left
    assert (7, 6) in left
    assert other.verify().ok


# Shards of one node #########################################################


@pytest.mark.parametrize('slices', [None, [(0.5, 1), (1.0, 1)]])
def test_a_shard_of_one_node_does_not_block_batch_norms(slices):
    def factory():
        return GCN(3, 8, 2, 2, norm='BatchNorm')

    data = make_data()
    shard = torch.arange(N) % 3
    unlearner = ShardedUnlearner(
        factory,
        num_shards=3,
        epochs=2,
        aggregator='mean',
        seed=0,
        partition=shard,
        slices=slices,
    ).fit(data)
    mine = (shard == 0).nonzero().view(-1).tolist()
    unlearner.remove(RemovalRequest(nodes=mine[1:]))
    # A constant voter, as one that is empty.
    assert unlearner.shard_state(0) == {}
    assert not unlearner.outputs[0].any()
    assert unlearner.outputs[1].any()
    report = unlearner.verify()
    assert report.ok
    # And other requests are not held up by it.
    unlearner.remove(RemovalRequest(nodes=[1], features=[mine[0]]))
    assert unlearner.verify().ok
    # As a fresh start has it.
    left = unlearner.data
    fresh = ShardedUnlearner(
        factory,
        num_shards=3,
        epochs=2,
        aggregator='mean',
        seed=0,
        partition=left.shard[left.shard >= 0],
        slices=slices,
    ).fit(left)
    for number in range(3):
        one, two = (u.shard_state(number) for u in (unlearner, fresh))
        assert same(one, two)


# Short floats ###############################################################


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
    unlearner = ShardedUnlearner(
        lambda: Autocast(kind(3, 8, 2, 2)),
        num_shards=2,
        epochs=3,
        aggregator='mean',
        seed=0,
    ).fit(make_data())
    unlearner.remove(RemovalRequest(nodes=[3]))
    assert unlearner.verify().ok
    assert bool(unlearner.outputs.isfinite().all())
