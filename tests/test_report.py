import html.parser
import json
import math
from dataclasses import dataclass

import jsonschema
import pytest
import torch

import pyg_trust
from pyg_trust.noise import SEEDED
from pyg_trust.report import (
    Guarantee,
    Report,
    TrustReport,
    fingerprint,
    provenance,
    schema,
)
from pyg_trust.verify.claims import digest


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
    assert str(Inner(1 / 3)).split() == ['Inner', 'ratio', '0.3333']


def promise(**changes):
    fields = {
        'procedure': 'removal',
        'promise': 'it is gone',
        'assumptions': ('the noise is secret',),
        'not_covered': ('older releases',),
        'spent': {'residual': 0.25},
        'budget': {'residual': 1.0},
        'data_sha256': 'ab' * 32,
        'origin': provenance(seed=1),
        'kind': 'removal',
        'values': {'epsilon': 0.5, 'neighboring': 'remove one'},
        'history': {'residual': [0.0, 0.1, 0.25]},
        'checked': ('recomputed from the rest',),
        'weights_sha256': 'cd' * 32,
    }
    return Guarantee(**{**fields, **changes})


def test_trust_report_prints_everything_that_was_promised():
    page = str(TrustReport.of(promise(), promise(procedure='another')))
    lines = [line.strip() for line in page.splitlines()]
    assert lines[0] == '1. removal'
    assert 'guaranteed: it is gone' in lines
    titles = ('it holds if:', 'it does not cover:', 'how it was checked:')
    at = [lines.index(title) for title in titles]
    assert at == sorted(at)
    assert [lines[i + 1] for i in at] == [
        '- the noise is secret',
        '- older releases',
        '- recomputed from the rest',
    ]
    assert 'budget, residual: 0.25 of 1 spent, 0.75 left' in lines
    assert f'data: SHA-256 {"ab" * 8}' in lines
    assert '2. another' in lines
    # Once, as both were made alike.
    assert page.count(f'pyg_trust {pyg_trust.__version__}') == 1
    assert any(line.startswith('made with pyg_trust') for line in lines)
    assert max(map(len, page.splitlines())) <= 79


@pytest.mark.parametrize('budget', [1.0, math.inf])
def test_trust_report_is_one_json(tmp_path, budget):
    report = TrustReport.of(
        promise(budget={'residual': budget}), promise(data_sha256='')
    )
    report.save(tmp_path / 'trust.json')
    read = json.loads((tmp_path / 'trust.json').read_text())
    jsonschema.validate(read, schema())
    assert read.pop('digest') == digest(read)
    assert read['guarantees'][0]['spent'] == {'residual': 0.25}
    assert [file.name for file in tmp_path.iterdir()] == ['trust.json']
    assert TrustReport.load(tmp_path / 'trust.json') == report


def test_a_file_needs_a_known_ending(tmp_path):
    with pytest.raises(ValueError, match="'path' needs to be one of"):
        TrustReport.of(promise()).save(tmp_path / 'trust.pdf')
    assert list(tmp_path.iterdir()) == []


