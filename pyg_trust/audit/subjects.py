"""Subjects of an audit of unlearning: four calls, for any unlearner."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import check_instance, validated
from pyg_trust.audit.releases import Released, flattened
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning.certified import probabilities
from pyg_trust.unlearning.node import NodeClassifier
from pyg_trust.unlearning.scattering import ScatteringClassifier
from pyg_trust.unlearning.shards import ShardedUnlearner

__all__ = [
    'NodeSubject',
    'ScatteringSubject',
    'ShardedSubject',
    'Subject',
]

_Model = TypeVar(
    '_Model', NodeClassifier, ScatteringClassifier, ShardedUnlearner
)

# The name of the saved state in a subject's folder.
_FILE = 'state.pt'


@runtime_checkable
class Subject(Protocol):
    """An unlearner as :func:`~pyg_trust.audit.audit_removal` sees it.

    Any object with these four methods will do. If its releases are noisy, it
    needs an attribute ``noisy = True``.
    """

    def fit(self, data: Data, seed: int) -> None:
        """Train on a graph, with all randomness from a seed."""

    def remove(self, request: RemovalRequest) -> None:
        """Remove the items that a request names."""

    def predict_proba(self, data: Data) -> Tensor:
        """Predict class probabilities, ``[num_nodes, num_classes]``."""

    def released(self) -> Released:
        """Collect the released data: weights, cached outputs, files.

        The result has tensors and bytes by name; a file has its own name.
        """


class _Wrapped(Generic[_Model]):
    # What wraps an unlearner of this package, made anew for each fit.
    _kind: type
    _kept: _Model | None = None
    _folder: tempfile.TemporaryDirectory | None = None

    @validated
    def __init__(
        self, make: Callable[..., _Model], *, on_disk: bool = False
    ) -> None:
        self._make: Callable[..., _Model] = make
        self._on_disk = on_disk

    def _fitted(self) -> _Model:
        if self._kept is None:
            raise ValueError('the subject needs to be fitted first')
        return self._kept

    def _start(self, seed: int, **kwargs: Any) -> _Model:
        self._folder = tempfile.TemporaryDirectory() if self._on_disk else None
        if 'folder' in kwargs and self._folder is not None:
            kwargs['folder'] = self._folder.name
        made = self._make(seed=seed, **kwargs)
        check_instance('make', made, self._kind)
        self._kept = made
        return made

    def _files(self) -> Released:
        if self._folder is None:
            return {}
        return {
            f'file {path.name}': path.read_bytes()
            for path in sorted(Path(self._folder.name).rglob('*'))
            if path.is_file()
        }


class ShardedSubject(_Wrapped[ShardedUnlearner]):
    """Runs a :class:`~pyg_trust.unlearning.ShardedUnlearner` in an audit.

    It releases the weights of all shards, the aggregator, the outputs, the
    probabilities, its ``state_dict`` value by value and, with :obj:`on_disk`,
    all files of its folder.

    Args:
        make (Callable): ``make(seed=..., folder=...)`` returns an unlearner
            that is not fitted.
        on_disk (bool): whether :obj:`folder` is a temporary folder, whose
            files are audited, or None. (default: :obj:`False`)
    """

    _kind = ShardedUnlearner

    @property
    def unlearner(self) -> ShardedUnlearner:
        """The unlearner that is audited."""
        return self._fitted()

    def fit(self, data: Data, seed: int) -> None:
        """Make an unlearner and fit it."""
        self._start(seed, folder=None).fit(data)

    def remove(self, request: RemovalRequest) -> None:
        """Remove the items that a request names, also from disk."""
        self.unlearner.remove(request)

    def predict_proba(self, data: Data) -> Tensor:
        """Predict class probabilities, ``[num_nodes, num_classes]``."""
        return self.unlearner.predict_proba(data)

    def released(self) -> Released:
        """Return all released tensors, and the bytes of saved files."""
        unlearner = self.unlearner
        found: Released = {
            f'shard {i}: {name}': value
            for i in range(unlearner.num_shards)
            for name, value in unlearner.shard_state(i).items()
        }
        state = unlearner.state_dict()
        for name, value in state['aggregator'].items():
            found[f'aggregator: {name}'] = value
        found['outputs'] = unlearner.outputs
        there = unlearner.predict_proba(nodes=unlearner.n_id)
        found['probabilities'] = there
        return found | flattened('state_dict', state) | self._files()


class _NoisySubject(_Wrapped[_Model]):
    # Fields that subjects of certified classifiers share.
    noisy = True

    @property
    def classifier(self) -> _Model:
        """The classifier that is audited."""
        return self._fitted()

    def _end(self) -> None:
        if self._folder is not None:
            self.classifier.save(Path(self._folder.name) / _FILE)


class NodeSubject(_NoisySubject[NodeClassifier]):
    """Runs a :class:`~pyg_trust.unlearning.NodeClassifier` in an audit.

    It releases the noisy weights, the probabilities of the nodes that remain
    and, with :obj:`on_disk`, the bytes of its saved state.

    Args:
        make (Callable): ``make(seed=...)`` returns a classifier that is not
            fitted, with ``features='exact'`` and no encoder.
        on_disk (bool): whether it is saved after every change, to a temporary
            file that is audited. (default: :obj:`False`)
    """

    _kind = NodeClassifier

    def fit(self, data: Data, seed: int) -> None:
        """Make a classifier and fit it."""
        made = self._start(seed)
        if made.features != 'exact' or made.encoder is not None:
            raise ValueError(
                "'make' needs to make a classifier with exact features and "
                'no encoder, to predict on another graph'
            )
        self._width = int(data.y.max()) + 1
        made.fit(data)
        self._end()

    @validated
    def remove(self, request: RemovalRequest) -> None:
        """Remove the items that a request names."""
        self.classifier.remove(request)
        self._end()

    def predict_proba(self, data: Data) -> Tensor:
        """Predict class probabilities, ``[num_nodes, num_classes]``."""
        made = self.classifier
        found = probabilities(made._margins_on(data))
        return _wide(found, made.classes, self._width)

    def released(self) -> Released:
        """Return the weights, probabilities, and the bytes of saved files."""
        made = self.classifier
        return {
            'weight': made.weight,
            'probabilities': made.predict_proba(made.n_id),
            **self._files(),
        }


class ScatteringSubject(_NoisySubject[ScatteringClassifier]):
    """Runs a :class:`~pyg_trust.unlearning.ScatteringClassifier` in an audit.

    An audit has one graph: the disjoint union of all graphs. ``data.batch`` is
    the graph of each node, and ``data.y`` the label of its graph, repeated at
    every node (the most frequent one counts). Graphs with all nodes in the
    ``train_mask`` are trained on. A request for all nodes of a graph removes
    the graph.

    Args:
        make (Callable): ``make(seed=...)`` returns a classifier that is not
            fitted.
        on_disk (bool): whether it is saved after every change, to a temporary
            file that is audited. (default: :obj:`False`)
    """

    _kind = ScatteringClassifier

    def fit(self, data: Data, seed: int) -> None:
        """Make a classifier and fit it to the graphs."""
        made = self._start(seed)
        train = [found for found in _graphs(data) if found[2]]
        self._left = [set(names) for _, names, _ in train]
        self._place = {
            v: (number, i)
            for number, (_, names, _) in enumerate(train)
            for i, v in enumerate(names)
        }
        made.fit([graph for graph, _, _ in train])
        self._end()

    @validated
    def remove(self, request: RemovalRequest) -> None:
        """Remove the items that a request names."""
        part, place = request.parts[0], self._place
        gone = {v for v in part.nodes if v in place}
        whole = {
            i for i, left in enumerate(self._left) if left and left <= gone
        }
        items: list[tuple[str, int, tuple[int, ...]]]
        items = [('nodes', v, (v,)) for v in gone if place[v][0] not in whole]
        items += [('features', v, (v,)) for v in part.features if v in place]
        items += [('edges', u, (u, v)) for u, v in part.edges if u in place]
        parts: dict[str, dict[int, list[Any]]] = {
            name: {} for name in ('nodes', 'features', 'edges')
        }
        for kind, at, nodes in items:
            local = tuple(place[v][1] for v in nodes)
            found = parts[kind].setdefault(place[at][0], [])
            found.append(local if kind == 'edges' else local[0])
        for left in self._left:
            left -= gone
        if whole or any(parts.values()):
            self.classifier.remove(
                RemovalRequest(
                    graphs=sorted(whole),
                    nodes=parts['nodes'],
                    features=parts['features'],
                    edges=parts['edges'],
                )
            )
        self._end()

    def predict_proba(self, data: Data) -> Tensor:
        """Predict class probabilities, ``[num_nodes, num_classes]``.

        Each node has those of its graph.
        """
        made, graphs = self.classifier, [g for g, _, _ in _graphs(data)]
        _, home = data.batch.unique(return_inverse=True)
        width = int(data.y.max()) + 1
        return _wide(made.predict_proba(graphs), made.classes, width)[home]

    def released(self) -> Released:
        """Return the weights, and the bytes of saved files, by name."""
        return {'weight': self.classifier.weight, **self._files()}


def _wide(found: Tensor, classes: Sequence[int], width: int) -> Tensor:
    # A column for each class that there is, also where a model has few.
    wide = found.new_zeros((len(found), max(width, max(classes) + 1)))
    wide[:, list(classes)] = found
    return wide


def _graphs(data: Data) -> list[tuple[Data, list[int], bool]]:
    # The graphs of a union, in the order of their numbers, with the ids of
    # their nodes, and whether they are trained on.
    if not isinstance(data.get('batch'), Tensor):
        raise ValueError("'data' needs to have a 'batch': a graph per node")
    data = data.clone()
    if data.get('n_id') is None:
        data.n_id = torch.arange(int(data.num_nodes))
    made = []
    for number in data.batch.unique():
        part = data.subgraph(data.batch == number)
        label = part.y.mode().values.view(1)
        graph = Data(x=part.x, edge_index=part.edge_index, y=label)
        trains = bool(part.train_mask.all())
        made.append((graph, part.n_id.tolist(), trains))
    return made
