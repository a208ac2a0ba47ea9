"""Attacks on a removal: each is one function, registered by its name.

An attack takes the :class:`~pyg_trust.audit.Runs` of an audit and returns its
rows, or yields them. A row with a ``p`` gets its verdict after Holm's
correction over all rows of the audit; any other names one of
:obj:`~pyg_trust.audit.report.VERDICTS`. ``needs`` lists conditions
(:obj:`~pyg_trust.audit.runs.NEEDS`): an attack is left out where one is not
met, and the report says why.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import k_hop_subgraph

from pyg_trust import rng
from pyg_trust.audit.releases import encodings, grouped, holding, opened
from pyg_trust.audit.report import (
    FAILED,
    KEPT,
    LEAKS,
    POWERLESS,
    AuditRow,
)
from pyg_trust.audit.runs import Runs, numbers
from pyg_trust.audit.statistics import (
    auc_interval,
    permutation_test,
    told_apart,
)
from pyg_trust.registries import Registry

__all__ = ['ATTACKS']

# Parts of the seed: runs of worlds, and what is drawn.
_WORLD, _DRAW = 1, 3
_QUESTIONS = 15
_CANARY = 16
_HOPS = 3
_TRAINS = 'owns fit and remove, and chooses the seeds'
_ALIKE = '0.5, if candidates were drawn as the removed nodes were'


#: Attacks on a removal, in the order in which an audit runs them.
ATTACKS: Registry[Callable[[Runs], Iterable[AuditRow]]] = Registry(
    'attack', facts=('needs',)
)


@ATTACKS.builtin('twins', needs='features')
def twins(runs: Runs) -> Iterable[AuditRow]:
    """Compare bits released of graphs that differ in removed items alone."""
    for kind in runs.kinds():
        if runs.noisy:
            yield _noisy_twins(runs, kind)
            continue
        power, found = runs.compared(kind)
        yield AuditRow(
            f'twins: {kind}',
            'owns fit and remove, and chooses the seed',
            'share of releases that differ',
            len(found) / max(len(runs.run().after), 1),
            expected='0',
            verdict=FAILED if found else KEPT if power else POWERLESS,
            note=grouped(found)
            if found or power
            else 'nothing that is compared after the removal differed '
            'before it',
        )


def _noisy_twins(runs: Runs, kind: str) -> AuditRow:
    # Two samples of runs, those of the data shared.
    one, two = runs.noisy_runs(), runs.noisy_runs(kind)
    p = told_apart(*([numbers(r.before) for r in s] for s in (one, two)))
    after = [[numbers(r.after) for r in side] for side in (one, two)]
    power = p(rng.derive(runs.seed, _DRAW, 4)) <= 1 - runs.level
    means = [torch.stack(each).mean(0) for each in after]
    return AuditRow(
        f'twins: {kind}',
        _TRAINS,
        'distance of mean releases',
        float((means[0] - means[1]).norm()),
        p=told_apart(*after)(rng.derive(runs.seed, _DRAW, 5)),
        expected='noise alone, p uniform',
        verdict='' if power else POWERLESS,
        note=f'{runs.worlds} runs a side, as releases are noisy: half of '
        'them find the direction'
        if power
        else 'releases before the removal can not be distinguished either',
    )


def _auc(
    runs: Runs, one: Tensor, two: Tensor, *draw: int, one_sided: bool = False
) -> dict[str, Any]:
    # How well a score tells two groups apart, as fields of a row.
    seed = rng.derive(runs.seed, _DRAW, *draw)
    p = permutation_test(one, two, one_sided=one_sided, seed=seed)
    return {**auc_interval(one, two, level=runs.level)._asdict(), 'p': p}


@ATTACKS.builtin('worlds', needs='members')
def worlds(runs: Runs) -> Iterable[AuditRow]:
    """Compare models that forgot with models that never saw the data."""
    forgot, never = [], []
    for i in range(runs.worlds):
        subject = runs.subject(runs.data, _WORLD, 0, i)
        subject.remove(runs.request)
        forgot.append(runs.score(subject.predict_proba(runs.data.clone())))
        subject = runs.subject(runs.left, _WORLD, 1, i)
        never.append(runs.score(subject.predict_proba(runs.data.clone())))
    # Bound of Clopper and Pearson, for a threshold chosen on half of the runs
    # that classifies the other half without an error.
    rate = ((1 - runs.level) / 2) ** (1 / max(runs.worlds // 2, 1))
    ceiling = max(float(np.log(rate / (1 - rate))), 0.0)
    yield AuditRow(
        'worlds',
        _TRAINS,
        'AUC of runs',
        **_auc(runs, torch.tensor(forgot), torch.tensor(never)),
        expected='0.5, p uniform',
        note=f'{runs.worlds} runs a side: no lower bound for epsilon above '
        f'{ceiling:.2f} is possible',
    )


def _of_nodes(runs: Runs, score: Tensor) -> dict[str, Any]:
    # Removed members against nodes that never were.
    ours, others = score[runs.members], score[runs.others]
    return _auc(runs, ours, others, 1, one_sided=True)


@ATTACKS.builtin('membership', needs='candidates')
def membership(runs: Runs) -> Iterable[AuditRow]:
    """Tell removed nodes by the log probability of their class."""
    y = runs.data.y.clamp(min=0)
    own = runs.run().answers.double().gather(1, y[:, None]).squeeze(1)
    yield AuditRow(
        'membership',
        'has the probabilities of one model',
        'AUC of log p(y)',
        **_of_nodes(runs, own.clamp(min=1e-300).log()),
        expected=_ALIKE,
    )


@ATTACKS.builtin('label_only', needs='candidates')
def label_only(runs: Runs) -> Iterable[AuditRow]:
    """Tell removed nodes by answers to questions with half of the features."""
    subject = runs.run().subject
    assert subject is not None
    generator = rng.generator(rng.derive(runs.seed, _DRAW, 2))
    hits = torch.zeros(int(runs.data.num_nodes))
    for _ in range(_QUESTIONS):
        asked = runs.data.clone()
        keep = torch.rand(asked.x.shape, generator=generator) < 0.5
        asked.x = asked.x * keep
        hits += subject.predict_proba(asked).argmax(1) == runs.data.y
    yield AuditRow(
        'label_only',
        'has the classes that one model answers',
        f'AUC of right answers to {_QUESTIONS} questions',
        **_of_nodes(runs, hits),
        expected=_ALIKE,
    )


@ATTACKS.builtin('pair', needs='candidates')
def pair(runs: Runs) -> Iterable[AuditRow]:
    """Guess removed nodes from the changes between two releases."""
    run = runs.run()
    found = _of_nodes(
        runs, (run.answers.double() - run.first.double()).norm(dim=1)
    )
    del found['p']
    yield AuditRow(
        'pair',
        'has the probabilities before and after',
        'AUC of the change',
        **found,
        expected='above 0.5',
        verdict=LEAKS,
        note='0.5 is what doing nothing gives: fewer releases, labels alone '
        'or noise help',
    )


@ATTACKS.builtin('poison', needs='members')
def poison(runs: Runs) -> Iterable[AuditRow]:
    """Train on flipped labels, remove them, and look for traces of them."""
    if runs.noisy:
        sides = runs.noisy_runs(), runs.noisy_runs('labels')
        first = [[runs.score(r.first) for r in side] for side in sides]
        after = [[runs.score(r.answers) for r in side] for side in sides]
        one, two = map(torch.tensor, after)
        seed = rng.derive(runs.seed, _DRAW, 6)
        power = permutation_test(*map(torch.tensor, first), seed=seed)
        yield AuditRow(
            'poison',
            'flips the labels of what is removed',
            'AUC of runs without and with flipped labels',
            **_auc(runs, one, two, 6),
            expected='0.5, p uniform',
            verdict='' if power <= 1 - runs.level else POWERLESS,
        )
        return
    clean, poisoned = runs.run(), runs.run('labels')
    stay = torch.isin(runs.data.n_id, runs.left.n_id)

    def right(p: Tensor) -> float:
        return float((p.argmax(1) == runs.data.y)[stay].double().mean())

    differ = poisoned.answers != clean.answers
    moved = not torch.equal(poisoned.first, clean.first)
    yield AuditRow(
        'poison',
        'flips the labels of what is removed',
        'share of nodes that are answered otherwise',
        float(differ.any(1).double().mean()),
        expected='0',
        verdict=FAILED if differ.any() else KEPT if moved else POWERLESS,
        note='accuracy of the nodes that stay: clean '
        f'{right(clean.answers):.4f}, poisoned {right(poisoned.first):.4f}, '
        f'after {right(poisoned.answers):.4f}',
    )


@ATTACKS.builtin('bytes', needs='features')
def bytes_(runs: Runs) -> Iterable[AuditRow]:
    """Search releases for features of a removed node, drawn at random."""
    data = runs.data.clone()
    width = min(_CANARY, data.x.size(1))
    generator = rng.generator(rng.derive(runs.seed, _DRAW, 3))
    # Rounded to half precision: exact in every other dtype, too.
    drawn = torch.rand(width, generator=generator).half()
    start = (data.x.size(1) - width) // 2
    data.x[runs.featureless[:1], start : start + width] = drawn.to(data.x)
    subject, needles = runs.subject(data), encodings(drawn)
    before = holding(opened(subject.released()), needles)
    subject.remove(runs.request)
    found = holding(opened(subject.released()), needles)
    yield AuditRow(
        'bytes',
        'has everything that was released',
        'releases that hold the features of a removed node',
        float(len(found)),
        expected='0',
        verdict=FAILED if found else KEPT if before else POWERLESS,
        note=grouped(found) or f'{len(before)} held them before the removal',
    )


@ATTACKS.builtin('neighbours', needs='features exact')
def neighbours(runs: Runs) -> Iterable[AuditRow]:
    """Report where, around the removed nodes, releases of twins differ."""
    near, _, _, _ = k_hop_subgraph(
        runs.featureless,
        _HOPS,
        runs.data.edge_index,
        num_nodes=int(runs.data.num_nodes),
    )
    ball = torch.isin(runs.left.n_id, runs.data.n_id[near])
    n, looked, inside, outside = ball.numel(), False, 0, 0
    for kind in runs.kinds():
        power, found = runs.compared(kind)
        one, two = runs.run().after, runs.run(kind).after
        for name in {*power, *found}:
            a, b = one.get(name), two.get(name)
            # Released tables with a row for each kept node.
            if not isinstance(a, Tensor) or n not in a.shape:
                continue
            looked |= name in power
            if name in found and isinstance(b, Tensor) and a.shape == b.shape:
                rows = (a != b).movedim(list(a.shape).index(n), 0)
                rows = rows.reshape(n, -1).any(1)
                inside = max(inside, int((rows & ball).sum()))
                outside = max(outside, int((rows & ~ball).sum()))
    count = int(ball.sum())
    yield AuditRow(
        'neighbours',
        'as of twins, and looks at kept rows of nodes',
        f'share of rows within {_HOPS} hops that differ',
        inside / max(count, 1),
        expected='0',
        verdict=FAILED if inside or outside else KEPT if looked else POWERLESS,
        note=f'{inside} of {count} rows near, {outside} of {n - count} '
        'elsewhere'
        if looked
        else 'nothing that is compared has a row for every node',
    )
