"""Node classifiers: their state, releases, proofs, and readers of data."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import check_instance, check_integer, check_tensor
from pyg_trust.agp.measures import Measure, make_measure, needs_graph
from pyg_trust.files.commit import Lineage
from pyg_trust.files.seals import Seals, sealed
from pyg_trust.ledger import BudgetExceededError, RemovalLedger, coarse
from pyg_trust.removal import NodeIds, Nodes, RemovalRequest
from pyg_trust.report import fingerprint_model, provenance
from pyg_trust.unlearning.certified import CertifiedClassifier, proved
from pyg_trust.unlearning.heads import (
    HEAD,
    Factor,
    Gradient,
    Problem,
    Refined,
    refine,
)
from pyg_trust.unlearning.node_rows import Change, Edit, NodeState, Settings
from pyg_trust.unlearning.reports import ForgetReport
from pyg_trust.update import Some, Update, arcs_of, line_of
from pyg_trust.verify import removal
from pyg_trust.verify.claims_removal import ROWS

Encoded = Callable[[Tensor], Tensor]
_NONE = torch.empty((2, 0), dtype=torch.int64)
# A release spends this part of the budget, if the steps below reach it.
PART = 0.01
MAX_STEPS = 20
# A fresh factor takes about so many steps. What the others cost is added up,
# until it is as much as a new factor: about one step for 8 columns.
FEW_STEPS = 3
COLUMNS_A_STEP = 8


class Model(NamedTuple):
    """State of a fitted node classifier, with its removal ledger.

    Replaced as a whole, at the end of an operation that may fail. The data
    are edited in place, with undo.
    """

    data: NodeState
    ledger: RemovalLedger
    seals: Seals
    W: Tensor
    weight: Tensor
    gradient: Gradient
    factor: Factor
    frozen: bool
    releases: int
    # Whether all noise so far came from the operating system.
    secure: bool
    release_std: float
    # Steps since the factor was made, beyond FEW_STEPS for each removal.
    excess: int = 0
    # For readers of earlier versions; it goes with the next release.
    lineage: Lineage = Lineage()

    @property
    def classes(self) -> tuple[int, ...]:
        """The class labels, in ascending order."""
        return self.data.classes

    @property
    def num_items(self) -> int:
        """The number of training rows that remain."""
        return self.data.num_train

    @property
    def sealed(self) -> str:
        """Digest of the saved state, recorded in the ledger."""
        data, held = self.data, [self.weight]
        if data.ids.n_id is not None:
            held.append(data.ids.n_id)
        return sealed(
            self.seals.root,
            str(data.classes),
            not data.graph.undirected,
            self.releases,
            self.secure,
            data.settings.digest(self.release_std),
            *held,
        )

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger's last line records this state."""
        # Lines of version 0.1 stand for the data alone.
        return self.ledger.records(self.sealed, self.seals.root)

    def evidence(self) -> dict[str, np.ndarray] | None:
        """Return the arrays from which the checker proves a release.

        Returns None for infinite series, for pairs and for states of version
        0.1, about which the checker proves nothing.
        """
        data, settings = self.data, self.data.settings
        seal = self.seals.state_dict()
        if (settings.theta, settings.pairs) != (None, None):
            return None
        if 'salt' not in seal:
            return None
        ids, (degree, col) = data.ids.n_id, data.graph.entries()
        held = {
            'col': col,
            'alive': data.graph.alive,
            'own_loop': data.graph.own_loop,
            'featureless': data.featureless,
            'x': data.levels.x,
            'labels': data.labels(),
            'salt': seal['salt'],
            'W': self.W,
            'released': self.weight,
        }
        return {
            **{name: np.ascontiguousarray(t) for name, t in held.items()},
            **settings.arrays(self.release_std),
            **({} if ids is None else {'ids': ids.numpy()}),
            'rowptr': np.concatenate([[0], degree.cumsum(0)]),
            'classes': np.array(data.classes),
            'directed': np.array(not data.graph.undirected),
            'secure': np.array(self.secure),
            'releases': np.array(self.releases),
        }

    def line(self, edits: Sequence[Edit]) -> dict[str, Any]:
        """List what edits removed, for the ledger, after they were played."""
        data, graph, ids = self.data, self.data.graph, self.data.ids

        def those(holds: Callable[[Tensor], Any]) -> Some:
            # Of ids: those for whose rows it holds.
            def find(named: Collection[Any]) -> set[Any]:
                listed = sorted(named)
                rows = ids.rows(torch.tensor(listed, dtype=torch.int64))
                return {
                    each
                    for each, has in zip(listed, holds(rows), strict=True)
                    if has
                }

            return find

        added = ids.of(torch.cat([_NONE, *data.pending.edges], 1))
        return line_of(
            [edit.update for edit in edits if edit.update is not None],
            arcs_of(added, graph.undirected),
            those(lambda rows: graph.has_edges(rows.view(-1, 2).t())),
            {
                'features': those(lambda rows: data.featureless[rows]),
                'labels': those(
                    lambda rows: [not data.trains(v) for v in rows.tolist()]
                ),
            },
            self.ledger.removed,
        )


