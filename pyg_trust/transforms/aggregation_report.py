"""Reports of noisy releases of private graphs, and their relations."""

import math
import warnings
from typing import Annotated, Any, NamedTuple

from pyg_trust._checks import OneOf, check_choice, validated
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.privacy.propagation import (
    NEIGHBORING,
    RELATIONS,
    hop_sensitivity,
)
from pyg_trust.report.claimed import ClaimedReport, claimed
from pyg_trust.verify.claims import outwards
from pyg_trust.verify.claims_privacy import unit_of_sums
from pyg_trust.verify.noise import DIGEST, SHIFT
from pyg_trust.verify.release import in_ledgers, sensitivity

__all__ = ['AggregationReport', 'Relation', 'ReleaseReport', 'make_relation']

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
    'exactly and added to integers, so that the last bits reveal nothing'
)
#: What every release says of its arithmetic.
EXACT = {'arithmetic': 'exact', 'grid_exponent': -SHIFT, 'table': DIGEST}


#: Arguments of constructors by their names of 0.1.
RENAMED = {
    'relation': 'adjacency',
    'form': 'neighboring',
    'hops': 'K',
    'seed': 'insecure_seed',
}


class Relation(NamedTuple):
    """Neighbouring relation of graphs, with checked arguments.

    Args:
        adjacency (str): ``'edge'``, ``'node'``, ``'node_incident'`` or
            ``'feature'``; of tables, ``'user'``.
        neighboring (str): ``'add_remove'``, ``'replace'``, or of edges
            ``'either'``.
        directed (bool): whether edges are arcs.
        max_degree (int, optional): the largest degree :math:`D`.
        num_classes (int, optional): the number of classes :math:`C`, if
            messages are those of :func:`~pyg_trust.privacy.class_messages`.
    """

    adjacency: str
    neighboring: str
    directed: bool
    max_degree: int | None
    num_classes: int | None = None

    def header(self) -> dict[str, Any]:
        """Return what ledgers and states say of it, in their own names."""
        return {
            **in_ledgers(self.adjacency, self.neighboring),
            'directed': self.directed,
            'max_degree': self.max_degree,
        }

    @property
    def sensitivity(self) -> float:
        """Sensitivity of a sum under the relation."""
        if self.adjacency == 'user':
            return sensitivity('user', False, self.neighboring)
        return hop_sensitivity(
            self.adjacency,
            directed=self.directed,
            neighboring=self.neighboring.replace('either', 'replace'),
            max_degree=self.max_degree,
            num_classes=self.num_classes,
        )

    def mu_edge(self, mu: float, others: float = 0.0) -> float | None:
        r"""Return the :math:`\mu` of one edge, where nodes are protected."""
        if self.adjacency != 'node' or self.max_degree not in (None, 1):
            return None
        moved, ends = (1.0, 1) if self.directed else (math.sqrt(2), 2)
        clips = 2 * ends / (1 if self.neighboring == 'add_remove' else 2)
        return math.hypot(moved * mu / self.sensitivity, clips * others)


@validated
def make_relation(
    adjacency: Annotated[str, OneOf(RELATIONS)],
    neighboring: str | None,
    directed: bool,
    max_degree: int | None,
) -> Relation:
    """Check the arguments that define the neighbouring relation."""
    if adjacency == 'edge':
        if neighboring is not None:
            raise ValueError(
                "'neighboring' is for relations of nodes: adding and removing "
                f'an edge are the same (got {neighboring!r})'
            )
        neighboring = 'either'
    elif neighboring is None:
        whole = adjacency == 'node_incident'
        neighboring = 'add_remove' if whole else 'replace'
    else:
        neighboring = check_neighboring(neighboring)
    checked = Relation(adjacency, neighboring, directed, max_degree)
    assert checked.sensitivity > 0  # checks all of it
    return checked


def check_neighboring(neighboring: str) -> str:
    """Check ``'add_remove'`` or ``'replace'``; take the name of 0.1."""
    if neighboring == 'withdraw':
        warnings.warn(
            "neighboring='withdraw' is 'add_remove' now, and goes with the "
            'next release',
            DeprecationWarning,
            stacklevel=2,
        )
        neighboring = 'add_remove'
    check_choice('neighboring', neighboring, NEIGHBORING)
    return neighboring


