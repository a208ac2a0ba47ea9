r"""An audit of unlearning: tests that a removal could fail.

**Two questions are kept apart.** *Has the model forgotten?* Twins, worlds,
poison, bytes and membership ask that, and exact unlearning must not be
rejected by them. *What do releases reveal?* The pair of releases, before and
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
from dataclasses import replace
from typing import Annotated

from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import (
    Fraction,
    Int,
    check_choice,
    check_instance,
    validated,
)
from pyg_trust.audit.attacks import ATTACKS
from pyg_trust.audit.releases import kinds_of
from pyg_trust.audit.report import (
    FAILED,
    KEPT,
    VERDICTS,
    AuditRow,
    RemovalAudit,
)
from pyg_trust.audit.runs import Runs
from pyg_trust.audit.scores import holm
from pyg_trust.audit.subjects import Subject
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import provenance


@validated
def audit_removal(
    make: Callable[[], Subject],
    data: Data,
    request: RemovalRequest,
    *,
    tests: Sequence[str] | None = None,
    candidates: Tensor | None = None,
    worlds: Annotated[int, Int(2)] = 16,
    level: Fraction = 0.95,
    seed: int | None = None,
) -> RemovalAudit:
    r"""Run an unlearner many times, and test for traces of removed items.

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
    and seed. First the control: the same data twice, which shows what a seed
    does not fix (wall times, random salts), and both twins *before* the
    removal, which have to differ, else the test has no power. It has none over
    what is not compared: the row says how much that is, and where features of
    what was removed could be hidden in it (a part of as many bytes, or as many
    more than before the removal), that is its verdict. What differs is
    run three times more on either side, so that a random bit or a clock that
    agreed in the control by chance is no trace: it would have to agree four
    times on either side, and differ between them (a random bit: one in 256).

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
        tests (list[str], optional): the names of attacks; by default all that
            the request and the arguments allow. (default: :obj:`None`)
        candidates (Tensor, optional): ids of nodes outside of the training
            set, drawn by the rule by which the removed ones were.
            (default: :obj:`None`)
        worlds (int): the runs :math:`K` of each of the two worlds.
            (default: :obj:`16`)
        level (float): the confidence of intervals, and of verdicts by a
            corrected p. (default: :obj:`0.95`)
        seed (int, optional): the seed of everything that is drawn. (default:
            :obj:`None`)

    Raises:
        TypeError, ValueError: if an argument is malformed; if a test is asked
            for that the request does not allow.
    """
    if tests is not None and (
        isinstance(tests, str) or not isinstance(tests, Sequence)
    ):
        raise TypeError(
            f"'tests' needs to be a list (got {type(tests).__name__})"
        )
    for name in tests or ():
        check_choice('tests', name, ATTACKS)
    runs = Runs(make, data, request, candidates, worlds, level)
    reasons = {
        name: lacking[0]
        for name in ATTACKS
        if (
            lacking := [
                why
                for need in ATTACKS.fact(name, 'needs').split()
                if (why := runs.lacks(need))
            ]
        )
    }
    chosen = [name for name in ATTACKS if tests is None or name in tests]
    if tests is None:
        chosen = [name for name in chosen if name not in reasons]
    else:
        for name in chosen:
            if name in reasons:
                raise ValueError(f"'tests': {name} {reasons[name]}")
        reasons = {}
    runs.seed = rng.resolve(seed)
    rows = [row for name in chosen for row in _rows_of(name, runs)]
    return RemovalAudit(
        request=request.to_dict(),
        rows=tuple(_with_verdicts(rows, level)),
        left_out=tuple(f'{name}: {why}' for name, why in reasons.items()),
        not_compared=kinds_of(runs.random),
        level=level,
        origin=provenance(
            seed=runs.seed, worlds=worlds, level=level, tests=list(chosen)
        ),
    )


def _rows_of(name: str, runs: Runs) -> list[AuditRow]:
    rows = list(ATTACKS[name](runs))
    for row in rows:
        check_instance(f'attack {name!r}', row, AuditRow)
        by_p = ('',) if row.p == row.p else ()
        check_choice('verdict', row.verdict, (*VERDICTS, *by_p))
    if ATTACKS.is_own(name):
        note = ATTACKS.note(name)
        rows = [
            replace(row, note='; '.join(filter(None, (row.note, note))))
            for row in rows
        ]
    return rows


def _with_verdicts(rows: list[AuditRow], level: float) -> list[AuditRow]:
    # Correct all p values together (Holm).
    which = [i for i, row in enumerate(rows) if row.p == row.p]
    corrected = holm([rows[i].p for i in which])
    rows = list(rows)
    for i, p in zip(which, corrected, strict=True):
        verdict = rows[i].verdict or KEPT
        if p <= 1 - level:
            verdict = FAILED
        rows[i] = replace(rows[i], corrected=p, verdict=verdict)
    return rows
