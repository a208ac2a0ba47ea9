"""Reports of models that forget: plans, removals and verifications."""

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from pyg_trust._checks import check_instance
from pyg_trust.report import Guarantee, Report
from pyg_trust.report.base import plain, stated
from pyg_trust.report.charts import Chart, verified
from pyg_trust.verify.claims import finite, outwards
from pyg_trust.verify.claims_removal import ROWS, CountRemoval, GraphRemoval
from pyg_trust.verify.declare import Claim
from pyg_trust.verify.promises import PROMISES

__all__ = [
    'SAME',
    'AdditionReport',
    'ForgetPlan',
    'ForgetReport',
    'ShardReport',
    'VerifyReport',
]

F = TypeVar('F', bound='Facts')
SAME = (
    'rounding hides more than the budget: this release was retrained from '
    'what remains alone, and is compared with a fit by the same program on '
    'it, in place of the exact solution; that it was may reveal one bit of '
    'what was removed',
)
NOT_CHECKED = 'not by the kernel'
# What a verification found, by the field that has to be there.
_FOUND = {
    'feature_error': 'features off by {feature_error:.3g} (allowed '
    '{feature_error_bound:.3g})',
    'embedding_error': 'embeddings off by {embedding_error:.3g}',
    'residual': 'a residual of {residual:.3g} (allowed {bound:.3g})',
    'distance_to_retrain': 'exact retraining {distance_to_retrain:.3g} away '
    '(allowed {distance_bound:.3g})',
    'proved': '{proof}',
    'differing': '{same} of {shards} shards equal, to the bit, to those that '
    'it trained from scratch',
    'aggregator_equal': 'aggregator {aggregator_equal}',
    'outputs_equal': 'outputs {outputs_equal}',
    'keys_match': 'keys of the data {keys_match}',
    'counts_equal': '{num_entries} counts {counts_equal}, to the bit',
    'sealed': 'data and seals {sealed}',
}


