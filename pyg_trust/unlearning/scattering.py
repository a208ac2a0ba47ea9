r"""Graph classifiers with certified removal.

Every graph is embedded by a transform that is not trained
(:class:`~pyg_trust.transforms.GraphScattering`), and a regularised linear
classifier with a secret random term is fitted on the embeddings. A removal
touches the embeddings of the graphs it names and nothing else, and the
classifier follows by a Newton step whose error is accounted for
(:mod:`pyg_trust.functional.newton` derives the guarantee).
"""

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data
from tqdm import tqdm

from pyg_trust import files, rng
from pyg_trust._checks import (
    check_choice,
    check_integer,
    check_positive,
    check_tensor,
)
from pyg_trust.functional.newton import (
    LOSSES,
    Residual,
    dense_rows,
    feature_removal_bound,
    gram,
    hessian_solve,
    hessian_times,
    keep_rows,
    loss_derivatives,
    max_row_norm,
    minimize,
    node_removal_bound,
    paper_bound,
    removal_budget,
    replace_rows,
    residual,
    tight_bound,
)
from pyg_trust.functional.scattering import frame_bound
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import (
    BudgetExceededError,
    RemovalLedger,
    fingerprint,
    fingerprints,
)
from pyg_trust.removal import MODES, RemovalRequest, remove_from_data
from pyg_trust.report import Guarantee, Report, provenance
from pyg_trust.transforms import GraphEmbedding, GraphScattering

ACCOUNTINGS = ('residual', 'bound', 'paper')
ON_EXCEED = ('refine', 'retrain', 'raise')


@dataclass(frozen=True)
class UnlearnReport(Report):
    """What a removal did, and what is certified about the model after it.

    Args:
        action (str): :obj:`'step'` (one certified Newton step),
            :obj:`'refine'` (solved exactly with the stored noise) or
            :obj:`'retrain'` (solved exactly with fresh noise).
        request (dict): the names of what was removed.
        mode (str): :obj:`'delete'` or :obj:`'mask'`.
        accounting (str): how the bound was found.
        graphs_embedded (int): how many graphs were embedded again.
        num_graphs (int): how many training graphs remain.
        residual (float): the gradient residual as measured.
        bound (float): the bound of it that the ledger holds.
        budget (float): what the bound may be at most.
        epsilon (float): the certificate that the bound implies at
            :obj:`delta`.
        delta (float): as given to the classifier.
        iterations (int): Newton steps taken, the first one included.
        increments (dict): bounds of the residual that the certified step
            added or would have added: ``tight``, ``paper`` (Theorem 4.7),
            and the worst cases ``node`` (Theorem 4.4, Corollary 4.6) and
            ``feature`` (Theorem 4.3, Corollary 4.5); those that the
            accounting computes and the request allows.
        assumptions (tuple[str, ...]): what the certificate rests on.
        data (str): a fingerprint of the data that remain, as in the ledger.
        origin (dict): versions and settings.
    """

    action: str
    request: dict[str, Any]
    mode: str
    accounting: str
    graphs_embedded: int
    num_graphs: int
    residual: float
    bound: float
    budget: float
    epsilon: float
    delta: float
    iterations: int
    increments: dict[str, float]
    assumptions: tuple[str, ...]
    data: str
    origin: dict[str, Any]

    def guarantee(self) -> Guarantee:
        """How close the model is to one that never saw what was removed."""
        return Guarantee(
            procedure='certified removal',
            promise=(
                f'the model is ({self.epsilon:.4g}, {self.delta:g})-'
                'indistinguishable from one trained without what was removed'
            ),
            assumptions=self.assumptions,
            not_covered=('what earlier releases of the model have revealed',),
            spent={'gradient residual': self.bound},
            budget={'gradient residual': self.budget},
            data=self.data,
            origin=self.origin,
        )


@dataclass(frozen=True)
class VerifyReport(Report):
    r"""What :meth:`ScatteringClassifier.verify` found.

    Args:
        ok (bool): whether everything below is as it has to be.
        residual (float): the gradient residual, recomputed from the graphs
            that remain, rounding included.
        bound (float): the bound of it that the ledger holds.
        bound_holds (bool): whether the residual is at most the bound.
        embedding_error (float): the largest difference of the cached
            embeddings and their inner products from those recomputed from
            the graphs that remain.
        distance_to_retrain (float): the Frobenius norm of the difference to
            the exact solution on the data that remain, with the same noise.
        distance_bound (float): what the residual allows it to be,
            :math:`\lVert r \rVert / (\lambda n)`.
        agreement (float): the share of the remaining graphs that both
            classify alike.
        leftovers (tuple[str, ...]): what still holds, or could hold,
            something that was removed.
    """

    ok: bool
    residual: float
    bound: float
    bound_holds: bool
    embedding_error: float
    distance_to_retrain: float
    distance_bound: float
    agreement: float
    leftovers: tuple[str, ...]


