"""PyG compares the text of a ``pre_transform`` with that of stored files."""

import inspect
import pickle

import pytest
import torch
from torch_geometric.data import HeteroData

from pyg_trust.agp.measures import Measure
from pyg_trust.transforms import (
    AGP,
    GDC,
    BoundedDegree,
    Division,
    FlipBits,
    GraphScattering,
    MetapathFeatures,
    PrivateAGP,
    Shards,
)
from pyg_trust.unit import PrivacyUnit

PATH = [('u', 'buys', 'i')]


def unit(person):
    data = HeteroData()
    data['u'].x, data['i'].x = torch.rand(3, 1), torch.rand(3, 1)
    data['u', 'buys', 'i'].edge_index = torch.tensor([[0, 1], [0, 1]])
    return PrivacyUnit(data, person, public=[*{'u', 'i'} - {person}])


# A call of each, and another value of every argument that changes the result.
OWN = [Measure(0.5, b, w) for b in (0.5, 0.0) for w in ((1, 2), (2, 1))]
MEASURE = {
    'measure': ['ppr'],
    'alpha': [0.3],
    'K': [3],
    'tol': [1e-2],
    'eps': [0.01],
    'seed': [1, 2],
}
NOTHING = {'t': (), 'beta': ()}
TABLE = [
    (BoundedDegree, {'K': 3}, {'K': [4], 'along': [False], 'seed': [1, 2]}),
    (
        FlipBits,
        {'edges': (0.0, 0.5)},
        {
            'edges': [(0.0, 0.4)],
            'features': [(0.1, 0.1)],
            'directed': [True],
            'seed': [1, 2],
        },
    ),
    (
        AGP,
        {'measure': 'appnp', 'alpha': 0.1},
        {
            **MEASURE,
            **NOTHING,
            'force_push': [True],
            'half': [True],
            'level_tol': [0.01],
            'attr': ['h'],
            'out': ['z', 'z.npy'],
            # What is in memory at once changes nothing.
            **dict.fromkeys(['columns', 'memory', 'over_ranks'], ()),
        },
    ),
    (AGP, {'measure': OWN[0]}, {'measure': OWN[1:]}),
    (AGP, {'measure': 'heat', 't': 3.0}, {'t': [4.0]}),
    (AGP, {'measure': 'katz', 'beta': 0.1, 'K': 3}, {'beta': [0.2]}),
    (
        GDC,
        {'alpha': 0.2, 'top_k': 3},
        {
            **MEASURE,
            **NOTHING,
            'eps': [0.3],
            'top_k': [4],
            'threshold': [0.1],
            'normalization': ['sym', None],
            'method': ['prune'],
        },
    ),
    (
        GDC,
        {},
        {
            'self_loop_weight': [0.5, None],
            'normalization_in': ['col'],
            'normalization_out': ['row'],
            'diffusion_kwargs': [{'method': 'ppr', 'alpha': 0.3}],
            'sparsification_kwargs': [{'method': 'topk', 'k': 3, 'dim': 0}],
            'exact': [False],
        },
    ),
    (
        GraphScattering,
        {},
        {
            'J': [4],
            'Q': [2],
            'L': [2],
            'wavelet': ['diffusion'],
            'low_pass': ['degree'],
            'linear': [True],
            'max_degree': [3, 9],
            'clip': [True],
            'attr': ['x'],
        },
    ),
    (
        Shards,
        {'num_shards': 3, 'method': 'blpa', 'seed': 0},
        {
            'num_shards': [4],
            'method': ['random'],
            'seed': [1],
            'slack': [0.3],
            'max_rounds': [3],
            'embedding': (),
        },
    ),
    (Shards, {'num_shards': 3, 'method': 'bekm'}, {'embedding': ['z']}),
    (
        Division,
        {'num_groups': 3, 'seed': 0},
        {'num_groups': [4], 'by': ['edges'], 'seed': [1], 'unit': ()},
    ),
    (
        MetapathFeatures,
        {'paths': [PATH], 'node_type': 'u'},
        {
            'paths': [[PATH, PATH]],
            'node_type': ['i'],
            'out': ['z'],
            'unit': [unit('u'), unit('i')],
            'concat': [False],
        },
    ),
    (
        PrivateAGP,
        {'epsilon': 1.0, 'delta': 1e-5},
        {
            'K': [2],
            'adjacency': ['node'],
            'epsilon': [2.0],
            'delta': [1e-6],
            'directed': [True],
            'cat': [False],
            'attr': ['h'],
            'insecure_seed': [1],
        },
    ),
]


@pytest.mark.parametrize(('cls', 'given', 'others'), TABLE)
def test_text_has_all_arguments(cls, given, others):
    texts = {repr(cls(**given))}
    count = 1
    for name, values in others.items():
        for value in values:
            more = {name: value}
            if cls is PrivateAGP and value == 'node':
                more['max_degree'] = 3
            texts.add(repr(cls(**{**given, **more})))
            count += 1
    assert len(texts) == count, sorted(texts)
    assert all(len(t) < 400 and ' object at 0x' not in t for t in texts)


def test_no_argument_is_forgotten():
    # A new argument has to get a value in the table.
    tried = {}
    for cls, given, others in TABLE:
        tried.setdefault(cls, {'args', 'kwargs'}).update(given, others)
    # Pays for a release by other means, which its text states as epsilon.
    tried[PrivateAGP] |= {'mu', 'engine', 'ledger', 'ledger_head'}
    tried[PrivateAGP] |= {'neighboring', 'max_degree', 'measure'}
    for cls, names in tried.items():
        asked = list(inspect.signature(cls).parameters)
        assert not set(asked) - names, cls


def test_text_is_the_same_after_a_copy():
    for cls, given, _ in TABLE:
        made = cls(**given)
        if cls not in (PrivateAGP, MetapathFeatures):
            assert repr(pickle.loads(pickle.dumps(made))) == repr(made)
