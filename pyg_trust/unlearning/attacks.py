# Longer than 700 lines because the tests of an audit share their runs.
r"""An audit of unlearning: tests that a removal could fail.

**Two questions are kept apart.** *Has the model forgotten?* Twins, worlds,
poison, bytes and membership ask that, and exact unlearning must not be
rejected by them. *What do releases tell?* The pair of releases, before and
after, reveals a removal that was exact as well: it leaks by design.

No test can show that something was forgotten. The verdicts are 'failed',
'not rejected', 'leaks by design' and 'no power', never 'passed', and there is
no score of them all.

What each finds was measured with planted faults: twins find every fault that
leaves a trace in what is released, in two runs; worlds find one shard of four
that was not trained again; membership inference of one model does not, which
is why it proves nothing.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import k_hop_subgraph

from pyg_trust import rng
from pyg_trust._checks import (
    check_callable,
    check_choice,
    check_fraction,
    check_instance,
    check_integer,
)
from pyg_trust.functional.attacks import auc_interval, holm, permutation_test
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.report import provenance
from pyg_trust.unlearning.audit_report import (
    FAILED,
    KEPT,
    LEAKS,
    NAN,
    POWERLESS,
    AuditReport,
    AuditRow,
    row_of,
)
from pyg_trust.unlearning.noisy_runs import (
    NoisyRun,
    mean,
    numbers,
    told_apart,
)
from pyg_trust.unlearning.releases import (
    differing,
    encodings,
    grouped,
    holding,
    kinds_of,
    opened,
    size_of,
)
from pyg_trust.unlearning.subjects import Released, Subject

TESTS = (
    'twins',
    'worlds',
    'membership',
    'label_only',
    'pair',
    'poison',
    'bytes',
    'neighbours',
)

# Parts of the seed: the runs, and what is changed or drawn.
_RUN, _WORLD, _CHANGE, _DRAW, _TWIN = 0, 1, 2, 3, 4
_QUESTIONS = 15
_CANARY = 16
_HOPS = 3
_CONFIRM = 3


def audit_removal(
    make: Callable[[], Subject],
    data: Data,
    request: RemovalRequest,
    *,
    tests: Sequence[str] | None = None,
    candidates: Tensor | None = None,
    worlds: int = 16,
    level: float = 0.95,
    seed: int | None = None,
) -> AuditReport:
    r"""Runs an unlearner many times, and tries to see what it forgot.

    ============== ================================================ =======
    test           what it compares                                 runs
    ============== ================================================ =======
    twins          two data sets that differ only in the content    2 to 5
                   of what is removed, with the same seed:
                   everything released has to be equal
    neighbours     where around the removed nodes twins differ      none
    worlds         models that forgot, and models that never saw    2 K
                   (two samples of runs)
    poison         a removal of flipped labels, and of true ones    2
    bytes          a search for features drawn at random            1
    membership     removed nodes and nodes that never were there,   1
                   by the log probability of their class
    label_only     the same by answers to questions with half of    none
                   the features
    pair           the same by what changed between two releases    none
    ============== ================================================ =======

    *Twins* are certain: one difference is a proof of a trace, for this pair
    and seed. First the control: the same data twice, which tells what a seed
    does not fix (wall times, random salts), and both twins *before* the
    removal, which have to differ, else the test has no power. It has none over
    what is not compared: the row says how much that is, and where features of
    what was removed could be hidden in it (a part of as many bytes, or as many
    more than before the removal), that is its verdict. What differs is
    run three times more on either side, so that a coin or a clock that agreed
    in the control by chance is no trace: it would have to agree four times on
    either side, and differ between them (a fair coin: one in 256).

    Where a subject says that its releases are :obj:`noisy`, no two runs agree
    to the bit, and twins and poison compare two samples of runs.

    *Worlds* (as in `LiRA <https://arxiv.org/abs/2112.03570>`_): the score of a
    run is the mean logit of the probability of their classes at the removed
    nodes, asked on the original graph. Nodes of one run depend on one another,
    so that a run counts once; p is that of exchanging runs. Exact unlearning
    gives exchangeable runs and a uniform p. A few dozens of runs find faults
    and bound no epsilon: the row says which one would be the largest that
    they could show.

    *Membership*, *label_only* and *pair* compare removed nodes with
    :obj:`candidates` that were never members. That is meaningful only if both
    were drawn by the same rule; the function cannot know, and without
    candidates leaves the three out. Of the pair nothing below one half is
    good: it is above for exact unlearning, and one half if nothing was done.

    Args:
        make (Callable): makes a fresh subject (:class:`Subject`).
        data (Data): the graph, with ``x``, ``y`` and ``train_mask``.
        request (RemovalRequest): nodes, features or edges of graph 0.
        tests (list[str], optional): which of them; by default all that the
            request and the arguments allow. (default: :obj:`None`)
        candidates (Tensor, optional): names of nodes outside of the training
            set, drawn by the rule by which the removed ones were.
            (default: :obj:`None`)
        worlds (int): the runs :math:`K` of each of the two worlds.
            (default: :obj:`16`)
        level (float): the confidence of intervals, and of verdicts by a
            corrected p. (default: :obj:`0.95`)
        seed (int, optional): of everything that is drawn.
            (default: :obj:`None`)

    Raises:
        TypeError, ValueError: if an argument is malformed; if a test is asked
            for that the request does not allow.
    """
    check_callable('make', make)
    check_instance('data', data, Data)
    check_instance('request', request, RemovalRequest)
    check_integer('worlds', worlds, 2)
    check_fraction('level', level)
    if tests is not None and (
        isinstance(tests, str) or not isinstance(tests, Sequence)
    ):
        raise TypeError(
            f"'tests' needs to be a list (got {type(tests).__name__})"
        )
    for name in tests or ():
        check_choice('tests', name, TESTS)
    audit = _Audit(make, data, request, candidates, worlds, level)
    audit.noisy = bool(getattr(audit.made(), 'noisy', False))
    reasons = audit.reasons()
    if tests is None:
        chosen = [name for name in TESTS if name not in reasons]
    else:
        chosen = [name for name in TESTS if name in tests]
        for name in chosen:
            if name in reasons:
                raise ValueError(f"'tests': {name} {reasons[name]}")
        reasons = {}
    audit.start(seed)
    rows = [row for name in chosen for row in getattr(audit, name)()]
    return AuditReport(
        request=request.to_dict(),
        rows=tuple(_with_verdicts(rows, level)),
        left_out=tuple(f'{name}: {why}' for name, why in reasons.items()),
        not_compared=kinds_of(audit.random),
        level=level,
        origin=provenance(
            seed=audit.seed, worlds=worlds, level=level, tests=list(chosen)
        ),
    )


def _with_verdicts(rows: list[AuditRow], level: float) -> list[AuditRow]:
    # Those that have a p value get theirs here, all together.
    which = [i for i, row in enumerate(rows) if row.p == row.p]
    corrected = holm([rows[i].p for i in which])
    rows = list(rows)
    for i, p in zip(which, corrected, strict=True):
        verdict = rows[i].verdict or KEPT
        if p <= 1 - level:
            verdict = FAILED
        rows[i] = AuditRow(
            **{**vars(rows[i]), 'corrected': p, 'verdict': verdict}
        )
    return rows


class _Audit:
    # One audit: the runs that its tests share, and the tests.

    def __init__(
        self,
        make: Callable[[], Subject],
        data: Data,
        request: RemovalRequest,
        candidates: Tensor | None,
        worlds: int,
        level: float,
    ) -> None:
        if request.graphs != [0] or request.parts[0].whole:
            raise ValueError(
                "'request' needs to name nodes, features or edges of graph 0 "
                f'(got graphs {request.graphs})'
            )
        for name in ('x', 'y', 'edge_index', 'train_mask'):
            if not isinstance(data.get(name), Tensor):
                raise ValueError(f"'data' needs to have a tensor '{name}'")
        self.make, self.data, self.request = make, data.clone(), request
        if data.get('n_id') is None:
            self.data.n_id = torch.arange(int(data.num_nodes))
        self.part = request.parts[0]
        self.left = remove_from_data(self.data, self.part)
        self.removed = self.rows(self.part.nodes)
        self.featureless = self.rows((*self.part.nodes, *self.part.features))
        self.others = self.checked(candidates)
        self.worlds_count, self.level = worlds, level
        self.seed = 0
        self.noisy = False
        self.random: set[str] = set()
        self._runs: dict[str, tuple[Released, Released, Tensor]] = {}
        self._twin_rows: list[AuditRow] | None = None
        self._confirmed: set[str] = set()
        self._noisy: dict[str, list[NoisyRun]] = {}
        self._ball: tuple[int, int, int, int] = (0, 0, 0, 0)
        # What has rows of nodes and could have differed.
        self._looked: set[str] = set()

    def rows(self, names: Sequence[int]) -> Tensor:
        place = {name: i for i, name in enumerate(self.data.n_id.tolist())}
        return torch.tensor([place[name] for name in names], dtype=torch.int64)

    def checked(self, candidates: Tensor | None) -> Tensor | None:
        if candidates is None:
            return None
        check_instance('candidates', candidates, Tensor)
        if candidates.dtype != torch.int64 or candidates.dim() != 1:
            raise TypeError(
                "'candidates' needs to hold names, int64 "
                f'(got {candidates.dtype}, {list(candidates.shape)})'
            )
        known = torch.isin(candidates, self.data.n_id)
        if not bool(known.all()) or candidates.numel() < 2:
            raise ValueError(
                "'candidates' needs to name at least two nodes of 'data'"
            )
        rows = self.rows(candidates.tolist())
        if bool(self.data.train_mask[rows].any()):
            raise ValueError(
                "'candidates' needs to name nodes that were never members "
                '(got one of the training nodes)'
            )
        return rows

    def reasons(self) -> dict[str, str]:
        found = {}
        members = self.removed[self.data.train_mask[self.removed]]
        for name in ('membership', 'label_only', 'pair'):
            if members.numel() < 2:
                found[name] = 'needs at least two training nodes to be removed'
            elif self.others is None:
                found[name] = "needs 'candidates' that were drawn alike"
        if members.numel() == 0:
            for name in ('worlds', 'poison'):
                found[name] = 'needs training nodes to be removed'
        if self.featureless.numel() == 0:
            for name in ('bytes', 'twins', 'neighbours'):
                found[name] = 'needs nodes or their features to be removed'
        if self.noisy:
            found['neighbours'] = 'needs releases without noise'
        return found

    # Runs

    def start(self, seed: int | None) -> None:
        self.seed = rng.resolve(seed)

    def made(self) -> Subject:
        made = self.make()
        if not isinstance(made, Subject):
            raise TypeError(
                "'make' needs to make an object with fit, remove, "
                f'predict_proba and released (got {type(made).__name__})'
            )
        return made

    def subject(self, data: Data, *path: int) -> Subject:
        made = self.made()
        made.fit(data.clone(), rng.derive(self.seed, *path))
        return made

    def run(self, name: str, data: Data) -> tuple[Released, Released, Tensor]:
        # What is released before and after, and the answers after, of a run
        # with the one seed that twins share.
        if name not in self._runs:
            subject = self.subject(data, _RUN)
            before = opened(subject.released())
            first = subject.predict_proba(self.data.clone())
            subject.remove(self.request)
            after = opened(subject.released())
            answers = subject.predict_proba(self.data.clone())
            self._runs[name] = before, after, answers
            if name == 'data':
                self.first, self.subject_after = first, subject
        return self._runs[name]

    # Twins

    def changed(self, what: str) -> Data:
        data = self.data.clone()
        generator = rng.generator(rng.derive(self.seed, _CHANGE))
        if what == 'features':
            rows = self.featureless
            if rows.numel() > 1:
                data.x[rows] = data.x[rows.roll(1)]
            else:
                data.x[rows] = data.x[rows].roll(1, 1)
        elif what == 'labels':
            classes = int(data.y.max()) + 1
            data.y[self.removed] = (data.y[self.removed] + 1) % classes
        else:
            gone = torch.zeros(int(data.num_nodes), dtype=torch.bool)
            gone[self.removed] = True
            stay = (~gone).nonzero().view(-1)
            order = torch.randperm(stay.numel(), generator=generator)
            other = torch.arange(int(data.num_nodes))
            other[stay] = stay[order]
            row, col = data.edge_index
            data.edge_index = torch.stack(
                [
                    torch.where(gone[col], other[row], row),
                    torch.where(gone[row], other[col], col),
                ]
            )
        return data

    def twins(self) -> list[AuditRow]:
        if self._twin_rows is not None:
            return self._twin_rows
        if self.noisy:
            self._twin_rows = self.noisy_twins()
            return self._twin_rows
        one, again = self.run('data', self.data), None
        subject = self.subject(self.data, _RUN)
        before = opened(subject.released())
        subject.remove(self.request)
        again = before, opened(subject.released())
        self.random = set(differing(one[0], again[0])) | set(
            differing(one[1], again[1])
        )
        made = []
        ball = self._around()
        for kind in self.kinds():
            two = self.run(kind, self.changed(kind))
            # What is random afterwards, or not released any more, was not
            # seen to be forgotten.
            power = [
                name
                for name in differing(one[0], two[0], self.random)
                if name in one[1]
            ]
            found = differing(one[1], two[1], self.random)
            if found:
                found = self.confirmed(kind, found)
            self._count(one[1], two[1], found, power, ball)
            note, hides = self._hidden(one[0], one[1])
            if not power:
                note = 'nothing that is compared after the removal differed '
                note += 'before it'
            elif found:
                note = grouped(found)
            if kind == 'features' and hides:
                # Whoever could have put it there may have done so.
                power = []
            made.append(
                row_of(
                    f'twins: {kind}',
                    'owns fit and remove, and chooses the seed',
                    'share of releases that differ',
                    len(found) / max(len(one[1]), 1),
                    expected='0',
                    verdict=FAILED if found else KEPT if power else POWERLESS,
                    note=note,
                )
            )
        self._twin_rows = made
        return made

    def _hidden(self, *runs: Released) -> tuple[str, bool]:
        # What is not compared, and whether features of what was removed could
        # be in it: as a sum with a pad that is released, too.
        before, after = (
            {name: size_of(each[name]) for name in self.random if name in each}
            for each in runs
        )
        content = self.data.x[self.featureless]
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

    def confirmed(self, kind: str, found: list[str]) -> list[str]:
        # A clock in whole seconds, or a coin, may have agreed in the control
        # and differ in a twin: a trace is there in every run.
        for name in ('data', kind):
            if name in self._confirmed:
                continue
            self._confirmed.add(name)
            data = self.data if name == 'data' else self.changed(kind)
            for _ in range(_CONFIRM):
                subject = self.subject(data, _RUN)
                subject.remove(self.request)
                after = opened(subject.released())
                self.random |= set(differing(self._runs[name][1], after))
        return [each for each in found if each not in self.random]

    def kinds(self) -> list[str]:
        return ['features'] + ['labels', 'edges'] * bool(self.removed.numel())

    def noisy_twins(self) -> list[AuditRow]:
        # Two samples of runs for each kind, those of the data shared.
        made = []
        for kind in self.kinds():
            one, two = self.noisy_runs('data'), self.noisy_runs(kind)
            p = told_apart([r.before for r in one], [r.before for r in two])
            after = [r.after for r in one], [r.after for r in two]
            power = p(rng.derive(self.seed, _DRAW, 4)) <= 1 - self.level
            gap = (mean(after[0]) - mean(after[1])).norm()
            made.append(
                row_of(
                    f'twins: {kind}',
                    'owns fit and remove, and chooses the seeds',
                    'distance of mean releases',
                    float(gap),
                    p=told_apart(*after)(rng.derive(self.seed, _DRAW, 5)),
                    expected='noise alone, p uniform',
                    verdict='' if power else POWERLESS,
                    note=f'{self.worlds_count} runs a side, as releases are '
                    'noisy: half of them find the direction'
                    if power
                    else 'releases before the removal can not be told apart '
                    'either',
                )
            )
        return made

    def noisy_runs(self, kind: str) -> list[NoisyRun]:
        if kind not in self._noisy:
            data = self.data if kind == 'data' else self.changed(kind)
            number = ('data', *self.kinds()).index(kind)
            made = []
            for i in range(self.worlds_count):
                subject = self.subject(data, _TWIN, number, i)
                before = numbers(subject.released())
                first = self.score(subject)
                subject.remove(self.request)
                after = numbers(subject.released())
                made.append(
                    NoisyRun(before, after, first, self.score(subject))
                )
            self._noisy[kind] = made
        return self._noisy[kind]

    def _around(self) -> Tensor:
        # Which of the remaining rows are near what was removed.
        near, _, _, _ = k_hop_subgraph(
            self.featureless,
            _HOPS,
            self.data.edge_index,
            num_nodes=int(self.data.num_nodes),
        )
        return torch.isin(self.left.n_id, self.data.n_id[near])

    def _count(
        self,
        one: Released,
        two: Released,
        found: list[str],
        power: list[str],
        ball: Tensor,
    ) -> None:
        inside = outside = 0
        n = ball.numel()
        for name in power:
            value = one.get(name)
            if isinstance(value, Tensor) and n in value.shape:
                self._looked.add(name)
        for name in found:
            a, b = one.get(name), two.get(name)
            if not isinstance(a, Tensor) or not isinstance(b, Tensor):
                continue
            if a.shape != b.shape or n not in a.shape:
                continue
            dim = list(a.shape).index(n)
            rows = (a != b).movedim(dim, 0).reshape(n, -1).any(1)
            inside = max(inside, int((rows & ball).sum()))
            outside = max(outside, int((rows & ~ball).sum()))
        known = self._ball
        self._ball = (
            max(known[0], inside),
            max(known[1], outside),
            int(ball.sum()),
            n,
        )

    def neighbours(self) -> list[AuditRow]:
        rows = self.twins()
        inside, outside, near, count = self._ball
        powerless = not self._looked or all(
            row.verdict == POWERLESS for row in rows
        )
        note = f'{inside} of {near} rows near, {outside} of '
        note += f'{count - near} elsewhere'
        if not self._looked:
            note = 'nothing that is compared has a row for every node'
        return [
            row_of(
                'neighbours',
                'as of twins, and looks at kept rows of nodes',
                f'share of rows within {_HOPS} hops that differ',
                inside / max(near, 1),
                expected='0',
                verdict=FAILED
                if inside or outside
                else POWERLESS
                if powerless
                else KEPT,
                note=note,
            )
        ]

    # Two samples of runs

    def score(self, subject: Subject) -> float:
        members = self.removed[self.data.train_mask[self.removed]]
        p = subject.predict_proba(self.data.clone())[members].double()
        own = p.gather(1, self.data.y[members, None]).clamp(1e-12, 1 - 1e-12)
        return float((own / (1 - own)).log().mean())

    def worlds(self) -> list[AuditRow]:
        forgot, never = [], []
        for i in range(self.worlds_count):
            subject = self.subject(self.data, _WORLD, 0, i)
            subject.remove(self.request)
            forgot.append(self.score(subject))
            never.append(self.score(self.subject(self.left, _WORLD, 1, i)))
        one, two = torch.tensor(forgot), torch.tensor(never)
        found = auc_interval(one, two, level=self.level)
        # Of Clopper and Pearson, if a threshold from one half of the runs
        # tells the other half apart without an error.
        rate = ((1 - self.level) / 2) ** (1 / max(self.worlds_count // 2, 1))
        ceiling = max(float(np.log(rate / (1 - rate))), 0.0)
        return [
            row_of(
                'worlds',
                'owns fit and remove, and chooses the seeds',
                'AUC of runs',
                found.value,
                low=found.low,
                high=found.high,
                p=permutation_test(
                    one, two, seed=rng.derive(self.seed, _DRAW)
                ),
                expected='0.5, p uniform',
                note=f'{self.worlds_count} runs a side: no lower bound for '
                f'epsilon above {ceiling:.2f} is possible',
            )
        ]

    # One model

    def compared(
        self, test: str, adversary: str, statistic: str, score: Tensor
    ) -> AuditRow:
        assert self.others is not None
        members = self.removed[self.data.train_mask[self.removed]]
        one, two = score[members], score[self.others]
        found = auc_interval(one, two, level=self.level)
        p = permutation_test(
            one, two, one_sided=True, seed=rng.derive(self.seed, _DRAW, 1)
        )
        return row_of(
            test,
            adversary,
            statistic,
            found.value,
            low=found.low,
            high=found.high,
            p=p,
            expected='0.5, if candidates were drawn as the removed nodes were',
        )

    def membership(self) -> list[AuditRow]:
        _, _, answers = self.run('data', self.data)
        y = self.data.y.clamp(min=0)
        own = answers.double().gather(1, y[:, None]).squeeze(1)
        row = self.compared(
            'membership',
            'has the probabilities of one model',
            'AUC of log p(y)',
            own.clamp(min=1e-300).log(),
        )
        return [row]

    def label_only(self) -> list[AuditRow]:
        self.run('data', self.data)
        generator = rng.generator(rng.derive(self.seed, _DRAW, 2))
        hits = torch.zeros(int(self.data.num_nodes))
        for _ in range(_QUESTIONS):
            asked = self.data.clone()
            keep = torch.rand(asked.x.shape, generator=generator) < 0.5
            asked.x = asked.x * keep
            answer = self.subject_after.predict_proba(asked).argmax(1)
            hits += answer == self.data.y
        row = self.compared(
            'label_only',
            'has the classes that one model answers',
            f'AUC of right answers to {_QUESTIONS} questions',
            hits,
        )
        return [row]

    def pair(self) -> list[AuditRow]:
        _, _, answers = self.run('data', self.data)
        gap = (answers.double() - self.first.double()).norm(dim=1)
        row = self.compared(
            'pair',
            'has the probabilities before and after',
            'AUC of the change',
            gap,
        )
        found = vars(row) | {
            'p': NAN,
            'expected': 'above 0.5',
            'verdict': LEAKS,
            'note': '0.5 is what doing nothing gives: fewer releases, labels '
            'alone or noise help',
        }
        return [AuditRow(**found)]

    # Poison and bytes

    def noisy_poison(self) -> list[AuditRow]:
        one, two = self.noisy_runs('data'), self.noisy_runs('labels')
        clean, after = ([r.score for r in runs] for runs in (one, two))
        start = rng.derive(self.seed, _DRAW, 6)
        power = permutation_test(
            torch.tensor([r.first for r in one]),
            torch.tensor([r.first for r in two]),
            seed=start,
        )
        found = auc_interval(
            torch.tensor(clean), torch.tensor(after), level=self.level
        )
        return [
            row_of(
                'poison',
                'flips the labels of what is removed',
                'AUC of runs without and with flipped labels',
                found.value,
                low=found.low,
                high=found.high,
                p=permutation_test(
                    torch.tensor(clean), torch.tensor(after), seed=start
                ),
                expected='0.5, p uniform',
                verdict='' if power <= 1 - self.level else POWERLESS,
            )
        ]

    def poison(self) -> list[AuditRow]:
        if self.noisy:
            return self.noisy_poison()
        _, _, clean = self.run('data', self.data)
        data = self.changed('labels')
        subject = self.subject(data, _RUN)
        poisoned = subject.predict_proba(self.data.clone())
        subject.remove(self.request)
        after = subject.predict_proba(self.data.clone())
        rest = torch.isin(self.data.n_id, self.left.n_id)
        rest &= ~self.data.train_mask & (self.data.y >= 0)
        if not bool(rest.any()):
            rest = torch.isin(self.data.n_id, self.left.n_id)
        y = self.data.y

        def right(p: Tensor) -> float:
            return float((p.argmax(1) == y)[rest].double().mean())

        moved = not torch.equal(poisoned, self.first)
        trace = not torch.equal(after, clean)
        return [
            row_of(
                'poison',
                'flips the labels of what is removed',
                'share of nodes that are answered otherwise',
                float((after != clean).any(1).double().mean()),
                expected='0',
                verdict=FAILED if trace else KEPT if moved else POWERLESS,
                note=f'accuracy: clean {right(clean):.4f}, poisoned '
                f'{right(poisoned):.4f}, after {right(after):.4f}',
            )
        ]

    def bytes(self) -> list[AuditRow]:
        data = self.data.clone()
        width = min(_CANARY, data.x.size(1))
        generator = rng.generator(rng.derive(self.seed, _DRAW, 3))
        # Of half precision, so that it is the same number in any other.
        drawn = torch.rand(width, generator=generator).half()
        start = (data.x.size(1) - width) // 2
        rows = self.featureless[:1]
        data.x[rows, start : start + width] = drawn.to(data.x.dtype)
        needles = encodings(drawn)
        subject = self.subject(data, _RUN)
        before = holding(opened(subject.released()), needles)
        subject.remove(self.request)
        found = holding(opened(subject.released()), needles)
        return [
            row_of(
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


# Releases ####################################################################