class Reader(html.parser.HTMLParser):
    """Collects texts, and checks that elements are closed in order."""

    VOID = ('meta',)

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.texts, self.links = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [v for k, v in attrs if k in ('href', 'src')]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_says_everything_and_needs_nothing(tmp_path):
    about = {'title': 'Shop', 'owner': 'Data team', 'people': '1,200 <b>'}
    report = TrustReport.of(
        promise(promise='<script>alert(1)</script> is "gone" & away'),
        promise(
            procedure='training',
            kind='privacy',
            spent={},
            budget={},
            history={},
        ),
        **about,
    )
    report.save(tmp_path / 'trust.html')
    page = (tmp_path / 'trust.html').read_text()
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    # What a guarantee says is text, never markup.
    assert 'script' not in reader.seen
    text = ' '.join(reader.texts)
    assert '<script>alert(1)</script> is "gone" & away' in text
    for said in (
        'the noise is secret',
        'older releases',
        'recomputed from the rest',
        'residual: 0.25 of 1 spent (25 %)',
        '2 guarantees; every budget is kept',
        'Keep report and ledger private',
        *about.values(),
        'GDPR Article 17',
        'GDPR Article 32',
        'no legal advice',
        'ab' * 32,
        'cd' * 32,
        'neighboring',
        'remove one',
        report.created,
    ):
        assert said in text
    assert 'http' not in page
    assert not reader.links
    # A bar of a quarter of the width.
    assert page.count('width: 25.0%') == 1
    # What both promises say stands there once.
    for said in ('the noise is secret', 'older releases', 'recomputed from'):
        assert text.count(said) == 1
    read = TrustReport.load(_json(report, tmp_path))
    assert read.about == about
    jsonschema.validate(json.loads(report.to_json()), schema())
    assert report._repr_html_().startswith('<iframe')
    assert str(report).startswith('title: Shop\n')
    with pytest.raises(ValueError, match="'about' needs to be one of"):
        TrustReport.of(promise(), author='me')


def _json(report, folder):
    report.save(folder / 'trust.json')
    return folder / 'trust.json'


def test_three_limits_are_open_and_the_rest_is_folded():
    one = promise(
        assumptions=('first', 'second'),
        not_covered=('a', 'b', 'c', 'd'),
        values={'epsilon': 0.123456, 'account': [[1.23456, 1]] * 20},
    )
    page = TrustReport.of(one).to_html()
    open_, *folded = page.split('<details>')
    for text in 'abc':
        assert f'<li>{text}</li>' in open_
    assert '<li>d</li>' in folded[1]
    assert '<li>first</li><li>second</li>' in folded[0]
    # Numbers have four digits, and long lists are short.
    assert '0.1235' in folded[-1]
    assert '0.123456' not in page
    assert '[1.235, 1], ..., [1.235, 1]' in folded[-1]


def numbers(kind='privacy', **values):
    return TrustReport.of(
        promise(kind=kind, values={'epsilon': 4.0, 'delta': 1e-5, **values})
    )


CHECK = 'python -m pyg_trust check trust.json'


@pytest.mark.parametrize(
    ('changes', 'said', 'not_said'),
    [
        (
            {'budget': {'residual': 0.1}},
            ('Release nothing more', 'over budget: 1. residual'),
            (),
        ),
        ({'checked': ()}, ('Check it', 'no check was recorded', CHECK), ()),
        ({'values': {'seeded': True}}, ('Release again without a seed',), ()),
        ({'kind': 'privacy'}, ('<li>Nothing</li>',), ('over budget: 1',)),
        # The share that is spent.
        ({'spent': {'residual': 0.25}}, ('(25 %)',), ('no check was',)),
        ({'spent': {'residual': 0.9951}}, ('(99.5 %)',), ()),
        ({'spent': {'residual': 1e-9}}, ('(less than 0.01 %)',), ()),
        ({'spent': {'residual': 2.0}}, ('(200 %)',), ()),
        ({'spent': {'residual': 0.0}}, ('(0 %)',), ()),
        # An audit was 'a guarantee for everybody who asked to be forgotten'.
        (
            {'kind': 'measurement', 'promise': 'no test found a trace'},
            ('1 measurement', 'no guarantee for anybody'),
            ('a guarantee for', '1 guarantee', 'guaranteed:'),
        ),
        # A seeded report is a promise to nobody, and a seed no condition
        # under which anything holds.
        (
            {'promise': f'{SEEDED}; else private', 'assumptions': (SEEDED,)},
            ('guarantees nothing to anybody',),
            ('This is a guarantee', f'<li>{SEEDED}'),
        ),
    ],
)
def test_the_page_says(changes, said, not_said):
    if 'spent' in changes:
        changes = {**changes, 'history': {}}
    report = TrustReport.of(promise(**changes))
    page = report.to_html()
    for text in said:
        assert text in page
    for text in not_said:
        assert text not in page
        assert text not in report.to_markdown() + str(report)
    assert CHECK in report.to_markdown()


