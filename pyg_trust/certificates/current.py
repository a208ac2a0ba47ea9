"""Smoothed certificates after changes of the graph."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_trust._checks import validated
from pyg_trust.certificates.flip_bits import check_graph
from pyg_trust.certificates.votes import SmoothedCertificate
from pyg_trust.report import fingerprint_data

__all__ = ['certified_after']


@validated
def certified_after(
    certificate: SmoothedCertificate,
    model: Module,
    before: Data,
    now: Data,
    *,
    edges: tuple[int, int] = (0, 0),
    features: tuple[int, int] = (0, 0),
) -> Tensor:
    """Return a mask of targets whose smoothed class stays after changes.

    Each budget around the present graph is within a larger one around the
    graph of the certificate: the bits that were added and removed since then
    are added to it. The confidence stays, as no copy is drawn.

    Args:
        certificate (SmoothedCertificate): the certificate of nodes, without a
            transform.
        model (Module): the model, unchanged since the certificate.
        before (Data): the graph of the certificate.
        now (Data): the present graph, with the same nodes; only edges and
            features that have noise may differ.
        edges (tuple[int, int]): as in :meth:`~SmoothedCertificate.certified`,
            around the present graph. (default: :obj:`(0, 0)`)
        features (tuple[int, int]): likewise. (default: :obj:`(0, 0)`)

    Returns:
        Tensor: bool, ``[num_targets]``.

    Raises:
        ValueError: on another model or graph, or if something differs that
            has no noise, as self-loops.
    """
    # Refuses other radii, which are added to below.
    certificate.certified(edges=edges, features=features)
    if certificate.task != 'nodes':
        raise ValueError("'certificate' needs to be of nodes (got graphs)")
    if not certificate.speaks_of(model):
        raise ValueError(
            "'model' needs to be the one of the certificate, as all votes are "
            'of one function'
        )
    if certificate.data != fingerprint_data([before]):
        raise ValueError("'before' needs to be the graph of the certificate")
    names = {*before.keys(), *now.keys()} - {'edge_index', 'x'}
    same = all(_equal(before.get(name), now.get(name)) for name in names)
    if before.num_nodes != now.num_nodes or not same:
        raise ValueError(
            "'now' needs the nodes of 'before', and to differ by edges and "
            'features alone'
        )
    n, bits = int(before.num_nodes), []
    for data in (before, now):
        row, col = data.edge_index
        if not certificate.noise.directed:
            row, col = torch.minimum(row, col), torch.maximum(row, col)
        edge = (row * n + col).unique()
        loops = edge // n == edge % n
        bits.append((edge[~loops], edge[loops]))
    (old, loops), (new, other) = bits
    if not torch.equal(loops, other):
        raise ValueError(
            "'now' has other self-loops, which have no noise: they stay in "
            'each copy, so that no vote depends on them'
        )
    # Sets of edges would hide an order, or one that is there twice.
    if 'edges' not in certificate.cells and not _equal(
        before.edge_index, now.edge_index
    ):
        raise ValueError("'now' has other edges, which have no noise")
    if not _equal(before.get('x'), now.get('x')):
        if 'features' not in certificate.cells:
            raise ValueError("'now' has other features, which have no noise")
        binary = ((now.x == 0) | (now.x == 1)).all()
        if now.x.shape != before.x.shape or not bool(binary):
            raise ValueError(
                "'now' needs as many features as 'before', zeros and ones"
            )
        more = now.x.double() - before.x.double()
        added, removed = int((more > 0).sum()), int((more < 0).sum())
        features = features[0] + added, features[1] + removed
    added = int((~torch.isin(new, old)).sum())
    removed = int((~torch.isin(old, new)).sum())
    edges = edges[0] + added, edges[1] + removed
    check_graph(now, certificate.noise)
    return certificate.certified(edges=edges, features=features)


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return torch.equal(one, two)
    return type(one) is type(two) and one == two