class Step(NamedTuple):
    """Weights after a removal, the action that found them, and their cost.

    ``bound`` is of the residual, ``spent`` what it spends of the budget.
    """

    action: str
    found: Refined
    bound: float
    spent: float


class NodeReleases(CertifiedClassifier):
    """Base of node classifiers: how they release, and are saved."""

    measure: Measure
    encoder: Any
    features: str
    _stated_public: bool
    _settings: Settings
    _state: type[NodeState] = NodeState
    _procedure = ROWS[0]

    def _begun(self, state: NodeState) -> None:
        # The first release, with a new ledger.
        releases, ledger = self._begins()
        self._check_grid(state.Y.size(1))
        W, gradient, _, _ = self._solved(state)
        upper = gradient.norm.upper
        spent = self._spent(state, upper)
        if spent > self.budget:
            raise self._exceeded(state, upper)
        self._check_shift(state.num_train, W, upper, spent)
        model = Model(
            state,
            ledger,
            Seals(state.blocks()),
            W,
            self._release(W, releases),
            gradient,
            state.problem(self._goal(state)).factor(W),
            False,
            releases + 1,
            self._seed is None,
            self.release_std,
        )
        ledger.record('fit', spent, data=model.sealed)
        self._model = model

    def _solved(self, data: NodeState) -> Refined:
        # Start from zero: on data built anew, weights are a function of the
        # remaining data.
        W, goal = data.Y.new_zeros(data.shape), self._goal(data)
        return refine(data.problem(goal), W, min(self.tol, goal), 100)

    def _goal(self, data: NodeState) -> float:
        # The residual that steps aim at: most releases spend a small part of
        # the budget, their grid included.
        share = 1 - self._grid(data.shape) / (PART * self.budget)
        # Lower by a margin for rounding.
        part = PART * max(share, 0.5) * (1 - 2.0**-40)
        return part * self._allowed(self.budget, data.mu)

    def _spent(self, data: NodeState, bound: float) -> float:
        # In units of the budget. Constant for all releases that meet the goal,
        # and rounded up for others: an attacker could test guesses of the data
        # by the exact residual.
        grid = self._grid(data.shape)
        spent = self._spends(bound, data.mu) + grid
        if spent > self.budget:
            return spent
        goal = self._spends(self._goal(data), data.mu) + grid
        least = PART * self.budget
        # A coarse grid raises the goal, by public numbers.
        least = least if goal <= least else coarse(goal)
        return min(least if spent <= goal else coarse(spent), self.budget)

    def _exceeded(self, data: NodeState, bound: float) -> BudgetExceededError:
        limit = self._allowed(self.budget, data.mu)
        return BudgetExceededError(
            f'the residual is at most {bound:.6g}, of a budget of {limit:.6g}:'
            " choose a larger 'release_std' or 'weight_decay', or divide the "
            'features by their size'
        )

    def _followed(self, model: Model) -> tuple[Change, Problem, Gradient]:
        # The training rows as the data are, and the gradient at old weights.
        data = model.data
        change = data.follow(model.W, model.gradient)
        problem = data.problem(self._goal(data))
        return change, problem, change.gradient or problem.gradient(model.W)

    def _step(self, model: Model, problem: Problem, start: Gradient) -> Step:
        # Steps from the old weights; a fit where these do not do.
        data, goal = model.data, self._goal(model.data)

        def paid(action: str, found: Refined) -> Step:
            bound = found.gradient.norm.upper
            return Step(action, found, bound, self._spent(data, bound))

        if start.norm.upper <= goal:
            return paid('hold', Refined(model.W, start, model.factor, 0))
        found = refine(
            problem, model.W, goal, MAX_STEPS, start=start, factor=model.factor
        )
        made = paid('step' if found.iterations == 1 else 'refine', found)
        if made.spent <= self.budget:
            return made
        # Retrain as a fit does, on data built anew.
        again = self._solved(data.rebuilt())
        steps = found.iterations + again.iterations
        made = paid('retrain', again._replace(iterations=steps))
        if made.spent > self.budget:
            measured, upper = again.gradient.norm
            if measured > max(goal, upper - measured):
                raise self._exceeded(data, made.bound)
            # Rounding hides more than the budget, and these weights are those
            # of a fit of the remaining data, independent of the removed data.
            made = made._replace(bound=0.0, spent=0.0)
        return made

    def _forget(
        self, model: Model, edits: list[Edit], reference: str
    ) -> tuple[Model, ForgetReport]:
        data = model.data
        request = model.line(edits)
        change, problem, start = self._followed(model)
        action, found, bound, spent = self._step(model, problem, start)
        W, gradient, factor, iterations = found
        excess = model.excess + max(0, iterations - FEW_STEPS)
        if factor is model.factor and (
            excess * COLUMNS_A_STEP > W.size(0) or iterations == MAX_STEPS
        ):
            factor = problem.factor(W)
        fresh = factor is not model.factor
        self._check_shift(data.num_train, W, bound, spent)
        ledger = model.ledger.copy()
        new = model._replace(
            ledger=ledger,
            seals=model.seals.replaced(data.blocks(change.named)),
            W=W,
            weight=self._release(W, model.releases),
            gradient=gradient,
            factor=factor,
            frozen=not fresh,
            excess=0 if fresh else excess,
            releases=model.releases + 1,
            secure=model.secure and self._seed is None,
        )
        # The action depends on the removed data: no line names it.
        ledger.record('measured', spent, request, new.sealed, reference)
        if spent > 0:
            # The bound that is paid for: a smaller one reveals more of the
            # data.
            paid = self._allowed(spent - self._grid(data.shape), data.mu)
            bound = max(bound, paid)
        return new, ForgetReport.of(
            self._procedure,
            action=action,
            request=request,
            rows_touched=change.rows,
            train_rows_touched=change.train_rows,
            stale_rows=0,
            pending=0,
            num_train=data.num_train,
            gradient_change=start.norm.measured,
            # With estimates, the residual is that of exact solves.
            feature_error=0.0,
            bound=bound,
            budget=self._allowed(self.budget, data.mu),
            distance_bound=bound / data.mu,
            iterations=iterations,
            secure=new.secure,
            seeded=not new.secure,
            history=tuple(spent / self.budget for spent in ledger.amounts()),
            setting=data.settings.digest(self.release_std),
            **self._certificate(
                new,
                spent,
                gradient.norm,
                self._assumptions(),
                **provenance(
                    **{**self._config(), 'measure': str(self.measure)},
                    seed=self._seed,
                ),
            ),
        )

    def _assumptions(self) -> tuple[str, ...]:
        made = (
            'the state (state_dict), of which the weights before the noise '
            'can be solved again, stays secret',
        )
        if self.encoder is None:
            return made
        if self._stated_public:
            stated = 'as the user stated by start_is_public=True'
            return (*made, f'the encoder never saw the data, {stated}')
        return (
            *made,
            'the encoder never saw the data: its factory draws other weights '
            'under another seed',
        )

    def _proved(self, model: Model, claimed: bool) -> dict[str, Any]:
        # Prove the last release by the kernel; fields of a report.
        arrays, spent = model.evidence(), model.ledger.spent
        # A release of spent 0 is compared with a fit by this program.
        if arrays is None or spent == 0:
            return {}
        try:
            found = removal.prove(arrays)
        except ValueError:
            # The data are not those of the ledger, which the report says.
            return {}
        most = self._allowed(spent, model.data.mu)
        return proved(found, most, spent, claimed)

    def _config(self) -> dict[str, Any]:
        measure = {
            name: getattr(self.measure, name)
            for name in self.measure.__dataclass_fields__
        }
        return {
            **super()._config(),
            'measure': measure,
            'alpha': self._settings.alpha,
            'theta': self._settings.theta,
            'feature_bound': self._settings.bound,
            'head': HEAD,
            'features': self.features,
            'encoder': self._encoder_digest(),
        }

    def _encoder_digest(self) -> str | None:
        # Of two encoders of a class only one fits the saved features.
        encoder = self.encoder
        if encoder is None:
            return None
        name = type(encoder).__name__
        if not isinstance(encoder, torch.nn.Module):
            return getattr(encoder, '__qualname__', name)
        return f'{name} {fingerprint_model(encoder.state_dict())}'

    def _unpacked(self, state: dict[str, Any]) -> Model:
        config = dict(state['config'])
        if self.encoder is not None and config.get('encoder') == (
            type(self.encoder).__name__
        ):
            # States of 0.1 hold the class alone.
            config['encoder'] = self._encoder_digest()
        return super()._unpacked({**state, 'config': config})

    def _packed(self, model: Model) -> dict[str, Any]:
        data = model.data.to_dict()
        waits = waiting(model.sealed, data)
        return {
            **super()._packed(model),
            **({'waits': waits} if waits else {}),
            'seals': model.seals.state_dict(),
            'data': data,
            'weight': model.weight.clone(),
            'releases': model.releases,
            'secure': model.secure,
        }

    def _rebuilt(self, state: dict[str, Any], ledger: RemovalLedger) -> Model:
        held, weight = state['data'], state['weight']
        classes = tuple(state['classes'])
        data = self._state.from_dict(self._settings, classes, held)
        seals = Seals.of(state['seals'], data.blocks())
        check_tensor('state', weight, torch.float64, data.shape, finite=True)
        check_instance('secure', state['secure'], bool)
        releases = check_integer('releases', state['releases'], 1)
        # Files of version 0.1 have weights before the noise too: from these a
        # guess of what was removed could be tested. They are solved again.
        W, gradient, _, _ = self._solved(data)
        made = Model(
            data,
            ledger,
            seals,
            W,
            weight.clone(),
            gradient,
            data.problem(self._goal(data)).factor(W),
            False,
            releases,
            state['secure'],
            self.release_std,
        )
        if state.get('waits', '') != waiting(made.sealed, held):
            raise ValueError(
                'the pending additions of the state were changed since it '
                'was saved'
            )
        data.take(held)
        return made


