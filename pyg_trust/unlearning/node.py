# Longer than 700 lines because it is the calls of users, with
# their docstrings.
r"""Node classifiers with certified removal.

Features are propagated, :math:`z = \sum_i w_i P^i x`, and a regularised linear
head is trained on them. A removal recomputes the rows that it touches, to the
bit as from scratch (:mod:`pyg_trust.unlearning.sums`), and the head follows by
steps whose residual is measured (:mod:`pyg_trust.unlearning.heads`).

:mod:`pyg_trust.unlearning.certified` has the guarantee.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import files, noise
from pyg_trust._checks import (
    Natural,
    OneOf,
    Positive,
    as_ids,
    check_instance,
    check_positive,
    check_tensor,
    validated,
)
from pyg_trust._checks.starts import start_of
from pyg_trust._moved import renamed, retired
from pyg_trust.agp.measures import Measure
from pyg_trust.files.commit import EditedInPlace, editing, synchronized
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import (
    Edges,
    NodeIds,
    Nodes,
    RemovalRequest,
    requested,
)
from pyg_trust.unlearning.certified import probabilities
from pyg_trust.unlearning.heads import HEAD
from pyg_trust.unlearning.node_releases import (
    Model,
    NodeReleases,
    edits_of,
    encode,
    fixed_measure,
    read_classes,
    read_features,
)
from pyg_trust.unlearning.node_rows import Edit, NodeState, Settings
from pyg_trust.unlearning.reports import (
    AdditionReport,
    ForgetPlan,
    ForgetReport,
    VerifyReport,
)
from pyg_trust.unlearning.sums import BOUND, check_directed, check_measure
from pyg_trust.update import Update, skipping

__all__ = ['NodeClassifier']

C = TypeVar('C', bound='NodeClassifier')
FEATURES = ('exact', 'push')
SERIES = ('appnp', 'ppr', 'single_target')
# Beyond, the grid of sums is coarser than 1.
MOST_BOUND = 2.0**43

_NONE = torch.empty(0, dtype=torch.int64)


class NodeClassifier(NodeReleases, EditedInPlace):
    r"""Node classifier that forgets on request, with a certificate.

    .. code-block:: python

        model.update(Update(nodes=NewNodes(x, y), edges=edges))
        report = model.remove(nodes=[12], edges=[(3, 7)])

    A linear head is trained on propagated features. Each *release* replaces
    the weights that predictions use, and adds fresh noise. The released
    weights are :math:`(\varepsilon, \delta)`-indistinguishable from weights
    trained on the remaining data alone
    (:mod:`pyg_trust.unlearning.certified`). Predictions use the present graph
    and features, without noise. Keep :meth:`state_dict`, the ledger and the
    reports secret. Runs on the CPU, in float64, with :math:`K N d` numbers in
    memory for :math:`N` nodes and :math:`d` features.

    Args:
        measure (str or Measure): the propagation, :obj:`'sgc'`,
            :obj:`'appnp'`, :obj:`'heat'`, :obj:`'ppr'` or another of
            :mod:`pyg_trust.agp.measures`, but not :obj:`'katz'`.
            (default: :obj:`'sgc'`)
        alpha (float, optional): the teleport probability, needed for
            :obj:`'appnp'` and :obj:`'ppr'`.
        t (float, optional): the diffusion time, needed for :obj:`'heat'`.
        K (int, optional): the number of hops; by default 2 for :obj:`'sgc'`,
            else until the weights of the hops sum to 0.9999.
        bound (float): the largest magnitude that a feature may ever have, with
            ``features='exact'``; declared, not measured.
            (default: :obj:`16.0`)
        weight_decay (float): :math:`\lambda > 0` of the penalty
            :math:`\frac{\lambda n}{2} \lVert W \rVert^2`, for :math:`n`
            training nodes. (default: :obj:`1e-3`)
        release_std (float): the standard deviation of the noise on each
            released weight. Choose it without looking at the data.
            (default: :obj:`1e-4`)
        epsilon, delta (float): the guarantee of one release.
            (default: :obj:`1.0`, :obj:`1e-4`)
        features (str): advanced: :obj:`'exact'`, or :obj:`'push'` for faster,
            approximate updates of the features of an infinite series. Only the
            Hessian uses them; gradients and predictions are exact.
        theta (float, optional): advanced: the size below which ``'push'`` does
            not propagate a change of features; by default 1e-6.
        encoder (callable, optional): maps the features of each node before the
            propagation, such as a network; or a function without an argument
            that makes one.
        start_is_public (bool): your statement, needed with an :obj:`encoder`,
            that it never saw the data. (default: :obj:`False`)
        tol (float): advanced: the gradient's norm at which exact solves end.
            (default: :obj:`1e-8`)
        max_pending (int): advanced: the most nodes and edges that may be added
            before a release. (default: :obj:`1_000`)
        directed (bool, optional): advanced: whether added edges go in one
            direction only; by default as the edges of the fitted graph.
        seed (int, optional): the seed of the noise, which is then repeatable
            and not private; by default the operating system's randomness.

    Example:
        >>> ring = torch.arange(12)
        >>> edge_index = torch.stack([ring, (ring + 1) % 12])
        >>> edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
        >>> y = (ring >= 6).long()
        >>> data = Data(x=torch.eye(12), edge_index=edge_index, y=y)
        >>> model = NodeClassifier(K=2, weight_decay=0.1, seed=0)
        >>> model = model.fit(data, torch.arange(10))
        >>> report = model.remove(nodes=[3], edges=[(7, 8)])
        >>> report.bound <= report.budget, model.verify().ok
        (True, True)
    """

    @retired(head=(HEAD,), on_exceed=('refine', 'retrain'))
    @renamed(
        encoder_is_public='start_is_public', levels='K', lam='weight_decay'
    )
    @validated
    def __init__(
        self,
        measure: str | Measure = 'sgc',
        *,
        alpha: float | None = None,
        t: float | None = None,
        K: Natural | None = None,
        bound: Positive = BOUND,
        weight_decay: Positive = 1e-3,
        release_std: Positive = 1e-4,
        epsilon: Positive = 1.0,
        delta: float = 1e-4,
        features: Annotated[str, OneOf(FEATURES)] = 'exact',
        theta: float | None = None,
        encoder: Callable[..., Any] | None = None,
        start_is_public: bool = False,
        tol: Positive = 1e-8,
        max_pending: Natural = 1_000,
        directed: bool | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            weight_decay=weight_decay,
            release_std=release_std,
            epsilon=epsilon,
            delta=delta,
            tol=tol,
            seed=seed,
        )
        self.measure = fixed_measure(measure, alpha, t, K)
        if features == 'push':
            if measure not in SERIES or K is not None:
                raise ValueError(
                    "features='push' needs 'measure' to be one of "
                    f"{SERIES}, by name and without 'K' (got {measure})"
                )
            check_positive('theta', 1.0 if theta is None else theta)
            theta = 1e-6 if theta is None else float(theta)
        elif theta is not None:
            raise ValueError("'theta' needs features='push'")
        else:
            check_measure(self.measure)
        self.bound = bound
        if self.bound > MOST_BOUND:
            raise ValueError(
                f"'bound' needs to be at most {MOST_BOUND} (got {bound})"
            )
        self.features = features
        self.encoder = start_of('encoder', encoder, start_is_public)
        self._stated_public = start_is_public
        self.max_pending = max_pending
        self.directed = directed
        check_directed(directed, self.measure, None)
        alpha = None if alpha is None else float(alpha)
        given = self.measure, alpha, theta, weight_decay, self.bound
        self._settings = Settings(*given)
        # The model of an edit in place that has not ended.
        self._editing: Model | None = None

    @editing
    def fit(
        self,
        data: Data,
        train_nodes: Nodes | None = None,
        *,
        classes: Sequence[int] | None = None,
    ) -> 'NodeClassifier':
        """Propagate the features, train, and release weights with noise.

        Later calls take ``data.n_id`` as ids if the graph has it, else the
        positions of nodes. A second fit begins a new ledger. It can't be saved
        over a state with removals, as it may contain removed items again.

        Args:
            data (Data): the graph, unweighted, with ``x``, ``edge_index``,
                ``y`` and ``train_mask``; undirected if the measure needs it.
            train_nodes (list[int] or Tensor, optional): the training nodes, as
                positions in :obj:`data` or a bool mask; by default
                ``data.train_mask``.
            classes (list[int], optional): the labels that exist or may come
                later. By default those of the training nodes; a removal that
                leaves one of them without a training node is then refused.

        Raises:
            TypeError, ValueError: if the graph, its features, labels or masks
                can't be used, or there are fewer than two classes.
        """
        graph, directed = self._graph_of(data)
        found, y = read_classes(data, train_nodes, classes)
        x = self._encoded(read_features(data))
        declared = classes is not None
        settings = self._settings
        state = NodeState(
            settings,
            found,
            graph,
            x,
            y,
            directed=directed,
            declared=declared,
            ids=NodeIds.of_data(data),
        )
        self._begun(state)
        return self

    def _graph_of(self, data: Data) -> tuple[CSRGraph, bool]:
        # The graph, and whether edges go in one direction.
        graph = CSRGraph.from_data(data).to('cpu')
        if graph.is_weighted:
            raise ValueError(
                "'data' needs to be unweighted (got an 'edge_weight'): del "
                'data.edge_weight, if these do not matter'
            )
        directed = check_directed(
            self.directed, self.measure, graph.is_undirected
        )
        if self.features == 'push' and directed:
            raise ValueError(
                "'data' needs to be undirected for features='push'"
            )
        return graph, directed

    @synchronized
    def decision_function(self, nodes: Nodes | None = None) -> Tensor:
        """Compute the margins of nodes, before the sigmoid.

        Args:
            nodes (list[int] or Tensor, optional): the ids of ``k`` nodes, or a
                bool mask of all nodes that were ever in the graph; by default
                all of them, those of the fit first, then others as they were
                added.

        Returns:
            Tensor: float64, ``[k]`` for two classes, positive for the larger
            label; ``[k, num_classes]`` for more. NaN for removed nodes.

        Raises:
            NotThere: if a node was never in the graph.
        """
        model, rows = self._fitted, self._rows(nodes)
        alive = model.data.graph.alive[rows]
        found = model.data.margins(model.weight, rows[alive])
        margin = found.new_full((rows.numel(), found.size(1)), torch.nan)
        margin[alive] = found
        return margin.view(-1) if margin.size(1) == 1 else margin

    def predict(self, nodes: Nodes | None = None) -> Tensor:
        """Predict the labels of nodes: int64, ``[k]``; -1 if removed.

        Args:
            nodes (list[int] or Tensor, optional): ``k`` ids, or a bool mask of
                all nodes that were ever in the graph; by default all of these.
        """
        return self._labels(self.decision_function(nodes))

    def predict_proba(self, nodes: Nodes | None = None) -> Tensor:
        """Predict class probabilities: ``[k, num_classes]``; NaN if removed.

        For more than two classes, sigmoids are scaled to sum to one.

        Args:
            nodes (list[int] or Tensor, optional): ``k`` ids, or a bool mask of
                all nodes that were ever in the graph; by default all of these.
        """
        return probabilities(self.decision_function(nodes))

    def predict_on(self, data: Data) -> Tensor:
        """Predict the labels of all nodes of another graph.

        Args:
            data (Data): the graph, with ``x`` and ``edge_index``.

        Returns:
            Tensor: int64, ``[data.num_nodes]``.
        """
        return self._labels(self._margins_on(data))

    @synchronized
    def _margins_on(self, data: Data) -> Tensor:
        model = self._fitted
        (graph, directed), n = self._graph_of(data), int(data.num_nodes)
        x = self._encoded(read_features(data))
        wanted = model.data.levels.x.size(1)
        check_tensor('data.x', x, None, (n, wanted))
        none = torch.full((n,), -1)
        state = NodeState(
            self._settings, model.classes, graph, x, none, directed=directed
        )
        margin = state.margins(model.weight, torch.arange(n))
        return margin.view(-1) if margin.size(1) == 1 else margin

    @synchronized
    def score(self, nodes: Nodes, y: Tensor) -> float:
        """Return the accuracy on nodes; removed nodes are left out.

        Args:
            nodes (list[int] or Tensor): the ids of nodes, or a bool mask of
                all nodes that were ever in the graph.
            y (Tensor): int64, ``[num_nodes]``: the labels of all nodes that
                were ever in the graph, in the order of ``predict()``.

        Raises:
            ValueError: if all of the nodes were removed.
        """
        graph, rows = self._fitted.data.graph, self._rows(nodes)
        y = as_ids('y', y)
        check_tensor('y', y, torch.int64, (graph.num_nodes,))
        there = graph.alive[rows]
        if not bool(there.any()):
            raise ValueError("'nodes' needs to have a node that is there")
        right = self.predict(nodes)[there] == y.cpu()[rows[there]]
        return float(right.double().mean())

    # Data are edited in place: readers wait for the end of an edit.

    @property
    @synchronized
    def num_train(self) -> int:
        """The number of nodes that the released weights were trained on."""
        return self._fitted.data.num_train

    @property
    @synchronized
    def pending(self) -> int:
        """The number of nodes and edges added since the last release."""
        return self._fitted.data.num_pending

    @property
    @synchronized
    def graph(self) -> CSRGraph:
        """A copy of the present graph; removed nodes have no edges."""
        graph = self._fitted.data.graph
        return CSRGraph.from_edge_index(graph.edge_index(), graph.num_nodes)

    @property
    @synchronized
    def nodes(self) -> Tensor:
        """The rows of the present nodes in ``predict()``: int64, ascending."""
        return self._fitted.data.graph.alive.nonzero().view(-1)

    @property
    def n_id(self) -> Tensor:
        """The ids of the present nodes: int64, in the order of ``nodes``."""
        return self._fitted.data.ids.of(self.nodes)

    @editing
    def update(
        self,
        update: Update | RemovalRequest | Sequence[Any],
        *,
        release: bool = False,
        reference: str = '',
    ) -> ForgetReport | AdditionReport:
        """Apply removals, additions and changes together, all or none.

        Predictions use the new graph and features at once. Removals and
        changes end with a release: Newton's method runs until the gradient's
        norm is at most a hundredth of the budget, and fresh noise is added.
        Additions alone wait for the next release, which saves budget, unless
        more than ``max_pending`` wait or a :obj:`reference` is given.

        Args:
            update (Update, RemovalRequest or list): the removals, additions
                and changes; a list makes at most one release.
            release (bool): whether to make a release for additions alone, too.
                (default: :obj:`False`)
            reference (str): ids of the requests for the ledger, 32 hexadecimal
                digits each, joined without a separator. (default: :obj:`''`)

        Returns:
            ForgetReport or AdditionReport: the report of the release, or the
            number of additions that wait.

        Raises:
            ValueError: if an item to remove is missing, an item to add exists,
                or a class would be left without a training node.
            BudgetExceededError: if even retraining needs more than the budget.
        """
        check_instance('release', release, bool)
        return self._updated(update, release, reference)

    @editing
    def remove(
        self,
        request: RemovalRequest | Sequence[Any] | Tensor | None = None,
        *,
        nodes: Nodes | None = None,
        edges: Edges | None = None,
        features: Nodes | None = None,
        labels: Nodes | None = None,
        persons: Nodes | None = None,
        missing: str = 'raise',
        reference: str = '',
    ) -> ForgetReport:
        """Remove the requested items and make one release.

        .. code-block:: python

            model.remove(nodes=[12], edges=[(3, 7)])
            model.remove(RemovalRequest(persons=[12], unit=unit))

        Args:
            request (RemovalRequest or list, optional): a request, or a list of
                requests, which makes one release; or ids of nodes.
            nodes (list[int] or Tensor, optional): the ids of nodes to remove,
                with all their edges.
            edges (list[tuple] or Tensor, optional): edges to remove, in both
                directions, as pairs of ids or ``[2, num_edges]``.
            features (list[int] or Tensor, optional): the ids of nodes whose
                features are removed.
            labels (list[int] or Tensor, optional): the ids of nodes that are
                no longer trained on.
            persons (list[int], optional): refused: pass a request for these.
            missing (str): :obj:`'raise'`, or :obj:`'skip'` to leave out items
                that are not there and list them in ``skipped`` of the report.
                (default: :obj:`'raise'`)
            reference (str): ids of the requests for the ledger, 32 hexadecimal
                digits each, joined without a separator. (default: :obj:`''`)

        Raises:
            NotThere: if an item is not there, or with ``missing='skip'`` if no
                item is.
            ValueError: if a class would be left without a training node.
            BudgetExceededError: if even retraining needs more than the budget.
        """
        asked = requested(
            request,
            nodes=nodes,
            edges=edges,
            features=features,
            labels=labels,
            persons=persons,
        )
        return skipping(
            asked, missing, lambda each: self._updated(each, True, reference)
        )

    @editing
    def release(self, *, reference: str = '') -> ForgetReport:
        """Make a release that includes all pending additions.

        Args:
            reference (str): ids of the requests for the ledger, 32 hexadecimal
                digits each, joined without a separator. (default: :obj:`''`)

        Raises:
            ValueError: if no addition is pending.
        """
        if not self._fitted.data.num_pending:
            raise ValueError("'release' needs pending additions (got none)")
        return self._updated(Update(), True, reference)

    def _updated(self, update: Any, release: bool, reference: str) -> Any:
        model = self._fitted
        model.ledger.check_reference(reference)
        data = model.data
        edits = edits_of(data, update, self._encoded)
        try:
            self._editing = model
            edits = [self._play(data, edit) for edit in edits]
            alone = all(edit.only_adds for edit in edits)
            waits = data.num_pending <= self.max_pending
            if alone and waits and not (release or reference):
                new = model._replace(ledger=model.ledger.copy())
                new.ledger.mark()
                rows = torch.cat([_NONE, *data.pending.named]).unique()
                count = data.num_pending
                report: Any = AdditionReport(count, rows.numel())
            else:
                new, report = self._forget(model, edits, reference)
            # Model, data and account at once.
            self._model = new
        finally:
            self._settle()
        if 4 * data.num_train < 3 * data.names.numel():
            data.compact()
        return report

    @editing
    def plan(
        self,
        request: Update | RemovalRequest | Sequence[Any] | None = None,
        **items: Any,
    ) -> ForgetPlan:
        """Estimate the work of an update and its release; change nothing.

        Takes an update, or what to remove as in :meth:`remove`. This computes
        the features after the update, but does not train.
        """
        if items or request is None:
            request = requested(request, **items)
        model = self._fitted
        data = model.data
        edits = edits_of(data, request, self._encoded)
        try:
            self._editing = model
            for edit in edits:
                self._play(data, edit)
            change, _, gradient = self._followed(model)
            hold = gradient.norm.upper <= self._goal(data)
            return ForgetPlan(
                action='hold' if hold else 'refine',
                rows_touched=change.rows,
                train_rows_touched=change.train_rows,
                num_train=data.num_train,
                gradient_change=gradient.norm.measured,
            )
        finally:
            self._settle()

    @editing
    def flush(self) -> 'NodeClassifier':
        """Clear what memory still holds of removed items.

        The graph, the features and the weights before noise are computed again
        from the remaining data, which costs as much as a fit. The released
        weights, with noise, stay. Returns the model itself.
        """
        model = self._fitted
        # Weights do not know the additions since the last release.
        data = model.data.fitted()
        W, gradient, _, _ = self._solved(data)
        factor = data.problem(self._goal(data)).factor(W)
        self._model = model._replace(
            data=model.data.rebuilt(),
            W=W,
            gradient=gradient,
            factor=factor,
            frozen=False,
            excess=0,
        )
        return self

    @synchronized
    def verify(self) -> VerifyReport:
        """Check the classifier against the remaining data.

        Computes the features from scratch, measures the gradient's norm on
        them, and compares the weights with exactly retrained ones. It also
        tests the size of the released noise, and that the data match the
        ledger's digest.
        """
        now = self._fitted
        # Nodes added since the last release are not in its weights.
        data = now.data.fitted()
        model, goal = now._replace(data=data), self._goal(data)
        residual = data.problem(goal).gradient(model.W).norm
        measured, upper = residual
        # Exact retraining, without noise.
        exact = self._solved(data)
        error, most = now.data.error(data)
        every = data.every()
        found = self._compared(
            model,
            exact.W,
            (residual, exact.gradient.norm),
            lambda weight: data.margins(weight, every),
        )
        bound = found['bound']
        # A second solve may end at other bits, where rounding is all that is
        # left.
        holds = upper <= bound or measured <= upper - measured
        if bound == 0:
            # The release was retrained: compare with a fit.
            holds = measured <= max(goal, upper - measured)
        leftovers: tuple[str, ...] = ()
        if bool(now.data.levels.x[now.data.featureless].any()):
            leftovers = ('features of what was removed',)
        if not (model.seals.fits(data.blocks()) and model.is_sealed):
            leftovers += ('the state is not that of the ledger',)
        return VerifyReport(
            ok=error <= most
            and holds
            and found['distance_to_retrain'] <= found['distance_bound']
            and found['noise_p_value'] >= noise.LEAST_P_VALUE
            and not leftovers,
            feature_error=error,
            feature_error_bound=most,
            residual=upper,
            bound_holds=holds,
            frozen_factor=now.frozen,
            leftovers=leftovers,
            **{**found, **self._proved(model, upper <= bound)},
        )

    @synchronized
    def save_for_check(self, path: str | Path) -> None:
        """Write the data from which a checker can prove the last removal.

        .. code-block:: bash

            python -m pyg_trust check trust.json --data proof.npz

        The ``.npz`` file holds the remaining data, their salts, and the
        weights before and after the noise. It is secret: give it to an auditor
        only, and delete it.

        Args:
            path (str or Path): the path of the file, which is replaced.

        Raises:
            ValueError: with ``features='push'``, which can't be proved.
        """
        model = self._fitted
        arrays = model._replace(data=model.data.fitted()).evidence()
        if arrays is None:
            raise ValueError(
                "'save_for_check' needs a classifier of nodes with "
                "features='exact': of others the kernel proves nothing (got "
                f'features={self.features!r})'
            )
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        files.write(path, stream.getvalue())

    def _settle(self) -> None:
        # End an edit: undo it, unless its model is in place. If an interrupt
        # ends this, the next caller continues it.
        if self._editing is None:
            return
        data = self._editing.data
        if self._model is self._editing:
            data.back()
        else:
            data.done()
        self._editing = None

    def _play(self, data: NodeState, edit: Edit) -> Edit:
        def play(update: Update) -> Edit:
            left = edit._replace(part=data.ids.part(update.part))
            data.play(left)
            return left._replace(update=update)

        assert edit.update is not None
        return edit.update.played(play)

    def _rows(self, nodes: Nodes | None) -> Tensor:
        # The rows of nodes that are, or were, there.
        if isinstance(nodes, Data):
            raise TypeError(
                "'nodes' needs to be ids (got a Data): the nodes of another "
                'graph have predict_on(data)'
            )
        data = self._fitted.data
        return data.ids.rows_of('nodes', nodes, data.graph.num_nodes)

    def _encoded(self, x: Tensor) -> Tensor:
        if self.encoder is not None and x.size(0):
            x = encode(self.encoder, x)
        if x.layout != torch.strided:
            raise TypeError(
                f"'x' needs to be dense, or an 'encoder' to make it so (got "
                f'{x.layout}): x.to_dense()'
            )
        return x.double()
