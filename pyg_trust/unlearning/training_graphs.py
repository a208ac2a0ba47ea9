"""Embedded training graphs of a classifier.

An update makes new :class:`TrainingGraphs` of those that were touched, and
leaves the old ones as they are.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from pyg_trust._checks import check_tensor
from pyg_trust._progress import Bar
from pyg_trust.files.seals import Seals, content
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import (
    NOT_THERE,
    Item,
    NodeIds,
    NotThere,
    Part,
    RemovalRequest,
    Removed,
    remove_from_data,
)
from pyg_trust.transforms import GraphEmbedding
from pyg_trust.unlearning.rows import (
    dense_rows,
    gram,
    keep_rows,
    replace_rows,
    stacked,
)
from pyg_trust.update import Update, rows_of, with_edges


class TrainingGraphs(NamedTuple):
    """Remaining training graphs with their seals, embeddings and labels.

    Args:
        classes (tuple[int, ...]): the class labels, in ascending order.
        graphs (dict[int, Data]): the remaining graphs, by name.
        seals (Seals): the seals of the graphs' contents.
        Z (Tensor): float64, ``[n, d]``: the embeddings, in this order.
        K (Tensor, optional): their inner products, ``[n, n]``, if these are
            fewer.
        Y (Tensor): ``[n, num_outputs]``: the targets, -1 or 1.
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
        return _empty(self.classes, self.Y)

    def contents(self) -> dict[int, str]:
        """Hash the content of each graph, without salts."""
        return {i: content(data) for i, data in self.graphs.items()}


class Change(NamedTuple):
    """Embedded rows that an update replaces, with the graphs after it.

    Args:
        left (TrainingGraphs): the graphs after the update.
        touched (list[int]): the names of the graphs that were embedded again.
        before (tuple[Tensor, Tensor]): the removed rows and their labels.
        after (tuple[Tensor, Tensor]): the new rows and their labels.
        request (dict): the names to record in the ledger.
    """

    left: TrainingGraphs
    touched: list[int]
    before: tuple[Tensor, Tensor]
    after: tuple[Tensor, Tensor]
    request: dict[str, Any]


