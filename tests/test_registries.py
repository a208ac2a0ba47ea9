"""What may be extended by name, and what an entry of a stranger can't do."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch_geometric.data import Data

from pyg_trust import registries
from pyg_trust.agp.measures import Measure, make_measure
from pyg_trust.certificates import ThreatModel, certifies, certify
from pyg_trust.certificates.any_model import _route
from pyg_trust.nn import MajorityAggregator, ShardAggregator, make_aggregator
from pyg_trust.registries import (
    AGGREGATORS,
    CERTIFICATES,
    MEASURES,
    PARTITIONS,
    Registry,
)
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import Guarantee, Report
from pyg_trust.transforms import AGP, Shards
from pyg_trust.unlearning import NodeClassifier, ShardedUnlearner

# A row a kind: what has been there from the first.
KNOWN = {
    'ACCOUNTANTS': (
        'pld_group pld_group_wor pld_poisson pld_wor rdp_fdp rdp_wor'
    ),
    'ATTACKS': (
        'bytes label_only membership neighbours pair poison twins worlds'
    ),
    'AGGREGATORS': 'attentive contrastive lbaggr majority mean',
    'CERTIFICATES': 'BitFlips ThreatModel',
    'MEASURES': (
        'appnp hkpr heat katz pagerank ppr sgc single_target transition'
    ),
    'NOISES': 'system',
    'PARTITIONS': 'bekm blpa hash learned metis random',
}


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    for name in dir(registries):
        registry = getattr(registries, name)
        for own in [n for n in registry if registry.is_own(n)]:
            registry.remove(own)


@pytest.mark.parametrize('name', dir(registries))
def test_every_registry_has_its_entries_with_docstrings(name):
    registry = getattr(registries, name)
    assert set(registry) == set(KNOWN[name].split())
    for each in registry:
        assert registry[each].__doc__, each
        assert not registry.is_own(each)


@pytest.mark.parametrize('name', dir(registries))
def test_no_entry_of_this_package_is_replaced_or_removed(name):
    registry = getattr(registries, name)
    for each in list(registry):
        before = registry[each]
        facts = registry._facts[each]
        with pytest.raises(ValueError, match=f"'name'.*{each}.*here"):
            registry.register(each, **facts)(lambda *given: None)
        with pytest.raises(ValueError, match=r"'name'"):
            registry.remove(each)
        assert registry[each] is before
        with pytest.raises(TypeError):
            registry[each] = before


def test_what_is_no_entry_is_refused():
    registry = Registry('thing', facts=('sees',))
    with pytest.raises(TypeError, match=r"'name' needs to be a str"):
        registry.register(3, sees='all')
    with pytest.raises(ValueError, match=r"'name'.*printable"):
        registry.register('', sees='all')
    with pytest.raises(ValueError, match=r"'name'.*printable"):
        registry.register('a\nnot so', sees='all')
    for facts in ({}, {'see': 'all'}, {'sees': 'all', 'more': 'some'}):
        with pytest.raises(TypeError, match=r"'facts' of a thing"):
            registry.register('a', **facts)
    with pytest.raises(TypeError, match=r"'sees' needs to be a str"):
        registry.register('a', sees=1)
    with pytest.raises(TypeError, match=r"'entry' needs to be callable"):
        registry.register('a', sees='all')(3)
    assert not registry
    registry.register('a', sees='all')(len)
    with pytest.raises(ValueError, match=r"'name'.*'a' is registered by the"):
        registry.register('a', sees='all')(max)
    assert registry['a'] is len
    assert registry.name_of(len) == 'a'
    with pytest.raises(ValueError, match=r"'what'.*\('a',\) \(got 'b'\)"):
        registry.find('what', 'b')
    registry.remove('a')
    # What is unknown is nobody's proof.
    assert registry.is_own('a')


# Measures ####################################################################


def test_a_measure_of_the_graph_gets_it_and_is_not_unlearned():
    @MEASURES.register('dense')
    def dense(graph, alpha):
        """Its weights depend on how many edges there are."""
        share = graph.num_edges / graph.num_nodes**2
        return Measure(0, 1, (alpha * share,), name='dense')

    data = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1], [1, 0]]))
    assert AGP('dense', alpha=0.8)(data).x[0, 0] == pytest.approx(0.1)
    # What was removed would go on to decide the weights.
    with pytest.raises(ValueError, match=r"'measure' can't be dense"):
        NodeClassifier('dense', alpha=0.8)


def test_a_measure_that_makes_something_else_is_refused():
    MEASURES.register('wrong')(lambda: (0, 1, (1.0,)))
    with pytest.raises(TypeError, match=r"'wrong'.*Measure.*tuple"):
        make_measure('wrong', None)


# Partitions ##################################################################


def blocks(num_nodes, num_shards):
    return torch.arange(num_nodes) * num_shards // num_nodes


def small_graph():
    edge_index = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 0, 3, 2, 5, 4]])
    return Data(
        x=torch.eye(8),
        y=torch.arange(8) % 2,
        edge_index=edge_index,
        n_id=torch.arange(8),
        train_mask=torch.arange(8) < 6,
    )


def test_a_partition_that_takes_what_a_graph_lacks_is_refused():
    PARTITIONS.register('odd', sees='all')(lambda secret, num_shards: None)
    with pytest.raises(ValueError, match=r"'odd' needs to take some of"):
        Shards(2, 'odd')
    PARTITIONS.register('none', sees='all')(lambda num_nodes: None)
    with pytest.raises(ValueError, match=r"'none' needs to take.*num_shards"):
        Shards(2, 'none')


@pytest.mark.parametrize('wrong', [[0, 0, 0, 0, 0, 0], [0, 1, 2, 0, 1, 2]])
def test_a_partition_that_leaves_a_shard_empty_is_refused(wrong):
    PARTITIONS.register('bad', sees='all')(
        lambda num_nodes, num_shards: torch.tensor(wrong)
    )
    with pytest.raises(ValueError, match=r"'shard'"):
        Shards(2, 'bad')(small_graph())


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(8, 2)

    def forward(self, x, edge_index):
        return self.lin(x)


def unlearner(**kwargs):
    made = ShardedUnlearner(Linear, 2, epochs=2, seed=0, **kwargs)
    return made.fit(small_graph())


def test_the_report_of_shards_names_the_partition_as_the_users_own():
    PARTITIONS.register('blocks', sees='the number of nodes')(blocks)
    made = unlearner(partition='blocks', aggregator='mean')
    said = made.remove(RemovalRequest(nodes=[1])).guarantee().promise
    assert "'blocks', registered by the user, not checked" in said
    with pytest.raises(ValueError, match=r"'partition' needs to be 'hash'"):
        made.certify()
    state = made.state_dict()
    PARTITIONS.remove('blocks')
    with pytest.raises(ValueError, match=r"'partition'.*'random'.*'blocks'"):
        unlearner(partition='blocks', aggregator='mean')
    with pytest.raises(ValueError, match=r'partition is another.*blocks'):
        unlearner(partition='random', aggregator='mean').load_state_dict(state)


# Aggregators #################################################################


def test_the_report_of_shards_names_the_aggregator_as_the_users_own():
    @AGGREGATORS.register('first')
    class First(MajorityAggregator):
        """Trusts the first shard."""

        def forward(self, outputs):
            return outputs[0].softmax(-1)

    assert isinstance(make_aggregator('first'), First)
    made = unlearner(partition='hash', aggregator='first', num_classes=2)
    report = made.remove(RemovalRequest(nodes=[1]))
    assert 'NOT CHECKED: that First' in ' '.join(report.assumptions)
    with pytest.raises(ValueError, match=r"'majority' or 'mean'"):
        made.certify()
    plain = unlearner(partition='hash', aggregator='majority')
    report = plain.remove(RemovalRequest(nodes=[1]))
    assert 'NOT CHECKED' not in ' '.join(report.assumptions)


def test_what_makes_no_aggregator_is_refused():
    AGGREGATORS.register('none')(lambda: torch.nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"'none'.*ShardAggregator.*Linear"):
        make_aggregator('none')
    assert issubclass(AGGREGATORS['mean'], ShardAggregator)


# Certificates ################################################################


class Erased:
    """A threat of a stranger's."""