def test_guarantees_and_measurements_are_counted():
    both = TrustReport.of(promise(), promise(kind='measurement')).to_html()
    assert '1 guarantee and 1 measurement' in both
    assert make()._repr_html_().startswith('<pre>Outer')


@pytest.mark.parametrize(
    ('kind', 'epsilon', 'said'),
    [
        # e^4 = 54.598..., e^0.5 = 1.64872...: never below what holds.
        ('privacy', 4.0, 'more than 55 times as likely'),
        ('privacy', 0.5, 'more than 1.649 times as likely'),
        ('removal', 0.0, 'more than 1 times as likely'),
        ('removal', 0.001, 'more than 1.002 times as likely'),
        ('privacy', 50.0, 'too large to protect anybody'),
        ('privacy', math.inf, 'too large to protect anybody'),
    ],
)
def test_the_page_says_epsilon_in_plain_words(kind, epsilon, said):
    for text in (
        numbers(kind, epsilon=epsilon).to_html(),
        numbers(kind, epsilon=epsilon).to_markdown(),
    ):
        assert said in text
        assert ('1 in 100,000' in text) == ('times' in said)
        # Of a Gaussian release the factor is larger several times as often.
        assert 'apart from a probability' not in text
        assert ('plus a probability of' in text) == ('times' in said)


def test_odds_are_not_stated_where_nothing_is_hidden():
    for report in (
        numbers(seeded=True),
        numbers('removal', noise='objective'),
        numbers('robustness'),
        numbers(delta=None),
    ):
        assert 'times as likely' not in report.to_html()


def test_the_model_card_has_no_markup_of_the_texts(tmp_path):
    report = TrustReport.of(promise(promise='a | b\n# c <i>'))
    report.save(tmp_path / 'card.md')
    lines = (tmp_path / 'card.md').read_text().splitlines()
    assert lines[0] == '## Trust report'
    assert '**A \\| b \\# c \\<i\\>**' in lines
    assert '- older releases' in lines
    assert '| epsilon | 0.5 |' in lines
    assert 'residual: 0.25 of 1 spent (25 %)' in lines


def test_the_plot_shows_the_share_of_each_budget():
    report = TrustReport.of(
        promise(), promise(spent={'e': 3.0}, budget={'e': 4.0}, history={})
    )
    axis = report.plot()
    assert [bar.get_width() for bar in axis.patches] == [0.25, 0.75]
    assert axis.get_title('left') == 'Every budget is kept'
    over = TrustReport.of(
        promise(spent={'e': 5.0}, budget={'e': 4.0}, history={})
    )
    assert over.plot().get_title('left').startswith('Over its budget: 1.')
    with pytest.raises(ValueError, match="'plot' needs a finite budget"):
        TrustReport.of(promise(spent={}, budget={}, history={})).plot()


def test_trust_report_refuses_what_promises_nothing():
    with pytest.raises(TypeError, match='Inner guarantees nothing'):
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


@pytest.mark.parametrize(
    ('one', 'two'),
    [(torch.float32, torch.int32), (torch.float64, torch.int64)],
)
def test_bytes_of_another_type_have_another_fingerprint(one, two):
    x = torch.tensor([0.0, 1.5, -2.0], dtype=one)
    assert fingerprint(x) != fingerprint(x.view(two))


def test_names_of_fields_of_0_1_warn():
    one = promise()
    for old, new in (('data', 'data_sha256'), ('model', 'weights_sha256')):
        with pytest.warns(
            DeprecationWarning, match=f"'{old}' of Guarantee is '{new}' now"
        ):
            assert getattr(one, old) == getattr(one, new)
    assert not hasattr(one, 'relation')
