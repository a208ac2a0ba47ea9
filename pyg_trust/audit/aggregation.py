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
    r"""Audit a release of noisy sums by worst-case canaries.

    Canaries are disjoint, so that one release makes thousands of independent
    trials, if its noise is independent by rows; they have unit messages that
    the adversary knows. A bound above the claim disproves it; a bound below
    proves nothing. Rows have norm 3: a release that does not normalise them is
    found out.

    - ``'edge'``: disjoint pairs, each with an edge with probability 1/2,
      scored by the log-likelihood ratio over all hops.
    - ``'node'`` and ``'node_incident'``: sources with lists of
      :obj:`list_size` nodes of their own, each there or not (or of the
      opposite features). Edges are arcs: ``directed=True``.
    - ``'feature'``: pairs with their edge, one end of which is as above.

    Args:
        release (callable): maps data with ``x`` to the released rows of all
            hops, as :meth:`PrivateAGP.released
            <pyg_trust.transforms.PrivateAGP.released>` does.
        adjacency (str): what two neighbouring graphs differ in, as claimed.
        claim_mu (float, optional): the claimed :math:`\mu`.
        num_canaries (int): the trials, of both kinds together.
        directed (bool): for ``'edge'``, whether edges are arcs.
        neighboring (str, optional): for nodes, the pair that is planted:
            :obj:`'add_remove'` or :obj:`'replace'`, as claimed; a record
            against an empty one reveals half as much as against its opposite.
        list_size (int): of ``'node'`` and ``'node_incident'``.
        confidence (float): in :math:`(0, 1)`. (default: :obj:`0.95`)
        seed (int, optional): the seed of all draws.

    Example:
        >>> from pyg_trust.transforms import PrivateAGP
        >>> transform = PrivateAGP(mu=1.0, delta=1e-5, insecure_seed=0)
        >>> audit_aggregation(
        ...     transform.released, 'edge', 1.0, 4000, seed=0
        ... ).violated
        False
    """
    most = list_size if adjacency == 'node_incident' else None
    form = make_relation(adjacency, neighboring, directed, most).form
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
        x[first[~coin]] *= 0.0 if form == 'withdraw' else -1.0
        if form == 'withdraw' and adjacency != 'feature':
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
