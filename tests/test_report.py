import json
import math
from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch

import pyg_trust
from pyg_trust.report import (
    Guarantee,
    Report,
    TrustReport,
    fingerprint,
    provenance,
)


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


def promise(**changes):
    fields = {
        'procedure': 'removal',
        'promise': 'it is gone',
        'assumptions': ('the noise is secret',),
        'not_covered': ('older releases',),
        'spent': {'residual': 0.25},
        'budget': {'residual': 1.0},
        'data': 'ab' * 32,
        'origin': provenance(seed=1),
    }
    return Guarantee(**{**fields, **changes})


def test_trust_report_prints_everything_that_was_promised():
    page = str(TrustReport.of(promise(), promise(procedure='another')))
    lines = [line.strip() for line in page.splitlines()]
    assert lines[0] == '1. removal'
    assert 'promised: it is gone' in lines
    assert 'if: the noise is secret' in lines
    assert 'not covered: older releases' in lines
    assert 'budget, residual: 0.25 of 1 spent, 0.75 left' in lines
    assert f'data: SHA-256 {"ab" * 8}' in lines
    assert '2. another' in lines
    # Once, as both were made alike.
    assert page.count(f'pyg_trust {pyg_trust.__version__}') == 1
    assert any(line.startswith('made with pyg_trust') for line in lines)
    assert max(map(len, page.splitlines())) <= 79


def test_trust_report_is_one_json(tmp_path):
    report = TrustReport.of(promise(), promise(data=''))
    report.save(tmp_path / 'trust.json')
    read = json.loads((tmp_path / 'trust.json').read_text())
    assert read == report.to_dict()
    assert read['guarantees'][0]['spent'] == {'residual': 0.25}
    assert [file.name for file in tmp_path.iterdir()] == ['trust.json']


@pytest.mark.parametrize(
    ('changes', 'match'),
    [
        ({'promise': ''}, "'promise' can't be empty"),
        ({'procedure': ''}, "'procedure' can't be empty"),
        ({'budget': {}}, "'spent' and 'budget' need"),
    ],
)
def test_a_guarantee_is_complete(changes, match):
    with pytest.raises(ValueError, match=match):
        promise(**changes)


def test_trust_report_refuses_what_promises_nothing():
    with pytest.raises(TypeError, match='Inner promises nothing'):
        TrustReport.of(promise(), Inner(0.5))
    with pytest.raises(TypeError, match="'reports' needs to hold reports"):
        TrustReport.of({'promise': 'x'})
    with pytest.raises(ValueError, match="'reports' can't be empty"):
        TrustReport.of()


def test_fingerprint_tells_apart_what_differs():
    x = torch.arange(6.0)
    prints = [
        fingerprint(*parts)
        for parts in (
            (x,),
            (x.double(),),
            (x.view(2, 3),),
            (x[:3], x[3:]),
            (x + 0, 'a'),
            ('a', x),
            ('ab',),
            ('a', 'b'),
            (1,),
            (1.0,),
            (True,),
            (None,),
            (),
            (x[:0],),
        )
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint(x.view(2, 3).t()) == fingerprint(
        x.view(2, 3).t().contiguous()
    )
    assert fingerprint(torch.tensor(True), x.bfloat16()) == fingerprint(
        torch.tensor(True), x.bfloat16()
    )
