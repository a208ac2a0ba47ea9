"""Differentially private training of any PyG model."""

import inspect
import math
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pyg_trust import noise, rng
from pyg_trust._checks import (
    check_callable,
    check_choice,
    check_instance,
    check_integer,
    check_number,
)
from pyg_trust.functional.mechanisms import (
    check_delta,
    check_lam,
    private_quantile,
)
from pyg_trust.ledger import BudgetExceededError, PrivacyLedger
from pyg_trust.loader import EgoLoader, StepLoader
from pyg_trust.loader.step_batches import check_positive
from pyg_trust.noise import SecureNoise, SeededNoise
from pyg_trust.privacy.accountant import (
    ACCOUNTANTS,
    FDP,
    SAMPLING,
    FDPAccountant,
    WORAccountant,
    create_accountant,
    epsilon_over_time,
)
from pyg_trust.privacy.attaching import check_alone, check_parts
from pyg_trust.privacy.gradients import SubgraphGradients
from pyg_trust.privacy.norms import gradient_norms
from pyg_trust.privacy.pipeline import check_tables, check_transform
from pyg_trust.privacy.report import PrivacyReport, assumptions
from pyg_trust.privacy.state import load as load_state
from pyg_trust.privacy.state import public_fingerprint
from pyg_trust.privacy.state import save as save_state
from pyg_trust.privacy.validation import (
    Criterion,
    Forward,
    check_criterion,
    check_layers,
    check_parameters,
    find_call,
)
from pyg_trust.privacy.wrappers import (
    REDUCTIONS,
    PrivateLoader,
    PrivateModule,
    PrivateOptimizer,
    PrivateStep,
    Single,
)
from pyg_trust.report import fingerprint_model, provenance

_BATCH, _NOISE = 1, 2
_PROBED = 32
# Rates that change with the partition are rounded up to this grid: it costs a
# thousandth, and composing many equal steps is fast.
_RATES = 4096
_PLANNED = 32


class PrivateTraining(NamedTuple):
    """What :meth:`PrivacyEngine.make_private` returns.

    Args:
        model (PrivateModule): call it as the model.
        optimizer (PrivateOptimizer): use it as the optimizer.
        loader (PrivateLoader): iterate over it as over the loader.
    """

    model: PrivateModule
    optimizer: PrivateOptimizer
    loader: PrivateLoader


