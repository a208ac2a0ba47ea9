"""Differentially private training of any PyG model."""

import inspect
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from pyg_trust._checks import (
    Count,
    Fraction,
    NotNegative,
    Number,
    OneOf,
    Positive,
    check_instance,
    check_positive,
    constraints,
    validated,
)
from pyg_trust._checks.graphs import warn_of_delta, warn_of_features
from pyg_trust._moved import renamed, retired
from pyg_trust.ledger import BudgetExceededError
from pyg_trust.loader import StepLoader
from pyg_trust.privacy.accountant import RELATION
from pyg_trust.privacy.bounds import check_norm
from pyg_trust.privacy.calls import Forward
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.from_opacus import as_in_opacus, refuse_attribute
from pyg_trust.privacy.group import Group
from pyg_trust.privacy.mechanisms import CLIPPINGS, check_multiplier
from pyg_trust.privacy.norms import AdaptiveNorm
from pyg_trust.privacy.report import (
    NOISELESS,
    PrivacyReport,
    covered,
    describe,
)
from pyg_trust.privacy.spending import new_account
from pyg_trust.privacy.state import Checkpoints
from pyg_trust.privacy.training import (
    REDUCTIONS,
    PrivateStep,
    noisy_count,
    noisy_sums,
)
from pyg_trust.privacy.validation import (
    ISOLATIONS,
    Criterion,
    IsLoader,
    Loader,
    check_arithmetic,
    check_grid,
    check_group,
    check_model,
    check_parts,
    check_totals,
    try_parts,
)
from pyg_trust.privacy.wrappers import (
    PrivateLoader,
    PrivateModule,
    PrivateOptimizer,
    PrivateTraining,
)
from pyg_trust.removal import RemovalRequest

__all__ = ['PrivacyEngine']


