"""Averages of features along metapaths as a transform."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.data.storage import NodeStorage
from torch_geometric.transforms import BaseTransform

from pyg_trust._checks import check_tensor, validated
from pyg_trust._checks.graphs import check_edges
from pyg_trust._describe import described
from pyg_trust.graph._marks import mark, marked
from pyg_trust.graph.ragged import pointer
from pyg_trust.unit import EdgeType, PrivacyUnit, path_steps

__all__ = ['MetapathFeatures']

# Messages gathered at once.
_MESSAGES = 2**20


@validated
@functional_transform('metapath_features')
class MetapathFeatures(BaseTransform):
    """Append averages along metapaths to the features of a node type.

    A metapath is a list of edge types, such as from users to items and from
    these to categories. Each step replaces a row by the mean of its neighbours
    along one edge type. Private training refuses the new features, because
    they depend on the rows of others. But with a
    :class:`~pyg_trust.unit.PrivacyUnit` it accepts the features of a path that
    visits only public rows and rows of the same person (functional name:
    :obj:`metapath_features`).

    .. code-block:: python

        path = [('user', 'buys', 'item'), ('item', 'in', 'category')]
        data = MetapathFeatures([path], 'user', unit=unit)(data)

    Args:
        paths (Sequence[Sequence[tuple[str, str, str]]]): metapaths, each a
            list of edge types that begins at :obj:`node_type`.
        node_type (str): the node type that gets the features.
        out (str): the attribute to write to. (default: :obj:`'x'`)
        unit (PrivacyUnit, optional): which rows belong to which person; by
            default private training refuses all the features.
        concat (bool): whether the original features are kept, as the first
            columns. (default: :obj:`True`)
    """

    def __init__(
        self,
        paths: Sequence[Sequence[EdgeType]],
        node_type: str,
        out: str = 'x',
        *,
        unit: PrivacyUnit | None = None,
        concat: bool = True,
    ) -> None:
        if not isinstance(paths, list | tuple) or not all(
            isinstance(path, list | tuple) for path in paths
        ):
            raise TypeError(
                "'paths' needs to be a list of lists of edge types (got "
                f'{paths!r})'
            )
        if not paths:
            raise ValueError("'paths' needs to hold a path (got none)")
        self.paths = [list(path) for path in paths]
        self.node_type, self.out = node_type, out
        self.unit, self.concat = unit, concat

    @validated
    def forward(self, data: HeteroData) -> HeteroData:
        """Write the new features to the graph, and return it.

        Args:
            data (HeteroData): the graph, with features of all node types on
                the paths.
        """
        if self.unit is not None:
            self.unit.check(data)
        x_dict = {
            store._key: store.x for store in data.node_stores if 'x' in store
        }
        for t, x in x_dict.items():
            check_tensor(f'data[{t!r}].x', x, None, ('n', 'k'), finite=True)
        if self.node_type not in x_dict:
            raise ValueError(
                f"'data' needs features 'x' of {self.node_type!r} (got those "
                f'of {list(x_dict)})'
            )
        edges, store = data.edge_index_dict, data[self.node_type]
        found = [
            metapath_features(x_dict, edges, path, self.node_type)
            for path in self.paths
        ]
        if self.concat:
            found = [store.x, *found]
        own = all(self._is_own(data, path) for path in self.paths)
        if (
            self.unit is None
            or not own
            or (self.concat and 'x' in marked(store))
            or not self._is_of_unit(store)
        ):
            mark(store, self.out)
        else:
            store.own_of = self.unit.digest
        store[self.out] = torch.cat(found, dim=1)
        return data

    def _is_own(self, data: HeteroData, path: Sequence[EdgeType]) -> bool:
        steps = path_steps(path, self.node_type, data.edge_index_dict)
        last = data[steps[-1][2]]
        return (
            self.unit is not None
            # Reports say that rows of several persons are not read.
            and not {t for _, _, t, _ in steps} & {*self.unit.joint}
            and self.unit.has_one_row_each(self.node_type)
            and 'x' not in marked(last)
            and self._is_of_unit(last)
            and self.unit.is_own(path, self.node_type)
        )

    def _is_of_unit(self, store: NodeStorage) -> bool:
        # Whether no other unit was told whose the rows are.
        return self.unit is None or store.get('own_of') in (
            None,
            self.unit.digest,
        )

    def __repr__(self) -> str:
        unit = None if self.unit is None else self.unit.digest[:16]
        return described(self, 'paths', 'node_type', unit=unit)


def metapath_features(
    x_dict: Mapping[str, Tensor],
    edge_index_dict: Mapping[EdgeType, Tensor],
    path: Sequence[EdgeType],
    node_type: str,
) -> Tensor:
    r"""Average features along a metapath.

    .. math::
        \mathbf{Z} = \mathbf{D}_1^{-1} \mathbf{A}_1 \cdots \mathbf{D}_K^{-1}
        \mathbf{A}_K \mathbf{X}

    with the adjacency matrix of each step and the number of messages that its
    rows receive; rows without any are zero. Each row's messages are added in
    the order of their senders, so that a row's bits depend on nobody else.
    """
    steps = path_steps(path, node_type, edge_index_dict)
    for t in (node_type, *(sender for _, _, sender, _ in steps)):
        if t not in x_dict:
            raise ValueError(
                f"'x_dict' needs to hold the features of {t!r}, which is on "
                f'the path (got {list(x_dict)})'
            )
    x = x_dict[steps[-1][2]]
    for e, receiver, sender, ends in reversed(steps):
        target, source = check_edges(
            f'edge_index_dict[{e}]',
            ends,
            (x_dict[receiver].size(0), x_dict[sender].size(0)),
            (receiver, sender),
        )
        x = _means(x, source, target, x_dict[receiver].size(0))
    return x


def _means(x: Tensor, source: Tensor, target: Tensor, n: int) -> Tensor:
    # Rows of senders in ascending order, a block of receivers at a time.
    order = source.argsort(stable=True)
    order = order[target[order].argsort(stable=True)]
    source, count = source[order], torch.bincount(target, minlength=n)
    ptr = pointer(count)
    out = x.new_zeros(n, x.size(1))
    begin = 0
    while begin < n:
        end = int(torch.searchsorted(ptr, ptr[begin] + _MESSAGES)) - 1
        end = min(max(end, begin + 1), n)
        rows = x[source[ptr[begin] : ptr[end]]]
        out[begin:end] = torch.segment_reduce(
            rows, 'mean', offsets=ptr[begin : end + 1] - ptr[begin], initial=0
        )
        begin = end
    return out