class PrivacyEngine(Single):
    r"""Trains any PyG model with differential privacy of feature rows.

    Node-level DP-SGD on disjoint random walks, after `"Training
    Differentially Private Graph Neural Networks with Random Walk Sampling"
    <https://arxiv.org/abs/2301.00738>`_ (Ayle et al. 2023), in the manner of
    Opacus' engine:

    .. code-block:: python

        loader = DisjointWalkLoader(data, batch_size=512, walk_length=1)
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private_with_epsilon(
            module=model, optimizer=optimizer, data_loader=loader,
            target_epsilon=8.0, target_delta=1e-5, steps=200,
            max_grad_norm=1.0,
        )
        for epoch in range(10**6):
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[:batch.batch_size]
                loss = F.cross_entropy(out, batch.y[:batch.batch_size])
                loss.backward()
                optimizer.step()
            if engine.exhausted:
                break
        print(engine.report().explain())

    **What a step does.** The loader draws :math:`m` of :math:`M` node-disjoint
    subgraphs uniformly without replacement. The gradient of each is clipped
    to :math:`C`, all are summed, and the optimizer gets

    .. math::
        \tilde g = \frac{1}{m} \Big( \sum_i \min(1, C / \lVert g_i \rVert)
        \, g_i + \mathcal{N}(0, \sigma^2 I) \Big), \quad
        \sigma = z\, C = \lambda\, 2 C,

    where a gradient that is not finite counts as zero. Replacing a node's row
    changes the gradient of the one subgraph it is in, so the sum by at most
    :math:`2C`. The noise is given as Opacus does, by :math:`z = \sigma / C`
    (``noise_multiplier``); the paper's :math:`\lambda` is half of it
    (:func:`pyg_trust.functional.lam_to_opacus` converts).

    **Who is protected.** The features of every node, each by itself, in the
    weights. *Not* protected are edges, which nodes there are, and what the
    model predicts for a node with private neighbours. :meth:`report` lists
    every assumption.

    **What is refused**, since it would break the guarantee: layers that mix
    subgraphs or remember data; a model that fails a probe for this on random
    features, or looks rows up by the names or places of nodes; a transform of
    the loader that couples rows; tensors that do not come from the loader;
    edges between subgraphs; gradients from elsewhere; a second forward or
    backward pass in a step; ``GradScaler``; a step beyond the budget.

    **The loss** is a mean or a sum of one term per subgraph. Whatever it is,
    it is followed from the outputs to ``backward()`` at every step
    (``privacy/flow.py``): what comes back to the rows of a subgraph
    has to be made of its own rows and of constants, or the step is refused.
    Values of a batch can be read (``item``, ``numpy``) after ``backward()``.

    **Order of events.** A step is on the account, and on the disk if there is
    a ``ledger``, before its noise is drawn: a crash can waste a step of the
    budget, never hide one. A batch that was drawn stays the batch of its step
    until the step is spent.

    **Randomness.** Noise and the choice of batches come from the operating
    system (:class:`~pyg_trust.noise.SecureNoise`); nothing that seeds torch or
    numpy decides them. With an explicit ``seed`` a run can be repeated, by
    anyone who knows or guesses the seed, and is *not* private: its report
    begins with :data:`pyg_trust.noise.SEEDED`.

    Args:
        accountant (str): :obj:`'pld_wor'` (tighter) or :obj:`'rdp_wor'` (the
            paper's); :obj:`'rdp_fdp'` for an
            :class:`~pyg_trust.loader.EgoLoader`. (default: :obj:`'pld_wor'`)
        seed (int, optional): of the noise and the batches, to repeat an
            experiment; what comes out is not private. A process that goes on
            from a checkpoint or a ledger draws other noise.
            (default: :obj:`None`)
        ledger (str or Path, optional): a file for the durable account
            (:class:`~pyg_trust.ledger.PrivacyLedger`). What it says was spent
            is spent. (default: :obj:`None`)
        ledger_head (str, optional): the ``ledger_head`` of an earlier report.
            A ledger that does not go on from there, since lines were cut off
            or an older copy was put in its place, is refused.
            (default: :obj:`None`)

    Raises:
        TypeError, ValueError: on a wrong argument.
    """

    advice = ': copy the model (its copy is plain), or take state_dict()'

    def __init__(
        self,
        accountant: str = 'pld_wor',
        *,
        seed: int | None = None,
        ledger: str | Path | None = None,
        ledger_head: str | None = None,
    ) -> None:
        check_choice('accountant', accountant, ACCOUNTANTS)
        if ledger is not None:
            check_instance('ledger', ledger, str, Path)
        if ledger_head is not None:
            check_instance('ledger_head', ledger_head, str)
            if ledger is None:
                raise ValueError(
                    "'ledger_head' needs a 'ledger' that goes on from it"
                )
        self._kind = accountant
        self._accountant: WORAccountant | None = None
        self._data = ''
        self._seed = None if seed is None else rng.resolve(seed)
        self._noise = self._source(_NOISE)
        self._ledger_path = ledger
        self._ledger_head = ledger_head
        self._process = os.getpid()
        self._leaks: list[str] = []
        self._paid: Counter[tuple[float, float]] = Counter()
        self._paid_pure = 0.0
        self._ledger: PrivacyLedger | None = None
        self._training: PrivateTraining | None = None
        self._limit: tuple[float, int, int] | None = None
        self._target: tuple[float, float] | tuple[None, None] = (None, None)

    @property
    def seeded(self) -> bool:
        """Whether noise and batches come from an explicit seed."""
        return self._seed is not None

    def _source(self, *items: int) -> SecureNoise | SeededNoise:
        if self._seed is None:
            return noise.source()
        return noise.source(rng.derive(self._seed, *items))

    def _fresh_noise(self) -> None:
        # Noise that was used before could be subtracted.
        word = int.from_bytes(os.urandom(7), 'big')
        self._noise = self._source(_NOISE, word)

    def _choose(self, step: int, count: int, size: int) -> np.ndarray:
        return self._source(_BATCH, step).choose(count, size)

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: StepLoader,
        noise_multiplier: float,
        max_grad_norm: float,
        loss_reduction: str = 'mean',
        max_physical_batch_size: int | None = None,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        method: str = 'auto',
        forward: Forward | None = None,
        criterion: Criterion | None = None,
        trust_loss: bool = False,
        public: Sequence[str] = (),
    ) -> PrivateTraining:
        r"""Makes a model, an optimizer and a loader private.

        Args:
            module (torch.nn.Module): the model; it returns a row per node, or
                one per subgraph.
            optimizer (torch.optim.Optimizer): with the model's trainable
                parameters, all of them and no others.
            data_loader (StepLoader): a
                :class:`~pyg_trust.loader.DisjointWalkLoader` or, for the
                baseline, an :class:`~pyg_trust.loader.EgoLoader`. It is taken
                over: iterate over the one returned.
            noise_multiplier (float): :math:`\sigma / C`, as Opacus has it,
                which is :math:`2\lambda`.
            max_grad_norm (float): :math:`C`. It has to be chosen without
                looking at private data
                (:meth:`estimate_max_grad_norm` offers a private estimate).
            loss_reduction (str): whether the loss is the :obj:`'mean'` or the
                :obj:`'sum'` of the terms of a batch. (default:
                :obj:`'mean'`)
            max_physical_batch_size (int, optional): the most subgraphs in
                memory at a time. A batch is then handed out in parts, with
                one draw of noise and one step on the account for all; write
                the loop as if each were a batch. (default: :obj:`None`)
            target_epsilon (float, optional): the budget: the loader ends
                before the step that would exceed it. (default: :obj:`None`)
            target_delta (float, optional): its :math:`\delta`.
                (default: :obj:`None`)
            method (str): how gradients are computed, see
                :class:`~pyg_trust.privacy.SubgraphGradients`.
                (default: :obj:`'auto'`)
            forward (callable, optional): ``forward(model, batch)`` calls the
                model as the training loop is going to, for the test of
                isolation; by default ``model(batch.x, batch.edge_index)``.
                (default: :obj:`None`)
            criterion (callable, optional): ``criterion(output, target)``, the
                loss, to be tested before training starts. It is not used
                otherwise. (default: :obj:`None`)
            trust_loss (bool): whether to leave the loss that is
                back-propagated unchecked; the report repeats it.
                (default: :obj:`False`)
            public (Sequence[str]): buffers, frozen parameters and attributes
                of the model that have a row per node of the graph and hold
                nothing private; the report repeats them.
                (default: :obj:`()`)

        Returns:
            PrivateTraining: model, optimizer and loader.

        Raises:
            TypeError, ValueError: if anything is not as it needs to be.
                Nothing is changed then.
        """
        self._check_free(module, optimizer, data_loader)
        lam = check_number('noise_multiplier', noise_multiplier)
        check_lam(lam / (2 * data_loader.terms))
        step = self._prepare(
            module,
            optimizer,
            data_loader,
            max_grad_norm=max_grad_norm,
            loss_reduction=loss_reduction,
            max_physical_batch_size=max_physical_batch_size,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            method=method,
            forward=forward,
            criterion=criterion,
            trust_loss=trust_loss,
            public=public,
        )
        self._open(data_loader)
        self._target = None, None  # not one of an interrupted call
        if target_epsilon is not None and target_delta is not None:
            self._target = float(target_epsilon), float(target_delta)
        data_loader.batch_sampler.chunk_size = max_physical_batch_size
        return self._attach(step, optimizer, data_loader, noise_multiplier)

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: StepLoader,
        target_epsilon: float,
        target_delta: float,
        max_grad_norm: float,
        steps: int | None = None,
        epochs: int | None = None,
        **kwargs: Any,
    ) -> PrivateTraining:
        r"""Makes them private with just enough noise for a budget.

        The noise is such that so many steps stay below the target, by at most
        one percent (or, with ``resample_every``, as many at the highest rate
        of its partitions).

        Args:
            module (torch.nn.Module): as in :meth:`make_private`.
            optimizer (torch.optim.Optimizer): as in :meth:`make_private`.
            data_loader (StepLoader): as in :meth:`make_private`.
            target_epsilon (float): the budget.
            target_delta (float): its :math:`\delta`.
            max_grad_norm (float): the clipping norm :math:`C`.
            steps (int, optional): how many steps are planned.
                (default: :obj:`None`)
            epochs (int, optional): or how many epochs, of
                ``len(data_loader)`` steps. (default: :obj:`None`)
            **kwargs (optional): more arguments of :meth:`make_private`.

        Raises:
            TypeError, ValueError: as :meth:`make_private`, and if no noise is
                enough.
        """
        self._check_free(module, optimizer, data_loader)
        if (steps is None) == (epochs is None):
            raise ValueError(
                "one of 'steps' and 'epochs' needs to be given (got "
                f'{steps} and {epochs})'
            )
        if 'noise_multiplier' in kwargs:
            raise TypeError(
                "'noise_multiplier' follows from 'target_epsilon': leave it "
                "out, or use 'make_private'"
            )
        for name in kwargs:
            if name not in inspect.signature(self.make_private).parameters:
                raise TypeError(
                    f"'make_private_with_epsilon' takes no argument '{name}'"
                )
        if steps is None:
            assert epochs is not None
            check_positive('epochs', epochs)
            steps = epochs * data_loader.batch_sampler.num_steps
        check_positive('steps', steps)
        target_epsilon = _positive('target_epsilon', target_epsilon)
        step = self._prepare(
            module,
            optimizer,
            data_loader,
            max_grad_norm=max_grad_norm,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            **kwargs,
        )
        multiplier = self._open(data_loader).noise_multiplier_for(
            target_epsilon,
            target_delta,
            sample_rate=self._highest_rate(data_loader, steps),
            steps=steps,
        )
        self._target = target_epsilon, float(target_delta)
        data_loader.batch_sampler.chunk_size = kwargs.get(
            'max_physical_batch_size'
        )
        return self._attach(step, optimizer, data_loader, multiplier)

    def _prepare(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: StepLoader,
        *,
        max_grad_norm: float,
        loss_reduction: str = 'mean',
        max_physical_batch_size: int | None = None,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        method: str = 'auto',
        forward: Forward | None = None,
        criterion: Criterion | None = None,
        trust_loss: bool = False,
        public: Sequence[str] = (),
    ) -> PrivateStep:
        # All that can be refused before the account is opened.
        max_grad_norm = _positive('max_grad_norm', max_grad_norm)
        check_choice('loss_reduction', loss_reduction, REDUCTIONS)
        if max_physical_batch_size is not None:
            check_positive('max_physical_batch_size', max_physical_batch_size)
        if (target_epsilon is None) != (target_delta is None):
            raise ValueError(
                "'target_epsilon' and 'target_delta' need to be given "
                f'together (got {target_epsilon} and {target_delta})'
            )
        for name, value in (('forward', forward), ('criterion', criterion)):
            if value is not None:
                check_callable(name, value)
        check_instance('trust_loss', trust_loss, bool)
        account = self._account(data_loader)
        if target_epsilon is not None and target_delta is not None:
            _positive('target_epsilon', target_epsilon)
            account.get_epsilon(check_delta(target_delta))
        check_layers(module)
        check_tables(module, data_loader.data.num_nodes, public)
        step = PrivateStep(
            SubgraphGradients(module, method),
            check_parameters(module, optimizer),
            max_grad_norm,
            loss_reduction,
            data_loader.subgraphs_per_batch,
            self._add_noise,
            trust_loss,
            public,
        )
        step.by_unit = data_loader.by_unit
        self._probe(step, data_loader, forward, criterion)
        return step

    def _attach(
        self,
        step: PrivateStep,
        optimizer: torch.optim.Optimizer,
        data_loader: StepLoader,
        noise_multiplier: float,
    ) -> PrivateTraining:
        training = PrivateTraining(
            PrivateModule(step.module, step),
            PrivateOptimizer(optimizer, step),
            PrivateLoader(
                data_loader,
                step,
                lambda: self.steps,
                self._allowed,
                data_loader.check_batch,
                self._choose,
            ),
        )
        # From here on nothing is refused, and nothing can be interrupted but
        # between two lines.
        self._loader = data_loader
        self._noise_multiplier = float(noise_multiplier)
        self._max_grad_norm = step.max_grad_norm
        self._loss_reduction = step.loss_reduction
        data_loader.batch_sampler.choose = self._choose
        step.pins.hold_layers()
        step.pins.hold()
        self._training = training
        return training

    def _check_free(self, module: Any, optimizer: Any, loader: Any) -> None:
        if self._training is not None:
            raise ValueError(
                'an engine trains one model: make a new engine, as budgets '
                'of two models add up and are not shared'
            )
        check_parts(module, optimizer, loader)

    def _probe(
        self,
        step: PrivateStep,
        loader: StepLoader,
        forward: Forward | None,
        criterion: Criterion | None,
    ) -> None:
        # The structure of some subgraphs; their features are not used.
        count = min(_PROBED, loader.subgraphs_per_batch)
        index = loader.batch_sampler.write(0, torch.arange(count))
        batch = loader(index)
        owner, count = loader.check_batch(batch, 0, count)
        check_transform(
            loader.transform, loader.untransformed(index), loader.by_unit
        )
        device = step.parameters[0].device
        batch, owner = batch.to(device), owner.to(device)
        call = find_call(step.module, batch, forward)
        step.probe(call, batch, owner)
        if criterion is not None:
            with torch.no_grad():
                out = call(step.module, batch)
            check_criterion(criterion, out, batch.y, step.loss_reduction)

    @property
    def accountant(self) -> WORAccountant:
        """The accountant; it is there once a loader is known."""
        if self._accountant is None:
            raise RuntimeError('call make_private first')
        spent = _lines(self._accountant)
        lost = any(spent[line] < n for line, n in self._paid.items())
        if lost or self._accountant.pure_epsilon < self._paid_pure:
            raise RuntimeError(
                'the account has lost what was spent: it can grow, and '
                'nothing is taken back'
            )
        return self._accountant

    def _note_spent(self) -> None:
        # It is not to become less, whoever has the account.
        self._paid = _lines(self.accountant)
        self._paid_pure = self.accountant.pure_epsilon

    @property
    def noise_multiplier(self) -> float:
        r"""Opacus' :math:`\sigma / C`."""
        self._attached()
        return self._noise_multiplier

    @property
    def max_grad_norm(self) -> float:
        """The clipping norm :math:`C`."""
        self._attached()
        return self._max_grad_norm

    @property
    def loss_reduction(self) -> str:
        """Whether losses are means or sums."""
        self._attached()
        return self._loss_reduction

    @property
    def target_epsilon(self) -> float | None:
        """The budget, if there is one."""
        self._attached()
        return self._target[0]

    @property
    def target_delta(self) -> float | None:
        """The delta of the budget, if there is one."""
        self._attached()
        return self._target[1]

    @property
    def steps(self) -> int:
        """The number of steps on the account."""
        return len(self.accountant)

    @property
    def ledger_head(self) -> str | None:
        """A digest of all lines of the ledger, to be noted elsewhere."""
        return None if self._ledger is None else self._ledger.head

    @property
    def exhausted(self) -> bool:
        """Whether the budget does not allow the next step."""
        self._attached()
        return not self._allowed(self.steps)

    def get_epsilon(self, delta: float, steps: int = 0) -> float:
        r""":math:`\epsilon` of everything so far, and of steps to come.

        Args:
            delta (float): in :math:`(0, 1)`.
            steps (int): how many more steps to count, with the noise of
                :meth:`make_private`; what a plan will have spent is known
                before training. (default: :obj:`0`)
        """
        check_integer('steps', steps, 0)
        accountant = self.accountant
        if steps:
            self._attached()
            accountant = deepcopy(accountant)
            rates = Counter(
                self._rate(self._loader, step)
                for step in range(self.steps, self.steps + steps)
            )
            accountant.history += [
                (self.noise_multiplier, rate, count)
                for rate, count in rates.items()
            ]
        return accountant.get_epsilon(check_delta(delta))

    def _rate(self, loader: StepLoader, step: int) -> float:
        rate = loader.sample_rate_at(step)
        if loader.resample_every is None:
            return rate
        return min(1.0, math.ceil(rate * _RATES) / _RATES)

    def _highest_rate(self, loader: StepLoader, steps: int) -> float:
        every = loader.resample_every or steps
        first = range(0, steps, every)[:_PLANNED]
        return max(self._rate(loader, step) for step in first)

    def _allowed(self, step: int) -> bool:
        if self.target_epsilon is None or self.target_delta is None:
            return True
        rate, spent = self._rate(self._loader, step), self.steps
        if self._limit is not None:
            # Found after 'at' steps: 'most' in all, at this rate or a lower.
            highest, at, most = self._limit
            if rate <= highest and spent < most:
                return True
            if rate >= highest and at == spent:
                return False
        left = self.accountant.remaining_steps(
            self.target_epsilon,
            self.target_delta,
            noise_multiplier=self.noise_multiplier,
            sample_rate=rate,
        )
        self._limit = rate, spent, spent + left
        return left > 0

    def _add_noise(self, sums: list[Tensor]) -> list[Tensor]:
        check_alone()
        self._check_process()
        step = self.steps
        if not self._allowed(step):
            raise BudgetExceededError(
                f'step {step + 1} would exceed the budget of epsilon '
                f'{self.target_epsilon:g} at delta {self.target_delta:g}; '
                'nothing was spent'
            )
        rate = self._rate(self._loader, step)
        if self._ledger is not None:
            self._ledger.record(self.noise_multiplier, rate)
        self.accountant.step(
            noise_multiplier=self.noise_multiplier, sample_rate=rate
        )
        self._note_spent()
        if not all(bool(total.isfinite().all()) for total in sums):
            raise RuntimeError(
                'a clipped sum is not finite, which is an error in pyg_trust; '
                'the step was not taken'
            )
        std = self.noise_multiplier * self.max_grad_norm
        scale = 1.0
        if self.loss_reduction == 'mean':
            scale /= self._loader.subgraphs_per_batch
        return [
            (total + std * self._noise.normal(total.shape).to(total)) * scale
            for total in sums
        ]

    def estimate_max_grad_norm(
        self,
        *,
        module: nn.Module,
        data_loader: StepLoader,
        criterion: Criterion,
        percentile: float = 50.0,
        epsilon: float | None = None,
        bounds: tuple[float, float] = (1e-3, 1e3),
        public: bool = False,
        insist: bool = False,
        forward: Forward | None = None,
        progress_bar: bool = False,
    ) -> float:
        r"""A clipping norm from a percentile of the gradients' norms.

        The percentile itself is a function of private data and must not be
        used. Say which of these holds:

        - ``epsilon``: a private estimate
          (:func:`pyg_trust.functional.private_quantile`) that spends it, on
          top of training; it is on the account before it is returned.
        - ``public``: the loader has public data. Nothing is spent.
        - ``insist``: the percentile as it is, with a warning; the report then
          says that its :math:`\epsilon` leaves this release out.

        Args:
            module (torch.nn.Module): the model, at weights that were not
                trained on private data without noise.
            data_loader (StepLoader): the loader; all units of its first
                partition are looked at.
            criterion (callable): ``criterion(output, target)``, a mean of one
                term per row.
            percentile (float): in (0, 100). (default: :obj:`50.0`)
            epsilon (float, optional): what to spend. (default: :obj:`None`)
            bounds (tuple): the least and the greatest answer.
                (default: :obj:`(1e-3, 1e3)`)
            public (bool): as above. (default: :obj:`False`)
            insist (bool): as above. (default: :obj:`False`)
            forward (callable, optional): as in :meth:`make_private`.
                (default: :obj:`None`)
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: unless exactly one of the three is given, or a number
                is out of range.
        """
        check_instance('public', public, bool)
        check_instance('insist', insist, bool)
        if (epsilon is not None) + public + insist != 1:
            raise ValueError(
                "one of 'epsilon' (a private estimate), 'public' and 'insist' "
                'needs to be given: a percentile of private gradients is not '
                f'private (got {epsilon}, {public} and {insist})'
            )
        if not isinstance(bounds, Sequence) or len(bounds) != 2:
            raise TypeError(f"'bounds' needs to be two numbers (got {bounds})")
        low, high = (_positive('bounds', bound) for bound in bounds)
        check_number('percentile', percentile)
        if not low < high or not 0 < percentile < 100:
            raise ValueError(
                "'bounds' needs to be increasing and 'percentile' in (0, 100) "
                f'(got {bounds} and {percentile})'
            )
        check_instance('module', module, nn.Module)
        check_instance('data_loader', data_loader, StepLoader)
        check_callable('criterion', criterion)
        if forward is not None:
            check_callable('forward', forward)
        check_layers(module)
        if epsilon is not None:
            self._check_process()
            epsilon = _positive('epsilon', epsilon)
            accountant = self._open(data_loader)
        norms = gradient_norms(
            module, data_loader, criterion, forward, progress_bar
        )
        if epsilon is not None:
            if self._ledger is not None:
                self._ledger.record_pure(epsilon)
            accountant.spend_pure(epsilon)
            self._note_spent()
            return private_quantile(
                norms,
                percentile / 100,
                epsilon,
                low,
                high,
                self._noise.uniform(len(norms) + 2),
                data_loader.terms,
            )
        if insist:
            warnings.warn(
                'the clipping norm is a percentile of private gradient norms: '
                'it tells of the data, and no epsilon accounts for it',
                stacklevel=2,
            )
            self._leaks.append(
                'NOT COVERED: the clipping norm is a percentile of private '
                'gradient norms, released without noise'
            )
        norms = np.nan_to_num(norms, nan=high, posinf=high)
        return float(np.percentile(np.clip(norms, low, high), percentile))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f'the engine was made by process {self._process}, of which '
                f'this one ({os.getpid()}) is a fork: what both release '
                'would be on no account together. Make the engine in the '
                'process that trains'
            )

    def _attached(self) -> PrivateTraining:
        if self._training is None:
            raise RuntimeError('call make_private first')
        return self._training

    def _account(self, loader: StepLoader) -> WORAccountant:
        # The account for a loader, or a new one that is nobody's yet.
        if self._accountant is not None:
            if public_fingerprint(loader) != self._data:
                raise ValueError(
                    "'data_loader' needs to have the data of the first one"
                )
            return self._accountant
        if isinstance(loader, EgoLoader) != (self._kind == FDP):
            raise ValueError(
                f"'accountant' needs to be {FDP!r} for an EgoLoader, and for "
                f'no other (got {self._kind!r} for a {type(loader).__name__})'
            )
        if isinstance(loader, EgoLoader):
            return FDPAccountant(
                loader.num_subgraphs, loader.subgraphs_per_batch, loader.terms
            )
        accountant = create_accountant(self._kind)
        accountant.relation = loader.relation
        return accountant

    def _open(self, loader: StepLoader) -> WORAccountant:
        # The account for a loader: what the ledger says, or a new one.
        accountant = self._account(loader)
        if self._accountant is not None:
            return accountant
        data = public_fingerprint(loader)
        ledger = None
        try:
            if self._ledger_path is not None:
                state = accountant.state_dict()
                spent = {'history', 'pure_epsilon'}
                about = {k: v for k, v in state.items() if k not in spent}
                header = {
                    'format': 2,
                    'accountant': about,
                    'data': data,
                    'seeded': self.seeded,
                }
                ledger = PrivacyLedger(
                    self._ledger_path, header, self._ledger_head
                )
                if ledger.steps or ledger.pure_epsilon:
                    state['history'] = ledger.history
                    state['pure_epsilon'] = ledger.pure_epsilon
                    accountant.load_state_dict(state)
                    self._fresh_noise()
            self._ledger, self._data = ledger, data
            self._accountant = accountant
            self._note_spent()
        except BaseException:
            # Whoever tries again needs the lock.
            if ledger is not None:
                ledger.close()
            raise
        return accountant

    def state_dict(self) -> dict[str, Any]:
        """Everything to go on with: weights, optimizer, account, setting.

        It is as private as the weights. Seeds are not in it: whoever had the
        seed of the noise or of the batches would see through them. Nor is
        there anything of the features: even a hash of them would tell which
        of two graphs was trained on.
        """
        return save_state(self)

    def load_state_dict(
        self, state: dict[str, Any], *, rewind: bool = False
    ) -> None:
        """Goes on from a checkpoint, with noise of its own.

        Call it after :meth:`make_private` with the same arguments.

        Args:
            state (dict): of :meth:`state_dict`.
            rewind (bool): whether to take the weights of a checkpoint that
                lies behind what was spent. The account is *not* turned back:
                steps that were taken since stay spent. This is what a process
                needs that was killed after its last checkpoint and has a
                ledger. (default: :obj:`False`)

        Raises:
            ValueError: if it is of other data, parameters, sampling, noise
                or mechanism, or lies behind what was spent. Nothing is
                changed then.
        """
        load_state(self, state, rewind)

    def _training_step(self) -> PrivateStep:
        return self._attached().optimizer._step

    def close(self) -> None:
        """Closes the ledger's file."""
        if self._ledger is not None:
            self._ledger.close()

    def report(self, delta: float | None = None) -> PrivacyReport:
        r"""What is guaranteed so far, with every assumption.

        Args:
            delta (float, optional): :math:`\delta`; by default that of the
                budget. (default: :obj:`None`)
        """
        model = self._attached().model.module
        if delta is None:
            delta = self.target_delta
        if delta is None:
            raise ValueError("'delta' needs to be given if there is no target")
        terms = self._loader.terms
        rates: dict[float, int] = {}
        for _, rate, count in self.accountant.history:
            rates[rate] = rates.get(rate, 0) + count
        sensitivity = 2 * terms * self.max_grad_norm
        return PrivacyReport(
            epsilon=self.get_epsilon(delta),
            delta=delta,
            target_epsilon=self.target_epsilon,
            steps=self.steps,
            relation=self._loader.relation,
            sampling=SAMPLING,
            mechanism=self.accountant.mechanism(),
            unit=self._loader.unit,
            batch_size=self._loader.subgraphs_per_batch,
            sample_rates=tuple(rates.items()),
            max_grad_norm=self.max_grad_norm,
            units_per_row=terms,
            sensitivity=sensitivity,
            noise_multiplier=self.noise_multiplier,
            lam=self.noise_multiplier / (2 * terms),
            noise_std=self.noise_multiplier * self.max_grad_norm,
            seeded=self.seeded,
            ledger_head=self.ledger_head,
            assumptions=assumptions(
                self.seeded,
                self._ledger is not None,
                [
                    *self._leaks,
                    *self._training_step().pins.notes(),
                    *self._training_step().notes(),
                ],
                self._loader.assumptions(),
            ),
            data=public_fingerprint(self._loader),
            provenance=provenance(
                loss_reduction=self.loss_reduction,
                sampler=self._loader.setting(),
                ledger=self._ledger_path is not None,
            ),
            weights=fingerprint_model(model.state_dict()),
            history=epsilon_over_time(self.accountant, delta),
        )


def _lines(accountant: WORAccountant) -> Counter[tuple[float, float]]:
    # How many steps there were with each noise and rate.
    found: Counter[tuple[float, float]] = Counter()
    for multiplier, rate, count in accountant.history:
        found[multiplier, rate] += count
    return found


def _positive(name: str, value: float) -> float:
    if not 0 < check_number(name, value) < math.inf:
        raise ValueError(
            f"'{name}' needs to be positive and finite (got {value})"
        )
    return float(value)
