"""Every procedure that can take long, on data so small that it does not.

A :class:`Procedure` says how to prepare the objects, how to run it once, what
of them anybody could see, and what has to hold whatever happened to them.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from states import same, without_chance, without_root
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GCNConv

from pyg_trust.audit import audit_training
from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.nn import (
    learned_partition,
    make_aggregator,
    partition_embedding,
)
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import GraphScattering, Shards
from pyg_trust.unlearning import (
    LinkClassifier,
    NodeClassifier,
    Recommender,
    ScatteringClassifier,
    ShardedUnlearner,
)
from pyg_trust.unlearning.partition import bekm, blpa
from pyg_trust.unlearning.published import PublishedScatteringClassifier
from pyg_trust.update import NewNodes, Update


@dataclass
class Procedure:
    """One of them.

    Args:
        prepare (callable): makes the objects, given a folder.
        run (callable): runs it on them.
        state (callable): all that can be seen of them.
        check (callable): what has to hold at any time.
        shows (int): the number of its progress bars, -1 if it has none by
            design.
        draws (bool): whether it moves torch's default generator, as dropout
            and torch's loaders do.
    """

    prepare: Callable[..., Any]
    run: Callable[..., Any]
    state: Callable[[Any], Any] = lambda objects: None
    check: Callable[[Any], None] = lambda objects: None
    shows: int = 1
    draws: bool = False


PROCEDURES: dict[str, Procedure] = {}


def cycle(size, seed=0, classes=2):
    """A cycle with chords, for everything that takes one graph."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(size)
    pairs = torch.stack([rows, (rows + 1) % size])
    chords = torch.randint(size, (2, size), generator=generator)
    pairs = torch.cat([pairs, chords[:, chords[0] != chords[1]]], 1)
    mask = torch.zeros(size, dtype=torch.bool)
    mask[: 3 * size // 4] = True
    return Data(
        x=torch.rand(size, 5, generator=generator),
        edge_index=torch.cat([pairs, pairs.flip(0)], 1).unique(dim=1),
        y=rows % classes,
        train_mask=mask,
    )


def dataset(count=12):
    """Labelled graphs with features in [0, 1]."""
    graphs = [cycle(4 + i % 3, seed=i) for i in range(count)]
    for i, data in enumerate(graphs):
        data.x, data.y = data.x[:, :1], torch.tensor([i % 2])
        del data.train_mask
    return graphs


# Certificates ###############################################################


def threat(budget):
    data = cycle(12)
    return ThreatModel(
        data.edge_index, local_budget=1, global_budget=budget, num_nodes=12
    )


def logits():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, 3, generator=generator)


def certificate(budget, method, shows, nodes=None):
    def run(objects):
        return certify(logits(), objects, nodes=nodes, method=method)

    return Procedure(lambda folder: threat(budget), run, shows=shows)


PROCEDURES['certify, local'] = certificate(None, 'dual', 1)
PROCEDURES['certify, dual'] = certificate(2, 'dual', 9)
PROCEDURES['certify, lp'] = certificate(2, 'lp', 4, torch.tensor([4]))
# With the bounds that its witness proves.
PROCEDURES['certify, exact'] = certificate(1, 'exact', 5)


# Certified removal ##########################################################


def classifier(**kwargs):
    transform = GraphScattering(J=2, Q=1, L=2)
    kwargs = {'seed': 0, **kwargs}
    if 'noise_std' in kwargs:
        return PublishedScatteringClassifier(transform, **kwargs)
    return ScatteringClassifier(transform, **kwargs)


def classified(model):
    if model._model is None:
        return None
    state = without_chance(model.state_dict())
    return {**state, 'Z': model.embeddings}


def is_certified(model):
    if model._model is None:
        assert not model.ledger.entries
        return
    entries = model.ledger.entries
    gone = sum(len(entry.request) for entry in entries)
    assert model.num_graphs == 12 - gone
    again = classifier()
    again.load_state_dict(model.state_dict())


PROCEDURES['ScatteringClassifier.fit'] = Procedure(
    lambda folder: classifier(),
    lambda model: model.fit(dataset()) and None,
    classified,
    is_certified,
    shows=3,
)
PROCEDURES['ScatteringClassifier.fit, again'] = Procedure(
    lambda folder: classifier().fit(dataset()),
    lambda model: model.fit(dataset()) and None,
    classified,
    is_certified,
    shows=3,
)
WHOLE = RemovalRequest(graphs=[3, 5])
PROCEDURES['ScatteringClassifier.remove'] = Procedure(
    lambda folder: classifier().fit(dataset()),
    lambda model: without_root(model.remove(WHOLE)),
    classified,
    is_certified,
    # Whole graphs are not embedded again.
    shows=1,
)


