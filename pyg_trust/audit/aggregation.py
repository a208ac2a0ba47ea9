"""Empirical lower bounds of mu for releases of noisy sums."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import Count, Fraction, Int, OneOf, Positive, validated
from pyg_trust._moved import renamed
from pyg_trust.audit.report import PrivacyAudit
from pyg_trust.audit.statistics import check_coins, empirical_mu
from pyg_trust.privacy.propagation import RELATIONS
from pyg_trust.transforms.aggregation_report import make_relation

__all__ = ['audit_aggregation']

# Rows are longer than messages may be: a release has to normalise them.
_LENGTH = 3.0
_COLUMNS = 16


@renamed(relation='adjacency', form='neighboring')
@validated
def audit_aggregation(
    release: Callable[[Data], Sequence[Tensor]],
    adjacency: Annotated[str, OneOf(RELATIONS)] = 'edge',
    claim_mu: Positive | None = None,
    num_canaries: Annotated[int, Int(20)] = 10_000,
    *,
    directed: bool = False,
    neighboring: str | None = None,
    list_size: Count = 1,
    confidence: Fraction = 0.95,
    seed: int | None = None,
) -> PrivacyAudit:
    r"""Audit a release of noisy sums over neighbours, by worst-case canaries.

    A canary is a small part of a made-up graph, with one random bit that the
    adversary guesses from the sums. Canaries are disjoint: each is a trial,
    independent of others if noise is independent by rows. Wrong guesses bound
    :math:`\mu` (sensitivity over noise) from below. A bound above the claim
    disproves it; a bound below proves nothing. Feature rows have norm 3, so
    that a release that does not normalise them is found out.

    - ``'edge'``: a pair of nodes; the bit is whether they have an edge.
    - ``'node'``, ``'node_incident'``: a node with edges to :obj:`list_size`
      nodes; the bit is whether its features and edges are there or, for
      ``'replace'``, the sign of its features. Edges have one direction: audit
      a release with ``directed=True``.
    - ``'feature'``: a pair with an edge; the bit is of features alone.

    Args:
        release (callable): maps a ``Data`` to a list of the released sums, one
            tensor ``[num_nodes, num_features]`` for each hop, as
            :meth:`PrivateAGP.released
            <pyg_trust.transforms.PrivateAGP.released>` does.
        adjacency (str): what is protected, as claimed; see above.
        claim_mu (float, optional): the claimed :math:`\mu`.
        num_canaries (int): the number of canaries.
        directed (bool): for ``'edge'``, whether edges have one direction.
        neighboring (str, optional): what the claim compares a node's record
            with: any other (:obj:`'replace'`) or an empty one
            (:obj:`'add_remove'`, the default of ``'node_incident'`` alone).
        list_size (int): the number of edges of a canary, as above.
        confidence (float): the probability that the bound holds, in (0, 1).
        seed (int, optional): the seed of all draws; random by default.

    Example:
        >>> from pyg_trust.transforms import PrivateAGP
        >>> transform = PrivateAGP(mu=1.0, delta=1e-5, insecure_seed=0)
        >>> audit_aggregation(
        ...     transform.released, 'edge', 1.0, 4000, seed=0
        ... ).violated
        False
    """
    most = list_size if adjacency == 'node_incident' else None
    near = make_relation(adjacency, neighboring, directed, most).neighboring
    seed = rng.resolve(seed)
    generator = rng.generator(seed)
    coin = torch.rand(num_canaries, generator=generator) < 0.5
    check_coins(coin)
    size = 1 + (list_size if adjacency.startswith('node') else 1)
    n = num_canaries * size
    drawn = torch.randn(n, _COLUMNS, generator=generator, dtype=torch.float64)
    m = drawn / drawn.norm(dim=1, keepdim=True)
    first = torch.arange(num_canaries)
    x = _LENGTH * m
    others = torch.arange(num_canaries, n).view(num_canaries, size - 1)
    arcs = torch.stack([first.repeat_interleave(size - 1), others.flatten()])
    if adjacency == 'edge':
        arcs = arcs[:, coin]
    else:
        x[first[~coin]] *= 0.0 if near == 'add_remove' else -1.0
        if near == 'add_remove' and adjacency != 'feature':
            arcs = arcs[:, coin.repeat_interleave(size - 1)]
    both = adjacency == 'feature' or (adjacency == 'edge' and not directed)
    edges = torch.cat([arcs, arcs.flip(0)], 1) if both else arcs
    rows = release(Data(x=x, edge_index=edges, num_nodes=n))
    if isinstance(rows, Tensor) or not isinstance(rows, Sequence) or not rows:
        raise TypeError(
            "'release' needs to return a list of released rows, one tensor a "
            f'hop (got {type(rows).__name__})'
        )
    for row in rows:
        if not isinstance(row, Tensor) or row.shape != m.shape:
            raise ValueError(
                f"'release' needs to return rows of the shape "
                f'{list(m.shape)} (got {list(getattr(row, "shape", ()))})'
            )
        if not bool(torch.isfinite(row).all()):
            raise ValueError(
                "'release' needs to return finite rows: NaN or infinity can "
                'reveal edges, and has no score'
            )
    score = torch.zeros(num_canaries, dtype=torch.float64)
    for row in rows if adjacency == 'edge' else rows[:1]:
        row = row.detach().cpu().double()
        heard = row[others.flatten()].view(num_canaries, size - 1, -1).sum(1)
        score += (heard * m[first]).sum(1) / math.sqrt(size - 1)
        if adjacency == 'edge' and not directed:
            score += (row[first] * m[others[:, 0]]).sum(1)
        m = row / row.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return empirical_mu(
        score[~coin].numpy(),
        score[coin].numpy(),
        confidence,
        claim=claim_mu,
        seed=rng.derive(seed, 1),
    )
