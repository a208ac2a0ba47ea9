"""Guarantees of noisy sums over neighbours, with all assumptions."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pyg_trust._checks import OneOf, check_choice, validated
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.privacy.propagation import FORMS, RELATIONS, hop_sensitivity
from pyg_trust.report import Guarantee, Report
from pyg_trust.report.base import stated
from pyg_trust.verify.claims import outwards
from pyg_trust.verify.claims_privacy import unit_of_sums
from pyg_trust.verify.declare import SEEDED
from pyg_trust.verify.noise import DIGEST, SHIFT
from pyg_trust.verify.release import sensitivity

_OTHERS = {
    'edge': 'features and labels, which the relation takes as known',
    'node': 'that others name a node, which is in their records',
    'node_incident': 'nodes of more edges, at the stated epsilon',
    'feature': 'edges, which are public',
}
_CLASSES = (
    'the number of classes, which is one more than the largest label of all '
    "nodes unless 'num_classes' was chosen without looking at them"
)

EXACT_NOISE = (
    "noise is of the operating system's cryptographic generator, drawn "
    'exactly and added to integers, so that no last bit tells a sum'
)


class Relation(NamedTuple):
    """Neighbouring relation of graphs, with checked arguments.

    Args:
        name (str): the name of the relation: ``'edge'``, ``'node'``,
            ``'node_incident'`` or ``'feature'``; of tables, ``'user'``.
        form (str): ``'withdraw'``, ``'replace'`` or ``'either'``.
        directed (bool): whether edges are arcs.
        max_degree (int, optional): the largest degree :math:`D`.
        num_classes (int, optional): the number of classes :math:`C`, if
            messages are those of :func:`~pyg_trust.privacy.class_messages`.
            (default: :obj:`None`)
    """

    name: str
    form: str
    directed: bool
    max_degree: int | None
    num_classes: int | None = None

    @property
    def sensitivity(self) -> float:
        """Sensitivity of a sum under the relation."""
        if self.name == 'user':
            return sensitivity('user', False, self.form)
        form = 'withdraw' if self.form == 'either' else self.form
        return hop_sensitivity(
            self.name,
            directed=self.directed,
            form=form,
            max_degree=self.max_degree,
            num_classes=self.num_classes,
        )

    @property
    def rows(self) -> str:
        """Rows that may be published."""
        return 'others' if self.name == 'node_incident' else 'all'

    def mu_edge(self, mu: float, others: float = 0.0) -> float | None:
        r"""The :math:`\mu` of one edge, under a relation of nodes.

        Args:
            mu (float): the :math:`\mu` of the sums for a node.
            others (float): the :math:`\mu` of other releases on the same
                account. They may be gradients of pairs: an edge is an example
                of each end whose list has it, and the clipped gradient of an
                end then moves by two clips. (default: :obj:`0.0`)
        """
        if self.name != 'node' or self.max_degree not in (None, 1):
            return None
        moved, ends = (1.0, 1) if self.directed else (math.sqrt(2), 2)
        clips = 2 * ends / (1 if self.form == 'withdraw' else 2)
        return math.hypot(moved * mu / self.sensitivity, clips * others)


@validated
def make_relation(
    relation: Annotated[str, OneOf(RELATIONS)],
    form: str | None,
    directed: bool,
    max_degree: int | None,
) -> Relation:
    """Check the arguments that define the neighbouring relation."""
    if relation == 'edge':
        if form is not None:
            raise ValueError(
                "'form' is for relations of nodes: adding and removing an "
                f'edge are the same (got {form!r})'
            )
        form = 'either'
    elif form is None:
        form = 'withdraw' if relation == 'node_incident' else 'replace'
    else:
        check_choice('form', form, FORMS)
    checked = Relation(relation, form, directed, max_degree)
    assert checked.sensitivity > 0  # checks all of it
    return checked


class ReleaseReport(Report):
    r"""Base of the reports of noisy releases of a private graph.

    A subclass is a dataclass with these fields. It names its parts of
    :math:`\mu`, and adds its own sentences to :meth:`explain`.
    """

    mu: float
    relation: str
    directed: bool
    ledger_head: str | None
    provenance: dict[str, Any]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee."""
        raise NotImplementedError

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Data and relations that the guarantee does not cover."""
        raise NotImplementedError

    def _parts(self) -> dict[str, float]:
        raise NotImplementedError

    def _details(self) -> list[str]:
        raise NotImplementedError

    def promise(self) -> str:
        """Guarantee in one sentence."""
        return self.guarantee().promise

    def _stated(self, procedure: str, **more: Any) -> Guarantee:
        return stated(
            procedure,
            {**self.numbers(), **more},
            assumptions=self.assumptions,
            not_covered=self.not_covered,
            origin=self.provenance,
            checked=self._checks(),
        )

    def _checks(self) -> tuple[str, ...]:
        # Sentences on what every release checks before it draws noise: data
        # that fail are refused, and a report exists only of others.
        where = 'account' if self.ledger_head is None else 'ledger'
        looked = 'no edge has a weight'
        if self.relation == 'user':
            looked = 'no interaction is listed twice or has a rating'
        elif self.relation != 'feature':
            kind = 'arcs' if self.directed else 'both ways'
            looked = (
                f'edges are {kind}, without weights, self-loops and doubles'
            )
        return (
            f'before anything was released the data were checked: {looked}',
            f'every release was on the {where} before its noise was drawn',
        )

    def explain(self) -> str:
        """Explain the guarantee in words."""
        made = self.guarantee()
        parts = ', '.join(
            f'{name} {outwards(mu)}'
            for name, mu in self._parts().items()
            if mu
        )
        return '\n'.join(
            [
                f'{made.promise[0].upper()}{made.promise[1:]} (mu '
                f'{outwards(self.mu)}: {parts or "nothing yet"}).',
                *self._details(),
                'This rests on:',
                *(f'- {line}' for line in made.assumptions),
                'Not covered:',
                *(f'- {line}' for line in made.not_covered),
            ]
        )


@dataclass(frozen=True)
class AggregationReport(ReleaseReport):
    r"""Privacy guarantee of noisy sums, with its assumptions.

    All :math:`\mu` are of Gaussian differential privacy
    (:mod:`pyg_trust.privacy.gaussian`); a part that was not used
    has 0.

    Args:
        epsilon (float): the :math:`\epsilon` of everything so far.
        delta (float): :math:`\delta`.
        target_epsilon (float, optional): the budget, if there is one.
        mu (float): :math:`\mu` of everything so far; of the sums alone, if
            steps of private training are on the account as well.
        mu_encoder (float): the :math:`\mu` of the encoder's training.
        mu_aggregation (float): the :math:`\mu` of the noisy sums, and of all
            other entries of the account except the two trainings.
        mu_head (float): the :math:`\mu` of the head's training.
        mu_edge (float, optional): the :math:`\mu` of the noisy sums for one
            edge, where a relation of nodes protects edges, too.
        relation (str): the neighbouring relation.
        form (str): ``'withdraw'``, ``'replace'`` or, of edges, ``'either'``.
        directed (bool): whether edges are arcs.
        max_degree (int, optional): the largest degree :math:`D`.
        epsilon_replace (float, optional): for the form ``'withdraw'``, the
            :math:`\epsilon` of any record against any other, at :math:`2 \mu`
            at most.
        degree_curve (tuple): under ``'node_incident'``, pairs of a degree and
            the :math:`\epsilon` of the sums for a node of that degree.
        hops (int): the number of sums of a release.
        releases (int): the number of lines of the account: every hop of sums
            and every paid training.
        sensitivity (float): the largest change of a sum between neighbours.
        noise_stds (tuple): the standard deviations of the last release's sums.
        arithmetic (str): ``'exact'``: noise is drawn, and integers are summed,
            to the last bit (:mod:`pyg_trust.verify.release`).
        grid_exponent (int): numbers are integers times this power of two of
            the standard deviation.
        rho (float): the relative increase of standard deviations that pays for
            rounding.
        table (str): a digest of the table that draws noise
            (:mod:`pyg_trust.verify.noise`).
        num_nodes (int): the number of nodes :math:`n`, public.
        receivers (int): the number of nodes whose rows hold sums: all, or
            those that don't train and a public share of the others; other rows
            are zero.
        rows (str): the rows that may be published: ``'all'``, or ``'others'``:
            of a node, to everybody but the node itself.
        raw_columns (bool): whether the transform's output begins with raw
            rows, which are without noise.
        predictions (bool): whether predictions and weights are released, too.
        seeded (bool): whether the noise comes from an explicit seed, so that
            nothing is private.
        ledger_head (str, optional): a digest of all lines of the ledger.
        provenance (dict): versions and arguments; no seeds.
        num_classes (int, optional): the number of classes that messages are
            made of, where the sensitivity depends on it.
            (default: :obj:`None`)
    """

    epsilon: float
    delta: float
    target_epsilon: float | None
    mu: float
    mu_encoder: float
    mu_aggregation: float
    mu_head: float
    mu_edge: float | None
    relation: str
    form: str
    directed: bool
    max_degree: int | None
    epsilon_replace: float | None
    degree_curve: tuple[tuple[int, float], ...]
    hops: int
    releases: int
    sensitivity: float
    noise_stds: tuple[float, ...]
    arithmetic: str
    grid_exponent: int
    rho: float
    table: str
    num_nodes: int
    receivers: int
    rows: str
    raw_columns: bool
    predictions: bool
    seeded: bool
    ledger_head: str | None
    provenance: dict[str, Any]
    num_classes: int | None = None

    @property
    def unit(self) -> str:
        """Unit of privacy, in words."""
        return unit_of_sums(
            self.relation, self.form, self.directed, self.max_degree
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee."""
        lines = [
            'ids, number of nodes, whether edges are directed, the train mask '
            'and all arguments were chosen without looking at what is '
            'protected',
            'no column of the features was computed from edges or from other '
            'rows (degrees, positional encodings, scaling, PCA and TF-IDF '
            'over nodes)',
        ]
        if self.relation == 'feature':
            lines = [
                'edges and everything but features and labels are public',
                'no row was computed from other rows',
            ]
        lines.append(
            'a model that was handed in, or made by a factory, starts from '
            'weights that were not computed from what is protected'
        )
        lines.append(
            'errors, warnings and the time a release takes, which may tell of '
            'what is protected (data that are refused for their loops, '
            'directions, degrees or labels), are not published'
        )
        if self.relation != 'feature':
            lines.append(
                'that not every arc has one back is known: a graph all of '
                'whose arcs have one is refused as undirected, so that of the '
                'last other arc a refusal tells'
                if self.directed
                else 'that every edge is in both directions is known: a graph '
                'with one that is not is refused'
            )
        lines.append(
            'which calls had the same data is known: the first release of '
            'data costs, the next is free, and the number of releases '
            f'({self.releases}) shows which were alike'
        )
        lines.append(SEEDED if self.seeded else EXACT_NOISE)
        lines.append(
            'which way a kernel of torch or of BLAS takes depends on shapes '
            'and types, and not on the numbers'
        )
        if self.ledger_head is None:
            lines.append(
                'this object made all releases of these data: without a '
                'ledger nothing else is counted'
            )
        else:
            lines.append(
                'the ledger is the only account of these data: no copy of it '
                'was spent as well, and no older one was put back'
            )
        if self.relation == 'edge' and self.predictions:
            lines.append(
                'encoder and head hold nothing of the edges, and compute the '
                'logits of a row from that row alone'
            )
        if self.receivers < self.num_nodes:
            lines.append(
                'who trains is public also of the node itself: with ids it '
                f'decides which {self.receivers:,} nodes receive sums, and '
                'weights of lists read that'
            )
        if self.relation != 'edge' and self.predictions:
            lines.append(
                'the number of steps, weights kept and anything printed while '
                'training do not depend on private rows'
            )
        return tuple(lines)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Data and relations that the guarantee does not cover."""
        lines = [
            'ids and number of nodes',
            'the train mask',
            *([_CLASSES] if self.predictions else []),
            'all arguments',
        ]
        lines.append(_OTHERS[self.relation])
        if self.relation != 'edge' and self.predictions:
            lines.append(
                'a prediction for the node itself: it reads its own features '
                'and is for that node'
            )
        if self.rows == 'others':
            lines.append("a node's own row, which is for that node")
        if self.raw_columns and self.relation != 'edge':
            lines.append('the first columns, which are the raw rows')
        others = [name for name in RELATIONS if name != self.relation]
        if self.mu_edge is not None:
            others.remove('edge')
        return (*lines, 'the relations ' + ', '.join(map(repr, others)))

    def guarantee(self) -> Guarantee:
        """State the privacy of the released rows and predictions."""
        return self._stated('private aggregation')

    def _parts(self) -> dict[str, float]:
        return {
            'encoder': self.mu_encoder,
            'aggregation': self.mu_aggregation,
            'head': self.mu_head,
        }

    def _details(self) -> list[str]:
        lines = [
            'All rows may be published.'
            if self.rows == 'all'
            else 'The row of a node may be shown to everybody but the node '
            'itself and whoever sees through its eyes.',
        ]
        if self.receivers < self.num_nodes:
            lines.append(
                f'{self.receivers:,} nodes receive sums: those that do not '
                'train and a share of those that do, by a hash of ids. Other '
                "rows are zero, and those nodes' predictions come from their "
                'own features alone.'
            )
        if self.mu_edge is not None:
            kind = 'arc' if self.directed else 'undirected edge'
            lines.append(
                f'In one {kind} the sums have mu {outwards(self.mu_edge)}.'
            )
        if self.epsilon_replace is not None:
            lines.append(
                'That is against a blank record. Against any other record '
                "(somebody's features or label, changed) epsilon is "
                f'{outwards(self.epsilon_replace)}.'
            )
        if self.degree_curve:
            curve = ', '.join(
                f'{d}: {outwards(e)}' for d, e in self.degree_curve
            )
            lines.append(
                f'Epsilon of the sums by the degree of the node: {curve}.'
            )
        return [
            *lines,
            'Noise was drawn once: asking again costs nothing, another graph '
            'or other messages are another release.',
        ]


@validated
def make_report(
    relation: Relation,
    *,
    delta: float,
    mu_encoder: float = 0.0,
    mu_aggregation: float = 0.0,
    mu_head: float = 0.0,
    mu_others: float = 0.0,
    predictions: bool = False,
    num_nodes: int,
    receivers: int | None = None,
    **fields: Any,
) -> AggregationReport:
    r"""Make the report; derive the fields that the relation determines.

    Args:
        relation (Relation): the neighbouring relation.
        delta (float): :math:`\delta`.
        mu_encoder (float): as in :class:`AggregationReport`.
            (default: :obj:`0.0`)
        mu_aggregation (float): as in :class:`AggregationReport`.
            (default: :obj:`0.0`)
        mu_head (float): as in :class:`AggregationReport`.
            (default: :obj:`0.0`)
        mu_others (float): the part of :obj:`mu_aggregation` that objects other
            than the report's have spent. (default: :obj:`0.0`)
        predictions (bool): as in :class:`AggregationReport`.
            (default: :obj:`False`)
        num_nodes (int): as in :class:`AggregationReport`.
        receivers (int, optional): as in :class:`AggregationReport`; by default
            all nodes. (default: :obj:`None`)
        **fields (Any): further fields of :class:`AggregationReport`.
    """
    curve: tuple[tuple[int, float], ...] = ()
    if relation.name == 'node_incident' and relation.max_degree is not None:
        D = relation.max_degree
        curve = tuple(
            (d, gaussian_epsilon(mu_aggregation * math.sqrt(d / D), delta))
            for d in sorted({max(1, D // 4), D, 2 * D, 4 * D, 8 * D})
        )
    # The whole account, in two steps per changed record: to a blank and back;
    # two users are less far apart (pyg_trust.verify.release, "Users").
    replaced = None
    if relation.form == 'withdraw':
        apart = math.sqrt(2) if relation.name == 'user' else 2
        replaced = gaussian_epsilon(apart * fields['mu'], delta)
    return AggregationReport(
        delta=delta,
        epsilon_replace=replaced,
        arithmetic='exact',
        grid_exponent=-SHIFT,
        table=DIGEST,
        mu_encoder=mu_encoder,
        mu_aggregation=mu_aggregation,
        mu_head=mu_head,
        mu_edge=relation.mu_edge(
            math.sqrt(max(0.0, mu_aggregation**2 - mu_others**2)), mu_others
        ),
        relation=relation.name,
        form=relation.form,
        directed=relation.directed,
        max_degree=relation.max_degree,
        degree_curve=curve,
        sensitivity=relation.sensitivity,
        num_nodes=num_nodes,
        receivers=num_nodes if receivers is None else receivers,
        rows=relation.rows,
        predictions=predictions,
        num_classes=relation.num_classes,
        **fields,
    )