class Facts(Report):
    """Base of reports whose fields depend on the model that made them."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **facts: Any) -> None:
        vars(self).update(facts)

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f'cannot assign to {name!r}')

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def _names(self) -> list[str]:
        # Where keys come from is said first.
        return sorted(vars(self), key=lambda name: name != 'secrets')

    def replace(self: F, **facts: Any) -> F:
        """Return a report with other values of some fields."""
        return type(self)(**{**vars(self), **facts})


class ForgetReport(Facts):
    """The result of a removal, what it guarantees, and its cost.

    Keep reports as private as the data: residuals are functions of what was
    removed, and no part of the release. Its fields are those of the claim that
    a checker reads (:mod:`pyg_trust.verify.claims_removal`), and

    * of all models ``procedure``; ``request``, the ids of what was removed;
      ``skipped``, those that were not there, with ``missing='skip'``;
      ``data``, a salted digest of what remains, and ``ledger_head``;
      ``weights``, SHA-256 of the weights; ``origin``, versions and settings;
      ``verification``, the findings that :meth:`verified` adds;
    * of certified classifiers ``action``: ``'hold'`` (the weights already fit
      what remains), ``'step'`` (one step), ``'refine'`` (more steps) or
      ``'retrain'`` (solved from zero, on features made anew; the bound is then
      0, and the release is compared with a fit by the same program);
      ``iterations``, the Newton steps; ``assumptions``;
    * of nodes and links ``rows_touched`` and ``train_rows_touched``, the
      feature rows that may have changed; ``gradient_change``, the residual
      before the first step; ``secure``, whether the noise came from the
      operating system; ``pending``, the additions that wait, which are none;
    * of graphs ``graphs_embedded``, the number of graphs that were embedded
      again; ``empty_classes``; ``accounting``;
    * of shards ``nodes`` and ``node_epochs`` of those that were trained again,
      ``seconds`` by part, ``fraction`` of a full fit, ``by_hash``, ``empty``;
    * of recommenders ``entries_changed``, the counts that changed, and
      ``recounted``, whether all were counted again.
    """

    @classmethod
    def of(cls, procedure: str, **values: Any) -> 'ForgetReport':
        """Make a report; fields not given are computed from the others."""
        kind = PROMISES[procedure]
        names = [name for name in kind.declared if name not in vars(Claim)]
        known: dict[str, Any] = dict.fromkeys(names)
        if not {*names} <= values.keys():
            asked = _asked(procedure, values)
            made = kind(finite(plain({**values, **asked}))).to_dict()
            known = {name: _fixed(made[name]) for name in names}
        known |= {'skipped': {}, 'verification': None, **values}
        return cls(procedure=procedure, **known)

    def guarantee(self) -> Guarantee:
        """State how close the model is to one without the removed items."""
        found, what, checked = self.verification, self.procedure, list[str]()
        values = {**self.numbers(), **_asked(what, vars(self))}
        if what in ROWS:
            checked.append(
                f'{self.rows_touched} rows of features were computed again '
                'from the graph that remains'
            )
        if what in ROWS and self.bound == 0:
            checked.append(
                'the weights were retrained from what remains alone'
            )
        elif what in (*ROWS, GraphRemoval.procedure):
            kind = f'{values.get("num_graphs")} graphs'
            if what in ROWS:
                of = 'training nodes' if what == ROWS[0] else 'pairs'
                kind = f'{self.num_train} {of}'
            checked.append(
                'the gradient residual before the noise was measured on the '
                f'{kind} that remain: {self.residual:.3g}'
            )
        if found is not None:
            checked.append(found.summary())
        if getattr(found, 'proved', False):
            values['residual_checked'] = 'by the kernel, at verify()'
        counted = what == CountRemoval.procedure
        return stated(
            what,
            values,
            assumptions=vars(self).get('assumptions', ()),
            not_covered=vars(self).get('not_covered', ()),
            data=self.data,
            origin=self.origin,
            checked=tuple(checked),
            # Of counts no file of weights is written.
            model='' if counted else self.weights,
        )

    def verified(self, found: 'VerifyReport') -> 'ForgetReport':
        """Return the report with the findings of a verification added.

        Args:
            found (VerifyReport): the result of ``verify()``, called after this
                removal and before the next.

        Raises:
            TypeError: if the verification is of another kind.
            ValueError: if the verification is of other weights.
        """
        check_instance('found', found, VerifyReport)
        if found.weights != self.weights:
            raise ValueError(
                "'found' needs to verify the weights of this report: call "
                'verify() before the next removal'
            )
        return self.replace(verification=found)

    def chart(self) -> Chart:
        """Draw the time of shards, by part; else what is spent."""
        if 'seconds' not in vars(self):
            return super().chart()
        return Chart(
            f'Forgetting trained {len(self.shards)} shards again and took '
            f'{self.fraction:.0%} of a full fit',
            bars=self.seconds,
            xlabel='seconds',
        )


class VerifyReport(Facts):
    """The findings of ``verify()``: the model, against what remains alone.

    * of all models ``ok``, whether all checks passed; ``leftovers``, the
      places that still hold, or could hold, removed items; ``weights``, the
      digest of the weights that were verified;
    * of certified classifiers ``residual``, before the noise, measured again
      on features that were made anew, the ``bound`` that the ledger records,
      and ``bound_holds``; ``distance_to_retrain``, the Frobenius norm of the
      difference to the weights of exact retraining, and the largest
      ``distance_bound`` that the residual allows; ``noise_p_value``, of a
      two-sided chi-squared test that the noise on the released weights has the
      standard deviation :obj:`release_std` (less than 1e-9 fails);
      ``agreement``, the share of items that both weights classify alike;
      ``proved``, whether :mod:`pyg_trust.verify.removal` proves the ledger's
      line of this release from the remaining data alone, and its
      ``proved_residual`` and ``proved_shift``, infinite without a proof;
    * of nodes and links ``feature_error``, the largest difference of the
      features from those made from scratch (0, to the bit, for exact ones),
      its bound ``feature_error_bound``, and ``frozen_factor``, whether the
      factored Hessian is older than the last removal;
    * of graphs ``embedding_error``, ``sealed``, ``seeded``;
    * of shards ``shards``, those that were trained from scratch, ``differing``
      among them, and whether ``keys_match``, ``outputs_equal`` and
      ``aggregator_equal``;
    * of recommenders ``counts_equal``, ``num_entries`` and ``sealed``.
    """

    def summary(self) -> str:
        """State the findings in one sentence."""
        shown = {
            name: {True: 'equal', False: 'NOT equal'}.get(value, value)
            if isinstance(value, bool)
            else value
            for name, value in vars(self).items()
        }
        shown['proof'] = 'the kernel does not prove it'
        if vars(self).get('proved'):
            most = outwards(self.proved_residual, 3)
            shown['proof'] = f'the kernel proves a residual of at most {most}'
        if 'shards' in shown:
            count = shown['shards'] = len(self.shards)
            shown['same'] = count - len(self.differing)
        found = [_FOUND[n].format_map(shown) for n in _FOUND if n in shown]
        left = '; '.join(self.leftovers) or 'nothing that was removed'
        return (
            f'verify() {"found" if self.ok else "FAILED, and found"}, from '
            f'what remains alone: {"; ".join(found)}; left in memory and '
            f'files: {left}'
        )

    def chart(self) -> Chart:
        """Draw measured values as shares of their bounds, or equal shards."""
        if 'distance_bound' in vars(self):
            return verified(
                self.ok,
                residual=(self.residual, self.bound),
                distance=(self.distance_to_retrain, self.distance_bound),
            )
        if 'shards' not in vars(self):
            return super().chart()
        differing = len(self.differing)
        bars = {'equal': len(self.shards) - differing, 'differing': differing}
        title = 'Shards, against training from scratch on what remains'
        return Chart(title, bars=bars, xlabel='shards')


class ForgetPlan(Facts):
    """A dry run of a removal: what it would touch, and what it would cost.

    * of nodes and links ``action`` (``'hold'`` or ``'refine'``),
      ``rows_touched``, ``train_rows_touched``, ``num_train`` and
      ``gradient_change``, as in :class:`ForgetReport`;
    * of shards the ``request``, the ``shards`` that would be trained again
      with their first ``stages``, their ``nodes`` and ``node_epochs`` of
      ``full_node_epochs``, the estimated ``seconds`` of each part, empty if
      nothing was trained since a load, the ``fraction`` of a fit, and
      ``aggregator_nodes``;
    * of recommenders the ``request``, ``touched_users``, ``touched_entries``,
      an upper bound of the counts that would change, ``num_entries`` that are
      stored, and ``recount``, whether everything would be counted again.
    """


@dataclasses.dataclass(frozen=True)
class AdditionReport(Report):
    """The result of additions that wait for the next release.

    It guarantees nothing: the released weights are unchanged.

    Args:
        pending (int): the number of nodes and edges that the released weights
            do not include.
        rows_changed (int): the number of nodes whose degree, neighbours or
            features changed since the last release.
    """

    pending: int
    rows_changed: int


class ShardReport(Facts):
    """The present state of a sharded unlearner.

    ``num_nodes`` of the present graph, ``num_train`` of them, ``shard_sizes``
    in training nodes and their ``imbalance`` (the largest over the mean), the
    ``partition``, the number of ``removals`` so far, ``seconds`` of the last
    training, by part, and further fields as in :class:`ForgetReport`.
    """

    def chart(self) -> Chart:
        """Draw the number of training nodes of every shard."""
        sizes = enumerate(self.shard_sizes)
        return Chart(
            f'{self.num_train} training nodes in {len(self.shard_sizes)} '
            f'shards, the largest {self.imbalance:.3g} times the mean',
            bars={f'shard {i}': size for i, size in sizes},
            xlabel='training nodes',
        )


def _asked(procedure: str, values: dict[str, Any]) -> dict[str, Any]:
    # What was removed, by graph.
    request = values.get('named', values['request'])
    is_one = procedure in (*ROWS, CountRemoval.procedure)
    return {'request': {'0': request} if is_one else request}


def _fixed(value: Any) -> Any:
    # Lists as tuples: a report does not change.
    if isinstance(value, dict):
        return {name: _fixed(each) for name, each in value.items()}
    return tuple(map(_fixed, value)) if isinstance(value, list) else value