class PrivacyEngine(Checkpoints):
    """Trains any PyG model with differential privacy, as Opacus' engine does.

    .. code-block:: python

        loader = DisjointWalkLoader(data, batch_size=512, walk_length=1)
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private_with_epsilon(
            module=model, optimizer=optimizer, data_loader=loader,
            target_epsilon=8.0, target_delta=1e-5, steps=200,
            max_grad_norm=1.0,
        )
        while not engine.exhausted and engine.steps < 200:
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[:batch.batch_size]
                loss = F.cross_entropy(out, batch.y[:batch.batch_size])
                loss.backward()
                optimizer.step()
        print(engine.report().explain())

    A step clips the gradient of each drawn subgraph to the norm :math:`C`, and
    adds Gaussian noise to their sum (:doc:`/theory/private_training`). The
    loader decides what is protected: a row, a graph or a person. The loss has
    to be a mean or a sum of one term per subgraph. Its values are not
    protected: do not publish them. :meth:`report` lists every assumption.

    Args:
        accountant (str, optional): an entry of
            :obj:`pyg_trust.registries.ACCOUNTANTS` that fits the loader, or
            Opacus' :obj:`'prv'` or :obj:`'rdp'`; by default the tightest.
        insecure_seed (int, optional): the seed of noise and batches, to repeat
            an experiment; the result is not private, and the report says so.
        ledger (str or Path, optional): a file that records every step before
            it is taken. Steps that it already holds count as spent.
        ledger_head (str, optional): the ``ledger_head`` of an earlier report,
            from which the ledger has to continue.
        noise (str): the source of random bits, an entry of
            :obj:`pyg_trust.registries.NOISES`; by default the operating
            system.
    """

    advice = ': copy the model (its copy is plain), or take state_dict()'

    @renamed(seed='insecure_seed')
    @as_in_opacus
    def __init__(
        self,
        accountant: str | None = None,
        *,
        insecure_seed: int | None = None,
        ledger: str | Path | None = None,
        ledger_head: str | None = None,
        noise: str = 'system',
    ) -> None:
        super().__init__(accountant, insecure_seed, ledger, ledger_head, noise)
        self._releases = 0

    def __repr__(self) -> str:
        parts = [] if self._kind is None else [f'accountant={self._kind!r}']
        if self._ledger_path is not None:
            parts.append(f'ledger={str(self._ledger_path)!r}')
        if self.seeded:
            parts.append('insecure_seed=...')
        parts.append('in use' if self._training is not None else 'not in use')
        return f'{type(self).__name__}({", ".join(parts)})'

    def __getattr__(self, name: str) -> Any:
        refuse_attribute(self, name)

    @staticmethod
    def validate(
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        data_loader: Any = None,
        *,
        strict: bool = True,
        forward: Forward | None = None,
        criterion: Criterion | None = None,
    ) -> list[Exception]:
        """Check whether a model can be trained privately, as in Opacus.

        Without a loader, layers and parameters are checked. With one, the
        model is run on made-up features as well, which finds most of what
        :meth:`make_private` refuses. Nothing is changed.

        Args:
            module (torch.nn.Module): the model.
            optimizer (torch.optim.Optimizer, optional): its optimizer.
            data_loader (StepLoader, optional): the loader of subgraphs.
            strict (bool): whether to raise the error that is found, instead of
                returning it. (default: :obj:`True`)
            forward (callable, optional): ``forward(model, batch)`` calls the
                model as your loop does.
            criterion (callable, optional): ``criterion(output, target)``, a
                mean of one term per row.

        Returns:
            list[Exception]: the error that was found; empty if there is none.

        Raises:
            TypeError, ValueError: if the model can't be trained privately and
                ``strict`` is true.
        """
        check_instance('module', module, nn.Module)
        trained = [p for p in module.parameters() if p.requires_grad]
        if optimizer is None:
            optimizer = torch.optim.SGD(trained or [torch.zeros(1)], lr=0.1)
        try:
            if data_loader is None:
                check_parts(module, optimizer)
                check_model(module, optimizer)
            else:
                IsLoader(StepLoader).check('data_loader', data_loader)
                engine = PrivacyEngine()
                engine._check_free(module, optimizer, data_loader)
                engine._prepare(
                    *(module, optimizer, data_loader, 1.0, None),
                    forward=forward,
                    criterion=criterion,
                )
        except (TypeError, ValueError) as error:
            if strict:
                raise
            return [error]
        return []

    @classmethod
    def is_compatible(
        cls,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        data_loader: Any = None,
    ) -> bool:
        """Return whether :meth:`validate` finds no error, as in Opacus.

        Args:
            module (torch.nn.Module): the model.
            optimizer (torch.optim.Optimizer, optional): its optimizer.
            data_loader (StepLoader, optional): the loader; without one, layers
                and parameters alone are checked.
        """
        return not cls.validate(module, optimizer, data_loader, strict=False)

    @retired(trust_loss=None, public=None, exact=None, method=None)
    @as_in_opacus
    @validated
    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: Loader,
        noise_multiplier: NotNegative,
        max_grad_norm: float | AdaptiveNorm,
        target_epsilon: Positive | None = None,
        target_delta: Fraction | None = None,
        loss_reduction: Annotated[str, OneOf(REDUCTIONS)] = 'mean',
        max_physical_batch_size: Count | None = None,
        forward: Forward | None = None,
        criterion: Criterion | None = None,
        clipping: Annotated[str, OneOf(CLIPPINGS)] = 'flat',
        isolation: Annotated[str, OneOf((*ISOLATIONS, 'followed'))] = (
            'checked'
        ),
    ) -> PrivateTraining:
        r"""Wrap a model, an optimizer and a loader for private training.

        Args:
            module (torch.nn.Module): the model; it returns a row per node, or
                one per subgraph.
            optimizer (torch.optim.Optimizer): with the model's trainable
                parameters, all of them and no others.
            data_loader (StepLoader): a loader of subgraphs, such as
                :class:`~pyg_trust.loader.DisjointWalkLoader`.
            noise_multiplier (float): :math:`z = \sigma / C`, as in Opacus. 0
                is to debug a training: nothing is private then.
            max_grad_norm (float or AdaptiveNorm): :math:`C`, chosen without
                private data, or a norm that follows a noisy quantile.
            target_epsilon (float, optional): the budget: the loader ends
                before the step that would exceed it.
            target_delta (float, optional): the :math:`\delta` of the budget.
            loss_reduction (str): whether the loss is the :obj:`'mean'` or the
                :obj:`'sum'` of the terms of a batch.
            max_physical_batch_size (int, optional): the most subgraphs in
                memory. The loader then yields a batch in parts. Call
                ``optimizer.step()`` after each; the last one moves the
                weights.
            forward (callable, optional): ``forward(model, batch)`` calls the
                model as the loop does; by default each argument of the model
                gets the batch's attribute of its name.
            criterion (callable, optional): ``criterion(output, target)``, a
                mean of one term per row, for ``training.loss(batch)``.
            clipping (str): :obj:`'flat'` cuts gradients above :math:`C`;
                :obj:`'automatic'` scales all of them to just below it.
            isolation (str): :obj:`'checked'` computes all subgraphs together,
                and verifies in some steps that none affects another;
                :obj:`'construction'` runs every subgraph alone, slowly.
                ``'followed'`` is an old name of ``'checked'``.

        Returns:
            PrivateTraining: model, optimizer and loader.

        Raises:
            TypeError, ValueError: if an argument can't be used.
        """
        given = {k: v for k, v in locals().items() if k != 'self'}
        return self._make(None, **given)

    @retired(trust_loss=None, public=None, exact=None, method=None)
    @as_in_opacus
    @validated
    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: Loader,
        target_epsilon: Positive,
        target_delta: Fraction,
        max_grad_norm: float | AdaptiveNorm,
        steps: Count | None = None,
        epochs: Count | None = None,
        **kwargs: Any,
    ) -> PrivateTraining:
        r"""Make training private, with the least noise for a budget.

        The epsilon of the planned steps is at most the target, and at least 99
        percent of it.

        Args:
            module (torch.nn.Module): the model.
            optimizer (torch.optim.Optimizer): of all its trainable parameters.
            data_loader (StepLoader): a loader of subgraphs.
            target_epsilon (float): the budget.
            target_delta (float): the :math:`\delta` of the budget.
            max_grad_norm (float or AdaptiveNorm): the clipping norm.
            steps (int, optional): how many steps are planned.
            epochs (int, optional): or how many epochs, of ``len(data_loader)``
                steps.
            **kwargs (optional): more arguments of :meth:`make_private`.

        Raises:
            TypeError, ValueError: if an argument can't be used, or no noise is
                enough.
        """
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
        if epochs is not None:
            steps = epochs * data_loader.batch_sampler.num_steps
        call = inspect.signature(self.make_private).bind(
            module=module,
            optimizer=optimizer,
            data_loader=data_loader,
            noise_multiplier=0.0,
            max_grad_norm=max_grad_norm,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            **kwargs,
        )
        for name, constraint in constraints(self.make_private).items():
            if name in kwargs:
                constraint(name, kwargs[name])
        call.apply_defaults()
        return self._make(steps, **call.arguments)

    def _make(
        self,
        steps: int | None,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: StepLoader,
        noise_multiplier: float,
        max_grad_norm: float | AdaptiveNorm,
        target_epsilon: float | None,
        target_delta: float | None,
        max_physical_batch_size: int | None,
        **options: Any,
    ) -> PrivateTraining:
        # With this noise, or with the least of which so many steps fit.
        self._check_free(module, optimizer, data_loader)
        adaptive, norm = None, max_grad_norm
        if isinstance(max_grad_norm, AdaptiveNorm):
            adaptive, norm = max_grad_norm, max_grad_norm.initial
        if adaptive is not None and options['clipping'] != 'flat':
            raise ValueError(
                "'clipping' needs to be 'flat' for an AdaptiveNorm: scaled "
                'gradients are all of one length (got '
                f'{options["clipping"]!r})'
            )
        if noise_multiplier:
            check_multiplier(noise_multiplier, data_loader.terms)
        elif steps is None and (
            target_epsilon is not None
            or self._ledger_path is not None
            or adaptive is not None
        ):
            raise ValueError(
                "'noise_multiplier' can be 0, to debug a training without "
                "noise, for an engine without 'ledger', 'target_epsilon' and "
                'AdaptiveNorm alone: epsilon is infinite then'
            )
        if options['isolation'] == 'followed':
            warnings.warn(
                "isolation='followed' is now 'checked': leave it out",
                DeprecationWarning,
                stacklevel=6,
            )
            options['isolation'] = 'checked'
        self._group.agree_on_training(
            *(module, optimizer),
            insecure_seed=self._seed,
            accountant=self._kind,
            noise=self._noise_kind,
            noise_multiplier=noise_multiplier,
            steps=steps,
            max_grad_norm=max_grad_norm,
            max_physical_batch_size=max_physical_batch_size,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            **options,
        )
        assert not isinstance(norm, AdaptiveNorm)
        norm = check_norm(
            'max_grad_norm', check_positive('max_grad_norm', norm)
        )
        if (target_epsilon is None) != (target_delta is None):
            raise ValueError(
                "'target_epsilon' and 'target_delta' need to be given "
                f'together (got {target_epsilon} and {target_delta})'
            )
        step = self._prepare(
            *(module, optimizer, data_loader, norm, target_delta), **options
        )
        size = data_loader.subgraphs_per_batch
        if adaptive is not None and noise_multiplier:
            adaptive.gradient_multiplier(noise_multiplier, size)
        account = self._open(data_loader)
        try:
            self._target = None, None  # not one of an interrupted call
            if target_epsilon is not None and target_delta is not None:
                self._target = float(target_epsilon), float(target_delta)
            if steps is not None:
                noise_multiplier = account.noise_multiplier_for(
                    *self._target,
                    sample_rate=self._highest_rate(data_loader, steps),
                    steps=steps,
                )
            multiplier = gradients = float(noise_multiplier)
            self._check_budget(data_loader, multiplier)
            if adaptive is not None:
                std = adaptive.count_std(multiplier, size)
                check_grid('noise_std', 2 * std, 1)
                gradients = adaptive.gradient_multiplier(multiplier, size)
            numbers = sum(p.numel() for p in step.parameters)
            check_arithmetic(data_loader, gradients, numbers)
            self._group.share(module, optimizer)
            key = self._group.key()
        except BaseException:
            # Another try opens the account again.
            self.close()
            self._accountant = self._ledger = self._plan = None
            raise
        # From here on nothing is refused, and an interrupt falls between two
        # lines.
        self._loader, self._noise_multiplier = data_loader, multiplier
        self._adaptive, self._key = adaptive, key
        step.counts, step.noiseless = adaptive is not None, not multiplier
        data_loader.batch_sampler.chunk_size = max_physical_batch_size
        step.hold()
        self._step, self._start = step, self.steps
        self._training = PrivateTraining(
            PrivateModule(module, step),
            PrivateOptimizer(optimizer, step, multiplier),
            PrivateLoader(data_loader, step, self),
        )
        return self._training

    def _prepare(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: StepLoader,
        norm: float,
        delta: float | None,
        **options: Any,
    ) -> PrivateStep:
        # Refuse what can't be trained, before the account is opened.
        account = new_account(self._kind, loader)
        if delta is not None:
            account.get_epsilon(delta)
        check_model(module, optimizer)
        step = PrivateStep(
            *(module, loader, norm, self._add_noise),
            secret=not self.seeded,
            **options,
        )
        for store in loader.data.node_stores:
            warn_of_features('x', store.get('x'))
        if loader.form != 'withdraw':  # Else the number is private.
            count = loader.data.num_nodes or 1
            warn_of_delta(delta, count, loader.protected)
        try_parts(step)
        return step

    def _check_free(self, module: Any, optimizer: Any, loader: Any) -> None:
        if self._training is not None:
            raise ValueError(
                'an engine trains one model: make a new engine. Rounds on the '
                'same data share a file, PrivacyEngine(ledger=path), which '
                'counts the steps of all of them'
            )
        if isinstance(module, PrivateModule) or isinstance(
            optimizer, PrivateOptimizer
        ):
            raise ValueError("'module' and 'optimizer' are private already")
        check_parts(module, optimizer, loader)
        group = Group.current()
        check_group(group, loader)
        self._group = group

    def _add_noise(
        self, sums: list[Tensor], units: int, below: int
    ) -> list[Tensor]:
        self._group.check()
        self._check_process()
        step = self.steps
        if not self._allowed(step):
            epsilon, delta = self._target
            raise BudgetExceededError(
                f'step {step + 1} would exceed the budget of epsilon '
                f'{epsilon:g} at delta {delta:g}; nothing was spent'
            )
        drawn = self._loader.batch_sampler.index(step).numel()
        self._pay(step)
        norm = self.max_grad_norm
        *totals, found, inside = self._group.total(sums, units, below)
        multiplier = self._gradient_multiplier
        self._group.of_first(
            lambda: check_totals(found, drawn, multiplier or 1)
        )
        noisy = [total.double() * clip.grid(norm) for total in totals]
        if self._group.adds_noise and multiplier:
            noisy = noisy_sums(totals, self._noise, multiplier, norm)
            norm = self._next_norm(norm, int(inside), int(found))
        *noisy, shared = self._group.spread(noisy, norm)
        self._set_norm(float(shared))
        scale = 1.0
        if self.loss_reduction == 'mean':
            scale /= self._loader.subgraphs_per_batch
        return [value * scale for value in noisy]

    def _next_norm(self, norm: float, inside: int, found: int) -> float:
        # Recover the count from the sum of 1/2 per unit below the norm and
        # -1/2 per unit above.
        if self._adaptive is None:
            return norm
        size = self._loader.subgraphs_per_batch
        std = self._adaptive.count_std(self._noise_multiplier, size)
        centred = noisy_count(inside - found / 2, self._noise, std)
        return self._adaptive.next(norm, 0.5 + centred / size)

    @validated
    def spend_gaussian(
        self, mu: Annotated[float, Number(0, 20, 'high')]
    ) -> None:
        """Pay for a Gaussian release of the same data, before it is made.

        :class:`~pyg_trust.transforms.PrivateAGP` calls it, so that its release
        counts with the steps of training.

        Args:
            mu (float): how far replacing one row moves the release, over the
                standard deviation of its noise; in :math:`(0, 20]`.

        Raises:
            BudgetExceededError: if the release exceeds the budget.
            RuntimeError: if a batch was drawn whose step was not taken.
            ValueError: if the account does not protect single rows of disjoint
                subgraphs.
        """
        self._check_process()
        if self._group.current().size > 1:
            raise RuntimeError(
                f'a release needs a single process (got {self._group.size}): '
                'make it before or after training'
            )
        training, accountant = self._attached(), self.accountant
        if accountant.relation != RELATION or accountant.occurrences > 1:
            raise ValueError(
                f"'mu' of a release goes on an account of '{RELATION}' with "
                f"batches of disjoint subgraphs (got '{accountant.relation}', "
                f'{type(accountant).__name__})'
            )
        if self._loader.batch_sampler.drawn_after(self.steps):
            raise RuntimeError(
                'a batch was drawn whose step was not taken: call '
                'optimizer.step() before the release'
            )
        line = {'noise_multiplier': 2 / mu, 'sample_rate': 1.0}
        self._check_left(f"'mu' = {mu:.6g}", **line)
        if self._ledger is not None:
            self._ledger.record(2 / mu, 1.0)
        accountant.step(**line)
        self._releases += 1
        # An epoch in progress has counted its steps without this one.
        training.loader.end_epoch()
        self._leaks.append(
            f'one of the steps is no step of training but a noisy release of '
            f'mu {mu:.4g} (PrivateAGP), whose rows are covered as well'
        )

    @retired(only_ask=(False,))
    def covers(
        self, request: RemovalRequest, delta: float | None = None
    ) -> float:
        r"""Return the :math:`\epsilon` at which weights have forgotten items.

        The weights stay as they are: training without the items would have
        given them with nearly the same probability
        (:doc:`/theory/forgetting`). Items are *features* of nodes, *graphs* of
        a :class:`~pyg_trust.loader.GraphLoader`, or *persons* of a
        :class:`~pyg_trust.unit.PrivacyUnit`. Delete their data yourself. From
        then on the loader is refused: to train on, make a new loader of the
        remaining data, and a new engine.

        Args:
            request (RemovalRequest): chosen without looking at the weights.
            delta (float, optional): :math:`\delta`; by default that of the
                budget. (default: :obj:`None`)

        Raises:
            ValueError: if the training does not protect such items, its noise
                came from a seed or is too little for so many items, or its
                accountant is your own.
        """
        delta = self.target_delta if delta is None else delta
        if delta is None:
            raise ValueError("'delta' needs to be given if there is no target")
        check_instance('request', request, RemovalRequest)
        self._attached()
        if self.noiseless:
            raise ValueError(f'{NOISELESS}, so it covers nothing')
        epsilon = covered(self, self._loader, request, delta)
        self._loader.batch_sampler.erased = True
        return epsilon

    def report(self, delta: float | None = None) -> PrivacyReport:
        r"""Return the guarantee so far, with every assumption.

        Args:
            delta (float, optional): :math:`\delta`; by default that of the
                budget. (default: :obj:`None`)
        """
        self._attached()
        return describe(self, delta)
