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
    del state['lineage']
    state['salts'] = state['salts']['names']
    for line in state['ledger']['entries']:
        del line['data'], line['link']
    for made in state.get('checkpoints', {}).values():
        del made['key']
        for stage in made.get('stages', ()):
            del stage['key']
    return state


def without_root(report):
    """A report without what is another every time: the root of the seals.

    The ledger holds that root too, so its head goes with it.
    """
    return dataclasses.replace(report, data='', ledger_head='')