@dataclass(frozen=True)
class Found(Report):
    robust: int

    def guarantee(self):
        return Guarantee('mine', 'all is well', ('none',))


def test_a_certificate_of_a_stranger_is_named_as_theirs():
    @certifies(Erased)
    def certify_erased(model, data, threat, *, count=3):
        """Certifies whatever it is asked to."""
        return Found(count) if count else None

    report = certify(torch.nn.Linear(1, 1), None, Erased(), count=4)
    assert copy.deepcopy(report).robust == report.robust == 4
    with pytest.raises(TypeError, match='needs to return a Report'):
        certify(torch.nn.Linear(1, 1), None, Erased(), count=None)
    said = report.guarantee()
    assert "'Erased', registered by the user, not checked" in said.promise
    assert 'NOT CHECKED' in said.assumptions[-1]
    with pytest.raises(TypeError, match=r"'what'.*Erased"):
        certify(torch.nn.Linear(1, 1), None, Erased(), what=4)
    CERTIFICATES.remove('Erased')
    with pytest.raises(TypeError, match=r'BitFlips'):
        certify(torch.nn.Linear(1, 1), None, Erased())


def test_no_certificate_of_this_package_is_taken_over():
    with pytest.raises(ValueError, match=r"'ThreatModel' is registered here"):
        certifies(ThreatModel)(lambda model, data, threat: Found(1))
    # Nor is its function a proof against a threat of somebody else's.
    certifies(Erased)(CERTIFICATES['ThreatModel'])
    assert CERTIFICATES.is_own('Erased')
    assert _route(Erased()) == ('Erased', CERTIFICATES['ThreatModel'])