NODES = RemovalRequest(nodes={3: [0], 5: [1]})
CHORD = torch.tensor([[0], [2]])
MORE = [NODES, Update(graphs=dataset()[:2]), Update(graph=4, edges=CHORD)]
PROCEDURES['ScatteringClassifier.update'] = Procedure(
    lambda folder: classifier().fit(dataset()),
    lambda model: without_root(model.update(MORE)),
    classified,
    lambda model: model.verify().ok or pytest.fail('verify()'),
    shows=2,
)
PROCEDURES['ScatteringClassifier.verify'] = Procedure(
    lambda folder: classifier().fit(dataset()),
    lambda model: model.verify(),
    classified,
    is_certified,
    shows=2,
)


def with_later(folder):
    model = classifier().fit(dataset())
    later = classifier()
    later.load_state_dict(copy.deepcopy(model.state_dict()))
    later.remove(WHOLE)
    model.later = later.state_dict()
    return model


PROCEDURES['ScatteringClassifier.load_state_dict'] = Procedure(
    with_later,
    lambda model: model.load_state_dict(model.later) and None,
    classified,
    is_certified,
    shows=2,
)
PROCEDURES['ScatteringClassifier.predict'] = Procedure(
    lambda folder: classifier().fit(dataset()),
    lambda model: (
        model.decision_function(dataset()),
        model.predict(dataset()),
        model.predict_proba(dataset()),
        model.score(dataset()),
    ),
    classified,
    shows=4,
)


# Shards #####################################################################


def unlearner(folder=None, **kwargs):
    aggregator = make_aggregator('attentive', epochs=2, hidden_channels=4)
    kwargs = {'epochs': 2, 'seed': 5, 'aggregator': aggregator, **kwargs}
    return ShardedUnlearner(
        lambda: GCN(5, 4, 2, 2, dropout=0.5), 3, folder=folder, **kwargs
    )


def sharded(model):
    if model._state is None:
        return None
    state = without_chance(model.state_dict())
    return {**state, 'outputs': model.outputs}


def is_exact(model):
    if model._state is None:
        if model.folder is not None:
            assert not (model.folder / 'manifest.json').exists()
        return
    entries = model.ledger.entries
    assert all(e.action in ('fit', 'retrain') for e in entries)
    gone = sum(len(e.request['0']['nodes']) for e in entries if e.request)
    assert model.n_id.numel() == 40 - gone
    if model.folder is not None:
        # The disk says the same.
        kept = unlearner(model.folder).load()
        assert same(sharded(kept), sharded(model))
        model.load()


PROCEDURES['ShardedUnlearner.fit'] = Procedure(
    lambda folder: unlearner(folder / 'state'),
    lambda model: model.fit(cycle(40)) and None,
    sharded,
    is_exact,
    shows=3,
)
PROCEDURES['ShardedUnlearner.remove'] = Procedure(
    lambda folder: unlearner(folder / 'state').fit(cycle(40)),
    lambda model: untimed(model.remove(NAMED)),
    sharded,
    is_exact,
    shows=3,
)
PROCEDURES['ShardedUnlearner.repartition'] = Procedure(
    lambda folder: unlearner(partition='blpa').fit(cycle(40)),
    lambda model: untimed(model.repartition()),
    sharded,
    is_exact,
    shows=4,
)
PROCEDURES['ShardedUnlearner.verify'] = Procedure(
    lambda folder: unlearner().fit(cycle(40)),
    lambda model: model.verify(),
    sharded,
    shows=3,
)
PROCEDURES['ShardedUnlearner.predict'] = Procedure(
    lambda folder: unlearner().fit(cycle(40)),
    lambda model: (model.predict(cycle(20)), model.predict_proba(cycle(20))),
    sharded,
    shows=2,
)
NAMED = RemovalRequest(nodes=[0, 1, 35])


def untimed(report):
    # The digest of the data has random salts, and the ledger holds it.
    left = dict.fromkeys(('seconds', 'fraction', 'data_sha256', 'ledger_head'))
    return {key: left.get(key, value) for key, value in vars(report).items()}


def reloaded(folder):
    model = unlearner().fit(cycle(40))
    later = unlearner()
    later.load_state_dict(copy.deepcopy(model.state_dict()))
    later.remove(NAMED)
    later.save(folder / 'later')
    model.later = folder / 'later'
    return model


PROCEDURES['ShardedUnlearner.load'] = Procedure(
    reloaded, lambda model: model.load(model.later) and None, sharded, is_exact
)


