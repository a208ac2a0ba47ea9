"""States of unlearners, to be compared."""

import copy
import dataclasses


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
    """A report without the root of the seals, which is another every time."""
    return dataclasses.replace(report, data='')
