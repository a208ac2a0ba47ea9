r"""Graph classifiers with certified removal.

Every graph is embedded by a transform that is not trained
(:class:`~pyg_trust.transforms.GraphScattering`), and a regularised linear
classifier is fitted on the embeddings and released with noise. A removal
touches the embeddings of the graphs it names and nothing else, and the
classifier is solved again from where it was
(:mod:`pyg_trust.unlearning.shifts` derives the guarantee).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    Int,
    Positive,
    check_integer,
    check_tensor,
    validated,
)
from pyg_trust._checks.starts import is_factory, start_of, tensors_of
from pyg_trust._moved import renamed, retired
from pyg_trust.files.commit import editing, synchronized
from pyg_trust.files.seals import Seals, content, sealed
from pyg_trust.ledger import RemovalLedger, coarse
from pyg_trust.noise import LEAST_P_VALUE
from pyg_trust.removal import (
    Edges,
    Nodes,
    RemovalRequest,
    requested,
)
from pyg_trust.report import fingerprint_model, provenance
from pyg_trust.transforms import GraphEmbedding
from pyg_trust.unlearning.certified import CertifiedClassifier, proved
from pyg_trust.unlearning.heads import (
    HEAD,
    Objective,
    Residual,
    gram,
    keep_rows,
    minimize,
)
from pyg_trust.unlearning.reports import ForgetReport, VerifyReport
from pyg_trust.unlearning.training_graphs import (
    GraphKeeper,
    GraphPredictor,
    TrainingGraphs,
    check_graphs,
)
from pyg_trust.update import Update, skipping
from pyg_trust.verify import removal

__all__ = ['ScatteringClassifier']

# Numbers of embeddings that the kernel takes: half a gigabyte.
MOST = 2**26


class Model(NamedTuple):
    """State of a fitted graph classifier, with its removal ledger.

    It is replaced as a whole, by one assignment at the end of an operation
    that may fail, so that a failure changes nothing.
    """

    seed: int | None
    train: TrainingGraphs
    # The solution, and the released weights.
    W: Tensor
    weight: Tensor
    releases: int
    ledger: RemovalLedger

    @property
    def classes(self) -> tuple[int, ...]:
        """The class labels, in ascending order."""
        return self.train.classes

    @property
    def num_items(self) -> int:
        """The number of training graphs that remain."""
        return len(self.train.graphs)

    @property
    def sealed(self) -> str:
        """Digest of the saved state, recorded in the ledger."""
        return sealed(
            self.train.seals.root,
            str(self.train.classes),
            str(self.seed),
            self.releases,
            self.weight,
        )

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger's last line records this state."""
        # Lines of version 0.1 stand for the graphs alone, or for a linear
        # term of zeros as well.
        root, zeros = self.train.seals.root, torch.zeros_like(self.weight)
        held = str(self.train.classes), str(self.seed), self.releases
        old = sealed(root, *held, zeros, self.weight)
        return self.ledger.records(self.sealed, root, old)


class Solved(NamedTuple):
    """Solved weights, their residual, and what they spend."""

    model: Model
    action: str
    iterations: int
    residual: Residual
    spent: float