# Readers of data and updates #################################################


def waiting(root: str, held: dict[str, Any]) -> str:
    """Hash the additions, which no line of the ledger covers."""
    came = held.get('came')
    return '' if came is None else sealed(root, *map(came.get, sorted(came)))


def read_features(data: Data) -> Tensor:
    """Read the features of a graph, to the CPU: ``[num_nodes, d]``."""
    x = data.get('x')
    if x is None:
        raise ValueError("'data' needs to have features 'x'")
    check_tensor('data.x', x, None, (data.num_nodes, 'd'), finite=True)
    if x.size(1) == 0:
        raise ValueError("'data.x' needs to have at least one column (got 0)")
    return x.detach().cpu()


def read_classes(
    data: Data, train_nodes: Nodes | None, classes: Sequence[int] | None = None
) -> tuple[tuple[int, ...], Tensor]:
    """Read the classes, and the position of each training node's class."""
    n = int(data.num_nodes)
    y = data.get('y')
    if not isinstance(y, Tensor):
        raise ValueError(
            "'data' needs to have labels 'y', a tensor "
            f'(got {type(y).__name__})'
        )
    if y.dim() == 2 and y.size(1) == 1:
        # As OGB has them.
        y = y.view(-1)
    check_tensor('data.y', y, torch.int64, (n,))
    name = 'train_nodes'
    if train_nodes is None:
        train_nodes, name = data.get('train_mask'), 'data.train_mask'
        if train_nodes is None:
            raise ValueError(
                "'train_nodes' is needed where 'data' has no 'train_mask' "
                '(bool, true where the label is known)'
            )
        mask = _one_mask(name, train_nodes)
        check_tensor(name, mask, torch.bool, (n,))
    # They come with the data, and name their rows.
    nodes = NodeIds().rows_of(name, _one_mask(name, train_nodes), n)
    if nodes.numel() == 0:
        raise ValueError(f"'{name}' needs to have a node (got none)")
    if nodes.unique().numel() != nodes.numel():
        raise ValueError(f"'{name}' needs to have each node once")
    train = torch.zeros(n, dtype=torch.bool)
    train[nodes] = True
    for other in ('val_mask', 'test_mask'):
        mask = data.get(other)
        if isinstance(mask, Tensor) and mask.shape == (n, 1):
            mask = mask.view(-1)
        if isinstance(mask, Tensor) and mask.shape == train.shape:
            both = (train & mask.cpu()).nonzero().view(-1)
            if both.numel():
                raise ValueError(
                    f"'{name}' and 'data.{other}' need to be disjoint (got "
                    f'node {int(both[0])} in both)'
                )
    found = y.cpu()[train]
    if bool((found < 0).any()):
        raise ValueError(
            "'data.y' needs to be non-negative for training nodes "
            f'(got {int(found.min())})'
        )
    known = found.unique()
    if classes is not None:
        check_instance('classes', classes, Sequence)
        listed = sorted({check_integer('classes', c, 0) for c in classes})
        other = known[~torch.isin(known, torch.tensor(listed).long())]
        if len(listed) != len(classes) or other.numel():
            raise ValueError(
                "'classes' needs every label of the training nodes, once "
                f'(got {list(classes)})'
            )
        known = torch.tensor(listed)
    if known.numel() < 2:
        raise ValueError(
            "'data.y' needs to have at least two classes among the training "
            f'nodes (got {known.tolist()})'
        )
    position = torch.full((n,), -1)
    position[train] = torch.searchsorted(known, found)
    return tuple(known.tolist()), position


