"""States and results, to be compared."""

import copy
import dataclasses
import math

import torch


def same(one, two):
    """Whether two states or results are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        if one.layout != two.layout or one.shape != two.shape:
            return False
        if one.layout == torch.sparse_csr:
            return all(
                torch.equal(getattr(one, name)(), getattr(two, name)())
                for name in ('crow_indices', 'col_indices', 'values')
            )
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(
            same(one[key], two[key]) for key in one
        )
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if hasattr(one, '__dataclass_fields__'):
        return same(vars(one), vars(two))
    if isinstance(one, float) and math.isnan(one):
        return isinstance(two, float) and math.isnan(two)
    return one == two


def without_chance(state):
    """A copy of a state without what differs between two equal runs.

    Salts, what is sealed with them, and the names of states come from the
    operating system: of two runs of the same seed all the rest is equal.
    """
    state = copy.deepcopy(state)
    del state['salts']
    state['ledger'].pop('marks', None)
    for line in state['ledger']['entries']:
        del line['data'], line['link']
    return state


def without_root(report):
    """A report without what is another every time: the root of the seals.

    The ledger holds that root too, so its head goes with it.
    """
    return dataclasses.replace(report, data='', ledger_head='')


def level_of(state, level):
    """The sums of a level, with what is added where they are read."""
    n, measure = state.num_nodes, state.measure
    made = state._state[9][level, :n].clone()
    if measure.K != 2:
        return made
    # The degrees by C's pow, as the sums have them.
    degree = [float(d) for d in state.degree.tolist()]
    root = [
        1 / math.sqrt(d)
        if d and measure.b == 0.5
        else d**-measure.b
        if d or not measure.b
        else 0.0
        for d in degree
    ]
    scale = torch.tensor(root, dtype=torch.float64) * 2.0**state.bits
    q = (state.x.double() * scale.view(-1, 1)).round().long()
    start, length, col = state.receiving
    ranks, most = state._state[10], state._state[11]
    for v in range(n):
        row = col[start[v] : start[v] + length[v]].long()
        rest = row[ranks[row] > most[int(ranks[v])]]
        made[v] += q[rest].sum(0)
    return made
