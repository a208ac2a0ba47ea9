"""The audit of unlearning: planted faults have to be found."""

import os
import re
from pathlib import Path

import pytest
import torch
from scipy import stats
from sharded import SHARDS, TESTED, TRAIN, quick
from sharded import make_data as graph
from torch_geometric.nn import GCN

from pyg_trust.audit import (
    ATTACKS,
    AuditRow,
    ShardedSubject,
    Subject,
    audit_removal,
)
from pyg_trust.audit.statistics import permutation_test, told_apart
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.report import TrustReport
from pyg_trust.unlearning import ShardedUnlearner

CHANNELS, CLASSES = 13, 3
GONE = [0, 5, 11, 17, 23, 30]


def unlearner(aggregator='mean', epochs=5, **kwargs):
    if aggregator == 'attentive':
        aggregator = quick()
    return ShardedUnlearner(
        lambda: GCN(CHANNELS, 8, 2, CLASSES, dropout=0.3),
        SHARDS,
        aggregator=aggregator,
        num_classes=CLASSES,
        epochs=epochs,
        **kwargs,
    )


def exact(aggregator='mean', **kwargs):
    return lambda: ShardedSubject(
        lambda **given: unlearner(aggregator, **given), **kwargs
    )


class Faulty(ShardedSubject):
    """Forgets, and then takes something back."""

    def __init__(self, aggregator='attentive'):
        super().__init__(
            lambda **given: unlearner(aggregator, epochs=2, **given)
        )

    def remove(self, request):
        old = self.unlearner._state
        super().remove(request)
        self.unlearner._state = self.spoiled(old, self.unlearner._state)

    def again(self, new):
        """What is derived from the checkpoints, honestly."""
        builder = self.unlearner._builder
        outputs = builder.outputs(new)
        aggregator = builder.aggregate(new, outputs)
        return new._replace(outputs=outputs, aggregator=aggregator)


class OneShard(Faulty):
    """Shard 0 is the old one."""

    def spoiled(self, old, new):
        made = (old.checkpoints[0], *new.checkpoints[1:])
        return self.again(new._replace(checkpoints=made))


class NoShard(Faulty):
    def spoiled(self, old, new):
        return self.again(new._replace(checkpoints=old.checkpoints))


class OldAggregator(Faulty):
    def spoiled(self, old, new):
        return new._replace(aggregator=old.aggregator)


class OldOutputs(Faulty):
    """The rows of the nodes that stay, as they were."""

    def spoiled(self, old, new):
        keep = torch.isin(old.data.n_id, new.data.n_id)
        return new._replace(outputs=old.outputs[:, keep])


class LateSlice(ShardedSubject):
    """Goes on from a checkpoint that has seen what goes."""

    def __init__(self):
        slices = [(0.5, 3), (1, 2)]
        super().__init__(
            lambda **given: unlearner(epochs=None, slices=slices, **given)
        )

    def fit(self, data, seed):
        super().fit(data, seed)

        builder = self.unlearner._builder
        honest = builder.updated

        def late(after, first, *args, **given):
            first = {s: stage + 1 for s, stage in first.items()}
            return honest(after, first, *args, **given)

        builder.updated = late


class Kept(ShardedSubject):
    """Releases something beside."""

    def __init__(self):
        super().__init__(lambda **given: unlearner(**given))

    def fit(self, data, seed):
        super().fit(data, seed)
        self.beside = self.what(data)

    def released(self):
        return {**super().released(), 'beside': self.beside}


class KeptFeatures(Kept):
    def what(self, data):
        return data.x[:12].clone()


class KeptDigest(Kept):
    """As 0.1.0 did: a digest of all data, salted by the seed alone."""

    def what(self, data):
        return str(hash(data.x.numpy().tobytes())).encode()


class Nothing(ShardedSubject):
    def __init__(self):
        super().__init__(lambda **given: unlearner(epochs=60, **given))

    def remove(self, request):
        pass


class Unpurged(ShardedSubject):
    """Keeps a copy of every file that ever was in its folder."""

    def __init__(self):
        super().__init__(lambda **given: unlearner(**given), on_disk=True)

    def remove(self, request):
        for name in os.listdir(self._folder.name):
            if name.startswith('data'):
                source = os.path.join(self._folder.name, name)
                os.link(source, source + '.bak')
        super().remove(request)


