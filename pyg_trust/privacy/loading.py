"""Loader whose batches are those of private steps, in their order."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch_geometric.data import Data

from pyg_trust.loader.step_batches import Choice
from pyg_trust.privacy.group import Group
from pyg_trust.privacy.training import PrivateStep
from pyg_trust.privacy.wrappers import (
    PrivateModule,
    PrivateOptimizer,
    Single,
)


class PrivateLoader(Single):
    """Loader of private batches that checks how each one is used.

    It ends by itself, also in the midst of an epoch, before a step that would
    exceed the budget; then it is empty. If an epoch is left early, the next
    one begins with the batch whose step was not taken.

    Args:
        loader (NodeLoader): the loader; its own iteration is not to be used
            any more.
        step (PrivateStep): the step in progress.
        position (callable): the number of steps spent.
        allowed (callable): whether a step may still be taken.
        check (callable): checks a batch of a step; returns the subgraph of
            each node and their number.
        choose (callable): draws the batches.
        group (Group): the processes, each of which has a part of every step.
        begin (callable): gives all processes one state, as an epoch begins.
    """

    def __init__(
        self,
        loader: Any,
        step: PrivateStep,
        position: Callable[[], int],
        allowed: Callable[[int], bool],
        check: Callable[[Data, int], tuple[Tensor, int]],
        choose: Choice,
        group: Group,
        begin: Callable[[], None],
    ) -> None:
        self.loader = loader
        self._step = step
        self._position = position
        self._allowed = allowed
        self._check = check
        self._choose = choose
        self._group = group
        self._begin = begin
        self._turn = 0
        self._law = loader.law()

    def __iter__(self) -> Iterator[Data]:
        self.end_epoch()
        turn = self._turn
        batches = self.loader.batch_sampler
        batches.position = first = self._position()
        self._step.reset()
        iterator: Iterator[Data] | None = None
        for step in range(first, first + batches.num_steps):
            if step != self._position():
                raise RuntimeError(
                    'the private loader needs to draw the batch of the next '
                    'step on the account, which went elsewhere within an '
                    'epoch (was a checkpoint loaded?): iterate over the '
                    'loader anew'
                )
            if not self._allowed(step):
                return
            batches.forget(self._position())
            if iterator is None:
                if self._group.size > 1:
                    self._begin()
                iterator = iter(self.loader)
            parts = self._drawn(step)
            total = sum(part.numel() for part in parts)
            for part in parts:
                batch = self.loader.flat(next(iterator))
                self.loader._check_drawn(batch, step, part)
                owner, count = self._check(batch, step)
                device = self._step.parameters[0].device
                batch = batch.to(device)
                owner = owner.to(device)
                yield self._step.deliver(batch, owner, count, total)
                if self._turn != turn:
                    raise RuntimeError(
                        'the private loader was started again: use one '
                        'iterator at a time'
                    )
                if not self._step.finished:
                    raise RuntimeError(
                        'every batch of the private loader needs one forward '
                        'pass, one backward pass and one optimizer.step(); '
                        'skipping batches depending on the data is not '
                        'accounted for. To accumulate gradients of a large '
                        "batch, pass 'max_physical_batch_size' to make_private"
                    )

    def end_epoch(self) -> None:
        """End the current epoch: the next batch begins a new one."""
        self._turn += 1

    def _drawn(self, step: int) -> tuple[Tensor, ...]:
        batches = self.loader.batch_sampler
        if batches.choose != self._choose:
            raise RuntimeError(
                'the private loader needs the batches that its engine draws '
                "('batch_sampler.choose' was exchanged)"
            )
        self.check_law()
        mine = self._group.rank, self._group.size
        if (batches.rank, batches.num_ranks) != mine:
            raise RuntimeError(
                'the private loader needs the part of each step that its '
                "engine gave it ('batch_sampler.rank' was changed)"
            )
        return batches.parts(step)

    def check_law(self) -> None:
        """Refuse a loader that draws other batches than it did at first.

        Raises:
            RuntimeError: if an attribute was changed.
        """
        if self.loader.law() != self._law:
            raise RuntimeError(
                'the private loader needs to draw as it did when it was made '
                'private (its units, relation, sampling, transform or '
                'arguments were changed): account and report are of that'
            )

    def __len__(self) -> int:
        return len(self.loader.batch_sampler)

    def __getattr__(self, name: str) -> Any:
        if name == 'loader':
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.loader})'


class PrivateTraining(NamedTuple):
    """The result of :meth:`PrivacyEngine.make_private`.

    Args:
        model (PrivateModule): call it as the model.
        optimizer (PrivateOptimizer): use it as the optimizer.
        loader (PrivateLoader): iterate over it as over the loader.
    """

    model: PrivateModule
    optimizer: PrivateOptimizer
    loader: PrivateLoader

    def loss(self, batch: Any) -> Tensor:
        """Compute the loss of a batch by the ``criterion`` of make_private.

        Each unit's term is computed by itself, so that the loss has one term
        per unit by construction.

        .. code-block:: python

            training = engine.make_private(..., criterion=F.cross_entropy)
            for batch in training.loader:
                training.optimizer.zero_grad()
                training.loss(batch).backward()
                training.optimizer.step()

        Args:
            batch (Data or HeteroData): the batch that the loader gave last.

        Returns:
            Tensor: the mean or the sum of the terms, to call ``backward()``.

        Raises:
            ValueError: if ``criterion`` was not given.
        """
        return self.model._step.loss(self.model, batch)