def _one_mask(name: str, mask: Any) -> Any:
    # Data sets with several splits have a column for each.
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return mask
    if mask.size(1) == 1:
        return mask.view(-1)
    raise ValueError(
        f"'{name}' has {mask.size(1)} splits: choose one, as "
        'fit(data, data.train_mask[:, 0])'
    )


@torch.no_grad()
def encode(encoder: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Encode features; refuse an encoder that mixes rows."""
    if getattr(encoder, 'training', False):
        raise ValueError("'encoder' needs to be in evaluation mode: .eval()")
    made = encoder(x)
    check_tensor('encoder', made, None, (x.size(0), 'd'), finite=True)
    step = max(1, x.size(0) // 8)
    for i in range(0, x.size(0), step):
        alone = encoder(x[i : i + 1])
        if alone.shape != made[i : i + 1].shape or not torch.allclose(
            alone, made[i : i + 1], rtol=1e-4, atol=1e-5
        ):
            raise ValueError(
                f"'encoder' needs to treat every row by itself (row {i} alone "
                'gives another result): a removal would have to change all '
                'rows that depend on the removed one'
            )
    return made


def fixed_measure(
    measure: str | Measure, alpha: float | None, t: float | None, K: int | None
) -> Measure:
    """Return a measure whose weights do not depend on the graph."""
    if needs_graph(measure) or (
        isinstance(measure, Measure)
        and (measure.spectral_radius is not None or measure.shrink != 1)
    ):
        named = measure if isinstance(measure, str) else 'katz'
        raise ValueError(
            f"'measure' can't be {named}: its "
            'weights depend on the graph (as those of katz on its spectral '
            'radius), which a removal changes'
        )
    return make_measure(measure, None, alpha=alpha, t=t, K=K)


def edits_of(data: NodeState, update: Any, encoded: Encoded) -> list[Edit]:
    """Read updates of a graph, in rows.

    Removals that follow one another become one: an edge of a node that is
    removed may be named beside it.
    """
    edits: list[Edit] = []
    removals: list[RemovalRequest] = []
    given = Update.of(update)
    ids, count = data.ids, data.graph.num_nodes
    if not given:
        raise ValueError("'update' needs to hold an update (got none)")
    for each in (*given, None):
        asked = None if each is None else each.remove
        if each is not None and each.missing == 'skip':
            asked = None
        if each is not None and asked and not (each.edits or each.graphs):
            removals.append(asked)
            continue
        if removals:
            every = Update(remove=RemovalRequest.batch(removals))
            edits.append(Edit(ids.part(every.part), update=every))
            removals = []
        if each is not None:
            edit = _edit(data, each, count, encoded)
            count += 0 if edit.x is None else edit.x.size(0)
            edits.append(edit)
    return edits


def _edit(
    data: NodeState, update: Update, count: int, encoded: Encoded
) -> Edit:
    # Of a graph that has had so many nodes.
    ids, columns = data.ids, data.levels.x.size(1)
    if update.graphs or update.graph:
        raise ValueError("'graphs' and 'graph' need a classifier of graphs")

    def features(name: str, x: Tensor) -> Tensor:
        x = encoded(x.cpu())
        check_tensor(name, x, None, (x.size(0), columns), finite=True)
        return x

    def positions(name: str, y: Tensor) -> Tensor:
        known = torch.tensor(data.classes)
        other = y[(y >= 0) & ~torch.isin(y, known)]
        if other.numel():
            raise ValueError(
                f"'{name}' needs labels of 'classes', {data.classes} (got "
                f'{int(other[0])}): give those that may come to fit()'
            )
        return torch.where(y < 0, -1, torch.searchsorted(known, y))

    edges = ids.rows(update.arcs(data.graph.undirected))
    edit = Edit(ids.part(update.part), edges=edges, update=update)
    new, changed, given = update.nodes, update.features, update.labels
    if new is not None and new.x.size(0):
        new.check_next(ids.next(count))
        y = positions('nodes', torch.where(new.train, new.y, -1))
        edit = edit._replace(x=features('nodes', new.x), y=y)
    if changed is not None and changed[0].numel():
        x = features('features', changed[1])
        edit = edit._replace(features=(ids.rows(changed[0]), x))
    if given is not None and given[0].numel():
        y = positions('labels', given[1])
        edit = edit._replace(labels=(ids.rows(given[0]), y))
    return edit