class GraphKeeper:
    """Factory of :class:`TrainingGraphs` for one transform.

    Args:
        transform (GraphEmbedding): the transform that embeds graphs.
        num_classes (int, optional): the number of labels, from 0; by default
            those of the training graphs, none of which may lose its last
            graph. (default: :obj:`None`)
    """

    def __init__(
        self, transform: GraphEmbedding, num_classes: int | None = None
    ) -> None:
        self.transform = transform
        self.num_classes = num_classes

    def keep(
        self, listed: Sequence[Data], progress_bar: bool | None = None
    ) -> TrainingGraphs:
        """Copy and embed graphs; name them by their positions.

        Args:
            listed (list[Data]): the graphs.
            progress_bar (bool, optional): by default in terminals, after 2 s.
        """
        kept: dict[int, Data] = {}
        for data in Bar(listed, progress_bar, desc='graphs'):
            i = len(kept)
            y = _label(i, data)
            try:
                kept[i] = self._copy(data, y)
            except (TypeError, ValueError) as error:
                raise type(error)(f"graph {i} of 'graphs': {error}") from None
        classes = self._classes(kept)
        seals = Seals({i: content(data) for i, data in kept.items()})
        return self.design(kept, classes, seals, progress_bar)

    def embed(
        self,
        graphs: Data | Sequence[Data],
        progress_bar: bool | None = None,
    ) -> Tensor:
        """Embed graphs: float64, sparse where features are one-hot degrees.

        Args:
            graphs (Data or list[Data]): the graphs.
            progress_bar (bool, optional): by default in terminals, after 2 s.
        """
        sparse = self.transform.max_degree is not None
        return self.transform.embed(
            graphs, torch.float64, sparse, progress_bar=progress_bar
        ).cpu()

    def design(
        self,
        graphs: dict[int, Data],
        classes: tuple[int, ...],
        seals: Seals,
        progress_bar: bool | None = None,
    ) -> TrainingGraphs:
        """Embed stored graphs, as :class:`TrainingGraphs`.

        Args:
            graphs (dict[int, Data]): the stored graphs, by name.
            classes (tuple[int, ...]): the class labels.
            seals (Seals): the seals of the graphs.
            progress_bar (bool, optional): by default in terminals, after 2 s.
        """
        Z = self._embedded(graphs, progress_bar)
        K = gram(Z) if Z.size(0) <= Z.size(1) else None
        Y = _targets(graphs, classes)
        return TrainingGraphs(classes, graphs, seals, Z, K, Y)

    def changed(
        self,
        old: TrainingGraphs,
        updates: Sequence[Update],
        past: Removed,
        progress_bar: bool | None = None,
    ) -> Change:
        """Compute the graphs after updates; change nothing.

        Args:
            old (TrainingGraphs): the graphs before.
            updates (list[Update]): the updates, in order.
            past (Removed): the items that were removed before and not added
                again.
            progress_bar (bool, optional): by default in terminals, after 2 s.

        Raises:
            ValueError: if something is not there, is there already, or does
                not fit.
        """
        graphs, touched = dict(old.graphs), set[int]()
        like = next(iter(graphs.values()))
        # Ids are never used again, whoever had them.
        used = {-1, *graphs, *past.parts}
        for update in updates:
            if update.remove is not None:
                touched |= self._remove(graphs, update.remove)
            known = old.graphs.get(update.graph)
            nodes = {-1, *past.of('nodes', update.graph)}
            nodes |= set() if known is None else {*known.n_id.tolist()}
            touched |= self._add(graphs, update, used, nodes, like)
        place = {name: row for row, name in enumerate(old.graphs)}
        known = [i for i in graphs if i in place]
        left = sorted(touched & {*graphs})
        Y = _targets(graphs, old.classes)
        self._check_left(old, Y)
        for i in left:
            # A mark of nothing would tell what has come again.
            marks = graphs[i].get('x_removed')
            if marks is not None and not bool(marks.any()):
                graphs[i] = copy.copy(graphs[i])
                del graphs[i].x_removed
        # New salts for what has changed: the old digests can't be tested.
        prints = {i: content(graphs[i]) for i in left}
        lost = [i for i in old.graphs if i not in graphs]
        seals = old.seals.replaced(prints, lost)
        Z, K = old.Z, old.K
        there = sorted(touched & {*place})
        at = torch.tensor([place[i] for i in there], dtype=torch.int64)
        before = (dense_rows(Z, at), old.Y[at])
        after = (before[0][:0], before[1][:0])
        if lost:
            keep = torch.tensor([place[i] for i in known], dtype=torch.int64)
            Z = keep_rows(Z, keep)
            K = None if K is None else K[keep][:, keep]
        if left:
            rows = self._embedded({i: graphs[i] for i in left}, progress_bar)
            row = {name: k for k, name in enumerate(graphs)}
            at = torch.tensor([row[i] for i in left])
            after = (dense_rows(rows, torch.arange(at.numel())), Y[at])
            # The names of new graphs follow all others.
            new = int((at >= len(known)).sum())
            if new:
                Z, K = stacked([Z, _last(rows, new)]), None
            Z = replace_rows(Z, at, rows)
            if K is not None:
                cross = Z @ after[0].t()
                K = K.clone()
                K[:, at] = cross
                K[at] = cross.t()
        K = None if Z.size(0) > Z.size(1) else gram(Z) if K is None else K
        made = TrainingGraphs(old.classes, graphs, seals, Z, K, Y)
        named = _line(updates, graphs, past)
        return Change(made, left, before, after, named)

    def _remove(
        self, graphs: dict[int, Data], request: RemovalRequest
    ) -> set[int]:
        missing: list[Item] = []
        text = ''
        for i, part in request.parts.items():
            if i not in graphs:
                alone = RemovalRequest.of_items(
                    each for each in request.items() if each[0] == i
                )
                missing += [] if alone is None else alone.items()
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

    def _add(
        self,
        graphs: dict[int, Data],
        update: Update,
        used: set[int],
        nodes: set[int],
        like: Data,
    ) -> set[int]:
        # Play additions and changes; `used` and `nodes` had an id before.
        if update.only_removes:
            return set()
        touched = set[int]()
        if update.edits:
            i = update.graph
            _check_there(i, graphs)
            nodes |= {*graphs[i].n_id.tolist()}
            try:
                graphs[i] = _edited(graphs[i], update, 1 + max(nodes))
            except ValueError as error:
                raise ValueError(f'graph {i}: {error}') from None
            touched.add(i)
        _check_weights(update.graphs, like)
        for data in update.graphs:
            i = 1 + max(used)
            used.add(i)
            made = self._copy(data, _label(i, data))
            if ('x' in like) and made.x.size(1) != like.x.size(1):
                raise ValueError(
                    f"'graphs' needs {like.x.size(1)} columns of features, "
                    f'as the training graphs have (got {made.x.size(1)})'
                )
            graphs[i] = made
            touched.add(i)
        return touched

    def _embedded(
        self, graphs: dict[int, Data], progress_bar: bool | None
    ) -> Tensor:
        try:
            return self.embed(list(graphs.values()), progress_bar)
        except ValueError:
            self._name_the_bad_one(graphs)
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

    def _name_the_bad_one(self, kept: dict[int, Data]) -> None:
        # Graphs were embedded together: embed each alone to name the one that
        # fails.
        for i, data in kept.items():
            try:
                self.embed([data])
            except ValueError as error:
                raise ValueError(f"graph {i} of 'graphs': {error}") from None

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

    def _check_left(self, old: TrainingGraphs, Y: Tensor) -> None:
        if self.num_classes is not None:
            if not Y.size(0):
                raise ValueError('the request would leave no graph')
            return
        empty = _empty(old.classes, Y)
        if empty:
            raise ValueError(
                'the request would leave a class without any graph '
                f'({list(empty)}):'
                " give 'num_classes' to the classifier, with which classes "
                'may run empty, or retrain with those that remain'
            )


