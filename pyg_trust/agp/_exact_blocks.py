"""Choose the columns of an estimate that are cheaper to compute exactly.

``csrc/push.h`` decides in every hop whether to sample. On a graph of few edges
a node the answer is often clear beforehand: a block of columns is then done
exactly from the start, in Horner's order (:mod:`.propagation`). Which blocks
these are is estimated from evenly spaced nodes, alike on every device.
"""

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust.agp.measures import Measure
from pyg_trust.graph import CSRGraph
from pyg_trust.graph.ragged import ranges

# The cost of a visited node in entries of an exact level, as in csrc/push.h.
VISIT_COST = 16


def exact_blocks(
    graph: CSRGraph,
    x: Tensor,
    measure: Measure,
    eps: float,
    ratio: Tensor,
    above: float,
) -> list[bool]:
    """Return which blocks to compute exactly from level 0 on."""
    n, width = graph.num_nodes, ops.block_size(x.dtype)
    none = [False] * -(-x.size(1) // width)
    if not none or n == 0 or ratio.numel() == 0:
        return none
    if not (measure.self_loops or graph.is_undirected):
        return none
    spaced = ops.cost_nodes(n)
    # The number of nodes that each one represents, computed on the device.
    step = int(spaced[1] - spaced[0]) if n > 1 else 1
    nodes = torch.arange(int(spaced[0]), n, step, device=x.device)
    ptr, col = graph.receivers(not measure.along)
    start = ptr[nodes]
    count = ptr[nodes + 1] - start
    enough = above * col.numel() / (VISIT_COST * step)
    sends = count > 0
    if not int(sends.sum()) > enough:
        return none
    rows = x.detach()[nodes].abs() * sends.view(-1, 1)
    visited = [int((b > 0).any(1).sum()) for b in rows.split(width, 1)]
    exact = [number > enough for number in visited]
    if all(exact) or ratio.numel() == 1:
        return exact
    # At most as many nodes are reached as there are pushes: one along an entry
    # with probability |m| / (eps |x|_1), or for certain.
    send = graph.degree_power(-measure.b, x.dtype)[nodes].double()
    recv = graph.degree_power(-measure.a, x.dtype)
    scale = recv[col[ranges(start, count)].long()].double()
    for k, block in enumerate(rows.double().split(width, 1)):
        if exact[k]:
            continue
        size = (block / block.sum(0)).nan_to_num(0.0).amax(1)
        mass = size * send * (float(ratio[0]) / (eps * step))
        sent = (mass.repeat_interleave(count) * scale).clamp(max=1.0)
        # Multiples of 2^-8 add up to the same sum in every order.
        reached = float((sent * 256).round().sum()) / 256
        exact[k] = visited[k] + reached > enough
    return exact