def fitted(name, **kwargs):
    generator = torch.Generator().manual_seed(2)
    outputs = torch.randn(3, 20, 2, generator=generator)
    y, index = torch.arange(20) % 2, torch.arange(15)

    def prepare(folder):
        made = make_aggregator(name, epochs=2, **kwargs)
        return made.fit(outputs, y, index, seed=1)

    def run(made):
        made.fit(outputs, y, index, seed=2)
        return made(outputs)

    def state(made):
        return dict(copy.deepcopy(made.state_dict()))

    return Procedure(prepare, run, state)


PROCEDURES['AttentiveAggregator.fit'] = fitted('attentive', hidden_channels=4)
PROCEDURES['LBAggregator.fit'] = fitted('lbaggr')


def partition(function, *names, **kwargs):
    def run(data):
        return function(
            *(getattr(data, name) for name in names),
            *(() if function is partition_embedding else (3,)),
            seed=0,
            **kwargs,
        )

    return Procedure(
        lambda folder: cycle(20), run, lambda data: data.to_dict()
    )


PROCEDURES['blpa'] = partition(blpa, 'edge_index', 'num_nodes')
PROCEDURES['bekm'] = partition(bekm, 'x')
PROCEDURES['learned_partition'] = partition(
    learned_partition, 'x', 'edge_index', 'y', max_epochs=4
)
PROCEDURES['partition_embedding'] = partition(
    partition_embedding, 'x', 'edge_index', 'y'
)
PROCEDURES['Shards'] = Procedure(
    lambda folder: cycle(20),
    lambda data: Shards(3, 'blpa', seed=0)(data).shard,
    lambda data: data.to_dict(),
)


# Embeddings #################################################################


PROCEDURES['GraphScattering.embed'] = Procedure(
    lambda folder: GraphScattering(J=2, Q=2, L=2, max_degree=4),
    lambda t: t.embed(dataset(), sparse=True),
    lambda transform: dict(vars(transform)),
)


# Private training ###########################################################


class Net(torch.nn.Module):
    """A model of which a part is kept in evaluation mode."""

    def __init__(self, dropout):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.one, self.two = GCNConv(5, 4), GCNConv(4, 2)
        self.drop = torch.nn.Dropout(dropout)
        self.kept = torch.nn.Dropout(0.5).eval()

    def forward(self, x, edge_index):
        x = self.kept(self.drop(self.one(x, edge_index).relu()))
        return self.two(x, edge_index)


class Private:
    """What private training is made of."""

    def __init__(self, folder, dropout=0.5):
        self.folder = folder
        self.net = Net(dropout)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self.walks = DisjointWalkLoader(cycle(30), 4, 1, num_steps=3, seed=0)
        ledger = folder / 'ledger'
        self.engine = PrivacyEngine(insecure_seed=0, ledger=ledger)
        self.private = None

    def make(self, **kwargs):
        self.private = self.engine.make_private(
            module=self.net,
            optimizer=self.optimizer,
            data_loader=self.walks,
            noise_multiplier=4.0,
            **{'max_grad_norm': 1.0, **kwargs},
        )
        return self

    def open(self):
        self.engine._open(self.walks)

    def train(self):
        model, optimizer, loader = self.private
        criterion = torch.nn.functional.cross_entropy
        for batch in loader:
            optimizer.zero_grad()
            size = batch.batch_size
            out = model(batch.x, batch.edge_index)[:size]
            criterion(out, batch.y[:size]).backward()
            optimizer.step()

    def state(self):
        """What a user sees, hooks and modes of all layers included."""
        layers = list(self.net.modules())
        return {
            'net': copy.deepcopy(dict(self.net.state_dict())),
            'optimizer': copy.deepcopy(self.optimizer.state_dict()),
            'modes': [layer.training for layer in layers],
            'hooks': [
                len(layer._forward_hooks) + len(layer._forward_pre_hooks)
                for layer in layers
            ],
        }

    def claimed(self):
        """What the ledger says to somebody who comes later."""
        self.engine.close()
        again = Private(self.folder).make()
        steps = again.engine.steps
        again.engine.close()
        return steps


def engine_made(objects):
    objects.make()


def modes_are_kept(objects):
    assert objects.state()['modes'] == Private(objects.folder).state()['modes']


PROCEDURES['PrivacyEngine.make_private'] = Procedure(
    Private,
    engine_made,
    lambda objects: objects.state(),
    modes_are_kept,
    shows=-1,
)


def attach(module, optimizer, loader):
    engine = PrivacyEngine(insecure_seed=3)
    return engine, engine.make_private(
        module=module,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=4.0,
        max_grad_norm=1.0,
        loss_reduction='sum',
    )


PROCEDURES['audit_training'] = Procedure(
    lambda folder: None,
    lambda objects: audit_training(attach, num_canaries=30, seed=0),
    draws=True,
)


# Recommenders ################################################################


def liked(num_users=30, num_items=20):
    """Interactions; the first is of user 0, and none is with item 3 alone."""
    generator = torch.Generator().manual_seed(0)
    table = torch.rand(num_users, num_items, generator=generator) < 0.3
    return table.nonzero().t().contiguous()


