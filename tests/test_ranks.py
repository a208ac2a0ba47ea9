"""Procedures over ranks: the bits of one process, and errors on all of them.

Here a rank is a forked process; 2 of them, and 4 for one.
"""

import os
import signal
from functools import partial

import needs
import pytest
import torch
from ranks import codes, start, together
from torch_geometric.data import Data
from torch_geometric.nn import GCN, global_add_pool

from pyg_trust import distributed
from pyg_trust.certificates import BitFlips, ThreatModel, certify
from pyg_trust.certificates.sampling import Sampler
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import ShardedUnlearner
from pyg_trust.unlearning.shards import models

pytestmark = needs.ranks


def data(seed=0, n=40, edges=90):
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(n, (2, edges), generator=generator)
    pairs = pairs[:, pairs[0] < pairs[1]].unique(dim=1)
    return Data(
        x=torch.rand(n, 5, generator=generator),
        edge_index=torch.cat([pairs, pairs.flip(0)], 1),
        y=torch.arange(n) % 3,
        train_mask=torch.arange(n) < 30,
    )


def model():
    return GCN(5, 4, 2, 3, dropout=0.5)


def unlearner(**arguments):
    given = {'num_shards': 5, 'epochs': 4, 'num_classes': 3, 'seed': 3}
    return ShardedUnlearner(model, **{**given, **arguments})


def bits(made):
    """All that decides what an unlearner says, beside salts and names."""
    state = made.state_dict()
    return [
        *(part['weights'] for _, part in sorted(state['checkpoints'].items())),
        state['aggregator'],
        {'probabilities': made.predict_proba(nodes=made.n_id)},
    ]


def assert_equal(one, two):
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


def removed(made):
    made.fit(data())
    made.remove(RemovalRequest(nodes=[3, 14]))
    edge = data().edge_index[:, 0].tolist()
    made.remove(RemovalRequest(edges=[edge], features=[5]))
    return made


@pytest.mark.parametrize('size', [2, 4])
def test_shards_have_the_bits_of_one_process(size, tmp_path):
    slices = [(0.5, 2), (1, 2)]
    wanted = bits(removed(unlearner(slices=slices)))

    def work(rank):
        folder = tmp_path / 'state'
        made = removed(
            unlearner(slices=slices, over_ranks=True, folder=folder)
        )
        assert_equal(bits(made), wanted)
        # Alone: nothing that only reads waits for the others.
        if rank == 1:
            assert made.verify().ok
            other = unlearner(slices=slices)
            other.load(folder)
            assert_equal(bits(other), wanted)
        # Salts and names are those of all.
        state = made.state_dict()
        (tmp_path / f'root-{rank}').write_text(str(state['ledger']))

    together(size, tmp_path, work)
    assert len({p.read_text() for p in tmp_path.glob('root-*')}) == 1


def test_every_rank_trains_its_share(tmp_path, monkeypatch):
    build, built = models.build, []

    def counted(*arguments):
        built.append(1)
        return build(*arguments)

    monkeypatch.setattr(models, 'build', counted)

    def work(rank):
        made = unlearner(
            num_shards=6, partition=torch.arange(30) % 6, over_ranks=True
        )
        made.fit(data())
        built.clear()
        made.remove(RemovalRequest(nodes=range(6)))
        assert len(built) == 3

    together(2, tmp_path, work)


