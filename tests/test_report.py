import json
import math
from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch

import pyg_trust
from pyg_trust.report import Report, provenance


@dataclass(frozen=True)
class Inner(Report):
    ratio: float


@dataclass(frozen=True)
class Outer(Report):
    epsilon: float
    margins: torch.Tensor
    inner: Inner
    provenance: dict


def make():
    return Outer(
        math.inf,
        torch.tensor([[1, 2]]),
        Inner(1 / 3),
        provenance(seed=3, sizes=(1, 2), device=torch.device('cpu')),
    )


def test_to_dict_is_plain_and_json():
    report = make()
    fields = report.to_dict()
    assert fields['margins'] == [[1, 2]]
    assert fields['inner'] == {'ratio': 1 / 3}
    assert fields['provenance']['pyg_trust'] == pyg_trust.__version__
    assert fields['provenance']['arguments'] == {
        'seed': 3,
        'sizes': [1, 2],
        'device': 'cpu',
    }
    read = json.loads(report.to_json())
    assert read['epsilon'] == 'inf'
    assert {**read, 'epsilon': math.inf} == fields


def test_str_is_a_table():
    lines = str(make()).splitlines()
    assert lines[0] == 'Outer'
    assert lines[1].split() == ['epsilon', 'inf']
    assert lines[2].split(maxsplit=1) == ['margins', 'int64 tensor [1, 2]']


def test_reports_are_frozen():
    with pytest.raises(FrozenInstanceError):
        make().epsilon = 1.0