def seen(model):
    """All that can be seen of a recommender, but for what is random."""
    if model._model is None:
        return None
    held = model._model
    return {
        **without_chance(model.state_dict()),
        'counts': None
        if held.counts is None
        else torch.from_numpy(held.counts.data.copy()),
        'inverse': None
        if held.inverse is None
        else held.inverse.base.tolist(),
    }


def is_counted(model):
    assert model._model is None or model.verify().ok


for name, prepare, run in (
    (
        'fit',
        lambda folder: Recommender(),
        lambda model: model.fit(liked(), 30, 20) and None,
    ),
    (
        'remove',
        lambda folder: Recommender().fit(liked(), 30, 20),
        lambda model: without_root(
            model.remove(users=[3], interactions=[liked()[:, 0].tolist()])
        ),
    ),
    (
        'remove, closed form',
        lambda folder: Recommender('closed_form').fit(liked(), 30, 20),
        lambda model: without_root(model.remove(users=[3])),
    ),
    (
        'flush',
        lambda folder: Recommender().fit(liked(), 30, 20),
        lambda model: model.flush() and None,
    ),
):
    PROCEDURES[f'Recommender.{name}'] = Procedure(
        prepare, run, seen, is_counted, shows=-1
    )


# Node classifiers ############################################################


def node_classifier(**kwargs):
    return NodeClassifier(weight_decay=0.1, **{'seed': 0, **kwargs})


def nodes_classified(model):
    if model._model is None:
        return None
    data = model._model.data
    return {
        **model.state_dict(),
        'Z': data.Z,
        'rows': data.levels.rows(),
        'entries': data.levels.entries(),
        'gradient': model._model.gradient.value,
        # What is hashed with random salts.
        'seals': data.blocks(),
        'waits': bool(model.state_dict().get('waits')),
        'ledger': [
            (entry.action, entry.spent, entry.request)
            for entry in model.ledger.entries
        ],
    }


def is_honest(model):
    if model._model is None:
        assert not model.ledger.entries
        return
    found = model.verify()
    assert found.ok, found


PROCEDURES['NodeClassifier.fit'] = Procedure(
    lambda folder: node_classifier(),
    lambda model: model.fit(cycle(40)) and None,
    nodes_classified,
    is_honest,
    shows=-1,
)
PROCEDURES['LinkClassifier.fit'] = Procedure(
    lambda folder: LinkClassifier(K=1, weight_decay=0.1, seed=0),
    lambda model: model.fit(cycle(40)) and None,
    nodes_classified,
    is_honest,
    shows=-1,
)
FORGET = RemovalRequest(nodes=[3, 9], edges=[(20, 21)], features=[1])
PROCEDURES['NodeClassifier.remove'] = Procedure(
    lambda folder: node_classifier().fit(cycle(40)),
    lambda model: without_root(model.remove(FORGET)),
    nodes_classified,
    is_honest,
    shows=-1,
)
PROCEDURES['LinkClassifier.remove'] = Procedure(
    lambda folder: LinkClassifier(K=1, weight_decay=0.1, seed=0).fit(
        cycle(40)
    ),
    lambda model: without_root(model.remove(FORGET)),
    nodes_classified,
    is_honest,
    shows=-1,
)
COMING = Update(
    nodes=NewNodes(torch.eye(5)[:2], torch.tensor([1, -1])),
    edges=torch.tensor([[40, 7], [41, 30]]),
    features=(torch.tensor([6]), torch.eye(5)[:1]),
    labels=(torch.tensor([8]), torch.tensor([1])),
)
WAITING = Update(nodes=torch.eye(5)[:2], edges=torch.tensor([[40], [2]]))
PROCEDURES['NodeClassifier.update'] = Procedure(
    lambda folder: node_classifier().fit(cycle(40)),
    lambda model: without_root(model.update([FORGET, COMING])),
    nodes_classified,
    is_honest,
    shows=-1,
)
PROCEDURES['NodeClassifier.update, of additions'] = Procedure(
    lambda folder: node_classifier().fit(cycle(40)),
    lambda model: model.update(WAITING),
    nodes_classified,
    is_honest,
    shows=-1,
)
PROCEDURES['NodeClassifier.plan'] = Procedure(
    lambda folder: node_classifier().fit(cycle(40)),
    lambda model: model.plan(FORGET),
    nodes_classified,
    is_honest,
    shows=-1,
)
PROCEDURES['NodeClassifier.flush'] = Procedure(
    lambda folder: node_classifier().fit(cycle(40)),
    lambda model: model.flush() and None,
    nodes_classified,
    is_honest,
    shows=-1,
)