class _Model(NamedTuple):
    # All that training leaves behind, and its account. It is replaced as a
    # whole, by one assignment at the end of whatever may fail or be
    # interrupted, so that a failure changes nothing.
    seed: int
    classes: tuple[int, ...]
    ledger: RemovalLedger
    graphs: dict[int, Data]
    prints: dict[int, str]
    Z: Tensor
    K: Tensor | None
    Y: Tensor
    B: Tensor
    W: Tensor
    draws: int


class ScatteringClassifier:
    r"""A graph classifier that forgets on request, with a certificate.

    Minimises :math:`\sum_i [\ell(w^\top z_i, y_i) + \frac{\lambda}{2} \lVert
    w \rVert^2] + b^\top w` in float64, one classifier for two classes and one
    versus the rest for more, as in `"Unlearning Graph Classifiers with
    Limited Data Resources" <https://arxiv.org/abs/2211.03216>`_ (Pan et al.
    2023), and corrects where that paper's guarantee does not hold (see
    :mod:`pyg_trust.functional.newton`).

    .. code-block:: python

        model = ScatteringClassifier(GraphScattering(J=5, Q=4, L=3))
        model.fit(train_graphs)
        report = model.remove(RemovalRequest(nodes={3: [0, 5]}))
        assert model.verify().ok

    **The guarantee.** After every :meth:`remove`, the law of the weights is
    :math:`(\varepsilon, \delta)`-close to that of training on the remaining
    data from scratch, because the gradient residual is below the budget, by
    measurement or by a proven bound. It covers each release by itself, not
    the pair of the models before and after, and assumes that requests do not
    depend on a released model, that the noise :math:`b` stays secret (it is in
    :meth:`state_dict`: guard it, and give no guessable :obj:`seed`), and that
    the transform takes nothing from other graphs. Labels of graphs that lost
    a part stay. The number and names of what was removed stay in the ledger.

    **When it is not worth it.** With a few hundred training graphs or fewer
    an exact solve takes milliseconds: retraining is as cheap. A removal, the
    embedding of the touched graph included, took 1.0 to 1.5 of an exact
    retraining with 111 graphs (PROTEINS) and about 0.4 with 500
    (``benchmarks/unlearning.py`` measures it), and both are about a thousand
    times cheaper than retraining a network.

    Args:
        transform (GraphEmbedding): embeds the graphs; a
            :class:`~pyg_trust.transforms.GraphScattering`, linear or not, or a
            :class:`~pyg_trust.transforms.GFT`.
        lam (float): :math:`\lambda > 0`. (default: :obj:`1e-3`)
        noise_std (float): the standard deviation of :math:`b`. With 0 there
            is no certificate, and :meth:`remove` is refused.
            (default: :obj:`0.1`)
        epsilon (float): in :math:`(0, 1]`. (default: :obj:`1.0`)
        delta (float): in :math:`(0, 1)`. (default: :obj:`1e-4`)
        loss (str): :obj:`'logistic'` or :obj:`'squared'`.
            (default: :obj:`'logistic'`)
        mode (str): :obj:`'delete'`: removed nodes are gone, and what is
            derived from the graph (degrees, averages) is derived anew.
            :obj:`'mask'`: as in the paper, they stay as isolated nodes
            without features, and features stay as first derived: their
            existence and, through their neighbours' degrees, their edges can
            still be seen. For comparison only.
            (default: :obj:`'delete'`)
        accounting (str): :obj:`'residual'` measures the residual,
            :obj:`'bound'` adds up :func:`~.newton.tight_bound`,
            :obj:`'paper'` adds up Theorem 4.7 with a valid :math:`F` and
            reports all bounds. (default: :obj:`'residual'`)
        on_exceed (str): what happens when the budget does not allow a step:
            :obj:`'refine'` solves exactly with the stored noise, which is as
            good as training from scratch, since that noise never depended on
            the data; :obj:`'retrain'` draws fresh noise; :obj:`'raise'`
            raises :class:`~pyg_trust.ledger.BudgetExceededError`.
            (default: :obj:`'refine'`)
        tol (float): the residual of exact solves. (default: :obj:`1e-10`)
        seed (int, optional): the seed of the noise. Leave it at
            :obj:`None` outside experiments. (default: :obj:`None`)

    Raises:
        TypeError, ValueError: if an argument is out of range.

    Example:
        >>> from pyg_trust.removal import RemovalRequest
        >>> from pyg_trust.transforms import GraphScattering
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> graphs = [
        ...     Data(
        ...         x=torch.full((3, 1), 0.2 + 0.6 * (i % 2)),
        ...         edge_index=edge_index,
        ...         y=torch.tensor([i % 2]),
        ...     )
        ...     for i in range(20)
        ... ]
        >>> scattering = GraphScattering(J=2, Q=1, L=2)
        >>> model = ScatteringClassifier(scattering, seed=0)
        >>> request = RemovalRequest(nodes={3: [0]})
        >>> report = model.fit(graphs).remove(request)
        >>> report.bound <= report.budget, model.verify().ok
        (True, True)
    """

    def __init__(
        self,
        transform: GraphEmbedding,
        *,
        lam: float = 1e-3,
        noise_std: float = 0.1,
        epsilon: float = 1.0,
        delta: float = 1e-4,
        loss: str = 'logistic',
        mode: str = 'delete',
        accounting: str = 'residual',
        on_exceed: str = 'refine',
        tol: float = 1e-10,
        seed: int | None = None,
    ) -> None:
        if not isinstance(transform, GraphEmbedding):
            raise TypeError(
                "'transform' needs to be a GraphScattering or GFT "
                f'(got {type(transform).__name__})'
            )
        check_positive('lam', lam)
        check_positive('tol', tol)
        self.budget = removal_budget(epsilon, delta, noise_std)
        for name, choice, choices in (
            ('loss', loss, LOSSES),
            ('mode', mode, MODES),
            ('accounting', accounting, ACCOUNTINGS),
            ('on_exceed', on_exceed, ON_EXCEED),
        ):
            check_choice(name, choice, choices)
        self.transform = transform
        self.lam = float(lam)
        self.noise_std = float(noise_std)
        self.epsilon = float(epsilon)
        self.delta = float(delta)
        self.loss = loss
        self.mode = mode
        self.accounting = accounting
        self.on_exceed = on_exceed
        self.tol = float(tol)
        self._empty = RemovalLedger(self.budget)
        self._first_seed = rng.resolve(seed)
        self._model: _Model | None = None

    # Training and prediction ################################################

    def fit(
        self, graphs: Sequence[Data], *, progress_bar: bool = False
    ) -> 'ScatteringClassifier':
        """Embeds and fits; graphs are named by their positions from then on.

        Keeps copies of what it needs of the graphs (edges, features, label).
        A second call starts over, with fresh noise and a new ledger.

        Args:
            graphs (list[Data]): the training graphs, with a label ``y`` each.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            TypeError, ValueError: on graphs that can't be embedded, labels
                that are missing or no integers, or fewer than two classes.
        """
        listed = check_graphs(graphs)
        kept: dict[int, Data] = {}
        for data in tqdm(listed, disable=not progress_bar, desc='graphs'):
            kept[len(kept)] = self._copy(len(kept), data)
        classes = tuple(sorted({int(data.y) for data in kept.values()}))
        if len(classes) < 2:
            raise ValueError(
                "'graphs' need to have labels of at least two classes "
                f'(got {list(classes)})'
            )
        prints = {
            i: fingerprint(str(self._seed), data) for i, data in kept.items()
        }
        Z, K, Y = self._design(kept, classes, progress_bar)
        draws = 1 + (0 if self._model is None else self._model.draws)
        B = self._noise(draws, Z.size(1), Y.size(1))
        W = minimize(
            Z,
            Y,
            B,
            self.lam,
            self.loss,
            K=K,
            tol=self.tol,
            progress_bar=progress_bar,
        ).W
        ledger = RemovalLedger(self.budget)
        model = _Model(
            self._seed, classes, ledger, kept, prints, Z, K, Y, B, W, draws
        )
        if self.noise_std > 0:
            _, start = self._residual(model)
            ledger.record('fit', start, data=fingerprints(prints))
        self._model = model
        return self

    def decision_function(
        self, graphs: Data | Sequence[Data], *, progress_bar: bool = False
    ) -> Tensor:
        """The margins: ``[num_graphs]`` for two classes, else one per class.

        Args:
            graphs (Data, Batch or list[Data]): the graphs.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)
        """
        model = self._fitted
        Z = self._embed(graphs, progress_bar=progress_bar)
        margin = Z @ model.W
        return margin.view(-1) if len(self.classes) == 2 else margin

    def predict(
        self, graphs: Data | Sequence[Data], *, progress_bar: bool = False
    ) -> Tensor:
        """The labels of graphs: int64, ``[num_graphs]``.

        Args:
            graphs (Data, Batch or list[Data]): the graphs.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)
        """
        margin = self.decision_function(graphs, progress_bar=progress_bar)
        two = len(self.classes) == 2
        best = (margin > 0).long() if two else margin.argmax(1)
        return torch.tensor(self.classes)[best]

    def predict_proba(
        self, graphs: Data | Sequence[Data], *, progress_bar: bool = False
    ) -> Tensor:
        """The probabilities of the classes: ``[num_graphs, num_classes]``.

        The logistic function of the margins, for more than two classes scaled
        to sum to one.

        Args:
            graphs (Data, Batch or list[Data]): the graphs.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: with another loss than the logistic one.
        """
        if self.loss != 'logistic':
            raise ValueError(
                "'predict_proba' needs loss='logistic' "
                f'(got {self.loss!r}, which has no probabilities)'
            )
        margin = self.decision_function(graphs, progress_bar=progress_bar)
        if len(self.classes) == 2:
            return torch.sigmoid(torch.stack([-margin, margin], dim=1))
        # As log-probabilities, so that tiny ones do not all vanish.
        return torch.nn.functional.logsigmoid(margin).softmax(dim=1)

    def score(
        self, graphs: Sequence[Data], *, progress_bar: bool = False
    ) -> float:
        """The share of graphs that are classified as their ``y``.

        Args:
            graphs (list[Data]): the graphs.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)
        """
        y = graph_labels(graphs)
        found = self.predict(graphs, progress_bar=progress_bar)
        return float((found == y).double().mean())

    @property
    def classes(self) -> tuple[int, ...]:
        """The labels, ascending; none before the first fit."""
        return () if self._model is None else self._model.classes

    @property
    def ledger(self) -> RemovalLedger:
        """The account of what was done, up to now."""
        return self._empty if self._model is None else self._model.ledger

    @property
    def num_graphs(self) -> int:
        """The number of training graphs that remain."""
        return len(self._fitted.graphs)

    @property
    def graphs(self) -> dict[int, Data]:
        """The training graphs that remain, by name: what is left of them."""
        return dict(self._fitted.graphs)

    @property
    def embeddings(self) -> Tensor:
        """The embeddings of the training graphs that remain, in order.

        Float64, ``[num_graphs, d]``; sparse CSR with one-hot degrees.
        """
        return self._fitted.Z

    @property
    def weight(self) -> Tensor:
        """The released weights: float64, ``[d, C]``, a copy."""
        return self._fitted.W.clone()

    # Removal ################################################################

    def remove(
        self, request: RemovalRequest, *, progress_bar: bool = False
    ) -> UnlearnReport:
        r"""Forgets what the request names.

        Embeds the touched graphs again, takes one Newton step, and accounts
        for it; if the budget does not allow that, does as :obj:`on_exceed`
        says. If anything fails or interrupts it, classifier and ledger are as
        before.

        Args:
            request (RemovalRequest): what to forget, in the names of the
                graphs and nodes that :meth:`fit` saw.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            TypeError: on another request.
            ValueError: if something is not there or was removed before, if a
                graph or class would be left empty, or without noise.
            BudgetExceededError: with ``on_exceed='raise'``, if the budget
                does not allow the step.
        """
        old = self._fitted
        if self.noise_std == 0:
            raise ValueError(
                "'noise_std' needs to be positive for a certified removal "
                '(got 0)'
            )
        new, touched, delta_grad = self._without(request, progress_bar)
        n = len(new.graphs)
        _, curvature = loss_derivatives(new.Z @ old.W, new.Y, self.loss)
        mu = self.lam * n
        P = hessian_solve(new.Z, curvature, mu, delta_grad, new.K)
        model = new._replace(W=old.W + P)
        measured, upper = self._residual(model)
        increments: dict[str, float] = {}
        if self.accounting == 'residual':
            spent = upper
        else:
            increments = self._increments(old, new, request, P)
            left = hessian_times(new.Z, curvature, mu, P) - delta_grad
            which = 'tight' if self.accounting == 'bound' else 'paper'
            spent = self.ledger.spent + increments[which]
            # The parts of the step round too, as gradients do.
            spent += float(left.norm()) + 4 * (upper - measured)
        # Within an account what is spent never falls.
        spent = max(spent, self.ledger.spent)

        action, iterations = 'step', 1
        if spent > self.budget:
            if self.on_exceed == 'raise':
                raise BudgetExceededError(
                    f'the removal would spend {spent:.6g} of a budget of '
                    f"{self.budget:.6g}: choose on_exceed='refine' or "
                    "'retrain'"
                )
            action = self.on_exceed
            if action == 'retrain':
                draws = model.draws + 1
                B = self._noise(draws, *model.B.shape)
                model = model._replace(B=B, draws=draws)
            solution = minimize(
                model.Z,
                model.Y,
                model.B,
                self.lam,
                self.loss,
                W=model.W if action == 'refine' else None,
                K=model.K,
                tol=self.tol,
                progress_bar=progress_bar,
            )
            iterations += solution.iterations
            model = model._replace(W=solution.W)
            measured, spent = self._residual(model)
        ledger = old.ledger.copy()
        ledger.record(
            action, spent, request.to_dict(), fingerprints(model.prints)
        )
        report = UnlearnReport(
            action=action,
            request=request.to_dict(),
            mode=self.mode,
            accounting=self.accounting,
            graphs_embedded=len(touched),
            num_graphs=n,
            residual=measured,
            bound=spent,
            budget=self.budget,
            epsilon=self.epsilon * spent / self.budget,
            delta=self.delta,
            iterations=iterations,
            increments=increments,
            assumptions=(
                'requests do not depend on a released model',
                'the noise b is secret',
                'the certificate covers this release, not the pair of '
                'releases before and after',
            ),
            data=fingerprints(model.prints),
            origin=provenance(
                transform=str(self.transform),
                lam=self.lam,
                noise_std=self.noise_std,
                loss=self.loss,
                on_exceed=self.on_exceed,
                tol=self.tol,
            ),
        )
        # Model and account at once, and last of all.
        self._model = model._replace(ledger=ledger)
        return report

    def verify(self, *, progress_bar: bool = False) -> VerifyReport:
        """Checks the classifier against the data that remain.

        Embeds every remaining graph again, measures the residual, solves
        exactly with the same noise and compares; and looks for what should be
        gone: cached embeddings and inner products that are not those of the
        remaining graphs, graphs and nodes that the ledger lists as removed,
        and tensors that are views into larger ones.

        Args:
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)
        """
        model = self._fitted
        fresh = self._embed(
            list(model.graphs.values()), True, progress_bar=progress_bar
        )
        error = _largest(fresh, model.Z)
        if model.K is not None:
            error = max(error, float((gram(fresh) - model.K).abs().max()))
        recomputed = model._replace(Z=fresh)
        measured, upper = self._residual(recomputed)
        exact = minimize(
            fresh,
            model.Y,
            model.B,
            self.lam,
            self.loss,
            tol=self.tol,
            progress_bar=progress_bar,
        )
        distance = float((exact.W - model.W).norm())
        mu = self.lam * len(model.graphs)
        # The exact solution has a residual of its own.
        allowed = (upper + max(exact.residual, self.tol)) / mu
        alike = (fresh @ exact.W).sign() == (fresh @ model.W).sign()
        if len(self.classes) > 2:
            alike = (fresh @ exact.W).argmax(1) == (fresh @ model.W).argmax(1)
        bound = self.ledger.spent
        # Re-embedding rounds differently: once more the rounding of both.
        holds = measured <= bound + 2 * (upper - measured)
        leftovers = self._leftovers()
        scale = max(1.0, 1.0 if model.K is None else float(model.K.max()))
        certified = self.noise_std > 0
        return VerifyReport(
            ok=error <= 1e-11 * scale
            and (holds or not certified)
            and distance <= allowed
            and not leftovers,
            residual=measured,
            bound=bound,
            bound_holds=holds,
            embedding_error=error,
            distance_to_retrain=distance,
            distance_bound=allowed,
            agreement=float(alike.double().mean()),
            leftovers=leftovers,
        )

    # State ##################################################################

    def state_dict(self) -> dict[str, Any]:
        """Everything it takes to go on, the remaining graphs included.

        It contains the noise and its seed, on whose secrecy the certificate
        rests, and the data. Destroy older states after a removal: they hold
        what was removed.
        """
        model = self._fitted
        return {
            'config': self._config(),
            'classes': self.classes,
            'seed': self._seed,
            'ledger': self.ledger.state_dict(),
            'graphs': {i: data.to_dict() for i, data in model.graphs.items()},
            'B': model.B,
            'W': model.W,
            'draws': model.draws,
        }

    def load_state_dict(
        self, state: dict[str, Any], *, progress_bar: bool = False
    ) -> None:
        """Takes over a saved state.

        Args:
            state (dict): of :meth:`state_dict` of a classifier with the same
                arguments.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: if the arguments differ, the parts do not fit
                together, or the state's ledger does not continue the present
                one.
        """
        try:
            self._model = self._unpacked(state, progress_bar)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(
                "'state' needs to be what state_dict() returns "
                f'({type(error).__name__}: {error})'
            ) from error

    def _unpacked(self, state: dict[str, Any], progress_bar: bool) -> _Model:
        if state['config'] != self._config():
            raise ValueError(
                'the state was saved with other arguments (got '
                f'{state["config"]}, need {self._config()})'
            )
        ledger = self.ledger.copy()
        ledger.load_state_dict(state['ledger'])
        graphs = {
            i: Data.from_dict(dict(data))
            for i, data in state['graphs'].items()
        }
        seed = check_integer('seed', state['seed'], 0)
        prints = {
            i: fingerprint(str(seed), data) for i, data in graphs.items()
        }
        if ledger.entries and ledger.entries[-1].data != fingerprints(prints):
            raise ValueError(
                'the graphs of the state are not those of its ledger'
            )
        classes = tuple(state['classes'])
        B, W = state['B'], state['W']
        Z, K, Y = self._design(graphs, classes, progress_bar)
        shape = (Z.size(1), Y.size(1))
        if B.shape != shape or W.shape != shape:
            raise ValueError(
                f"'B' and 'W' of the state need to have the shape {shape} "
                f'(got {tuple(B.shape)} and {tuple(W.shape)})'
            )
        for name, value in (('B', B), ('W', W)):
            what = f'{name} of the state'
            check_tensor(what, value, torch.float64, shape, finite=True)
        draws = check_integer('draws', state['draws'], 1)
        model = _Model(
            seed, classes, ledger, graphs, prints, Z, K, Y, B, W, draws
        )
        if ledger.entries:
            measured, upper = self._residual(model)
            # The embeddings are computed anew, and round differently.
            if not measured <= ledger.spent + 2 * (upper - measured):
                raise ValueError(
                    'the weights of the state are not those of its ledger: '
                    f'their residual is {measured:.6g}, not at most '
                    f'{ledger.spent:.6g}'
                )
        return model

    def save(self, path: str | Path) -> None:
        """Writes the state to a file, whole or not at all.

        A removal is done once it is saved: whatever stops the process, the
        file holds the state before or after it. A file system, a backup or a
        snapshot may keep the old content of a file that was replaced.

        Args:
            path (str or Path): of the file, which is replaced.
        """
        files.save(path, self.state_dict())

    def load(self, path: str | Path, *, progress_bar: bool = False) -> None:
        """Takes over what :meth:`save` has written.

        Args:
            path (str or Path): of the file.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: as :meth:`load_state_dict`.
        """
        self.load_state_dict(files.load(path), progress_bar=progress_bar)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.transform}, lam={self.lam}, '
            f'noise_std={self.noise_std}, epsilon={self.epsilon}, '
            f'delta={self.delta}, loss={self.loss!r}, mode={self.mode!r}, '
            f'accounting={self.accounting!r})'
        )

    # Private ################################################################

    @property
    def _fitted(self) -> _Model:
        if self._model is None:
            raise ValueError('the classifier needs to be fitted first')
        return self._model

    @property
    def _seed(self) -> int:
        return self._first_seed if self._model is None else self._model.seed

    def _embed(
        self,
        graphs: Data | Sequence[Data],
        stored: bool = False,
        progress_bar: bool = False,
    ) -> Tensor:
        # Sparse where features are one-hot degrees. With mode='mask' these
        # were derived once and belong to the stored graph, as in the paper.
        transform = self.transform
        sparse = transform.max_degree is not None
        if stored and sparse and self.mode == 'mask':
            transform = copy.copy(transform)
            transform.max_degree = None
        return transform.embed(
            graphs, torch.float64, sparse, progress_bar=progress_bar
        ).cpu()

    def _copy(self, i: int, data: Data) -> Data:
        if not isinstance(data, Data):
            raise TypeError(
                "'graphs' need to be homogeneous torch_geometric.data.Data "
                f'(got {type(data).__name__} at {i})'
            )
        y = _label(i, data)
        graph = CSRGraph.from_data(data).to('cpu')
        edge_index, edge_weight = graph.to_edge_index()
        kept = Data(
            edge_index=edge_index.clone(),
            y=y.cpu().clone().view(1),
            num_nodes=graph.num_nodes,
            n_id=torch.arange(graph.num_nodes),
        )
        if edge_weight is not None:
            kept.edge_weight = edge_weight.clone()
        if self.transform.max_degree is None:
            signal = self.transform.signal(data, graph)
            kept.x = signal.detach().cpu().clone()
        elif self.mode == 'mask':
            signal = self.transform.signal(data, graph, torch.float64)
            kept.x = signal.to_dense()
        return kept

    def _design(
        self,
        graphs: dict[int, Data],
        classes: tuple[int, ...],
        progress_bar: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        # Embeddings, their inner products if these are fewer, and labels.
        Z = self._embed(list(graphs.values()), True, progress_bar)
        K = gram(Z) if Z.size(0) <= Z.size(1) else None
        y = torch.tensor([[int(data.y)] for data in graphs.values()])
        positive = classes[1:] if len(classes) == 2 else classes
        Y = torch.where(y == torch.tensor(positive), 1.0, -1.0).double()
        return Z, K, Y

    def _noise(self, draw: int, d: int, num_outputs: int) -> Tensor:
        source = rng.generator(rng.derive(self._seed, draw))
        normal = torch.randn(
            (d, num_outputs), generator=source, dtype=torch.float64
        )
        return normal * self.noise_std

    def _residual(self, model: _Model) -> Residual:
        return residual(
            model.Z, model.Y, model.W, model.B, self.lam, self.loss
        )

    def _without(
        self, request: RemovalRequest, progress_bar: bool
    ) -> tuple[_Model, list[int], Tensor]:
        # The model with the data that remain and the old weights; the graphs
        # that were embedded again; and grad L(w, D) - grad L(w, D'), to which
        # untouched rows add nothing.
        if not isinstance(request, RemovalRequest):
            raise TypeError(
                "'request' needs to be a RemovalRequest "
                f'(got {type(request).__name__})'
            )
        old = self._fitted
        for i in request.graphs:
            if i not in old.graphs:
                raise ValueError(
                    f'graph {i} is not there: it never was, or was removed '
                    'before'
                )
        graphs, prints = dict(old.graphs), dict(old.prints)
        touched = []
        for i, part in request.parts.items():
            if part.whole:
                del graphs[i], prints[i]
                continue
            if (
                part.features
                and self.transform.max_degree is not None
                and (self.mode == 'delete')
            ):
                raise ValueError(
                    f'graph {i} has no features of its own to remove, as '
                    "'max_degree' derives them from the edges: remove the "
                    'node or its edges'
                )
            try:
                graphs[i] = remove_from_data(graphs[i], part, self.mode)
            except ValueError as error:
                raise ValueError(f'graph {i}: {error}') from None
            prints[i] = fingerprint(str(self._seed), graphs[i])
            touched.append(i)
        place = {name: row for row, name in enumerate(old.graphs)}
        Z, K, Y = old.Z, old.K, old.Y
        at = torch.tensor([place[i] for i in request.graphs])
        before = dense_rows(Z, at)
        change = before.t() @ self._slope(before @ old.W, Y[at])
        keep = None
        if len(graphs) < len(old.graphs):
            keep = torch.tensor([place[i] for i in graphs], dtype=torch.int64)
            Y = Y[keep]
            self._check_classes(Y)
        if touched:
            rows = self._embed(
                [graphs[i] for i in touched], True, progress_bar
            )
            at = torch.tensor([place[i] for i in touched])
            Z = replace_rows(Z, at, rows)
            after = dense_rows(rows, torch.arange(at.numel()))
            change -= after.t() @ self._slope(after @ old.W, old.Y[at])
            if K is not None:
                cross = Z @ after.t()
                K = K.clone()
                K[:, at] = cross
                K[at] = cross.t()
        if keep is not None:
            Z = keep_rows(Z, keep)
            K = None if K is None else K[keep][:, keep]
        if K is None and Z.size(0) <= Z.size(1):
            K = gram(Z)
        change += self.lam * (len(old.graphs) - len(graphs)) * old.W
        model = old._replace(graphs=graphs, prints=prints, Z=Z, K=K, Y=Y)
        return model, touched, change

    def _slope(self, margin: Tensor, Y: Tensor) -> Tensor:
        return loss_derivatives(margin, Y, self.loss)[0]

    def _check_classes(self, Y: Tensor) -> None:
        positive = (Y > 0).any(0) if Y.numel() else Y.new_zeros(1)
        empty = not bool(positive.all())
        if len(self.classes) == 2:
            empty = empty or not bool((Y < 0).any())
        if empty:
            raise ValueError(
                'the request would leave a class without any graph: retrain '
                'with the classes that remain'
            )

    def _increments(
        self, old: _Model, new: _Model, request: RemovalRequest, P: Tensor
    ) -> dict[str, float]:
        bounds = {'tight': tight_bound(new.Z, P, self.loss, new.K)}
        if self.accounting == 'bound':
            return bounds
        bounds['paper'] = paper_bound(new.Z, P, self.loss, new.K)
        parts = list(request.parts.values())
        n, m = len(new.graphs), len(parts)
        if self.loss != 'logistic' or n < len(old.graphs):
            return bounds
        # The worst cases are per class; together their Frobenius norm.
        classes = math.sqrt(new.Y.size(1))
        radius = max(max_row_norm(old.Z), max_row_norm(new.Z))
        bounds['node'] = classes * node_removal_bound(n, self.lam, radius, m)
        transform = self.transform
        if (
            isinstance(transform, GraphScattering)
            and transform.Q == 1
            and transform.low_pass == 'mean'
            and math.isfinite(frame_bound(transform.wavelet, transform.J))
            and all(
                len(part.features) == 1 and not part.nodes and not part.edges
                for part in parts
            )
        ):
            frame = frame_bound(transform.wavelet, transform.J)
            stability = math.sqrt(
                sum(frame ** (2 * layer) for layer in range(transform.L))
            )
            # The removed features are at most 1 each, and the present
            # residual adds to what the noise does to the weights.
            width = old.graphs[request.graphs[0]].x.size(1)
            size = min(new.graphs[i].num_nodes for i in request.graphs)
            noise = float(old.B.norm(dim=0).max()) + self.ledger.spent
            bounds['feature'] = classes * feature_removal_bound(
                n,
                size,
                self.lam,
                radius,
                stability * math.sqrt(width),
                noise,
                m,
            )
        return bounds

    def _leftovers(self) -> tuple[str, ...]:
        model = self._fitted
        found = []
        for entry in self.ledger.entries:
            for name, part in entry.request.items():
                data = model.graphs.get(int(name))
                if part.get('whole'):
                    if data is not None:
                        found.append(f'graph {name}')
                    continue
                if data is None:
                    continue
                there = {v: row for row, v in enumerate(data.n_id.tolist())}
                found += [
                    f'node {node} of graph {name}'
                    for node in part.get('nodes', [])
                    if node in there
                ]
                found += [
                    f'features of node {node} of graph {name}'
                    for node in part.get('features', [])
                    if node in there and bool(data.x[there[node]].any())
                ]
                edges = {tuple(edge) for edge in data.edge_index.t().tolist()}
                found += [
                    f'edge {u} -> {v} of graph {name}'
                    for u, v in part.get('edges', [])
                    if (there.get(u), there.get(v)) in edges
                ]
        tensors: list[tuple[str, Tensor]] = [
            ('Y', model.Y),
            ('B', model.B),
            ('W', model.W),
        ]
        tensors += _tensors('embeddings', model.Z)
        if model.K is not None:
            tensors.append(('inner products', model.K))
        for i, data in model.graphs.items():
            for key, value in data.to_dict().items():
                if isinstance(value, Tensor):
                    tensors.append((f'{key} of graph {i}', value))
        found += [
            f'{name} is a view into a larger tensor'
            for name, tensor in tensors
            if tensor.untyped_storage().nbytes()
            > tensor.numel() * tensor.element_size()
        ]
        return tuple(found)

    def _config(self) -> dict[str, Any]:
        transform = {
            key: str(value) if isinstance(value, torch.dtype) else value
            for key, value in vars(self.transform).items()
        }
        return {
            'transform': [type(self.transform).__name__, transform],
            'lam': self.lam,
            'noise_std': self.noise_std,
            'epsilon': self.epsilon,
            'delta': self.delta,
            'loss': self.loss,
            'mode': self.mode,
            'tol': self.tol,
        }


def check_graphs(graphs: Any) -> list[Data]:
    """Checks a list of graphs, and returns it as one.

    Args:
        graphs (list[Data]): the graphs, at least one.
    """
    if not isinstance(graphs, Iterable) or isinstance(graphs, str | Data):
        raise TypeError(
            "'graphs' needs to be a list of torch_geometric.data.Data "
            f'(got {type(graphs).__name__})'
        )
    listed = list(graphs)
    for i, data in enumerate(listed):
        if not isinstance(data, Data):
            raise TypeError(
                "'graphs' needs to hold homogeneous "
                f'torch_geometric.data.Data (got {type(data).__name__} at '
                f'{i})'
            )
    if not listed:
        raise ValueError("'graphs' needs to hold at least one graph")
    return listed


def graph_labels(graphs: Any) -> Tensor:
    """The labels of graphs: int64, ``[num_graphs]``.

    Args:
        graphs (list[Data]): the graphs, with one integer ``y`` each.
    """
    return torch.tensor(
        [int(_label(i, data)) for i, data in enumerate(check_graphs(graphs))]
    )


def _label(i: int, data: Data) -> Tensor:
    y = data.get('y')
    if not isinstance(y, Tensor):
        y = torch.tensor([] if y is None else y)
    if y.numel() != 1 or y.is_floating_point():
        raise ValueError(
            f"graph {i} needs to have one integer label 'y' (got {y})"
        )
    return y


def _tensors(name: str, value: Tensor) -> list[tuple[str, Tensor]]:
    if value.layout == torch.strided:
        return [(name, value)]
    return [
        (name, value.crow_indices()),
        (name, value.col_indices()),
        (name, value.values()),
    ]


def _largest(one: Tensor, two: Tensor) -> float:
    # Of the differences, row block by row block if sparse.
    if one.layout == torch.strided:
        return float((one - two).abs().max())
    largest = 0.0
    for i in range(0, one.size(0), 256):
        rows = torch.arange(i, min(i + 256, one.size(0)))
        gap = dense_rows(one, rows) - dense_rows(two, rows)
        largest = max(largest, float(gap.abs().max()))
    return largest