class ScatteringClassifier(GraphPredictor, CertifiedClassifier):
    r"""Graph classifier that forgets on request, with a certificate.

    A logistic regression (one versus the rest for more than two classes) is
    trained in float64 on embeddings of graphs, as in `"Unlearning Graph
    Classifiers with Limited Data Resources"
    <https://arxiv.org/abs/2211.03216>`_ (Pan et al. 2023), but with noise on
    the released weights.

    A *release* replaces the weights that predictions use, and adds fresh
    noise. Released weights are :math:`(\varepsilon, \delta)`-indistinguishable
    from weights trained on the remaining data alone
    (:mod:`pyg_trust.unlearning.certified`). A graph that loses a part keeps
    its label. For a few hundred graphs, a removal costs as much as a fit.

    Args:
        transform (GraphEmbedding): embeds the graphs, such as a
            :class:`~pyg_trust.transforms.GraphScattering`.
        weight_decay (float): :math:`\lambda > 0` of the penalty
            :math:`\frac{\lambda n}{2} \lVert W \rVert^2`, for :math:`n`
            graphs. (default: :obj:`1e-3`)
        release_std (float): the standard deviation of the noise on each
            released weight: small against the weights, and large against
            :math:`\text{tol} / (\lambda n)`. Choose it without looking at the
            data. (default: :obj:`1e-4`)
        epsilon, delta (float): the guarantee of one release.
            (default: :obj:`1.0`, :obj:`1e-4`)
        num_classes (int, optional): the labels are in ``[0, num_classes)``,
            and a class may become empty. By default the labels of the training
            graphs; a request that would empty a class is refused.
        tol (float): advanced: training ends when the gradient's norm is at
            most this, or less if the budget needs it. (default: :obj:`1e-10`)
        seed (int, optional): the seed of the noise, which is then repeatable
            and not private; by default the operating system's randomness.
        start_is_public (bool): your statement that a transform with weights
            never saw the data; not needed if you pass a function that makes
            one, as ``transform=lambda: Mine(...)``. (default: :obj:`False`)

    Example:
        >>> from pyg_trust.transforms import GraphScattering
        >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> x = [torch.full((3, 1), 0.2 + 0.6 * (i % 2)) for i in range(20)]
        >>> graphs = [
        ...     Data(x=each, edge_index=path, y=torch.tensor([i % 2]))
        ...     for i, each in enumerate(x)
        ... ]
        >>> model = ScatteringClassifier(GraphScattering(J=2, Q=1, L=2))
        >>> report = model.fit(graphs).remove(nodes={3: [0]})
        >>> report.bound <= report.budget, model.verify().ok
        (True, True)
    """

    @retired(
        accounting=('residual',),
        noise_std=None,
        mode=('delete',),
        loss=('logistic',),
        on_exceed=('refine', 'retrain'),
    )
    @renamed(lam='weight_decay')
    @validated
    def __init__(
        self,
        transform: GraphEmbedding | Callable[[], GraphEmbedding],
        *,
        weight_decay: Positive = 1e-3,
        release_std: Positive = 1e-4,
        epsilon: Positive = 1.0,
        delta: float = 1e-4,
        num_classes: Annotated[int, Int(2)] | None = None,
        tol: Positive = 1e-10,
        seed: int | None = None,
        start_is_public: bool = False,
    ) -> None:
        if is_factory(transform) or tensors_of(transform):
            # A subclass may embed by a network.
            transform = start_of('transform', transform, start_is_public)
        if not isinstance(transform, GraphEmbedding):
            raise TypeError(
                "'transform' needs to be a GraphScattering "
                f'(got {type(transform).__name__})'
            )
        self.transform = transform
        self.num_classes = num_classes
        super().__init__(
            weight_decay=weight_decay,
            release_std=release_std,
            epsilon=epsilon,
            delta=delta,
            tol=tol,
            seed=seed,
        )
        self._keeper = GraphKeeper(transform, num_classes)

    @editing
    def fit(self, graphs: Sequence[Data]) -> 'ScatteringClassifier':
        """Embed graphs, train weights and release them with noise.

        Later calls take the positions of graphs as ids. Ids of nodes are the
        ``n_id`` of their graph, if it has one, else positions. The model keeps
        copies of edges, features and labels. A second fit begins a new ledger.
        It can't be saved over a state with removals, as it may contain removed
        items again.

        Args:
            graphs (list[Data]): the training graphs, each with a label ``y``.

        Raises:
            TypeError, ValueError: on graphs that can't be embedded, labels
                that are missing or no integers, or fewer than two classes; or
                if ``release_std`` is too small for ``tol``.
        """
        train = self._keeper.keep(check_graphs(graphs))
        releases, ledger = self._begins()
        self._check_grid(train.Y.size(1))
        zero = train.Y.new_zeros((train.Z.size(1), train.Y.size(1)))
        given = self._seed, train, zero, zero, releases, ledger
        made = self._solved(Model(*given), None)
        if made.spent > self.budget:
            least = self.release_std * made.spent / self.budget
            raise ValueError(
                f"'release_std' needs to be at least {least:.3g} for tol = "
                f'{self.tol:g}, weight_decay = {self.weight_decay:g} and '
                f"{len(train.graphs)} graphs, or 'tol' to be smaller (got "
                f'{self.release_std:g})'
            )
        model = self._released(made)
        ledger.record('fit', made.spent, data=model.sealed)
        self._model = model
        return self

    @editing
    def update(
        self,
        update: Update | RemovalRequest | Sequence[Any],
        *,
        reference: str = '',
    ) -> ForgetReport:
        """Apply removals, additions and changes, and release new weights.

        Embeds the touched graphs again, and solves by Newton's method from the
        old weights. If this fails or is interrupted, nothing has changed. The
        new weights have the same guarantee as after a fit.

        Every call makes one release, which spends budget: collect additions in
        a list. New graphs and nodes get the next ids, which are never used
        again.

        Args:
            update (Update, RemovalRequest or list): the removals, additions
                and changes, in order; ``graph`` of an update is the id of the
                graph that its nodes, edges and features belong to.
            reference (str): ids of the requests for the ledger, 32 hexadecimal
                digits each, joined without a separator. (default: :obj:`''`)

        Raises:
            ValueError: if an item to remove is missing, an item to add exists,
                or a graph or class would be left empty.
        """
        return self._updated(Update.of(update), reference)

    @editing
    def remove(
        self,
        request: RemovalRequest | Sequence[Any] | Tensor | None = None,
        *,
        graphs: Nodes | None = None,
        nodes: Mapping[int, Nodes] | None = None,
        edges: Mapping[int, Edges] | None = None,
        features: Mapping[int, Nodes] | None = None,
        persons: Nodes | None = None,
        missing: str = 'raise',
        reference: str = '',
    ) -> ForgetReport:
        """Remove the requested items and release new weights.

        .. code-block:: python

            model.remove(graphs=[7], nodes={3: [0, 5]})

        Args:
            request (RemovalRequest or list, optional): a request, or a list of
                requests, which makes one release; or the ids of graphs.
            graphs (list[int] or Tensor, optional): the ids of whole graphs.
            nodes (dict, optional): by graph id, the ids of nodes.
            edges (dict, optional): by graph id, edges as pairs of node ids.
            features (dict, optional): by graph id, the ids of nodes whose
                features are removed.
            persons (list[int], optional): refused, as persons are rows of a
                table, and these are graphs.
            missing (str): :obj:`'raise'`, or :obj:`'skip'` to leave out items
                that are not there and list them in ``skipped`` of the report.
                (default: :obj:`'raise'`)
            reference (str): ids of the requests for the ledger, 32 hexadecimal
                digits each, joined without a separator. (default: :obj:`''`)

        Raises:
            NotThere: if an item is not there, or with ``missing='skip'`` if no
                item is.
            ValueError: if a graph or class would be left empty.
        """
        asked = requested(
            request,
            'graphs',
            graphs=graphs,
            nodes=nodes,
            edges=edges,
            features=features,
            persons=persons,
        )

        return skipping(
            asked,
            missing,
            lambda each: self._updated(Update.of(each), reference),
        )

    def _updated(
        self, updates: Sequence[Update], reference: str
    ) -> ForgetReport:
        old = self._fitted
        old.ledger.check_reference(reference)
        if not updates:
            raise ValueError("'update' needs to hold an update (got none)")
        if any(u.remove is not None and u.remove._units for u in updates):
            raise ValueError(
                "'persons' are rows of a table, and this is a model of "
                'graphs: name the graphs or nodes that a person has, as '
                'remove(graphs=[3])'
            )
        change = self._keeper.changed(old.train, updates, old.ledger.removed)
        left = old._replace(train=change.left)
        made = self._followed(left)
        ledger, spent = old.ledger.copy(), made.spent
        model = self._released(made)._replace(ledger=ledger)
        # The action depends on the removed data: no line names it.
        ledger.record(
            'measured', spent, change.request, model.sealed, reference
        )
        mu = self.weight_decay * model.num_items
        report = ForgetReport.of(
            'certified removal',
            action=made.action,
            request=change.request,
            seeded=model.seed is not None,
            accounting='residual',
            graphs_embedded=len(change.touched),
            num_graphs=model.num_items,
            empty_classes=model.train.empty_classes,
            bound=spent,
            budget=self.budget,
            distance_bound=self._bound(model) / mu,
            releases=ledger.num_lines,
            iterations=made.iterations,
            increments={},
            history=ledger.amounts(),
            **self._certificate(
                model,
                spent,
                made.residual,
                ('the transform takes nothing from other graphs',),
                **provenance(
                    transform=str(self.transform),
                    lam=self.weight_decay,
                    epsilon=self.epsilon,
                    num_classes=self.num_classes,
                    tol=self.tol,
                ),
            ),
        )
        # Model and account at once, and last of all.
        self._model = model
        return report

    @synchronized
    def verify(self) -> VerifyReport:
        """Check the classifier against the remaining data.

        Embeds the remaining graphs again, measures the gradient's norm, and
        compares the weights with exactly retrained ones. It also tests the
        size of the released noise, and that the graphs match the ledger's
        digest.
        """
        model, train = self._fitted, self._fitted.train
        fresh = self._keeper.embed(list(train.graphs.values()))
        error = _largest(fresh, train.Z)
        if train.K is not None:
            error = max(error, float((gram(fresh) - train.K).abs().max()))
        again = model._replace(train=train._replace(Z=fresh, K=None))
        residual = self._residual(again)
        measured, upper = residual
        exact = self._solved(again, None)
        # The solution to compare with is not exact: it has a residual, too.
        own = Residual(0.0, max(exact.residual.upper, self.tol))
        found = self._compared(
            model,
            exact.model.W,
            (residual, own),
            lambda weight: fresh @ weight,
        )
        bound = found['bound']
        # Embedding again rounds differently: allow for the rounding of both.
        holds = measured <= bound + 2 * (upper - measured)
        prints = {i: content(data) for i, data in train.graphs.items()}
        sealed = model.is_sealed and train.seals.fits(prints)
        scale = max(1.0, 1.0 if train.K is None else float(train.K.max()))
        return VerifyReport(
            ok=error <= 1e-11 * scale
            and holds
            and found['distance_to_retrain'] <= found['distance_bound']
            and found['noise_p_value'] >= LEAST_P_VALUE
            and sealed,
            seeded=model.seed is not None,
            residual=measured,
            bound_holds=holds,
            embedding_error=error,
            sealed=sealed,
            leftovers=()
            if sealed
            else ('the graphs are not those of the ledger',),
            **{**found, **self._proved(again, upper <= bound)},
        )

    @property
    def _seed(self) -> int | None:
        return self._first_seed if self._model is None else self._model.seed

    def _config(self) -> dict[str, Any]:
        transform = {
            key: value
            for key, value in vars(self.transform).items()
            if not isinstance(value, Tensor | torch.nn.Module)
        }
        # As earlier states have them.
        transform |= {'sparse': False, 'dtype': None}
        if weights := tensors_of(self.transform):
            transform['weights'] = fingerprint_model(weights)
        return {
            **super()._config(),
            'transform': [type(self.transform).__name__, transform],
            'num_classes': self.num_classes,
            # As earlier states have them.
            'loss': 'logistic',
            'mode': 'delete',
        }

    def _packed(self, model: Model) -> dict[str, Any]:
        graphs = model.train.graphs
        return {
            **super()._packed(model),
            'seed': model.seed,
            'seeded': model.seed is not None,
            'salts': model.train.seals.state_dict(),
            'graphs': {
                i: data.clone().to_dict() for i, data in graphs.items()
            },
            'W': model.weight.clone(),
            'draws': model.releases,
        }

    def _rebuilt(self, state: dict[str, Any], ledger: RemovalLedger) -> Model:
        graphs = {
            i: Data.from_dict(dict(data)).clone()
            for i, data in state['graphs'].items()
        }
        seed, W = state['seed'], state['W']
        if seed is not None:
            check_integer('seed', seed, 0)
        if state['seeded'] is not (seed is not None):
            raise ValueError(
                "'seeded' of the state needs to say whether it has a seed "
                f'(got {state["seeded"]!r})'
            )
        contents = {i: content(data) for i, data in graphs.items()}
        seals, classes = Seals.of(state['salts'], contents), state['classes']
        train = self._keeper.design(graphs, tuple(classes), seals)
        shape = (train.Z.size(1), train.Y.size(1))
        check_tensor('W of the state', W, torch.float64, shape, finite=True)
        count = check_integer('draws', state['draws'], 0)
        given = seed, train, W.clone(), W.clone(), count, ledger
        model = Model(*given)
        if not model.is_sealed:
            return model
        # Start from zero: weights are a function of the remaining graphs.
        return self._solved(model, None).model

    def _released(self, made: Solved) -> Model:
        # Check what is paid, and add fresh noise to the solution, once.
        model = made.model
        count, upper = model.num_items, made.residual.upper
        self._check_shift(count, model.W, upper, made.spent)
        weight = self._release(model.W, model.releases)
        return model._replace(weight=weight, releases=model.releases + 1)

    def _solved(
        self, model: Model, start: Tensor | None, tol: float | None = None
    ) -> Solved:
        # Solve to a residual below tol.
        train, tol = model.train, self.tol if tol is None else tol
        found = minimize(
            train.Z,
            train.Y,
            torch.zeros_like(model.W),
            self.weight_decay,
            W=start,
            K=train.K,
            # Rounding included, it is then below tol.
            tol=tol / 2,
        )
        model = model._replace(W=found.W)
        residual = self._residual(model)
        # What is spent is that of tol, or of a power of two times tol if
        # rounding hides more: no function of the data by which a guess of the
        # removed part is tested.
        beta = tol * max(1.0, coarse(residual.upper / tol))
        mu = self.weight_decay * model.num_items
        spent = self._spends(beta, mu) + self._grid(model.W.shape)
        return Solved(model, 'refine', found.iterations, residual, spent)

    def _residual(self, model: Model) -> Residual:
        train, mu = model.train, self.weight_decay * model.num_items
        return Objective(train.Z, train.Y, mu).gradient(model.W).norm

    def _followed(self, model: Model) -> Solved:
        # Solve for the remaining graphs, from the old weights.
        made = self._solved(model, model.W)
        if made.spent <= self.budget:
            return made
        # Solve as a fit of the remaining graphs does, to a residual within
        # the budget.
        left = model.train
        anew = self._keeper.design(left.graphs, left.classes, left.seals)
        most = self._allowed(self.budget, self.weight_decay * model.num_items)
        again = self._solved(
            made.model._replace(train=anew), None, min(self.tol, most / 4)
        )
        # Where rounding hides more than the budget, these weights are those
        # of a fit of the remaining graphs.
        return again._replace(
            action='retrain',
            iterations=made.iterations + again.iterations,
            spent=again.spent if again.spent <= self.budget else 0.0,
        )

    def _proved(self, again: Model, claimed: bool) -> dict[str, Any]:
        # Prove the release by the kernel, on embeddings that were made anew.
        Z, spent = again.train.Z, again.ledger.spent
        if not spent or Z.numel() > MOST:
            return {}
        graphs = again.train.graphs.values()
        y = np.array([int(graph.y) for graph in graphs])
        labels = np.searchsorted(again.classes, y)
        Y = removal.targets(labels, len(again.classes), HEAD)
        rows, W = removal.Features(Z.to_dense().numpy(), 0.0), again.W.numpy()
        beta = removal.residual(rows, Y, W, self.weight_decay, HEAD)
        n, std = len(labels), self.release_std
        shift = removal.shift(beta.most, n, self.weight_decay, W, std)
        most = spent * std * self.weight_decay * n
        return proved(removal.Proof(n, beta, shift), most, spent, claimed)


def _largest(one: Tensor, two: Tensor) -> float:
    # The largest difference, by blocks of rows.
    largest = 0.0
    for rows in torch.arange(one.size(0)).split(256):
        gap = keep_rows(one, rows).to_dense() - keep_rows(two, rows).to_dense()
        largest = max(largest, float(gap.abs().max()))
    return largest
