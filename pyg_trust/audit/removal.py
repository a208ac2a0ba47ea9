"""An audit of unlearning: tests that a removal could fail."""

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
from pyg_trust.audit.statistics import holm
from pyg_trust.audit.subjects import Subject
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import provenance

__all__ = ['audit_removal']


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
    """Run an unlearner many times, and test for traces of removed items.

    ============== ================================================ =======
    test           what it compares                                 fits
    ============== ================================================ =======
    twins          releases after the removal, of two data sets     2 to 5
                   that differ in the removed items alone
    neighbours     the same, for rows around the removed nodes      none
    worlds         models that forgot the nodes, and models that    2 K
                   never had them, by logits of their true classes
    poison         a model that forgot nodes with wrong labels, and 2
                   one that forgot them with true labels
    bytes          released bytes with a removed node's features    1
    membership     removed nodes and :obj:`candidates`, by the log  1
                   probability of their true classes
    label_only     the same, by classes from half of the features   none
    pair           the same, by how much probabilities changed      none
    ============== ================================================ =======

    *Fits* are how often the unlearner is trained; some tests reuse models. A
    value without noise that differs between *twins* proves a trace. Values
    that differ between equal runs (wall times, random salts) are listed, and
    not compared. *Worlds* is `LiRA <https://arxiv.org/abs/2112.03570>`_. No
    test can show that data were forgotten, so no verdict is 'passed'.

    Args:
        make (Callable): ``make()`` returns a new unlearner, not fitted, as a
            :class:`Subject`, such as :class:`NodeSubject`.
        data (Data): the graph, with ``x``, ``y`` and ``train_mask``.
        request (RemovalRequest): nodes, features or edges of graph 0.
        tests (list[str], optional): names of tests; by default all that the
            request and the arguments allow.
        candidates (Tensor, optional): int64 ids of nodes outside of the
            training set, drawn by the same rule as the removed ones.
        worlds (int): the runs :math:`K` of each sample. (default: :obj:`16`)
        level (float): the confidence of intervals, and of verdicts by a
            corrected p value. (default: :obj:`0.95`)
        seed (int, optional): the seed of all draws; random by default.

    Raises:
        ValueError: if a test is asked for that the request does not allow.
    """
    if tests is not None:
        check_instance('tests', tests, list, tuple)
    for name in tests or ():
        check_choice('tests', name, ATTACKS)
    runs = Runs(make, data, request, candidates, worlds, level)
    chosen, left_out = [], []
    for name in ATTACKS if tests is None else tests:
        needs = ATTACKS.fact(name, 'needs').split()
        why = next(filter(None, map(runs.lacks, needs)), None)
        if why is None:
            chosen.append(name)
        elif tests is not None:
            raise ValueError(f"'tests': {name} {why}")
        else:
            left_out.append(f'{name}: {why}')
    runs.seed = rng.resolve(seed)
    rows = [row for name in chosen for row in _rows_of(name, runs)]
    # Correct all p values together (Holm).
    which = [i for i, row in enumerate(rows) if row.p == row.p]
    for i, p in zip(which, holm([rows[i].p for i in which]), strict=True):
        verdict = FAILED if p <= 1 - level else rows[i].verdict or KEPT
        rows[i] = replace(rows[i], corrected=p, verdict=verdict)
    return RemovalAudit(
        request=request.to_dict(),
        rows=tuple(rows),
        left_out=tuple(left_out),
        not_compared=kinds_of(runs.random),
        level=level,
        origin=provenance(
            seed=runs.seed, worlds=worlds, level=level, tests=chosen
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
