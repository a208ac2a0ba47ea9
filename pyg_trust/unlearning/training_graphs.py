"""Embedded training graphs of a classifier.

A removal makes new :class:`TrainingGraphs` of those that were touched, and
leaves the old ones as they are.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import check_instance
from pyg_trust._progress import Bar
from pyg_trust.files.seals import Seals, content
from pyg_trust.functional.rows import dense_rows, gram, keep_rows, replace_rows
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.transforms import GraphEmbedding


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
    """Embedded rows that a removal replaces, with the remaining graphs.

    Args:
        left (TrainingGraphs): the remaining graphs.
        touched (list[int]): the names of the graphs that were embedded again.
        before (tuple[Tensor, Tensor]): the removed rows and their labels.
        after (tuple[Tensor, Tensor]): the new rows and their labels.
    """

    left: TrainingGraphs
    touched: list[int]
    before: tuple[Tensor, Tensor]
    after: tuple[Tensor, Tensor]


class GraphKeeper:
    """Factory of :class:`TrainingGraphs` for one transform and mode.

    Args:
        transform (GraphEmbedding): the transform that embeds graphs.
        mode (str): the mode of removals, :obj:`'delete'` or :obj:`'mask'`.
        num_classes (int, optional): the number of labels, from 0; by default
            those of the training graphs, none of which may lose its last
            graph. (default: :obj:`None`)
    """

    def __init__(
        self,
        transform: GraphEmbedding,
        mode: str,
        num_classes: int | None = None,
    ) -> None:
        self.transform = transform
        self.mode = mode
        self.num_classes = num_classes

    def keep(
        self, listed: Sequence[Data], progress_bar: bool | None = None
    ) -> TrainingGraphs:
        """Copy and embed graphs; name them by their positions.

        Args:
            listed (list[Data]): the graphs.
            progress_bar (bool, optional): whether to show one; by default in a
                terminal, after two seconds. (default: :obj:`None`)
        """
        kept: dict[int, Data] = {}
        for data in Bar(listed, progress_bar, desc='graphs'):
            i = len(kept)
            y = _label(i, data)
            try:
                kept[i] = self._copy(data, y)
            except (TypeError, ValueError) as error:
                raise type(error)(f"graph {i} of 'graphs': {error}") from None
        _check_weights(listed)
        classes = self._classes(kept)
        seals = Seals({i: content(data) for i, data in kept.items()})
        try:
            return self.design(kept, classes, seals, progress_bar)
        except ValueError:
            self._name_the_bad_one(kept)
            raise

    def embed(
        self,
        graphs: Data | Sequence[Data],
        stored: bool = False,
        progress_bar: bool | None = None,
    ) -> Tensor:
        """Embed graphs: float64, sparse where features are one-hot degrees.

        Args:
            graphs (Data or list[Data]): the graphs.
            stored (bool): whether they are kept ones. With ``mode='mask'``
                their features were derived once, as in the paper.
                (default: :obj:`False`)
            progress_bar (bool, optional): whether to show one; by default in a
                terminal, after two seconds. (default: :obj:`None`)
        """
        if isinstance(graphs, list | tuple):
            _check_weights(graphs)
        transform = self.transform
        sparse = transform.max_degree is not None
        if stored and sparse and self.mode == 'mask':
            transform = copy.copy(transform)
            transform.max_degree = None
        return transform.embed(
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
            progress_bar (bool, optional): whether to show one; by default in a
                terminal, after two seconds. (default: :obj:`None`)
        """
        Z = self.embed(list(graphs.values()), True, progress_bar)
        K = gram(Z) if Z.size(0) <= Z.size(1) else None
        y = torch.tensor([[int(data.y)] for data in graphs.values()])
        positive = classes[1:] if len(classes) == 2 else classes
        Y = torch.where(y == torch.tensor(positive), 1.0, -1.0).double()
        return TrainingGraphs(classes, graphs, seals, Z, K, Y)

    def without(
        self,
        old: TrainingGraphs,
        request: RemovalRequest,
        progress_bar: bool | None = None,
    ) -> Change:
        """Compute the graphs that remain after a removal; change nothing.

        Args:
            old (TrainingGraphs): the graphs before the removal.
            request (RemovalRequest): the items to forget.
            progress_bar (bool, optional): whether to show one; by default in a
                terminal, after two seconds. (default: :obj:`None`)

        Raises:
            TypeError, ValueError: if the request is none, or impossible.
        """
        check_instance('request', request, RemovalRequest)
        for i in request.graphs:
            if i not in old.graphs:
                raise ValueError(
                    f'graph {i} is not there: it never was, or was removed '
                    'before'
                )
        graphs = dict(old.graphs)
        touched, gone = [], []
        for i, part in request.parts.items():
            if part.whole:
                del graphs[i]
                gone.append(i)
                continue
            derived = self.transform.max_degree is not None
            if part.features and derived and self.mode == 'delete':
                raise ValueError(
                    f'graph {i} has no features of its own to remove, as '
                    "'max_degree' derives them from the edges: remove the "
                    'node or its edges'
                )
            try:
                graphs[i] = remove_from_data(graphs[i], part, self.mode)
            except ValueError as error:
                raise ValueError(f'graph {i}: {error}') from None
            touched.append(i)
        place = {name: row for row, name in enumerate(old.graphs)}
        keep = torch.tensor([place[i] for i in graphs], dtype=torch.int64)
        self._check_left(old, old.Y[keep])
        # New salts for what has changed: the old digests can't be tested.
        prints = {i: content(graphs[i]) for i in touched}
        seals = old.seals.replaced(prints, gone)
        Z, K, Y = old.Z, old.K, old.Y
        at = torch.tensor([place[i] for i in request.graphs])
        before = (dense_rows(Z, at), Y[at])
        after = (before[0][:0], before[1][:0])
        if touched:
            rows = self.embed([graphs[i] for i in touched], True, progress_bar)
            at = torch.tensor([place[i] for i in touched])
            Z = replace_rows(Z, at, rows)
            after = (dense_rows(rows, torch.arange(at.numel())), Y[at])
            if K is not None:
                cross = Z @ after[0].t()
                K = K.clone()
                K[:, at] = cross
                K[at] = cross.t()
        if gone:
            Z, Y = keep_rows(Z, keep), Y[keep]
            K = None if K is None else K[keep][:, keep]
        if K is None and Z.size(0) <= Z.size(1):
            K = gram(Z)
        left = TrainingGraphs(old.classes, graphs, seals, Z, K, Y)
        return Change(left, touched, before, after)

    def _copy(self, data: Data, y: Tensor) -> Data:
        # Copy the needed fields into tensors of their own.
        graph = CSRGraph.from_data(data).to('cpu')
        edge_index, edge_weight = graph.to_edge_index()
        kept = Data(
            edge_index=edge_index.clone(),
            y=y.cpu().clone().view(1),
            num_nodes=graph.num_nodes,
            n_id=torch.arange(graph.num_nodes),
        )
        if edge_weight is not None:
            kept.edge_weight = edge_weight.clone()
        if self.transform.max_degree is None:
            signal = self.transform.signal(data, graph)
            kept.x = signal.detach().cpu().clone()
        elif self.mode == 'mask':
            signal = self.transform.signal(data, graph, torch.float64)
            kept.x = signal.to_dense()
        return kept

    def _name_the_bad_one(self, kept: dict[int, Data]) -> None:
        # Graphs were embedded together: embed each alone to name the one that
        # fails.
        for i, data in kept.items():
            try:
                self.embed([data], True)
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


def _check_weights(graphs: Sequence[Any]) -> None:
    # PyG's batches keep an attribute if the first graph has it.
    found = [
        data.get('edge_weight') is not None
        for data in graphs
        if isinstance(data, Data)
    ]
    if len(set(found)) > 1:
        i = found.index(not found[0])
        raise ValueError(
            "'graphs' need to have an 'edge_weight' all or none (got "
            f'{"none" if found[0] else "one"} in graph {i}, but '
            f'{"one" if found[0] else "none"} in graph 0)'
        )


def check_graphs(graphs: Any) -> list[Data]:
    """Check graphs, and return them as a list.

    Args:
        graphs (list[Data]): the graphs, at least one.
    """
    if not isinstance(graphs, Iterable) or isinstance(graphs, str | Data):
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
