r"""Baselines that certified removal is compared with.

**Methods as published**, whose guarantee does not hold as stated.
:class:`PublishedScatteringClassifier` is that of `"Unlearning Graph
Classifiers with Limited Data Resources" <https://arxiv.org/abs/2211.03216>`_
(Pan et al. 2023), :class:`PublishedNodeClassifier` that of `"Certified Graph
Unlearning" <https://arxiv.org/abs/2206.09140>`_ (Chien et al. 2022): a secret
:math:`b \sim \mathcal{N}(0, \sigma^2)` is drawn at the fit, :math:`b^\top w`
added to the objective, and the minimiser released as it is while its residual
is within a budget (:class:`ObjectiveNoise`). *The certificate assumes Theorem
3 of Guo et al. (2020), which does not hold in general*: the theorem compares
densities as if the residual did not depend on :math:`b`. One point removed can
give 690 times the promised :math:`\delta`
(:mod:`pyg_trust.unlearning.shifts` has the counterexample).

linear-GST is another transform of the same classifier of graphs;
unstructured removal (Guo et al. 2020) is its ``remove`` of
:meth:`~pyg_trust.removal.RemovalRequest.whole_graphs`.
:class:`GINClassifier` is a trained network, whose embeddings depend on every
graph: it can only be trained again.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GIN, global_mean_pool

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Natural,
    NotNegative,
    OneOf,
    Positive,
    check_choice,
    check_instance,
    check_tensor,
    validated,
)
from pyg_trust._describe import described
from pyg_trust._progress import Bar
from pyg_trust.agp.measures import Measure
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import BudgetExceededError, RemovalLedger, coarse
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.scattering.wavelets import frame_bound
from pyg_trust.transforms import GraphEmbedding, GraphScattering
from pyg_trust.transforms.graph_scattering import graph_signal
from pyg_trust.unlearning.certified import CertifiedClassifier
from pyg_trust.unlearning.heads import (
    Gradient,
    Objective,
    Problem,
    Residual,
    curvatures,
    hessian_solve,
    slopes,
)
from pyg_trust.unlearning.node import NodeClassifier, Step
from pyg_trust.unlearning.node_solving import Model
from pyg_trust.unlearning.node_state import NodeState
from pyg_trust.unlearning.removal_bounds import (
    feature_removal_bound,
    node_removal_bound,
    paper_bound,
    tight_bound,
)
from pyg_trust.unlearning.rows import max_row_norm
from pyg_trust.unlearning.scattering import Model as GraphModel
from pyg_trust.unlearning.scattering import ScatteringClassifier
from pyg_trust.unlearning.scattering import Step as GraphStep
from pyg_trust.unlearning.shifts import removal_budget
from pyg_trust.unlearning.training_graphs import (
    Change,
    check_graphs,
    graph_labels,
)
from pyg_trust.verify.claims_removal import OBJECTIVE

# Bits kept of a bound in the account, as it is a function of removed data.
BITS = 4

_ACCOUNTS = ('residual', 'bound', 'paper')


class ObjectiveNoise(CertifiedClassifier[Any]):
    r"""Mixin: perturb the objective instead of adding noise to the weights.

    It needs :math:`\varepsilon \le 1`, requests that do not depend on a
    release, and a secret linear term :math:`b`, which is in ``state_dict()``:
    that state and the ledger are functions of what was removed to the last
    digit.
    """

    noise = 'objective'
    _rests_on: tuple[str, ...] = OBJECTIVE

    @property
    def _linear_std(self) -> float:
        return self.release_std

    @property
    def _output_std(self) -> float:
        return 0.0

    def _new_budget(self, epsilon: float, delta: float) -> float:
        return removal_budget(epsilon, delta, self._linear_std)

    def _linear(self, shape: tuple[int, ...], number: int) -> Tensor | None:
        drawn = self._source(number, 1).normal(tuple(shape))
        return drawn * self._linear_std

    def _read_linear(
        self, state: dict[str, Any], shape: tuple[int, ...]
    ) -> Tensor | None:
        B = state['B']
        check_tensor('B of the state', B, torch.float64, shape, finite=True)
        return B.clone()

    def _release(self, W: Tensor, number: int) -> Tensor:
        return W.clone()

    def _noise_p_value(self, model: Any) -> float:
        return float(torch.equal(model.weight, model.W))

    def _spends(self, beta: float, mu: float) -> float:
        return beta

    def _allowed(self, spent: float, mu: float) -> float:
        return spent

    def _grid(self, shape: tuple[int, ...]) -> float:
        return 0.0

    def _check_grid(self, outputs: int) -> None:
        pass

    def _epsilon(self, spent: float) -> float:
        return self.epsilon * spent / self.budget

    def _transcript(self, ledger: RemovalLedger) -> float:
        return math.inf

    def _check_shift(self, *given: Any) -> None:
        pass

    def _residual(self, model: Any) -> Residual:
        raise NotImplementedError

    def _check_weights(self, model: Any) -> None:
        measured, upper = self._residual(model)
        bound = self._bound(model)
        # Features are computed anew, and round differently.
        if not measured <= bound + 2 * (upper - measured):
            raise ValueError(
                'the weights of the state are not those of its ledger: their '
                f'residual is {measured:.6g}, not at most {bound:.6g}'
            )


class BoundedNodeClassifier(NodeClassifier):
    """Node classifier that bounds its residual instead of measuring it.

    It takes one exact Newton step for every removal, as `Guo et al. 2020
    <https://arxiv.org/abs/1911.03030>`_ do, and bounds what is left
    (:func:`.tight_bound`). The bound holds, and is larger than the residual.

    Args:
        measure (str or Measure): as in
            :class:`~pyg_trust.unlearning.NodeClassifier`.
            (default: :obj:`'sgc'`)
        **settings (Any): further arguments of that class; ``features`` has to
            be ``'exact'``.
    """

    accounting = 'bound'

    def __init__(self, measure: str | Measure = 'sgc', **settings: Any):
        super().__init__(measure, **settings)
        if self.accounting == 'bound' and self.features == 'push':
            raise ValueError("'features' needs to be 'exact' (got 'push')")

    def _step(
        self, model: Model, problem: Problem, start: Gradient, goal: float
    ) -> Step:
        if start.norm.upper <= goal:
            return super()._step(model, problem, start, goal)
        assert isinstance(problem, Objective)
        factor = problem.factor(model.W)
        P = problem.direction(model.W, start.value, factor)
        left = float((problem.times(model.W, P) - start.value).norm())
        W = model.W - P
        gradient = problem.gradient(W)
        rounding = start.norm.upper - start.norm.measured
        rounding += gradient.norm.upper - gradient.norm.measured
        bound = tight_bound(problem.Z, P, self.head) + left + 4 * rounding
        return Step('step', 1, W, gradient, factor, bound)


class PublishedNodeClassifier(ObjectiveNoise, BoundedNodeClassifier):
    """Node classifier by objective perturbation; *its certificate may fail*.

    See the text of this module.

    Args:
        measure (str or Measure): as in
            :class:`~pyg_trust.unlearning.NodeClassifier`.
            (default: :obj:`'sgc'`)
        accounting (str): :obj:`'residual'` measures the residual;
            :obj:`'bound'` takes one exact Newton step and bounds it.
            (default: :obj:`'residual'`)
        **settings (Any): further arguments of that class. ``release_std`` is
            the standard deviation of :math:`b`, and ``epsilon`` is at most 1.
    """

    def __init__(
        self,
        measure: str | Measure = 'sgc',
        *,
        accounting: str = 'residual',
        **settings: Any,
    ) -> None:
        check_choice('accounting', accounting, ('residual', 'bound'))
        self.accounting = accounting
        super().__init__(measure, **settings)

    def _residual(self, model: Model) -> Residual:
        return model.gradient.norm

    def _weights(
        self, data: NodeState, B: Tensor | None, released: Tensor
    ) -> tuple[Tensor, Gradient]:
        W = released.clone()
        return W, data.problem(self._goal(data), B).gradient(W)

    def _step(
        self, model: Model, problem: Problem, start: Gradient, goal: float
    ) -> Step:
        if self.accounting == 'bound':
            return super()._step(model, problem, start, goal)
        return NodeClassifier._step(self, model, problem, start, goal)


class PublishedScatteringClassifier(ObjectiveNoise, ScatteringClassifier):
    """Graph classifier by objective perturbation; *its certificate may fail*.

    See the text of this module.

    Args:
        transform (GraphEmbedding): as in
            :class:`~pyg_trust.unlearning.ScatteringClassifier`.
        noise_std (float): the standard deviation of :math:`b`. With 0 there
            is no certificate, and removals are refused. (default: :obj:`0.1`)
        accounting (str): :obj:`'residual'` measures the residual;
            :obj:`'bound'` adds up :func:`~.removal_bounds.tight_bound`;
            :obj:`'paper'` adds up Theorem 4.7 with a valid :math:`F` and
            reports all bounds. (default: :obj:`'residual'`)
        **settings (Any): further arguments of that class; ``epsilon`` is at
            most 1. Where the budget does not allow a step,
            ``on_exceed='refine'`` solves exactly with the stored :math:`b`,
            and ``'retrain'`` draws a fresh one.
    """

    @validated
    def __init__(
        self,
        transform: GraphEmbedding,
        *,
        noise_std: NotNegative = 0.1,
        accounting: Annotated[str, OneOf(_ACCOUNTS)] = 'residual',
        **settings: Any,
    ) -> None:
        self.noise_std = noise_std
        self.accounting = accounting
        super().__init__(transform, **settings)

    _residual = ScatteringClassifier._residual

    @property
    def _linear_std(self) -> float:
        return self.noise_std

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), 'noise_std': self.noise_std}

    def _origin(self) -> dict[str, Any]:
        return {**super()._origin(), 'noise_std': self.noise_std}

    def _packed(self, model: GraphModel) -> dict[str, Any]:
        return {**super()._packed(model), 'B': model.B.clone()}

    def _weights(
        self, model: GraphModel, progress_bar: bool | None
    ) -> GraphModel:
        return model

    def _bound(self, model: GraphModel) -> float:
        # Without noise nothing is promised.
        return super()._bound(model) if self.noise_std else math.inf

    def _proved(self, again: GraphModel, claimed: bool) -> dict[str, Any]:
        return {}

    def _paid_fit(
        self, model: GraphModel, upper: float, spent: float
    ) -> GraphModel:
        model = self._released(model)
        if self.noise_std:
            model.ledger.record('fit', spent, data=model.sealed)
        return model

    def _line(self, step: GraphStep) -> str:
        # A step of a bound that was added to the one before says so.
        added = step.action == 'step' and self.accounting != 'residual'
        return 'step' if added else 'measured'

    def _followed(
        self,
        old: GraphModel,
        change: Change,
        progress_bar: bool | None,
    ) -> tuple[GraphModel, GraphStep]:
        if not self.noise_std:
            raise ValueError(
                "'noise_std' needs to be positive for a certified removal "
                '(got 0)'
            )
        new = old._replace(train=change.left)
        request = RemovalRequest.from_dict(change.request)
        model, step = self._stepped(old, new, change, request)
        if step.spent <= self.budget:
            return model, step
        action = self.on_exceed
        if action == 'raise':
            raise BudgetExceededError(
                f'the removal would spend {step.spent:.6g} of a budget of '
                f"{self.budget:.6g}: choose on_exceed='refine' or 'retrain'"
            )
        start: Tensor | None = model.W
        if action == 'retrain':
            B, start = self._linear(model.B.shape, model.draws), None
            assert B is not None
            model = model._replace(B=B)
        model, more = self._solved(model, start, progress_bar)
        measured, upper = self._residual(model)
        return model, GraphStep(
            action,
            step.iterations + more,
            measured,
            self._shift(model, upper),
            step.increments,
        )

    def _stepped(
        self,
        old: GraphModel,
        new: GraphModel,
        change: Change,
        request: RemovalRequest,
    ) -> tuple[GraphModel, GraphStep]:
        # One Newton step on the objective with its noise, and its account.
        train, n, budget = new.train, new.num_items, self.budget
        mu, head = self.lam * n, self._head
        curvature = curvatures(train.Z @ old.W, train.Y, head)
        # grad L(w, D) - grad L(w, D'), to which untouched rows add nothing.
        right = self.lam * (old.num_items - n) * old.W
        for (rows, Y), sign in ((change.before, 1), (change.after, -1)):
            right += sign * (rows.t() @ slopes(rows @ old.W, Y, head))
        P = hessian_solve(train.Z, curvature, mu, right, train.K)
        model = new._replace(W=old.W + P)
        measured, upper = self._residual(model)
        added: dict[str, float] = {}
        if self.accounting == 'residual':
            exact, spent = upper, coarse(upper)
        else:
            added = self._increments(old, new, request, P)
            objective = Objective(train.Z, train.Y, mu, head)
            left = objective.times(old.W, P) - right
            which = 'tight' if self.accounting == 'bound' else 'paper'
            # The parts of the step round too, as gradients do.
            more = added[which] + float(left.norm()) + 4 * (upper - measured)
            exact = _sum(old.ledger.spent, more)
            spent = _sum(old.ledger.spent, coarse(more, BITS))
        if spent > budget >= exact:
            spent = budget
        # Within an account what is spent never falls.
        spent = max(spent, old.ledger.spent)
        return model, GraphStep('step', 1, measured, spent, added)

    def _increments(
        self,
        old: GraphModel,
        new: GraphModel,
        request: RemovalRequest,
        P: Tensor,
    ) -> dict[str, float]:
        # Bounds of the residual that a step adds.
        was, now = old.train, new.train
        bounds = {'tight': tight_bound(now.Z, P, self.loss, now.K)}
        if self.accounting == 'bound':
            return bounds
        bounds['paper'] = paper_bound(now.Z, P, self.loss, now.K)
        parts = list(request.parts.values())
        n, m = len(now.graphs), len(parts)
        if self.loss != 'logistic' or n < len(was.graphs):
            return bounds
        # The worst cases are per class; together their Frobenius norm.
        classes = math.sqrt(now.Y.size(1))
        radius = max(max_row_norm(was.Z), max_row_norm(now.Z))
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
            width = was.graphs[request.graphs[0]].x.size(1)
            size = min(now.graphs[i].num_nodes for i in request.graphs)
            noise = float(old.B.norm(dim=0).max()) + old.ledger.spent
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


def _sum(one: float, two: float) -> float:
    # Round up: with the larger first the difference is exact.
    one, two = max(one, two), min(one, two)
    total = one + two
    return total if total - one >= two else math.nextafter(total, math.inf)


class GINClassifier:
    """A graph isomorphism network that unlearns by full retraining.

    The settings are those of Pan et al. 2023: two layers of 64, mean pooling,
    Adam, full batches.

    Args:
        max_degree (int, optional): use one-hot degrees of this width instead
            of ``data.x``. (default: :obj:`None`)
        hidden_channels (int): the width. (default: :obj:`64`)
        num_layers (int): the depth. (default: :obj:`2`)
        lr (float): the learning rate. (default: :obj:`1e-4`)
        epochs (int): the number of epochs. (default: :obj:`500`)
        seed (int, optional): the seed of the initial weights.
            (default: :obj:`None`)
    """

    @validated
    def __init__(
        self,
        *,
        max_degree: Count | None = None,
        hidden_channels: Count = 64,
        num_layers: Count = 2,
        lr: Positive = 1e-4,
        epochs: Natural = 500,
        seed: int | None = None,
    ) -> None:
        self.max_degree = max_degree
        self.hidden_channels = hidden_channels
        self.num_layers = num_layers
        self.lr = lr
        self.epochs = epochs
        self._seed = rng.resolve(seed)
        # Graphs and network, replaced together at the end of a training.
        self._fitted: tuple[dict[int, Data], torch.nn.ModuleDict] | None = None

    def __repr__(self) -> str:
        return described(self)

    def fit(
        self, graphs: Sequence[Data], *, progress_bar: bool | None = None
    ) -> 'GINClassifier':
        """Train the network from scratch.

        Args:
            graphs (list[Data]): the training graphs, labelled 0, 1, ...
            progress_bar (bool, optional): by default in terminals, after 2 s.
        """
        graphs = [data.clone() for data in check_graphs(graphs)]
        self._train(dict(enumerate(graphs)), progress_bar)
        return self

    def remove(
        self, request: RemovalRequest, *, progress_bar: bool | None = None
    ) -> None:
        """Delete the requested items and train the network from scratch.

        Args:
            request (RemovalRequest): the items to forget, by the names that
                :meth:`fit` saw.
            progress_bar (bool, optional): by default in terminals, after 2 s.
        """
        check_instance('request', request, RemovalRequest)
        graphs = {} if self._fitted is None else dict(self._fitted[0])
        for i, part in request.parts.items():
            if i not in graphs:
                raise ValueError(
                    f'graph {i} is not there: it never was, or was removed '
                    'before'
                )
            if part.whole:
                del graphs[i]
            else:
                graphs[i] = remove_from_data(graphs[i], part)
        if not graphs:
            raise ValueError('the request would leave no graph to train on')
        self._train(graphs, progress_bar)

    def predict(self, graphs: Sequence[Data]) -> Tensor:
        """Return the labels of graphs: int64, ``[num_graphs]``."""
        if self._fitted is None:
            raise ValueError('the classifier needs to be fitted first')
        inputs = self._batch(check_graphs(graphs))
        _, net = self._fitted
        with torch.no_grad():
            return self._logits(net, *inputs).argmax(1)

    def score(self, graphs: Sequence[Data]) -> float:
        """Return the share of graphs that are classified as their ``y``."""
        y = graph_labels(graphs)
        return float((self.predict(graphs) == y).double().mean())

    def _batch(self, graphs: list[Data]) -> tuple[Tensor, Tensor, Tensor]:
        batch = Batch.from_data_list(
            [
                Data(
                    x=d.get('x'),
                    edge_index=d.edge_index,
                    num_nodes=d.num_nodes,
                )
                for d in graphs
            ]
        )
        graph = CSRGraph.from_data(batch)
        x = graph_signal(batch, graph, self.max_degree, dtype=torch.float32)
        x = x.to_dense() if x.layout != torch.strided else x
        return x, batch.edge_index, batch.batch

    @staticmethod
    def _logits(
        net: torch.nn.ModuleDict,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor,
    ) -> Tensor:
        nodes = net['gin'](x, edge_index)
        return net['head'](global_mean_pool(nodes, batch))

    def _train(
        self, graphs: dict[int, Data], progress_bar: bool | None
    ) -> None:
        listed = list(graphs.values())
        inputs = self._batch(listed)
        y = graph_labels(listed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            gin = GIN(
                inputs[0].size(1),
                self.hidden_channels,
                self.num_layers,
                norm='batch_norm',
            )
            head = torch.nn.Linear(self.hidden_channels, int(y.max()) + 1)
        net = torch.nn.ModuleDict({'gin': gin, 'head': head})
        optimizer = torch.optim.Adam(net.parameters(), lr=self.lr)
        net.train()
        epochs = range(self.epochs)
        for _ in Bar(epochs, progress_bar, desc='epochs'):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                self._logits(net, *inputs), y
            )
            loss.backward()
            optimizer.step()
        self._fitted = graphs, net.eval()
