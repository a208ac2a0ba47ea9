"""Attacks on a removal: each is one function, registered by its name.

An attack takes the :class:`~pyg_trust.audit.Runs` of an audit and returns its
rows, or yields them. A row with a ``p`` gets its verdict after Holm's
correction over all rows of the audit; any other names one of
:obj:`~pyg_trust.audit.report.VERDICTS`. ``needs`` lists conditions
(:obj:`~pyg_trust.audit.runs.NEEDS`): an attack is left out where one is not
met, and the report says why.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import k_hop_subgraph

from pyg_trust import rng
from pyg_trust.audit.releases import (
    differing,
    encodings,
    grouped,
    holding,
    opened,
    size_of,
)
from pyg_trust.audit.report import (
    FAILED,
    KEPT,
    LEAKS,
    NAN,
    POWERLESS,
    AuditRow,
)
from pyg_trust.audit.runs import Runs
from pyg_trust.audit.scores import auc_interval, permutation_test
from pyg_trust.audit.statistics import told_apart
from pyg_trust.audit.subjects import Released
from pyg_trust.registries import Registry

__all__ = ['ATTACKS']

# Parts of the seed: runs of worlds, and what is drawn.
_WORLD, _DRAW = 1, 3
_QUESTIONS = 15
_CANARY = 16
_HOPS = 3
_CONFIRM = 3


#: Attacks on a removal, in the order in which an audit runs them.
ATTACKS: Registry[Callable[[Runs], Iterable[AuditRow]]] = Registry(
    'attack', facts=('needs',)
)


class _Twins(NamedTuple):
    # The rows of a twin attack; a mask of the kept nodes near removed ones, or
    # none; and how many of these rows, and of others, differ at most.
    rows: list[AuditRow]
    ball: Tensor
    looked: bool = False
    inside: int = 0
    outside: int = 0


@ATTACKS.builtin('twins', needs='features')
def twins(runs: Runs) -> list[AuditRow]:
    """Compare bits released of graphs that differ in removed items alone."""
    return _twins(runs).rows


def _twins(runs: Runs) -> _Twins:
    if 'twins' in runs.kept:
        found: _Twins = runs.kept['twins']
        return found
    near, _, _, _ = k_hop_subgraph(
        runs.featureless,
        _HOPS,
        runs.data.edge_index,
        num_nodes=int(runs.data.num_nodes),
    )
    ball = torch.isin(runs.left.n_id, runs.data.n_id[near])
    if runs.noisy:
        made = _Twins(_noisy_twins(runs), ball)
    else:
        # The control: what a seed does not fix.
        one, subject = runs.run(), runs.subject(runs.data)
        runs.random = set(differing(one.before, opened(subject.released())))
        subject.remove(runs.request)
        runs.random |= set(differing(one.after, opened(subject.released())))
        made = _Twins([], ball)
        for kind in runs.kinds():
            made = _compared_twins(runs, made, kind)
    runs.kept['twins'] = made
    return made


def _compared_twins(runs: Runs, made: _Twins, kind: str) -> _Twins:
    one, two = runs.run(), runs.run(kind)
    # A value that is random or missing after the removal shows nothing.
    power = [
        name
        for name in differing(one.before, two.before, runs.random)
        if name in one.after
    ]
    found = differing(one.after, two.after, runs.random)
    if found:
        # A clock in whole seconds, or a random bit, may have agreed in the
        # control and differ in a twin: a trace is there in every run.
        for name in ('data', kind):
            if f'confirmed {name}' in runs.kept:
                continue
            for _ in range(_CONFIRM):
                subject = runs.subject(runs.changed(name))
                subject.remove(runs.request)
                after = opened(subject.released())
                runs.random |= set(differing(runs.run(name).after, after))
            runs.kept[f'confirmed {name}'] = True
        found = [each for each in found if each not in runs.random]
    note, hides = _hidden(runs, one.before, one.after)
    if not power:
        note = 'nothing that is compared after the removal differed before it'
    elif found:
        note = grouped(found)
    # If an attacker could have planted features there, count them as planted.
    blind = not power or (kind == 'features' and hides)
    row = AuditRow(
        f'twins: {kind}',
        'owns fit and remove, and chooses the seed',
        'share of releases that differ',
        len(found) / max(len(one.after), 1),
        expected='0',
        verdict=FAILED if found else POWERLESS if blind else KEPT,
        note=note,
    )
    # Released tables with a row for each kept node.
    ball, n = made.ball, made.ball.numel()
    looked, inside, outside = made.looked, made.inside, made.outside
    for name in {*power, *found}:
        a, b = one.after.get(name), two.after.get(name)
        if not isinstance(a, Tensor) or n not in a.shape:
            continue
        looked |= name in power
        if name in found and isinstance(b, Tensor) and a.shape == b.shape:
            rows = (a != b).movedim(list(a.shape).index(n), 0)
            rows = rows.reshape(n, -1).any(1)
            inside = max(inside, int((rows & ball).sum()))
            outside = max(outside, int((rows & ~ball).sum()))
    return _Twins([*made.rows, row], ball, looked, inside, outside)


def _hidden(runs: Runs, *releases: Released) -> tuple[str, bool]:
    # Name what is not compared, and whether it could hide removed features, as
    # a sum with a pad that is released too.
    before, after = (
        {name: size_of(each[name]) for name in runs.random if name in each}
        for each in releases
    )
    content = runs.data.x[runs.featureless]
    needed = content.numel() * content.element_size()
    grown = sum(after.values()) - sum(before.values())
    if not after:
        return '', False
    hides = max([grown, *after.values()]) >= needed
    note = (
        f'no power over {sum(after.values())} bytes that are not compared '
        f'({grown:+} by the removal)'
    )
    if hides:
        note += f': {needed} bytes that were removed could be hidden there'
    return note, hides


def _noisy_twins(runs: Runs) -> list[AuditRow]:
    # Two samples of runs for each kind, those of the data shared.
    made = []
    for kind in runs.kinds():
        one, two = runs.noisy_runs(), runs.noisy_runs(kind)
        p = told_apart([r.before for r in one], [r.before for r in two])
        after = [r.after for r in one], [r.after for r in two]
        power = p(rng.derive(runs.seed, _DRAW, 4)) <= 1 - runs.level
        means = [torch.stack(each).mean(0) for each in after]
        made.append(
            AuditRow(
                f'twins: {kind}',
                'owns fit and remove, and chooses the seeds',
                'distance of mean releases',
                float((means[0] - means[1]).norm()),
                p=told_apart(*after)(rng.derive(runs.seed, _DRAW, 5)),
                expected='noise alone, p uniform',
                verdict='' if power else POWERLESS,
                note=f'{runs.worlds} runs a side, as releases are noisy: half '
                'of them find the direction'
                if power
                else 'releases before the removal can not be distinguished '
                'either',
            )
        )
    return made


@ATTACKS.builtin('worlds', needs='members')
def worlds(runs: Runs) -> list[AuditRow]:
    """Compare models that forgot with models that never saw the data."""
    forgot, never = [], []
    for i in range(runs.worlds):
        subject = runs.subject(runs.data, _WORLD, 0, i)
        subject.remove(runs.request)
        forgot.append(runs.score(subject))
        never.append(runs.score(runs.subject(runs.left, _WORLD, 1, i)))
    # Bound of Clopper and Pearson, for a threshold chosen on half of the runs
    # that classifies the other half without an error.
    rate = ((1 - runs.level) / 2) ** (1 / max(runs.worlds // 2, 1))
    ceiling = max(float(np.log(rate / (1 - rate))), 0.0)
    return [
        _compared(
            runs,
            'worlds',
            'owns fit and remove, and chooses the seeds',
            'AUC of runs',
            (torch.tensor(forgot), torch.tensor(never)),
            seed=rng.derive(runs.seed, _DRAW),
            expected='0.5, p uniform',
            note=f'{runs.worlds} runs a side: no lower bound for epsilon '
            f'above {ceiling:.2f} is possible',
        )
    ]


def _compared(
    runs: Runs,
    test: str,
    adversary: str,
    statistic: str,
    scores: tuple[Tensor, Tensor],
    *,
    seed: int,
    one_sided: bool = False,
    **rest: Any,
) -> AuditRow:
    # How well a score tells two groups apart.
    found = auc_interval(*scores, level=runs.level)
    return AuditRow(
        test,
        adversary,
        statistic,
        found.value,
        low=found.low,
        high=found.high,
        p=permutation_test(*scores, one_sided=one_sided, seed=seed),
        **rest,
    )


def _of_nodes(
    runs: Runs, test: str, adversary: str, statistic: str, score: Tensor
) -> AuditRow:
    # Removed members against nodes that never were.
    assert runs.others is not None
    return _compared(
        runs,
        test,
        adversary,
        statistic,
        (score[runs.members], score[runs.others]),
        seed=rng.derive(runs.seed, _DRAW, 1),
        one_sided=True,
        expected='0.5, if candidates were drawn as the removed nodes were',
    )


@ATTACKS.builtin('membership', needs='candidates')
def membership(runs: Runs) -> list[AuditRow]:
    """Tell removed nodes by the log probability of their class."""
    answers = runs.run().answers
    y = runs.data.y.clamp(min=0)
    own = answers.double().gather(1, y[:, None]).squeeze(1)
    return [
        _of_nodes(
            runs,
            'membership',
            'has the probabilities of one model',
            'AUC of log p(y)',
            own.clamp(min=1e-300).log(),
        )
    ]


@ATTACKS.builtin('label_only', needs='candidates')
def label_only(runs: Runs) -> list[AuditRow]:
    """Tell removed nodes by answers to questions with half of the features."""
    subject = runs.run().subject
    generator = rng.generator(rng.derive(runs.seed, _DRAW, 2))
    hits = torch.zeros(int(runs.data.num_nodes))
    for _ in range(_QUESTIONS):
        asked = runs.data.clone()
        keep = torch.rand(asked.x.shape, generator=generator) < 0.5
        asked.x = asked.x * keep
        hits += subject.predict_proba(asked).argmax(1) == runs.data.y
    return [
        _of_nodes(
            runs,
            'label_only',
            'has the classes that one model answers',
            f'AUC of right answers to {_QUESTIONS} questions',
            hits,
        )
    ]


@ATTACKS.builtin('pair', needs='candidates')
def pair(runs: Runs) -> list[AuditRow]:
    """Guess removed nodes from the changes between two releases."""
    run = runs.run()
    row = _of_nodes(
        runs,
        'pair',
        'has the probabilities before and after',
        'AUC of the change',
        (run.answers.double() - run.first.double()).norm(dim=1),
    )
    return [
        replace(
            row,
            p=NAN,
            expected='above 0.5',
            verdict=LEAKS,
            note='0.5 is what doing nothing gives: fewer releases, labels '
            'alone or noise help',
        )
    ]


@ATTACKS.builtin('poison', needs='members')
def poison(runs: Runs) -> list[AuditRow]:
    """Train on flipped labels, remove them, and look for traces of them."""
    if runs.noisy:
        return _noisy_poison(runs)
    clean = runs.run()
    subject = runs.subject(runs.changed('labels'))
    poisoned = subject.predict_proba(runs.data.clone())
    subject.remove(runs.request)
    after = subject.predict_proba(runs.data.clone())
    rest = torch.isin(runs.data.n_id, runs.left.n_id)
    rest &= ~runs.data.train_mask & (runs.data.y >= 0)
    if not bool(rest.any()):
        rest = torch.isin(runs.data.n_id, runs.left.n_id)

    def right(p: Tensor) -> float:
        return float((p.argmax(1) == runs.data.y)[rest].double().mean())

    moved = not torch.equal(poisoned, clean.first)
    trace = not torch.equal(after, clean.answers)
    return [
        AuditRow(
            'poison',
            'flips the labels of what is removed',
            'share of nodes that are answered otherwise',
            float((after != clean.answers).any(1).double().mean()),
            expected='0',
            verdict=FAILED if trace else KEPT if moved else POWERLESS,
            note=f'accuracy: clean {right(clean.answers):.4f}, poisoned '
            f'{right(poisoned):.4f}, after {right(after):.4f}',
        )
    ]


def _noisy_poison(runs: Runs) -> list[AuditRow]:
    one, two = runs.noisy_runs(), runs.noisy_runs('labels')
    start = rng.derive(runs.seed, _DRAW, 6)
    power = permutation_test(
        torch.tensor([r.first for r in one]),
        torch.tensor([r.first for r in two]),
        seed=start,
    )
    return [
        _compared(
            runs,
            'poison',
            'flips the labels of what is removed',
            'AUC of runs without and with flipped labels',
            (
                torch.tensor([r.score for r in one]),
                torch.tensor([r.score for r in two]),
            ),
            seed=start,
            expected='0.5, p uniform',
            verdict='' if power <= 1 - runs.level else POWERLESS,
        )
    ]


@ATTACKS.builtin('bytes', needs='features')
def bytes_(runs: Runs) -> list[AuditRow]:
    """Search releases for features of a removed node, drawn at random."""
    data = runs.data.clone()
    width = min(_CANARY, data.x.size(1))
    generator = rng.generator(rng.derive(runs.seed, _DRAW, 3))
    # Rounded to half precision: exact in every other dtype, too.
    drawn = torch.rand(width, generator=generator).half()
    start = (data.x.size(1) - width) // 2
    rows = runs.featureless[:1]
    data.x[rows, start : start + width] = drawn.to(data.x.dtype)
    needles = encodings(drawn)
    subject = runs.subject(data)
    before = holding(opened(subject.released()), needles)
    subject.remove(runs.request)
    found = holding(opened(subject.released()), needles)
    return [
        AuditRow(
            'bytes',
            'has everything that was released',
            'releases that hold the features of a removed node',
            float(len(found)),
            expected='0',
            verdict=FAILED if found else KEPT if before else POWERLESS,
            note=grouped(found)
            if found
            else f'{len(before)} held them before'
            if before
            else 'nothing held them before the removal either',
        )
    ]


@ATTACKS.builtin('neighbours', needs='features exact')
def neighbours(runs: Runs) -> list[AuditRow]:
    """Report where, around the removed nodes, releases of twins differ."""
    rows, ball, looked, inside, outside = _twins(runs)
    near, count = int(ball.sum()), ball.numel()
    blind = not looked or all(row.verdict == POWERLESS for row in rows)
    note = f'{inside} of {near} rows near, {outside} of {count - near} '
    note += 'elsewhere'
    if not looked:
        note = 'nothing that is compared has a row for every node'
    wrong = inside or outside
    return [
        AuditRow(
            'neighbours',
            'as of twins, and looks at kept rows of nodes',
            f'share of rows within {_HOPS} hops that differ',
            inside / max(near, 1),
            expected='0',
            verdict=FAILED if wrong else POWERLESS if blind else KEPT,
            note=note,
        )
    ]