def test_ranks_that_disagree_are_refused(tmp_path):
    def work(rank):
        for wrong, name in (
            ({'seed': rank}, 'seed'),
            ({'seed': None if rank else 3}, 'seed'),
            ({'epochs': 3 + rank}, 'arguments'),
            ({'num_shards': 4 + rank}, 'arguments'),
            ({'partition': 'random' if rank else 'hash'}, 'partition'),
        ):
            made = unlearner(**wrong, over_ranks=True)
            with pytest.raises(ValueError, match=f"'{name}' .*rank 1"):
                made.fit(data())
        made = unlearner(over_ranks=True)
        with pytest.raises(ValueError, match="'data'"):
            made.fit(data(rank))
        made.fit(data())
        before = made.state_dict()['ledger']
        with pytest.raises(ValueError, match="'request'"):
            made.remove(RemovalRequest(nodes=[3 + rank]))
        with pytest.raises(ValueError, match="'call'"):
            made.repartition() if rank else made.remove(
                RemovalRequest(nodes=[3])
            )
        assert made.state_dict()['ledger'] == before
        # From the operating system, but one.
        drawn = unlearner(seed=None, over_ranks=True).fit(data())
        (tmp_path / f'seed-{rank}').write_text(str(drawn.state_dict()['seed']))

    together(2, tmp_path, work)
    assert len({p.read_text() for p in tmp_path.glob('seed-*')}) == 1


def test_a_rank_that_dies_leaves_an_error_and_the_old_state(tmp_path):
    folder = tmp_path / 'state'

    def work(rank):
        made = unlearner(over_ranks=True, folder=folder).fit(data())
        before = bits(made)

        def dies():
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return model()

        made._builder.factory = dies
        with pytest.raises(RuntimeError):
            made.remove(RemovalRequest(nodes=range(10)))
        made._builder.factory = model
        assert_equal(bits(made), before)
        assert made.verify().ok

    ended = codes(start(2, tmp_path, work))
    assert ended == [0, -signal.SIGKILL], list(tmp_path.glob('error-*'))
    other = unlearner()
    other.load(folder)
    assert other.verify().ok
    assert other.report().removals == 0


# Smoothing ##################################################################

NOISE = BitFlips(edges=(0.01, 0.4))


def smoothed(task='nodes', **arguments):
    torch.manual_seed(0)
    given = {
        'num_samples': 1100,
        'num_selection': 90,
        'batch_size': 100,
        'seed': 3,
        **arguments,
    }
    network, graphs = GCN(5, 4, 2, 3), data()
    if task == 'graphs':
        network, graphs = Pooled(), [data(seed, 12) for seed in range(3)]
    return certify(network, graphs, NOISE, **given)


class Pooled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = GCN(5, 4, 2, 3)

    def forward(self, x, edge_index, batch):
        return global_add_pool(self.inner(x, edge_index), batch)


def plain(report):
    return {
        **{
            name: getattr(report, name).tolist()
            for name in ('votes', 'predicted', 'p_lower', 'p_upper')
        },
        'rest': (report.num_samples, report.seed, report.note),
    }


@pytest.mark.parametrize('task', ['nodes', 'graphs'])
def test_smoothing_has_the_votes_of_one_process(task, tmp_path, monkeypatch):
    wanted = plain(smoothed(task))
    logits, drawn = Sampler.logits, []

    def counted(self, first, count, *rest):
        drawn.append(count)
        return logits(self, first, count, *rest)

    monkeypatch.setattr(Sampler, 'logits', counted)

    def work(rank):
        assert plain(smoothed(task, over_ranks=True)) == wanted
        graphs = 3 if task == 'graphs' else 1
        assert sum(drawn) < (600 + 100 + 20) * graphs

    together(2, tmp_path, work)


def test_smoothing_refuses_ranks_that_disagree(tmp_path):
    def work(rank):
        agreed = partial(smoothed, over_ranks=True)
        for name in ('seed', 'batch_size', 'num_samples'):
            with pytest.raises(ValueError, match=f"'{name}' .*rank 1"):
                agreed(**{name: 1100 + rank})
        with pytest.raises(ValueError, match="'seed'"):
            agreed(seed=None if rank else 3)
        torch.manual_seed(rank)
        other = GCN(5, 4, 2, 3)
        with pytest.raises(ValueError, match="'model'"):
            certify(other, data(), NOISE, over_ranks=True)
        torch.manual_seed(0)
        same = GCN(5, 4, 2, 3)
        with pytest.raises(ValueError, match="'data'"):
            certify(same, data(rank), NOISE, over_ranks=True)
        wrong = BitFlips(edges=(0.01, 0.4 + rank / 10))
        with pytest.raises(ValueError, match="'threat'"):
            certify(same, data(), wrong, over_ranks=True)
        seed = agreed(seed=None, num_samples=1000).seed
        (tmp_path / f'seed-{rank}').write_text(str(seed))

    together(2, tmp_path, work)
    assert len({p.read_text() for p in tmp_path.glob('seed-*')}) == 1


