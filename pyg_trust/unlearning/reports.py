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
    """Report of a removal: the removed items, the guarantee and the cost.

    Keep reports as private as the data: residuals depend on the removed items.
    The fields depend on the model:

    * all models: ``procedure``, the kind of removal; ``request``, the ids of
      the removed items; ``skipped``, the requested ids that were not there
      (``missing='skip'``); ``data_sha256``, a salted hash of the remaining
      data; ``weights_sha256``, SHA-256 of the weights; ``ledger_head``, a hash
      of all lines of the ledger; ``origin``, versions and settings;
      ``verification``, the :class:`VerifyReport` that :meth:`verified` adds,
      or :obj:`None`;
    * certified classifiers: ``epsilon`` and ``delta`` of this release;
      ``epsilon_transcript`` of all releases since the fit; ``residual``, the
      gradient's norm at the weights without noise; ``bound``, an upper bound
      of ``residual``, at most ``budget`` (for graphs, both are
      sensitivity-to-noise ratios); ``iterations``, the number of Newton steps;
      ``action``: ``'hold'`` (the weights already fit the remaining data),
      ``'step'`` (one Newton step), ``'refine'`` (more steps) or ``'retrain'``
      (trained from zero);
    * nodes and links: ``rows_touched`` and ``train_rows_touched``, how many
      feature rows and training rows may have changed; ``gradient_change``, the
      residual before the first step; ``secure``, whether the noise came from
      the operating system;
    * graphs: ``graphs_embedded``, how many graphs were embedded again;
      ``empty_classes``, the classes without a training graph;
    * shards: ``shards``, the numbers of the retrained ones; ``nodes``, how
      many training nodes they have; ``node_epochs``, the epochs summed over
      these nodes; ``seconds`` by part of the work; ``fraction``, the estimated
      cost relative to a full fit; ``by_hash``, how many nodes were added after
      the fit and got their shard by a hash (0 if ``partition='hash'``);
      ``empty``, the shards without training nodes;
    * recommenders: ``entries_changed``, how many counts changed;
      ``recounted``, whether all were counted again.
    """

    @classmethod
    def of(cls, procedure: str, **values: Any) -> 'ForgetReport':
        """Make a report; called by the models.

        ``procedure`` is the kind of removal, ``values`` are the other fields.
        Fields of the guarantee that are left out are computed.
        """
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
            data_sha256=self.data_sha256,
            origin=self.origin,
            checked=tuple(checked),
            # Of counts no file of weights is written.
            weights_sha256='' if counted else self.weights_sha256,
        )

    def verified(self, found: 'VerifyReport') -> 'ForgetReport':
        """Return a copy of the report that has the findings of ``verify()``.

        Args:
            found (VerifyReport): the findings, made after this removal and
                before the next.

        Raises:
            TypeError: if :obj:`found` is no :class:`VerifyReport`.
            ValueError: if it verified other weights.
        """
        check_instance('found', found, VerifyReport)
        if found.weights_sha256 != self.weights_sha256:
            raise ValueError(
                "'found' needs to verify the weights of this report: call "
                'verify() before the next removal'
            )
        return self.replace(verification=found)

    def chart(self) -> Chart:
        """Draw the seconds by part of the work, or else the spent budget."""
        if 'seconds' not in vars(self):
            return super().chart()
        return Chart(
            f'Forgetting trained {len(self.shards)} shards again and took '
            f'{self.fraction:.0%} of a full fit',
            bars=self.seconds,
            xlabel='seconds',
        )


class VerifyReport(Facts):
    """Findings of ``verify()``: the model, compared with the remaining data.

    * all models: ``ok``, whether all checks passed; ``leftovers``, the places
      that still hold, or could hold, removed items; ``weights_sha256``,
      SHA-256 of the verified weights;
    * certified classifiers: ``residual``, the gradient's norm at the weights
      without noise, on features made from scratch; ``bound``, its bound by the
      ledger, and ``bound_holds``; ``distance_to_retrain``, the Frobenius norm
      of the difference to exactly retrained weights, and its bound
      ``distance_bound``; ``noise_p_value`` of a chi-squared test that the
      noise has the standard deviation ``release_std`` (below 1e-9 fails);
      ``agreement``, the share of items that released and retrained weights
      classify alike; ``proved``, whether :mod:`pyg_trust.verify.removal`
      proves the amount in the ledger from the remaining data;
      ``proved_residual`` and ``proved_shift``, the proved bounds of the
      residual and of the sensitivity-to-noise ratio, infinite without a proof;
    * nodes and links: ``feature_error``, the largest difference to features
      made from scratch, and its bound ``feature_error_bound``;
      ``frozen_factor``, whether the factored Hessian is older than the last
      removal;
    * graphs: ``embedding_error``, the largest difference to embeddings made
      again; ``sealed``, whether the graphs match the hash in the ledger;
      ``seeded``, whether the noise came from a seed;
    * shards: ``shards``, the numbers of those trained from scratch, and
      ``differing``, those that came out different; ``keys_match``,
      ``outputs_equal`` and ``aggregator_equal``, whether the hashes of the
      data, the logits and the aggregator are equal;
    * recommenders: ``counts_equal``, whether all counts are; ``num_entries``,
      how many were compared; ``sealed``, as for graphs.
    """

    def summary(self) -> str:
        """Return the findings in one sentence."""
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
        """Chart values against their bounds; of shards, how many are equal."""
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
    """Estimate of a removal, made by ``plan()`` without changing the model.

    * nodes and links: ``action``, ``'hold'`` if the weights already fit the
      remaining data, else ``'refine'``; ``rows_touched`` and
      ``train_rows_touched``, how many feature rows and training rows may
      change; ``num_train``, how many training rows remain;
      ``gradient_change``, the gradient's norm at the present weights;
    * shards: ``request``, the ids to remove; ``shards``, the numbers of the
      shards to train again; ``stages``, for each of them the first of its
      ``slices`` to train again, from 0; ``nodes``, how many training nodes
      they have; ``node_epochs``, the epochs summed over these nodes, and
      ``full_node_epochs``, the same of a full fit; ``seconds`` by part of the
      work, empty if nothing was trained since loading; ``fraction``, the
      estimated cost relative to a full fit; ``aggregator_nodes``, how many
      nodes the aggregator learns from;
    * recommenders: ``request``, the ids to remove; ``touched_users``, how many
      users' lists change; ``touched_entries``, how many counts change at most;
      ``num_entries``, how many counts are stored; ``recount``, whether all
      would be counted again.
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
    """Report of the present state of a sharded unlearner.

    Fields: ``num_nodes`` and ``num_train``, how many nodes and training nodes
    the present graph has; ``shard_sizes``, how many each shard is trained on;
    ``imbalance``, the largest size over the mean; ``partition``, how shards
    were made; ``removals``, the number of removals so far; ``seconds`` of the
    last training, by part; ``by_hash``, as in :class:`ForgetReport`;
    ``empty``, the numbers of the shards without training nodes.
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
