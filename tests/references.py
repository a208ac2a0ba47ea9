"""What the kernel's docstrings state, as code: references for tests alone."""

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from pyg_trust.noise import SeededNoise
from pyg_trust.privacy.exact import clip
from pyg_trust.verify import shards


class Silence(SeededNoise):
    """In the place of noise, to look at the sums: none, of any shape.

    ``drawn`` lists the shapes that were asked for.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.drawn: list[tuple[int, ...]] = []

    def cells(self, shape: tuple[int, ...]) -> Tensor:
        """Return zeros."""
        self.drawn.append(tuple(shape))
        return torch.zeros(tuple(shape), dtype=torch.int64)


# Of privacy/exact/clip.py ###################################################


def rows(
    gamma: np.ndarray, a: np.ndarray, c: np.ndarray, norm: float
) -> tuple[np.ndarray, np.ndarray]:
    r"""Compute the integers :math:`\alpha_r` and :math:`a'_r`, as floats.

    Args:
        gamma (ndarray): ``[num_rows, out]``.
        a (ndarray): ``[num_rows, in]``.
        c (ndarray): ``[num_rows]``, the factor of the unit of each row.
        norm (float): :math:`C`.
    """
    scale = clip.scales(np.abs(a).max(1, initial=0.0))
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    alpha = np.rint(gamma * (c * (scale / clip.grid(norm)))[:, None])
    return alpha, np.rint(a * inverse[:, None])


def block_sum(alpha: np.ndarray, inner: np.ndarray) -> np.ndarray:
    r"""Compute the integers :math:`\sum_r \alpha_r a'^\top_r` exactly.

    Args:
        alpha (ndarray): ``[num_rows, out]``, integers up to :math:`2^{22}`.
        inner (ndarray): ``[num_rows, in]``, integers up to :math:`2^{22}`.
    """
    total = np.zeros((alpha.shape[1], inner.shape[1]), dtype=np.int64)
    for first in range(0, len(alpha), clip.BLOCK):
        one = alpha[first : first + clip.BLOCK]
        total += (one.T @ inner[first : first + clip.BLOCK]).astype(np.int64)
    return total


# Of verify/shards.py #########################################################


def gone(
    items: Iterable[shards.Item], request: Mapping[str, Iterable]
) -> set[shards.Item]:
    """Return the items that a request removes.

    Args:
        items (set): the items of the graph before.
        request (dict): ``'nodes'`` and ``'features'`` by name, ``'edges'``
            (both directions) and ``'directed_edges'`` by pairs.

    Raises:
        ValueError: if something is named that is not there.
    """
    nodes = set(request.get('nodes', ()))
    named: set[shards.Item] = {('node', v) for v in nodes}
    named |= {('features', v) for v in request.get('features', ())}
    arcs = {('edge', u, v) for u, v in request.get('directed_edges', ())}
    both = [(u, v) for u, v in request.get('edges', ())]
    items = set(items)
    for u, v in both:
        here = {('edge', u, v), ('edge', v, u)} & items
        arcs |= here or {('edge', u, v)}
    if not named | arcs <= items:
        raise ValueError("'request' names items that are not there")
    return named | arcs | {e for e in items if nodes & set(e[1:])}


def again(
    removed: Iterable[shards.Item], division: shards.Division
) -> dict[int, int]:
    """Return the first stage to train again, by shard: :math:`f`."""
    first: dict[int, int] = {}
    for item in removed:
        place = shards.home(item, division)
        if place is not None:
            shard, stage = place
            first[shard] = min(stage, first.get(shard, stage))
    return first


def seen(
    items: Iterable[shards.Item],
    division: shards.Division,
    shard: int,
    stage: int,
) -> frozenset[shards.Item]:
    """Return the items that a stage of a shard is trained on."""
    homes = ((item, shards.home(item, division)) for item in items)
    return frozenset(
        item
        for item, at in homes
        if at is not None and at[0] == shard and at[1] <= stage
    )


def digest(*parts):
    """The digest of arrays, texts and numbers, from its format."""
    made = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            kind = f'torch.{part.dtype}'
            head, content = ('tensor', kind, part.shape), part.tobytes()
        else:
            head, content = type(part).__name__, repr(part).encode()
        made.update(repr((head, len(content))).encode() + content)
    return made.hexdigest()


def clipped(model, args, owner, grad, norm, units=None, exact=False):
    """The clipped sum of a batch in integers, with its rows.

    Args:
        model (torch.nn.Module): the model.
        args (tuple): the arguments of its call.
        owner (Tensor): the unit of each row, of nodes and outputs.
        grad (Tensor): the gradient by the output.
        norm (float): the clipping norm.
        units (int, optional): how many units there are.
        exact (bool): whether rows are computed one by one.
    """
    from pyg_trust.privacy.clipping import clipped_sum
    from pyg_trust.privacy.codes import Attributor

    made = Attributor(model, exact)
    count = int(owner.max()) + 1 if units is None else units
    out = made.run(lambda: model(*args), [owner], count)
    found = clipped_sum(made.attribute(out, grad, owner), norm)
    return found, made
