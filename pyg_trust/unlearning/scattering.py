# Longer than 700 lines because one class has its guarantee, its arguments and
# its errors in 280 lines of docstrings.
r"""Graph classifiers with certified removal.

Every graph is embedded by a transform that is not trained
(:class:`~pyg_trust.transforms.GraphScattering`), and a regularised linear
classifier is fitted on the embeddings and released with noise. A removal
touches the embeddings of the graphs it names and nothing else, and the
classifier is solved again from where it was
(:mod:`pyg_trust.functional.shifts` derives the guarantee).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import commit, files, rng
from pyg_trust._checks import (
    check_choice,
    check_instance,
    check_integer,
    check_non_negative,
    check_positive,
)
from pyg_trust.commit import Lineage, ObjectLock, editing, synchronized
from pyg_trust.functional.heads import LOSSES
from pyg_trust.functional.rows import dense_rows, gram
from pyg_trust.functional.shifts import gaussian_budget, removal_budget
from pyg_trust.kernel.release import check_sum
from pyg_trust.ledger import BudgetExceededError, RemovalLedger
from pyg_trust.noise import LEAST_P_VALUE, SecureNoise, SeededNoise, source
from pyg_trust.removal import MODES, RemovalRequest
from pyg_trust.report import fingerprint_model
from pyg_trust.transforms import GraphEmbedding
from pyg_trust.unlearning.node_release import noised
from pyg_trust.unlearning.scattering_account import (
    describe,
    newton_step,
    paid,
    proved,
)
from pyg_trust.unlearning.scattering_reports import UnlearnReport, VerifyReport
from pyg_trust.unlearning.scattering_state import (
    Model,
    Settings,
    leftovers,
    unpacked,
)
from pyg_trust.unlearning.training_graphs import (
    GraphKeeper,
    check_graphs,
    graph_labels,
)

NOISES = ('output', 'objective')
ACCOUNTINGS = ('residual', 'bound', 'paper')
ON_EXCEED = ('refine', 'retrain', 'raise')


class ScatteringClassifier:
    r"""A graph classifier that forgets on request, with a certificate.

    Minimises :math:`\sum_i [\ell(w^\top z_i, y_i) + \frac{\lambda}{2} \lVert
    w \rVert^2]` in float64, one classifier for two classes and one versus the
    rest for more, as in `"Unlearning Graph Classifiers with Limited Data
    Resources" <https://arxiv.org/abs/2211.03216>`_ (Pan et al. 2023), and
    corrects where that paper's guarantee does not hold (see
    :mod:`pyg_trust.functional.shifts` and
    :mod:`~pyg_trust.functional.removal_bounds`).

    .. code-block:: python

        model = ScatteringClassifier(GraphScattering(J=5, Q=4, L=3))
        model.fit(train_graphs)
        report = model.remove(RemovalRequest(nodes={3: [0, 5]}))
        assert model.verify().ok

    **The guarantee.** Every fit and every :meth:`remove` ends with a release:
    the solution, plus fresh Gaussian noise of the standard deviation
    :obj:`release_std` from the operating system. The solution is within
    :math:`\Delta = \beta / (\lambda n)` of the one that exact training on the
    remaining data gives, where :math:`\beta` bounds the gradient residual,
    which is measured. So the release is :math:`(\varepsilon,
    \delta)`-indistinguishable from that of exact training without what was
    removed, with the exact profile of the Gaussian mechanism at :math:`m =
    \Delta / s`, for any :math:`\varepsilon > 0`. Its releases since the fit
    compose to :math:`\sqrt{\sum_j m_j^2}`, also if requests were chosen by
    looking at earlier releases. The report states both. :attr:`weight` and
    all predictions are of the present release; asking again costs nothing.

    It does not cover the pair of releases before and after, nor what reports,
    earlier states or backups reveal. Labels of graphs that lost a part stay.
    The names of what was removed stay in the ledger; its contents can't be
    tested by who has a saved state (:class:`~pyg_trust.seals.Seals`), which
    holds the released weights alone, not the solution.

    **Objective perturbation** (``noise='objective'``) is for comparison with
    the literature: a secret :math:`b \sim \mathcal{N}(0, \sigma^2)` is drawn
    at the fit, :math:`b^\top w` added to the objective, and a Newton step
    released as it is while its residual is within a budget. *Its certificate
    assumes Theorem 3 of Guo et al., which does not hold in general*: one
    point removed can give 690 times the promised :math:`\delta`. It needs
    :math:`\varepsilon \le 1`, requests that do not depend on a release, and a
    secret :math:`b`, which is in :meth:`state_dict`; that state and the ledger
    are functions of what was removed to the last digit.

    **When it is not worth it.** With a few hundred training graphs or fewer
    an exact solve takes milliseconds: retraining is as cheap
    (``benchmarks/unlearning.py`` measures it), and both are about a thousand
    times cheaper than retraining a network.

    **Threads and processes.** Threads take turns. A file that another object
    has changed since this one read it is not written over
    (:class:`~pyg_trust.commit.StaleStateError`).

    Args:
        transform (GraphEmbedding): embeds the graphs; a
            :class:`~pyg_trust.transforms.GraphScattering`, linear or not, or a
            :class:`~pyg_trust.transforms.GFT`.
        lam (float): :math:`\lambda > 0`. (default: :obj:`1e-3`)
        noise (str): :obj:`'output'` or :obj:`'objective'`.
            (default: :obj:`'output'`)
        release_std (float): with ``noise='output'``, the standard deviation
            :math:`s` of the noise on the released weights. It is public:
            choose it without looking at the data. Small against the weights,
            and large against :obj:`tol` over :math:`\lambda n`.
            (default: :obj:`1e-4`)
        noise_std (float): with ``noise='objective'``, the standard deviation
            of :math:`b`. With 0 there is no certificate, and :meth:`remove`
            is refused. (default: :obj:`0.1`)
        epsilon (float): the most that a release may have, positive; at most 1
            with ``noise='objective'``. (default: :obj:`1.0`)
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
        accounting (str): :obj:`'residual'` measures the residual; with
            ``noise='objective'`` also :obj:`'bound'`, which adds up
            :func:`~.removal_bounds.tight_bound`, and :obj:`'paper'`, which
            adds up Theorem 4.7 with a valid :math:`F` and reports all bounds.
            (default: :obj:`'residual'`)
        on_exceed (str): what happens when the budget does not allow a step.
            With ``noise='output'``, where so few graphs remain that
            :obj:`tol` is too large: embeds and solves anew, as a fit does,
            to what the budget allows. With ``noise='objective'``,
            :obj:`'refine'` solves exactly with the stored :math:`b`, and
            :obj:`'retrain'` draws a fresh one. :obj:`'raise'` raises
            :class:`~pyg_trust.ledger.BudgetExceededError`.
            (default: :obj:`'refine'`)
        num_classes (int, optional): labels are in ``[0, num_classes)``, and a
            class may run empty, which reports say. By default classes are the
            labels of the training graphs, and a request that would empty one
            is refused. (default: :obj:`None`)
        tol (float): the residual of exact solves. (default: :obj:`1e-10`)
        seed (int, optional): makes the noise repeatable, and the result
            neither private nor certified, which every report says first.
            (default: :obj:`None`)

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
        >>> model = ScatteringClassifier(scattering)
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
        noise: str = 'output',
        release_std: float = 1e-4,
        noise_std: float = 0.1,
        epsilon: float = 1.0,
        delta: float = 1e-4,
        loss: str = 'logistic',
        mode: str = 'delete',
        accounting: str = 'residual',
        on_exceed: str = 'refine',
        num_classes: int | None = None,
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
        check_positive('release_std', release_std)
        for name, choice, choices in (
            ('noise', noise, NOISES),
            ('loss', loss, tuple(LOSSES)),
            ('mode', mode, MODES),
            ('accounting', accounting, ACCOUNTINGS),
            ('on_exceed', on_exceed, ON_EXCEED),
        ):
            check_choice(name, choice, choices)
        check_non_negative('noise_std', noise_std)
        if noise == 'output':
            self.budget = gaussian_budget(epsilon, delta)
            if accounting != 'residual':
                raise ValueError(
                    "'accounting' needs to be 'residual' with noise='output', "
                    'where every residual is measured (got '
                    f"{accounting!r}): others are for noise='objective'"
                )
        else:
            self.budget = removal_budget(epsilon, delta, noise_std)
        if num_classes is not None:
            check_integer('num_classes', num_classes, 2)
        if seed is not None:
            seed = rng.resolve(seed)
        self.transform = transform
        self.lam = float(lam)
        self.noise = noise
        self.release_std = float(release_std)
        self.noise_std = float(noise_std)
        self.epsilon = float(epsilon)
        self.delta = float(delta)
        self.loss = loss
        self.mode = mode
        self.accounting = accounting
        self.on_exceed = on_exceed
        self.num_classes = num_classes
        self.tol = float(tol)
        self._keeper = GraphKeeper(transform, mode, num_classes)
        self._first_seed = seed
        self._model: Model | None = None
        self._lock = ObjectLock()

    # Training and prediction ################################################

    @editing
    def fit(
        self, graphs: Sequence[Data], *, progress_bar: bool = False
    ) -> 'ScatteringClassifier':
        """Embeds, fits and releases; graphs are named by their positions.

        Keeps copies of what it needs of the graphs (edges, features, label).
        A second call starts over, with fresh noise and a new ledger. If
        anything was removed before, it may come back with it: so the result
        can't be saved over an earlier state, as that of another object.

        Args:
            graphs (list[Data]): the training graphs, with a label ``y`` each.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            TypeError, ValueError: on graphs that can't be embedded, labels
                that are missing or no integers, or fewer than two classes; or
                if :obj:`release_std` is too small for :obj:`tol`.
        """
        train = self._keeper.keep(check_graphs(graphs), progress_bar)
        draws, lineage = 0, Lineage()
        if self._model is not None:
            draws = self._model.draws
            if not self._model.ledger.has_removals:
                lineage = self._model.lineage
        zero = train.Y.new_zeros((train.Z.size(1), train.Y.size(1)))
        B = zero
        if self.noise == 'objective':
            draws += 1
            B = self._draw(draws, zero.shape) * self.noise_std
        model = Model(
            seed=self._seed,
            train=train,
            B=B,
            W=zero,
            released=zero,
            draws=draws,
            lineage=lineage.next(),
            ledger=RemovalLedger(self.budget),
        )
        if self.noise == 'output':
            # By what no data change, so that no removal is refused for it.
            check_sum(
                self._settings.largest(model), self.release_std, 'release_std'
            )
        model, _ = self._solved(model, None, progress_bar)
        if self._certified:
            _, upper = self._settings.residual(model)
            spent = self._settings.shift(model, upper)
            if spent > self.budget and self.noise == 'output':
                least = self.release_std * spent / self.budget
                raise ValueError(
                    f"'release_std' needs to be at least {least:.3g} for tol "
                    f'= {self.tol:g}, lam = {self.lam:g} and '
                    f"{len(train.graphs)} graphs, or 'tol' to be smaller (got "
                    f'{self.release_std:g})'
                )
            if self.noise == 'output':
                paid(self._settings, model, upper, spent)
        model = self._released(model)
        if self._certified:
            model.ledger.record('fit', spent, data=model.sealed)
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
        Z = self._keeper.embed(graphs, progress_bar=progress_bar)
        margin = Z @ model.released
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
        return () if self._model is None else self._model.train.classes

    @property
    def ledger(self) -> RemovalLedger:
        """The account of what was done, up to now, as a copy."""
        if self._model is None:
            return RemovalLedger(self.budget)
        return self._model.ledger.copy()

    @property
    def num_graphs(self) -> int:
        """The number of training graphs that remain."""
        return len(self._fitted.train.graphs)

    @property
    def graphs(self) -> dict[int, Data]:
        """The remaining training graphs, by name, as copies."""
        found = self._fitted.train.graphs
        return {i: data.clone() for i, data in found.items()}

    @property
    def embeddings(self) -> Tensor:
        """The embeddings of the training graphs that remain, in order.

        Float64, ``[num_graphs, d]``, a copy; sparse CSR with one-hot degrees.
        """
        return self._fitted.train.Z.clone()

    @property
    def weight(self) -> Tensor:
        """The released weights, noise included: float64, ``[d, C]``, a copy.

        They are the same until the next removal, however often they are asked
        for.
        """
        return self._fitted.released.clone()

    # Removal ################################################################

    @editing
    def remove(
        self, request: RemovalRequest, *, progress_bar: bool = False
    ) -> UnlearnReport:
        r"""Forgets what the request names, and releases the weights anew.

        Embeds the touched graphs again and solves by Newton's method from the
        old weights. (With ``noise='objective'``: takes one step, accounts for
        it, and does as :obj:`on_exceed` says if the budget does not allow
        it.) If anything fails or interrupts it, classifier and ledger are as
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
                does not allow the step, or so few graphs remain that
                :obj:`tol` is too large.
        """
        old = self._fitted
        if not self._certified:
            raise ValueError(
                "'noise_std' needs to be positive for a certified removal "
                '(got 0)'
            )
        change = self._keeper.without(old.train, request, progress_bar)
        model = old._replace(train=change.left)
        increments: dict[str, float] = {}
        if self.noise == 'output':
            action = 'refine'
            model, iterations = self._solved(model, old.W, progress_bar)
            measured, upper = self._settings.residual(model)
            spent = self._settings.shift(model, upper)
            if spent > self.budget and self.on_exceed == 'raise':
                raise BudgetExceededError(
                    f'the release would have a shift of {spent:.6g} times its '
                    f'noise, of {self.budget:.6g} allowed: with '
                    f"{len(change.left.graphs)} graphs, 'tol' = {self.tol:g} "
                    "is too large for 'release_std' = "
                    f"{self.release_std:g}; choose on_exceed='refine', a "
                    "smaller 'tol' or a larger 'release_std'"
                )
            if spent > self.budget:
                # As a fit of what remains, and to what the budget allows.
                action = 'retrain'
                anew = self._keeper.design(
                    model.train.graphs,
                    model.train.classes,
                    model.train.seals,
                    progress_bar,
                )
                mu = self.lam * len(anew.graphs)
                tol = min(self.tol, self.budget * self.release_std * mu / 4)
                model, more = self._solved(
                    model._replace(train=anew), None, progress_bar, tol
                )
                iterations += more
                measured, upper = self._settings.residual(model)
                spent = self._settings.shift(model, upper, tol)
                if spent > self.budget:
                    # Rounding hides more than the budget, and these weights
                    # are those that a fit has, whatever was there before.
                    spent = 0.0
            paid(self._settings, model, upper, spent)
        else:
            model, found = newton_step(
                self._settings, old, model, change, request
            )
            action, iterations, measured, spent, increments = found
            if spent > self.budget:
                if self.on_exceed == 'raise':
                    raise BudgetExceededError(
                        f'the removal would spend {spent:.6g} of a budget of '
                        f"{self.budget:.6g}: choose on_exceed='refine' or "
                        "'retrain'"
                    )
                action = self.on_exceed
                start: Tensor | None = model.W
                if action == 'retrain':
                    draws, start = model.draws + 1, None
                    B = self._draw(draws, model.B.shape) * self.noise_std
                    model = model._replace(B=B, draws=draws)
                model, more = self._solved(model, start, progress_bar)
                iterations += more
                measured, upper = self._settings.residual(model)
                spent = self._settings.shift(model, upper)
        ledger = old.ledger.copy()
        model = self._released(model._replace(ledger=ledger))
        # How the weights were found tells what was removed: no line says it,
        # but that a bound was added to the one before.
        added = action == 'step' and self.accounting != 'residual'
        line = 'step' if added else 'measured'
        ledger.record(line, spent, request.to_dict(), model.sealed)
        report = describe(
            self._settings,
            model,
            action,
            request,
            change,
            measured,
            iterations,
            increments,
        )
        # Model and account at once, and last of all.
        self._model = model._replace(lineage=old.lineage.next())
        return report

    @synchronized
    def verify(self, *, progress_bar: bool = False) -> VerifyReport:
        """Checks the classifier against the data that remain.

        Embeds every remaining graph again, measures the residual, solves
        exactly (with the same :math:`b`) and compares; tests whether the
        released weights are that far from the solution as their noise should
        make them; and looks for what should be gone: cached embeddings and
        inner products that are not those of the remaining graphs, graphs that
        are not the sealed ones, whatever the ledger lists as removed, and
        tensors that are views into larger ones.

        Args:
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)
        """
        model = self._fitted
        train = model.train
        fresh = self._keeper.embed(
            list(train.graphs.values()), True, progress_bar=progress_bar
        )
        error = _largest(fresh, train.Z)
        if train.K is not None:
            error = max(error, float((gram(fresh) - train.K).abs().max()))
        again = model._replace(train=train._replace(Z=fresh, K=None))
        measured, upper = self._settings.residual(again)
        exact, _ = self._solved(again, None, progress_bar)
        distance = float((exact.W - model.W).norm())
        mu = self.lam * len(train.graphs)
        # The exact solution has a residual of its own.
        allowed = (
            upper + max(self._settings.residual(exact).upper, self.tol)
        ) / mu
        alike = (fresh @ exact.W).sign() == (fresh @ model.released).sign()
        if len(self.classes) > 2:
            alike = (fresh @ exact.W).argmax(1) == (
                fresh @ model.released
            ).argmax(1)
        bound = model.ledger.spent
        if self.noise == 'output':
            bound *= self.release_std * mu
        # Re-embedding rounds differently: once more the rounding of both.
        holds = measured <= bound + 2 * (upper - measured)
        chance = self._settings.noise_p_value(model)
        traces = self._leftovers()
        found = proved(self._settings, again, upper <= bound)
        sealed = model.is_sealed and not train.seals.differing(
            train.contents()
        )
        scale = max(1.0, 1.0 if train.K is None else float(train.K.max()))
        return VerifyReport(
            ok=error <= 1e-11 * scale
            and (holds or not self._certified)
            and distance <= allowed
            and chance >= LEAST_P_VALUE
            and sealed
            and not traces,
            seeded=model.seed is not None,
            residual=measured,
            bound=bound,
            bound_holds=holds,
            embedding_error=error,
            distance_to_retrain=distance,
            distance_bound=allowed,
            noise_p_value=chance,
            agreement=float(alike.double().mean()),
            sealed=sealed,
            leftovers=traces,
            weights=fingerprint_model({'weight': model.released}),
            **found,
        )

    # State ##################################################################

    @synchronized
    def state_dict(self) -> dict[str, Any]:
        """Everything it takes to go on, as copies.

        The remaining graphs and their salts, the released weights, the
        ledger, and with ``noise='objective'`` the secret :math:`b`. Guard it
        like the data, and destroy older states after a removal: they hold
        what was removed.
        """
        model = self._fitted
        state = {
            'config': self._settings.config(),
            'classes': list(self.classes),
            'seed': model.seed,
            'seeded': model.seed is not None,
            'lineage': list(model.lineage.names),
            'ledger': model.ledger.state_dict(),
            'salts': model.train.seals.state_dict(),
            'graphs': {i: data.to_dict() for i, data in self.graphs.items()},
            'W': self.weight,
            'draws': model.draws,
        }
        if self.noise == 'objective':
            state['B'] = model.B.clone()
        return state

    @editing
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
                together, or the state does not continue the present one.
        """
        try:
            self._model = unpacked(
                self._settings, self._keeper, state, self._model, progress_bar
            )
        except (
            AttributeError,
            IndexError,
            KeyError,
            RuntimeError,
            TypeError,
        ) as error:
            raise ValueError(
                "'state' needs to be what state_dict() returns "
                f'({type(error).__name__}: {error})'
            ) from error

    @synchronized
    def save(self, path: str | Path) -> None:
        """Writes the state to a file, whole or not at all.

        A removal is done once it is saved: whatever stops the process, the
        file holds the state before or after it, and nobody who read the file
        earlier can write the old state back. A file system, a backup or a
        snapshot may keep the old content of a file that was replaced.

        Args:
            path (str or Path): of the file, which is replaced.

        Raises:
            StaleStateError: if somebody else has changed the file since this
                classifier read or wrote it.
            ValueError: if it holds the state of another fit, or anything
                else.
        """
        check_instance('path', path, str, Path)
        commit.save(path, self.state_dict())

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

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        # What is pickled or copied is what is saved, and no more.
        state = None if self._model is None else self.state_dict()
        return {**vars(self), '_model': None, 'saved': state}

    def __setstate__(self, held: dict[str, Any]) -> None:
        state = held.pop('saved')
        vars(self).update(held)
        if state is not None:
            self.load_state_dict(state)

    def __repr__(self) -> str:
        std = (
            f'release_std={self.release_std}'
            if self.noise == 'output'
            else f'noise_std={self.noise_std}'
        )
        return (
            f'{type(self).__name__}({self.transform}, lam={self.lam}, '
            f'noise={self.noise!r}, {std}, epsilon={self.epsilon}, '
            f'delta={self.delta}, loss={self.loss!r}, mode={self.mode!r}, '
            f'accounting={self.accounting!r})'
        )

    # Private ################################################################

    @property
    def _fitted(self) -> Model:
        if self._model is None:
            raise ValueError('the classifier needs to be fitted first')
        return self._model

    def _leftovers(self) -> tuple[str, ...]:
        return leftovers(self._fitted)

    @property
    def _seed(self) -> int | None:
        return self._first_seed if self._model is None else self._model.seed

    @property
    def _certified(self) -> bool:
        return self.noise == 'output' or self.noise_std > 0

    def _draw(self, number: int, shape: torch.Size) -> Tensor:
        return self._source(number).normal(tuple(shape))

    def _source(self, number: int) -> SecureNoise | SeededNoise:
        # The system's, or a part of an explicit seed.
        seed = self._seed
        part = None if seed is None else rng.derive(seed, number)
        return source(part)

    def _released(self, model: Model) -> Model:
        # With fresh noise on the solution, once.
        if self.noise == 'objective':
            return model._replace(released=model.W)
        draws = model.draws + 1
        released = noised(model.W, self._source(draws), self.release_std)
        return model._replace(released=released, draws=draws)

    @property
    def _settings(self) -> Settings:
        return Settings(*(getattr(self, name) for name in Settings._fields))

    def _solved(
        self,
        model: Model,
        start: Tensor | None,
        progress_bar: bool,
        tol: float | None = None,
    ) -> tuple[Model, int]:
        return self._settings.solved(model, start, tol, progress_bar)


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