def _check_there(i: int, graphs: dict[int, Data]) -> None:
    if i not in graphs:
        raise NotThere(RemovalRequest(graphs=[i]))


def _targets(graphs: dict[int, Data], classes: tuple[int, ...]) -> Tensor:
    known = torch.tensor(classes)
    y = torch.tensor([int(data.y) for data in graphs.values()]).long()
    other = y[~torch.isin(y, known)]
    if other.numel():
        raise ValueError(
            f"'graphs' needs labels of 'classes', {classes} (got "
            f"{int(other[0])}): give 'num_classes' for those that may come"
        )
    positive = known[1:] if len(classes) == 2 else known
    return torch.where(y.view(-1, 1) == positive, 1.0, -1.0).double()


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
        added = _like(x, 'nodes', new.x)
        if x is not None:
            out.x = torch.cat([x, added])
    out = with_edges(out, update)
    row, col = out.edge_index
    order = (row * out.num_nodes + col).argsort()
    out.edge_index = out.edge_index[:, order]
    if update.features is not None:
        rows = rows_of(out.n_id, update.features[0])
        values = _like(x, 'features', update.features[1])
        if x is None:
            raise ValueError(
                "'features' can't change where 'max_degree' derives them "
                'from the edges'
            )
        out.x = out.x.index_copy(0, rows, values)
        if 'x_removed' in out:
            out.x_removed = out.x_removed.index_fill(0, rows, False)
    return out


def _like(x: Tensor | None, name: str, given: Tensor) -> Tensor:
    columns = 0 if x is None else x.size(1)
    given = given.cpu() if x is None else given.cpu().to(x.dtype)
    shape = (given.size(0), columns)
    check_tensor(name, given, None, shape, finite=True)
    return given


def _line(
    updates: Sequence[Update],
    graphs: dict[int, Data],
    past: Removed,
) -> dict[str, Any]:
    # Names for the ledger: what goes for good, what was replaced, and what
    # has come again since it was removed.
    asked = [each.remove for each in updates if each.remove is not None]
    parts = RemovalRequest.batch(asked).parts if asked else {}
    edited = {each.graph for each in updates if each.edits}
    line = {}
    for i in sorted({*parts, *edited}):
        part = parts.get(i, Part())
        data = graphs.get(i)
        if data is None:
            line[str(i)] = {'whole': True}
            continue
        arcs = {*map(tuple, data.n_id[data.edge_index].t().tolist())}
        bare = data.get('x_removed', torch.zeros_like(data.n_id)).bool()
        full = {*data.n_id[~bare].tolist()}
        if not arcs.isdisjoint(part.arcs):
            left = tuple(e for e in part.arcs if e not in arcs)
            part = replace(part, edges=(), directed_edges=left)
        kept = tuple(v for v in part.features if v not in full)
        named = replace(part, features=kept).to_dict()
        new = set[int]()
        for each in updates:
            if each.graph == i and each.features is not None:
                new |= {*each.features[0].tolist()} & full
        again = {
            'directed_edges': [
                *map(list, arcs & past.of('directed_edges', i))
            ],
            'features': [*(full & past.of('features', i))],
        }
        come = {name: sorted(items) for name, items in again.items() if items}
        named |= {'changed_features': sorted(new)} if new else {}
        named |= {'again': come} if come else {}
        if named:
            line[str(i)] = named
    return line


def _last(rows: Tensor, count: int) -> Tensor:
    return keep_rows(rows, torch.arange(rows.size(0) - count, rows.size(0)))


def _empty(classes: tuple[int, ...], Y: Tensor) -> tuple[int, ...]:
    # The classes of which no row of -1 and 1 is.
    there = (Y > 0).any(0)
    if len(classes) == 2:
        there = torch.cat([(Y < 0).any(0), there])
    return tuple(
        label
        for label, some in zip(classes, there.tolist(), strict=True)
        if not some
    )


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
    """Check graphs, and return them as a list.

    Args:
        graphs (Data, Batch, Dataset, Subset or list[Data]): the graphs, at
            least one.
        like (Data, optional): a training graph, with edge weights if they need
            to have some. (default: :obj:`None`)
    """
    if isinstance(graphs, Batch):
        graphs = graphs.to_data_list()
    elif isinstance(graphs, Data):
        graphs = [graphs]
    elif hasattr(graphs, '__getitem__') and not hasattr(graphs, '__iter__'):
        # A Subset of torch.utils.data, as of random_split.
        graphs = [graphs[i] for i in range(len(graphs))]
    if not isinstance(graphs, Iterable) or isinstance(graphs, str):
        raise TypeError(
            "'graphs' needs to be a list of torch_geometric.data.Data "
            f'(got {type(graphs).__name__})'
        )
    listed = list(graphs)
    for i, data in enumerate(listed):
        if not isinstance(data, Data):
            raise TypeError(
                "'graphs' needs to hold homogeneous "
                f'torch_geometric.data.Data (got {type(data).__name__} at '
                f'{i})'
            )
    if not listed:
        raise ValueError("'graphs' needs to hold at least one graph")
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