def test_smoothing_of_a_rank_that_dies_is_an_error(tmp_path, monkeypatch):
    votes = Sampler.votes

    def work(rank):
        def dies(*arguments):
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return votes(*arguments)

        monkeypatch.setattr(Sampler, 'votes', dies)
        with pytest.raises(RuntimeError):
            smoothed(over_ranks=True)

    assert codes(start(2, tmp_path, work)) == [0, -signal.SIGKILL]


# Exact certificates #########################################################


def exact(n=40, undirected=False, **arguments):
    options = {
        name: arguments.pop(name)
        for name in ('method', 'cost', 'sign_only', 'nodes', 'over_ranks')
        if name in arguments
    }
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    given = {'local_budget': 2, 'global_budget': 4, **arguments}
    threat = ThreatModel(
        data(n=n, edges=max(90, 2 * n)).edge_index,
        num_nodes=n,
        undirected=undirected,
        **given,
    )
    return certify(logits, threat, **options)


def everything(report):
    names = ('status', 'lower', 'upper', 'class_margins', 'flips')
    names += ('flips_ptr', 'flips_of', 'predicted')
    made = {name: getattr(report, name).tolist() for name in names}
    return {**made, 'rest': (report.method, report.run_sha256)}


@pytest.mark.parametrize(
    'arguments',
    [
        {'global_budget': None},
        {'method': 'dual'},
        {'undirected': True, 'sign_only': True},
        {'n': 3000, 'nodes': torch.tensor([3, 14, 15]), 'method': 'dual'},
    ],
)
def test_certificates_have_the_bits_of_one_process(
    arguments, tmp_path, monkeypatch
):
    # Several blocks of columns of each kind.
    if 'n' not in arguments:
        monkeypatch.setattr('pyg_trust.certificates.solver._BLOCK', 4000)
        monkeypatch.setattr('pyg_trust.certificates.threat._BLOCK', 100)
    wanted = everything(exact(**arguments))
    assert len(set(wanted['status'])) > 1 or 'n' in arguments
    own, calls = distributed.own_items, []

    def counted(count):
        calls.append(count)
        return own(count)

    monkeypatch.setattr(distributed, 'own_items', counted)

    def work(rank):
        assert everything(exact(over_ranks=True, **arguments)) == wanted
        # Blocks of columns, or targets in regions.
        assert max(calls) >= (3 if 'n' in arguments else 2)

    together(2, tmp_path, work)


def test_certificates_refuse_ranks_that_disagree(tmp_path):
    def work(rank):
        for name, wrong in (
            ('threat', {'local_budget': 1 + rank}),
            ('threat', {'undirected': bool(rank)}),
            ('method', {'method': 'dual' if rank else 'auto'}),
            ('nodes', {'nodes': torch.tensor([rank])}),
        ):
            with pytest.raises(ValueError, match=f"'{name}' .*rank 1"):
                exact(over_ranks=True, **wrong)

    together(2, tmp_path, work)


def test_an_exact_certificate_of_a_rank_that_dies_is_an_error(
    tmp_path, monkeypatch
):
    def work(rank):
        def dies(items, work, over_ranks):
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return distributed.shared(items, work, over_ranks)

        monkeypatch.setattr('pyg_trust.certificates.solver.shared', dies)
        with pytest.raises(RuntimeError):
            exact(over_ranks=True)

    assert codes(start(2, tmp_path, work)) == [0, -signal.SIGKILL]