class ReleaseReport(ClaimedReport):
    """Base of the reports of noisy releases of a private graph."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee."""
        return self.guarantee().assumptions

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Data and relations that the guarantee does not cover."""
        return self.guarantee().not_covered

    def promise(self) -> str:
        """Return the guarantee in one sentence."""
        return self.guarantee().promise

    def _notes(self) -> list[str]:
        raise NotImplementedError

    def _limits(self) -> list[str]:
        raise NotImplementedError

    def _parts(self) -> dict[str, float]:
        raise NotImplementedError

    def _details(self) -> list[str]:
        return []

    def _says(self) -> dict[str, Any]:
        # Data that fail a check are refused: a report exists only of others.
        where = 'account' if self.ledger_head is None else 'ledger'
        looked = 'no edge has a weight'
        if self.adjacency == 'user':
            looked = 'no interaction is listed twice or has a rating'
        elif self.adjacency != 'feature':
            kind = 'arcs' if self.directed else 'both ways'
            looked = (
                f'edges are {kind}, without weights, self-loops and doubles'
            )
        return {
            'assumptions': self._notes() + [EXACT_NOISE] * (not self.seeded),
            'not_covered': self._limits(),
            'origin': self.provenance,
            'checked': (
                'before anything was released the data were checked: '
                f'{looked}',
                f'every release was on the {where} before its noise was drawn',
            ),
        }

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
                'Noise was drawn once: asking again costs nothing, another '
                'graph or other messages are another release.',
                'This rests on:',
                *(f'- {line}' for line in made.assumptions),
                'Not covered:',
                *(f'- {line}' for line in made.not_covered),
            ]
        )


@claimed('private aggregation', provenance='versions and arguments; no seeds')
class AggregationReport(ReleaseReport):
    r"""Privacy guarantee of noisy sums over neighbours, with its assumptions.

    Each :math:`\mu` is that of Gaussian differential privacy (sensitivity
    divided by the standard deviation), and 0 for a part that was not used. If
    steps of private training are on the same account, ``mu`` does not include
    them.
    """

    @property
    def unit(self) -> str:
        """A phrase that names what is protected, such as an edge."""
        return unit_of_sums(
            self.adjacency, self.neighboring, self.directed, self.max_degree
        )

    def _notes(self) -> list[str]:
        lines = [
            'ids, number of nodes, whether edges are directed, the train mask '
            'and all arguments were chosen without looking at what is '
            'protected',
            'no column of the features was computed from edges or from other '
            'rows (degrees, positional encodings, scaling, PCA and TF-IDF '
            'over nodes)',
        ]
        if self.adjacency == 'feature':
            lines = [
                'edges and everything but features and labels are public',
                'no row was computed from other rows',
            ]
        lines += [
            'a model that was passed, or made by a factory, starts from '
            'weights that were not computed from what is protected',
            'errors, warnings and the time a release takes, which may depend '
            'on what is protected (data that are refused for their loops, '
            'directions, degrees or labels), are not published',
        ]
        if self.adjacency != 'feature':
            lines.append(
                'that not every arc has one back is known: a graph all of '
                'whose arcs have one is refused as undirected, so that a '
                'refusal reveals the last other arc'
                if self.directed
                else 'that every edge is in both directions is known: a graph '
                'with one that is not is refused'
            )
        lines.append(
            'which way a kernel of torch or of BLAS takes depends on shapes '
            'and types, and not on the numbers'
        )
        if self.adjacency == 'edge' and self.predictions:
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
        if self.adjacency != 'edge' and self.predictions:
            lines.append(
                'the number of steps, weights kept and anything printed while '
                'training do not depend on private rows'
            )
        return lines

    def _limits(self) -> list[str]:
        lines = ['the train mask', _OTHERS[self.adjacency]]
        if self.predictions:
            lines.append(_CLASSES)
        if self.adjacency != 'edge' and self.predictions:
            lines.append(
                'a prediction for the node itself: it reads its own features '
                'and is for that node'
            )
        others = [name for name in RELATIONS if name != self.adjacency]
        if self.mu_edge is not None:
            others.remove('edge')
        return [*lines, 'the relations ' + ', '.join(map(repr, others))]

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
                'That is against an empty record. Against any other record '
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
        return lines


def make_report(
    relation: Relation,
    kind: type[AggregationReport] = AggregationReport,
    *,
    delta: float,
    mu_aggregation: float,
    mu_others: float = 0.0,
    **fields: Any,
) -> Any:
    r"""Make the report; derive the fields that the relation determines."""
    curve: tuple[tuple[int, float], ...] = ()
    if (
        relation.adjacency == 'node_incident'
        and relation.max_degree is not None
    ):
        D = relation.max_degree
        curve = tuple(
            (d, gaussian_epsilon(mu_aggregation * math.sqrt(d / D), delta))
            for d in sorted({max(1, D // 4), D, 2 * D, 4 * D, 8 * D})
        )
    # The whole account, in two steps per changed record: to a blank and back;
    # two users are less far apart (pyg_trust.verify.release, "Users").
    replaced = None
    if relation.neighboring == 'add_remove':
        apart = math.sqrt(2) if relation.adjacency == 'user' else 2
        replaced = gaussian_epsilon(apart * fields['mu'], delta)
    own = math.sqrt(max(0.0, mu_aggregation**2 - mu_others**2))
    return kind.of(
        adjacency=relation.adjacency,
        neighboring=relation.neighboring,
        directed=relation.directed,
        max_degree=relation.max_degree,
        num_classes=relation.num_classes,
        delta=delta,
        epsilon_replace=replaced,
        degree_curve=curve,
        mu_aggregation=mu_aggregation,
        mu_edge=relation.mu_edge(own, mu_others),
        sensitivity=relation.sensitivity,
        **{
            'receivers': fields['num_nodes'],
            'mu_encoder': 0.0,
            'mu_head': 0.0,
            **EXACT,
            **fields,
        },
    )