class Renamed(Unpurged):
    """Keeps the old data under the name of another digest."""

    def remove(self, request):
        folder = Path(self._folder.name)
        old = {f.name: f.read_bytes() for f in folder.glob('data-*')}
        ShardedSubject.remove(self, request)
        for name, content in old.items():
            other = re.sub('[0-9a-f]{16,}', '0' * 16, name)
            (folder / other).write_bytes(content)


class Jitter(Nothing):
    """Keeps all, and releases it in another form that no seed fixes."""

    gone = False

    def remove(self, request):
        self.gone = True

    def released(self):
        found = super().released()
        if not self.gone:
            return found
        noise = int.from_bytes(os.urandom(4), 'big') * 1e-12
        return {'all': found['probabilities'] + noise}


class Clock(ShardedSubject):
    """Exact; writes down a time that is coarser than a run."""

    calls = 0

    def __init__(self):
        super().__init__(lambda **given: unlearner(**given))

    def released(self):
        Clock.calls += 1
        return {**super().released(), 'time': bytes([Clock.calls // 6])}


def audit(make, tests, **kwargs):
    data = graph()
    request = kwargs.pop('request', RemovalRequest(nodes=GONE))
    return audit_removal(make, data, request, tests=tests, seed=1, **kwargs)


CERTAIN = ('twins', 'poison', 'bytes', 'neighbours')


@pytest.mark.parametrize(
    ('partition', 'aggregator'),
    [
        ('hash', 'attentive'),
        ('hash', 'majority'),
        ('hash', 'lbaggr'),
        ('hash', 'contrastive'),
        ('random', 'mean'),
        ('blpa', 'mean'),
    ],
)
def test_exact_shards_are_not_rejected(aggregator, partition):
    made = exact(aggregator)

    def make():
        subject = made()
        inner = subject._make
        subject._make = lambda **given: inner(partition=partition, **given)
        return subject

    report = audit(make, CERTAIN)
    # Labels and edges that a partition looks at are in the partition.
    looked = {'twins: edges', 'neighbours'} if partition == 'blpa' else set()
    assert set(report.failed) <= looked
    powers = {row.test: row.verdict for row in report.rows}
    assert powers['twins: features'] == powers['bytes'] == 'not rejected'


@pytest.mark.parametrize(
    'request_',
    [
        RemovalRequest(nodes=[0]),
        RemovalRequest(nodes=[TESTED, 3, 8, 12, 20]),
        RemovalRequest(features=[4, 9]),
        RemovalRequest(nodes=[7], features=[2]),
        'an edge',
    ],
)
def test_exact_shards_under_other_requests(request_):
    tests = ('twins', 'bytes', 'neighbours')
    if request_ == 'an edge':
        edge = graph().edge_index[:, 4].tolist()
        # With a node, so that there is something to vary.
        request_ = RemovalRequest(edges=[tuple(edge)], nodes=[3])
    report = audit(exact('attentive'), tests, request=request_)
    assert report.failed == ()
    assert report.rows[0].verdict == 'not rejected'
    assert report.not_compared
    assert report.rows[1].verdict == 'not rejected'


def test_neighbours_that_nobody_looked_at_have_no_power():
    class Weights(ShardedSubject):
        """Releases nothing that has a row for every node."""

        def released(self):
            found = super().released()
            return {k: v for k, v in found.items() if k.startswith('shard')}

    def make():
        return Weights(lambda **given: unlearner(**given))

    report = audit(make, ('twins', 'neighbours'))
    assert report.rows[0].verdict == 'not rejected'
    assert report.rows[-1].test == 'neighbours'
    assert report.rows[-1].verdict == 'no power'
    assert 'every node' in report.rows[-1].note


def test_what_is_on_the_disk_is_looked_at():
    report = audit(exact(on_disk=True), ('twins', 'bytes'))
    assert report.failed == ()
    assert any('file' in name for name in report.not_compared)
    report = audit(Unpurged, ('twins', 'bytes'))
    assert 'bytes' in report.failed
    assert any('file' in row.note for row in report.rows)


def test_starting_over_is_not_rejected():
    class Retrain(ShardedSubject):
        def fit(self, data, seed):
            super().fit(data, seed)
            self.given = data, seed

        def remove(self, request):
            data, seed = self.given
            self.fit(remove_from_data(data, request.parts[0]), seed)

    def make():
        return Retrain(lambda **given: unlearner(**given))

    report = audit(make, (*CERTAIN, 'worlds'), worlds=12)
    assert report.failed == ()


@pytest.mark.parametrize(
    ('fault', 'named'),
    [
        (OneShard, ('shard 0', 'outputs')),
        (NoShard, ('shard 0', 'shard 1', 'outputs')),
        (OldAggregator, ('aggregator', 'probabilities')),
        (OldOutputs, ('outputs', 'probabilities')),
        (LateSlice, ('shard', 'outputs')),
        (KeptFeatures, ('beside',)),
        (KeptDigest, ('beside',)),
    ],
)
def test_twins_name_every_planted_fault(fault, named):
    outputs = ('neighbours',) if fault is OldOutputs else ()
    report = audit(fault, ('twins', *outputs))
    failed = [row for row in report.rows if row.verdict == 'failed']
    assert 'twins: features' in report.failed
    for name in named:
        assert any(name in row.note for row in failed), str(report)
    if fault is OneShard:
        assert all('shard 1' not in row.note for row in failed)
    if fault is OldAggregator:
        assert all('shard' not in row.note for row in failed)
    if fault is OldOutputs:
        assert 'neighbours' in report.failed


def test_doing_nothing_fails_all_that_asks_about_forgetting():
    report = audit(Nothing, (*CERTAIN, 'worlds'), worlds=12)
    assert {'twins: features', 'twins: labels', 'twins: edges'} <= set(
        report.failed
    )
    assert {'poison', 'bytes', 'worlds'} <= set(report.failed)


@pytest.mark.parametrize('fault', [OldAggregator, NoShard])
def test_poison_is_seen_node_by_node(fault):
    assert audit(fault, ('poison',)).failed == ('poison',)


def test_copies_are_found_in_any_form():
    class Packed(KeptFeatures):
        def what(self, data):
            import zlib

            return zlib.compress(
                b'head' + data.x.double().numpy().byteswap().tobytes()
            )

    (row,) = audit(Packed, ('bytes',)).rows
    assert row.verdict == 'failed'
    assert row.note == 'beside'


def test_a_copy_under_the_name_of_another_digest_is_found():
    # Names without their digests are the same: one hid the other.
    report = audit(Renamed, ['twins', 'bytes'])
    assert 'failed' in {row.verdict for row in report.rows}
    (row,) = [row for row in report.rows if row.test == 'bytes']
    assert row.verdict == 'failed'


def test_what_can_not_be_compared_afterwards_was_not_forgotten():
    rows = audit(Jitter, ['twins']).rows
    assert {row.verdict for row in rows} == {'no power'}


def test_a_clock_that_agreed_in_the_control_is_no_trace():
    Clock.calls = 0
    rows = audit(Clock, ['twins']).rows
    assert 'failed' not in {row.verdict for row in rows}


def test_a_pair_of_releases_leaks_by_design_and_nothing_is_not_good():
    candidates = torch.arange(TRAIN, 70)
    for make in (exact(), Nothing):
        report = audit(
            make, ('pair', 'membership', 'label_only'), candidates=candidates
        )
        row = {row.test: row for row in report.rows}['pair']
        assert row.verdict == 'leaks by design'
        if make is Nothing:
            assert row.value == 0.5
        for other in report.rows:
            assert other.verdict != 'passed'


def test_groups_that_were_not_drawn_alike_are_refused():
    with pytest.raises(ValueError, match='candidates'):
        audit(exact(), ('membership',))
    with pytest.raises(ValueError, match='never members'):
        audit(exact(), ('membership',), candidates=torch.tensor([1, 60]))
    report = audit(exact(), None, worlds=2)
    assert any('membership' in text for text in report.left_out)


def test_a_release_that_never_held_it_has_no_power():
    class Silent(ShardedSubject):
        def released(self):
            return {'nothing': torch.zeros(3)}

    def make():
        return Silent(lambda **given: unlearner(**given))

    report = audit(make, ('twins', 'bytes', 'neighbours'))
    assert {row.verdict for row in report.rows} == {'no power'}


def test_the_report_is_one_of_trust(tmp_path):
    report = audit(exact(), ('twins',))
    page = TrustReport.of(report)
    assert '3 of 3 tests found no trace of what was removed' in str(page)
    assert 'passed' not in str(page)
    page.save(tmp_path / 'trust.json')
    pytest.importorskip('matplotlib').use('Agg')
    assert len(report.plot().get_yticklabels()) == len(report.rows)
    assert isinstance(exact()(), Subject)


class Means:
    """Answers by the means of the classes, with noise; forgets, or not."""

    def __init__(self, forgets=True):
        self.forgets = forgets

    def fit(self, data, seed):
        self.data = data
        self.random = torch.Generator().manual_seed(seed)
        self.learn()

    def learn(self):
        y = torch.nn.functional.one_hot(self.data.y, CLASSES).float()
        means = y.t() @ self.data.x / y.sum(0)[:, None]
        noise = torch.randn(means.shape, generator=self.random)
        self.means = means + 0.02 * noise

    def remove(self, request):
        if self.forgets:
            self.data = remove_from_data(self.data, request.parts[0])
            self.learn()

    def predict_proba(self, data):
        return (data.x @ self.means.t()).softmax(1)

    def released(self):
        return {'means': self.means}


def test_p_of_worlds_is_uniform_and_finds_what_was_kept():
    def many(make, count, worlds, wrong=0):
        found = []
        for seed in range(count):
            # Of nodes with a label of another class only who saw it knows it.
            data = graph(seed, 200)
            data.y[:40] = (data.y[:40] + wrong) % CLASSES
            report = audit_removal(
                *(make, data, RemovalRequest(nodes=range(40))),
                tests=('worlds',),
                worlds=worlds,
                seed=seed,
            )
            found.append(report.rows[0].p)
        return found

    assert stats.kstest(many(Means, 150, 8), 'uniform').pvalue > 0.001
    kept = many(lambda: Means(forgets=False), 20, 16, wrong=1)
    assert sum(p <= 0.05 for p in kept) > 15


# Statistics ##################################################################


@pytest.mark.parametrize('draws', [1, 2, 3, 9])
def test_a_permutation_test_is_valid_for_any_number_of_draws(draws):
    # Of exchangeable scores, a p value of at most a has at most that chance:
    # the least that there is, 1 / (1 + draws), too. None is ever 0.
    random = torch.Generator().manual_seed(draws)
    count, found = 400, []
    for seed in range(count):
        one, two = torch.randn((2, 6), generator=random)
        found.append(permutation_test(one, two, draws=draws, seed=seed))
    for level in sorted(set(found)):
        share = sum(p <= level for p in found) / count
        error = (level * (1 - level) / count) ** 0.5
        assert share <= level + 5 * error
    far = torch.arange(20.0)
    p = permutation_test(far, far + 100, draws=draws, seed=0)
    assert p == 1 / (1 + draws)


def test_a_direction_is_not_tested_on_the_runs_that_chose_it():
    # Sixteen runs of many numbers: along the direction in which all of them
    # differ, any two samples are told apart.
    random = torch.Generator().manual_seed(0)
    found = []
    for seed in range(12):
        one, two = torch.randn((2, 8, 300), generator=random).double()
        found.append(told_apart(list(one), list(two))(seed))
    # Six or more of 12 happen once in 1,800.
    assert sum(p <= 0.1 for p in found) < 6
    two[:, 0] += 30
    assert told_apart(list(one), list(two))(0) < 0.05


# Attacks of users ############################################################


@pytest.fixture
def attack():
    """Registers an attack for the time of a test."""
    made = []

    def register(function, needs=''):
        ATTACKS.register('mine', needs=needs)(function)
        made.append('mine')

    yield register
    for name in made:
        ATTACKS.remove(name)


def test_an_attack_without_a_verdict_or_a_p_value_is_refused(attack):
    attack(lambda runs: [AuditRow('mine', '', '', 0.0)])
    with pytest.raises(ValueError, match="'verdict' needs to be one of"):
        audit(exact(), ('mine',))


@pytest.mark.parametrize('p', [0.01, 0.5])
def test_the_p_value_of_an_attack_is_corrected_and_decides(attack, p):
    attack(lambda runs: [AuditRow('mine', '', '', 0.0, p=p)] * 2)
    for row in audit(exact(), ('mine',)).rows:
        assert row.corrected == min(2 * p, 1)
        assert row.verdict == ('failed' if p == 0.01 else 'not rejected')
        assert 'not checked by this package' in row.note


def test_an_attack_with_an_unknown_need_is_refused(attack):
    attack(lambda runs: [], needs='members luck')
    with pytest.raises(ValueError, match="'needs' needs to be one of"):
        audit(exact(), ('mine',))


def test_an_attack_that_returns_no_rows_is_refused(attack):
    attack(lambda runs: [3.0])
    with pytest.raises(TypeError, match="attack 'mine'"):
        audit(exact(), ('mine',))
