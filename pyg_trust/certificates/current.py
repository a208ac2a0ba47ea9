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

    With so many bits that came and went since the certificate, each pair of
    radii is within a larger pair around the graph of then, which needs to be
    certified: changes of both kinds are added, never the larger one alone.
    The confidence stays, as no copy is drawn.

    Args:
        certificate (SmoothedCertificate): the certificate of nodes, without a
            transform.
        model (Module): the model, unchanged since the certificate.
        before (Data): the graph of the certificate.
        now (Data): the present graph, with the same nodes; only edges and
            features that have noise may differ.
        edges (tuple[int, int]): as in :meth:`~SmoothedCertificate.certified`,
            around the present graph. (default: :obj:`(0, 0)`)
        features (tuple[int, int]): as in
            :meth:`~SmoothedCertificate.certified`. (default: :obj:`(0, 0)`)

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
    noisy = certificate.cells
    changes = {'edges': (0, 0), 'features': (0, 0)}
    if before.num_nodes != now.num_nodes or not same:
        raise ValueError(
            "'now' needs the nodes of 'before', and to differ by edges and "
            'features alone'
        )
    n, graphs, loops = int(before.num_nodes), [], []
    for data in (before, now):
        row, col = data.edge_index
        loops.append(row[row == col].unique())
        if not certificate.noise.directed:
            row, col = torch.minimum(row, col), torch.maximum(row, col)
        graphs.append((row * n + col).unique())
    if not torch.equal(*loops):
        raise ValueError(
            "'now' has other self-loops, which have no noise: they stay in "
            'each copy, so that no vote tells of them'
        )
    come = int((~torch.isin(graphs[1], graphs[0])).sum())
    gone = int((~torch.isin(graphs[0], graphs[1])).sum())
    changes['edges'] = come, gone
    if not _equal(before.get('x'), now.get('x')):
        if 'features' not in noisy:
            raise ValueError("'now' has other features, which have no noise")
        if now.x.shape != before.x.shape or not bool(
            ((now.x == 0) | (now.x == 1)).all()
        ):
            raise ValueError(
                "'now' needs as many features as 'before', zeros and ones"
            )
        more = now.x.double() - before.x.double()
        changes['features'] = int((more > 0).sum()), int((more < 0).sum())
    # Sets of edges would hide an order, or one that is there twice.
    if 'edges' not in noisy and not _equal(before.edge_index, now.edge_index):
        raise ValueError("'now' has other edges, which have no noise")
    check_graph(now, certificate.noise)
    wide = {
        kind: (radius[0] + changes[kind][0], radius[1] + changes[kind][1])
        for kind, radius in (('edges', edges), ('features', features))
    }
    return certificate.certified(**wide)


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return torch.equal(one, two)
    return type(one) is type(two) and one == two
