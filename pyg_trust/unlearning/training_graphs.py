"""Embedded training graphs of a classifier.

An update makes new :class:`TrainingGraphs` of those that were touched, and
leaves the old ones as they are.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import check_tensor
from pyg_trust._checks.graphs import list_graphs
from pyg_trust._progress import Bar
from pyg_trust.files.seals import Seals, content
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import (
    NOT_THERE,
    Item,
    NodeIds,
    NotThere,
    RemovalRequest,
    Removed,
    remove_from_data,
    rows_of,
)
from pyg_trust.transforms import GraphEmbedding
from pyg_trust.unlearning.certified import best, probabilities
from pyg_trust.unlearning.heads import gram, keep_rows, stacked, targets
from pyg_trust.update import (
    Update,
    arcs_of,
    line_of,
    with_edges,
)

__all__ = [
    'Change',
    'GraphKeeper',
    'GraphPredictor',
    'TrainingGraphs',
    'check_graphs',
    'graph_labels',
]


class TrainingGraphs(NamedTuple):
    """Remaining training graphs, by id, with embeddings and targets.

    ``K`` holds the inner products of the embeddings, if these are fewer.
    """

    classes: tuple[int, ...]
    graphs: dict[int, Data]
    seals: Seals
    Z: Tensor
    K: Tensor | None
    Y: Tensor

    @property
    def empty_classes(self) -> tuple[int, ...]:
        """The classes without a graph."""
        there = {int(data.y) for data in self.graphs.values()}
        return tuple(label for label in self.classes if label not in there)


class Change(NamedTuple):
    """The graphs after an update, and the items to record in the ledger."""

    left: TrainingGraphs
    # The ids of the graphs that were embedded again.
    touched: list[int]
    request: dict[str, Any]


class GraphKeeper:
    """Factory of :class:`TrainingGraphs` for one transform."""

    def __init__(
        self, transform: GraphEmbedding, num_classes: int | None = None
    ) -> None:
        self.transform = transform
        self.num_classes = num_classes

    def keep(self, listed: Sequence[Data]) -> TrainingGraphs:
        """Copy and embed graphs; their positions become their ids."""
        kept: dict[int, Data] = {}
        for i, data in enumerate(Bar(listed, desc='graphs')):
            y = _label(i, data)
            try:
                kept[i] = self._copy(data, y)
            except (TypeError, ValueError) as error:
                raise type(error)(f"graph {i} of 'graphs': {error}") from None
        classes = self._classes(kept)
        seals = Seals({i: content(data) for i, data in kept.items()})
        return self.design(kept, classes, seals)

    def embed(self, graphs: Data | Sequence[Data]) -> Tensor:
        """Embed graphs: float64, sparse where features are one-hot degrees."""
        sparse = self.transform.max_degree is not None
        return self.transform.embed(graphs, torch.float64, sparse).cpu()

    def design(
        self, graphs: dict[int, Data], classes: tuple[int, ...], seals: Seals
    ) -> TrainingGraphs:
        """Embed stored graphs, as :class:`TrainingGraphs`."""
        Z = self._embedded(graphs)
        K = gram(Z) if Z.size(0) <= Z.size(1) else None
        Y = _targets(graphs, classes)
        return TrainingGraphs(classes, graphs, seals, Z, K, Y)

    def changed(
        self, old: TrainingGraphs, updates: Sequence[Update], past: Removed
    ) -> Change:
        """Compute the graphs after updates; change nothing."""
        graphs, touched = dict(old.graphs), set[int]()
        like = next(iter(graphs.values()))
        # Ids are never used again, whoever had them.
        used = {-1, *graphs, *past.parts}
        for update in updates:
            if update.remove is not None:
                touched |= self._remove(graphs, update.remove)
            if update.edits:
                known = old.graphs.get(update.graph)
                nodes = {-1, *past.of('nodes', update.graph)}
                nodes |= set() if known is None else {*known.n_id.tolist()}
                touched.add(self._edit(graphs, update, nodes))
            _check_weights(update.graphs, like)
            for data in update.graphs:
                i = 1 + max(used)
                used.add(i)
                graphs[i] = self._like(data, i, like)
                touched.add(i)
        left = sorted(touched & {*graphs})
        Y = _targets(graphs, old.classes)
        self._check_left(old, graphs)
        for i in left:
            # A mark of nothing would show what has come again.
            marks = graphs[i].get('x_removed')
            if marks is not None and not bool(marks.any()):
                graphs[i] = copy.copy(graphs[i])
                del graphs[i].x_removed
        # New salts for what has changed: the old digests can't be tested.
        prints = {i: content(graphs[i]) for i in left}
        lost = [i for i in old.graphs if i not in graphs]
        seals = old.seals.replaced(prints, lost)
        Z, K = self._followed(old, graphs, left)
        made = TrainingGraphs(old.classes, graphs, seals, Z, K, Y)
        return Change(made, left, _line(updates, graphs, past))

    def _followed(
        self, old: TrainingGraphs, graphs: dict[int, Data], left: list[int]
    ) -> tuple[Tensor, Tensor | None]:
        # Embeddings and inner products, of which few are new.
        place = {i: row for row, i in enumerate(old.graphs)}
        Z, K = old.Z, old.K
        if K is not None:
            known = torch.tensor([place[i] for i in graphs if i in place])
            K = K[known][:, known] if len(known) == len(graphs) else None
        if left:
            fresh = self._embedded({i: graphs[i] for i in left})
            Z = stacked([Z, fresh])
            place |= {i: old.Z.size(0) + k for k, i in enumerate(left)}
        Z = keep_rows(Z, torch.tensor([place[i] for i in graphs]).long())
        if Z.size(0) > Z.size(1):
            return Z, None
        if K is None:
            return Z, gram(Z)
        if left:
            row = {i: k for k, i in enumerate(graphs)}
            at = torch.tensor([row[i] for i in left])
            K = K.clone()
            K[:, at] = Z @ fresh.to_dense().t()
            K[at] = K[:, at].t()
        return Z, K

    def _remove(
        self, graphs: dict[int, Data], request: RemovalRequest
    ) -> set[int]:
        missing: list[Item] = []
        text = ''
        for i, part in request.parts.items():
            if i not in graphs:
                missing += [each for each in request.items() if each[0] == i]
                text = text or f'graph {i}{NOT_THERE}'
                continue
            if part.whole:
                del graphs[i]
                continue
            if part.features and self.transform.max_degree is not None:
                raise ValueError(
                    f'graph {i} has no features of its own to remove, as '
                    "'max_degree' derives them from the edges: remove the "
                    'node or its edges'
                )
            try:
                graphs[i] = remove_from_data(graphs[i], part)
            except NotThere as error:
                missing += [(i, *each[1:]) for each in error.missing.items()]
            except ValueError as error:
                raise ValueError(f'graph {i}: {error}') from None
        if gone := RemovalRequest.of_items(missing):
            raise NotThere(gone, text)
        return {*request.parts}

    def _edit(
        self, graphs: dict[int, Data], update: Update, used: set[int]
    ) -> int:
        # Nodes, edges and features that come to a graph; `used` ids do not.
        i = update.graph
        if i not in graphs:
            raise NotThere(RemovalRequest(graphs=[i]))
        first = 1 + max(used | {*graphs[i].n_id.tolist()})
        try:
            graphs[i] = _edited(graphs[i], update, first)
        except ValueError as error:
            raise ValueError(f'graph {i}: {error}') from None
        return i

    def _like(self, data: Data, i: int, like: Data) -> Data:
        made = self._copy(data, _label(i, data))
        if ('x' in like) and made.x.size(1) != like.x.size(1):
            raise ValueError(
                f"'graphs' needs {like.x.size(1)} columns of features, as the "
                f'training graphs have (got {made.x.size(1)})'
            )
        return made

    def _embedded(self, graphs: dict[int, Data]) -> Tensor:
        try:
            return self.embed(list(graphs.values()))
        except ValueError:
            # They were embedded together: find the one that fails.
            for i, data in graphs.items():
                try:
                    self.embed([data])
                except ValueError as error:
                    raise ValueError(
                        f"graph {i} of 'graphs': {error}"
                    ) from None
            raise

    def _copy(self, data: Data, y: Tensor) -> Data:
        # Copy the needed fields into tensors of their own.
        graph = CSRGraph.from_data(data).to('cpu')
        edge_index, edge_weight = graph.to_edge_index()
        kept = Data(
            edge_index=edge_index.clone(),
            y=y.cpu().clone().view(1),
            num_nodes=graph.num_nodes,
            n_id=NodeIds.of_data(data).of(torch.arange(graph.num_nodes)),
        )
        if edge_weight is not None:
            kept.edge_weight = edge_weight.clone()
        if self.transform.max_degree is None:
            signal = self.transform.signal(data, graph)
            kept.x = signal.detach().cpu().clone()
        return kept

    def _classes(self, kept: dict[int, Data]) -> tuple[int, ...]:
        found = sorted({int(data.y) for data in kept.values()})
        if self.num_classes is not None:
            if found[0] < 0 or found[-1] >= self.num_classes:
                raise ValueError(
                    f"'graphs' need to have labels in [0, {self.num_classes})"
                    f', as num_classes says (got {found})'
                )
            return tuple(range(self.num_classes))
        if len(found) < 2:
            raise ValueError(
                "'graphs' need to have labels of at least two classes "
                f"(got {found}), or 'num_classes' to be given"
            )
        return tuple(found)

    def _check_left(
        self, old: TrainingGraphs, graphs: dict[int, Data]
    ) -> None:
        empty = old._replace(graphs=graphs).empty_classes
        if empty and self.num_classes is None:
            raise ValueError(
                'the request would leave a class without any graph '
                f'({list(empty)}):'
                " give 'num_classes' to the classifier, with which classes "
                'may run empty, or retrain with those that remain'
            )
        if not graphs:
            raise ValueError('the request would leave no graph')


class GraphPredictor:
    """Base of classifiers of graphs: predictions, and the graphs that remain.

    A subclass has ``_fitted``, with ``train`` and the released ``weight``.
    """

    _keeper: GraphKeeper
    _fitted: Any

    def decision_function(self, graphs: Data | Sequence[Data]) -> Tensor:
        """Compute the margins of graphs: ``[num_graphs]`` for two classes.

        Args:
            graphs (Data, Batch or list[Data]): the graphs. For more classes,
                the result has a column for each.
        """
        model = self._fitted
        like = next(iter(model.train.graphs.values()))
        Z = self._keeper.embed(check_graphs(graphs, like))
        margin = Z @ model.weight
        return margin.view(-1) if margin.size(1) == 1 else margin

    def predict(self, graphs: Data | Sequence[Data]) -> Tensor:
        """Predict the labels of graphs: int64, ``[num_graphs]``.

        ``graphs`` is a ``Data``, a ``Batch`` or a list of ``Data``.
        """
        found = best(self.decision_function(graphs))
        return torch.tensor(self._fitted.train.classes)[found]

    def predict_proba(self, graphs: Data | Sequence[Data]) -> Tensor:
        """Predict class probabilities: ``[num_graphs, num_classes]``.

        For more than two classes, sigmoids of the margins are scaled to sum to
        one. Takes the arguments of :meth:`decision_function`, graphs.
        """
        return probabilities(self.decision_function(graphs))

    def score(self, graphs: Sequence[Data]) -> float:
        """Return the accuracy on graphs with labels ``y``.

        ``graphs`` is a list of ``Data``.
        """
        y = graph_labels(graphs)
        found = self.predict(graphs)
        return float((found == y).double().mean())

    @property
    def num_graphs(self) -> int:
        """The number of training graphs that remain."""
        return len(self._fitted.train.graphs)

    @property
    def graphs(self) -> dict[int, Data]:
        """Copies of the remaining training graphs, by id."""
        found = self._fitted.train.graphs
        return {i: data.clone() for i, data in found.items()}

    @property
    def embeddings(self) -> Tensor:
        """The embeddings of the remaining training graphs, in order.

        Float64, ``[num_graphs, d]``, a copy; sparse CSR with one-hot degrees.
        """
        return self._fitted.train.Z.clone()


def _targets(graphs: dict[int, Data], classes: tuple[int, ...]) -> Tensor:
    known = torch.tensor(classes)
    y = torch.tensor([int(data.y) for data in graphs.values()]).long()
    other = y[~torch.isin(y, known)]
    if other.numel():
        raise ValueError(
            f"'graphs' needs labels of 'classes', {classes} (got "
            f"{int(other[0])}): give 'num_classes' for those that may come"
        )
    return targets(torch.searchsorted(known, y), len(classes))


def _edited(data: Data, update: Update, first: int) -> Data:
    # A graph after the additions and changes of an update.
    new, x = update.nodes, data.get('x')
    if update.labels is not None or (new is not None and new.is_labelled):
        raise ValueError(
            "'labels' of nodes are not trained on by a classifier of graphs: "
            'for another label of a graph, remove it and add it again'
        )
    out = copy.copy(data)
    if new is not None:
        new.check_next(first)
        k = new.x.size(0)
        out.n_id = torch.cat([data.n_id, torch.arange(first, first + k)])
        out.num_nodes = int(out.n_id.numel())
        if 'x_removed' in data:
            mark = torch.zeros(k, dtype=torch.bool)
            out.x_removed = torch.cat([data.x_removed, mark])
        added = _rows_like(x, 'nodes', new.x)
        if x is not None:
            out.x = torch.cat([x, added])
    out = with_edges(out, update)
    row, col = out.edge_index
    order = (row * out.num_nodes + col).argsort()
    out.edge_index = out.edge_index[:, order]
    if update.features is not None:
        rows = rows_of(out.n_id, update.features[0])
        values = _rows_like(x, 'features', update.features[1])
        if x is None:
            raise ValueError(
                "'features' can't change where 'max_degree' derives them "
                'from the edges'
            )
        out.x = out.x.index_copy(0, rows, values)
        if 'x_removed' in out:
            out.x_removed = out.x_removed.index_fill(0, rows, False)
    return out


def _rows_like(x: Tensor | None, name: str, given: Tensor) -> Tensor:
    columns = 0 if x is None else x.size(1)
    given = given.cpu() if x is None else given.cpu().to(x.dtype)
    shape = (given.size(0), columns)
    check_tensor(name, given, None, shape, finite=True)
    return given


def _line(
    updates: Sequence[Update], graphs: dict[int, Data], past: Removed
) -> dict[str, Any]:
    # Items for the ledger, by graph.
    asked = [each.remove for each in updates if each.remove is not None]
    parts = RemovalRequest.batch(asked).parts if asked else {}
    line = {}
    for i in sorted({*parts, *(u.graph for u in updates if u.edits)}):
        if i not in graphs:
            line[str(i)] = {'whole': True}
            continue
        data, came = graphs[i], set()
        for each in updates:
            if each.edits and each.graph == i:
                came |= arcs_of(each.arcs(False))
        arcs = arcs_of(data.n_id[data.edge_index])
        bare = data.get('x_removed', torch.zeros_like(data.n_id)).bool()
        known = {*data.n_id[~bare].tolist()}

        def lost(asked: Iterable[int], full: set[int] = known) -> set[int]:
            return {*asked} - full

        named = line_of(
            updates,
            came,
            arcs.intersection,
            {'features': lost},
            past,
            i,
        )
        if named:
            line[str(i)] = named
    return line


def _check_weights(graphs: Sequence[Data], like: Data | None = None) -> None:
    # PyG's batches keep an attribute if the first graph has it.
    wanted, where = like, 'the training graphs'
    if like is None:
        wanted, where = graphs[0], 'graph 0'
    assert wanted is not None
    some = wanted.get('edge_weight') is not None
    for i, data in enumerate(graphs):
        if (data.get('edge_weight') is not None) != some:
            raise ValueError(
                "'graphs' need to have an 'edge_weight' all or none (got "
                f'{"none" if some else "one"} in graph {i}, but '
                f'{"one" if some else "none"} in {where})'
            )


def check_graphs(graphs: Any, like: Data | None = None) -> list[Data]:
    """Check graphs, and return them as a list."""
    listed = list_graphs('graphs', graphs)
    _check_weights(listed, like)
    return listed


def graph_labels(graphs: Any) -> Tensor:
    """Return the labels of graphs: int64, ``[num_graphs]``."""
    return torch.tensor(
        [int(_label(i, data)) for i, data in enumerate(check_graphs(graphs))]
    )


def _label(i: int, data: Data) -> Tensor:
    y = data.get('y')
    if not isinstance(y, Tensor):
        y = torch.tensor([] if y is None else y)
    if y.numel() != 1 or y.is_floating_point():
        raise ValueError(
            f"graph {i} needs to have one integer label 'y' (got {y})"
        )
    return y
