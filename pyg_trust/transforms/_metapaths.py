"""Features of rows along metapaths, each row a sum of its own."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pyg_trust._checks.graphs import check_edges
from pyg_trust.graph.ragged import pointer
from pyg_trust.unit import EdgeType, path_steps

# Messages gathered at once.
_MESSAGES = 2**20


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
