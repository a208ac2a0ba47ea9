"""What an engine trains, and its checkpoints."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import Any

from pyg_trust._checks import check_positive
from pyg_trust._checks.graphs import warn_user
from pyg_trust._checks.states import FORMAT, check_settings, check_state
from pyg_trust._moved import retired
from pyg_trust.noise import SYSTEM
from pyg_trust.privacy.accountant import Accountant
from pyg_trust.privacy.bounds import check_norm
from pyg_trust.privacy.norms import AdaptiveNorm
from pyg_trust.privacy.spending import Spending
from pyg_trust.privacy.training import PrivateStep
from pyg_trust.privacy.wrappers import PrivateTraining

__all__ = ['Checkpoints']

ENTRIES = ('steps', 'ledger', 'setting', 'accountant', 'model', 'optimizer')


class Checkpoints(Spending):
    """Settings and state of the training of an engine."""

    _training: PrivateTraining | None = None
    _adaptive: AdaptiveNorm | None = None
    _step: PrivateStep

    def _attached(self) -> PrivateTraining:
        if self._training is None:
            raise RuntimeError('call make_private first')
        return self._training

    def _training_step(self) -> PrivateStep:
        self._attached()
        return self._step

    @property
    def noise_multiplier(self) -> float:
        r"""The noise multiplier :math:`\sigma / C`, as in Opacus."""
        self._attached()
        return self._noise_multiplier

    @property
    def max_grad_norm(self) -> float:
        """The clipping norm :math:`C` of the next step."""
        return self._training_step().max_grad_norm

    @property
    def loss_reduction(self) -> str:
        """Whether losses are means or sums."""
        return self._training_step().loss_reduction

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
    def clipping(self) -> str:
        """The way of clipping: ``'flat'``, ``'automatic'`` or ``'adaptive'``.

        The last is that of an :class:`~pyg_trust.privacy.AdaptiveNorm`.
        """
        step = self._training_step()
        return step.clipping if self._adaptive is None else 'adaptive'

    @property
    def _gradient_multiplier(self) -> float:
        # The noise on the gradients, in units of the clipping norm.
        if self._adaptive is None:
            return self._noise_multiplier
        return self._adaptive.gradient_multiplier(
            self._noise_multiplier, self._loader.subgraphs_per_batch
        )

    def _set_norm(self, norm: float) -> None:
        if self._adaptive is not None:
            self._training_step().max_grad_norm = norm

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, account and settings, to continue from.

        It is as private as the weights. Seeds are not in it, as they would
        undo the protection, and nothing of the features, as even a hash of
        them would reveal which of two graphs was trained on.
        """
        model, optimizer, _ = self._attached()
        norm = {'max_grad_norm': self.max_grad_norm} if self._adaptive else {}
        return {
            **norm,
            'format': FORMAT,
            'steps': self.steps,
            'ledger': self.ledger_head or '',
            'setting': self._setting(),
            'accountant': deepcopy(self.accountant.state_dict()),
            'model': {
                name: value.detach().clone()
                for name, value in model.state_dict().items()
            },
            'optimizer': deepcopy(optimizer.state_dict()),
        }

    @retired(rewind=None)
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint, with fresh noise.

        Call it after :meth:`make_private` with the same arguments. Steps that
        were spent after the checkpoint, as those in the ledger of a process
        that was killed, stay spent, with a warning: the weights go back, and
        the account does not.

        Args:
            state (dict): the result of :meth:`state_dict`.

        Raises:
            ValueError: if the state is of other data, parameters, sampling,
                noise or mechanism. Nothing is changed then.
        """
        model, optimizer, _ = self._attached()
        adapts = () if self._adaptive is None else ('max_grad_norm',)
        check_state(state, (*ENTRIES, *adapts), (FORMAT,))
        for name in ('setting', 'accountant', 'model', 'optimizer'):
            if not isinstance(state[name], dict):
                raise ValueError(
                    f"the state's '{name}' needs to be a dictionary (got "
                    f'{type(state[name]).__name__})'
                )
        check_settings('setting', state['setting'], self._setting())
        self._check_ledger(state['ledger'])
        ahead = self._continue(state)
        check_settings(
            'model',
            {k: list(v.shape) for k, v in state['model'].items()},
            {k: list(v.shape) for k, v in model.state_dict().items()},
        )
        norm = check_norm(
            'max_grad_norm',
            check_positive(
                'max_grad_norm', state.get('max_grad_norm', self.max_grad_norm)
            ),
        )
        before = deepcopy(optimizer.state_dict())
        weights = deepcopy(model.state_dict())
        step = self._step

        def load(values: dict[str, Any]) -> None:
            step.release()
            model.module.load_state_dict(values)
            step.hold()

        try:
            try:
                optimizer.load_state_dict(deepcopy(state['optimizer']))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"the state's 'optimizer' does not fit: {error}"
                ) from error
            if self._ledger is not None:
                for line in _after(ahead.history, self._ledger.steps):
                    self._ledger.record(*line)
                more = ahead.pure_epsilon - self._ledger.pure_epsilon
                if more > 0:
                    self._ledger.record_pure(more)
            self.accountant.load_state_dict(ahead.state_dict())
            # Draw fresh noise before loading weights that may know the present
            # one.
            self._fresh_noise()
            step.reset()
            self._set_norm(norm)
            load(state['model'])
            self._start, self._continued = self.steps, state['steps']
        except BaseException:
            # The budget that was spent stays spent.
            optimizer.load_state_dict(before)
            load(weights)
            raise

    def _continue(self, state: dict[str, Any]) -> Accountant:
        # The account of a state or the present one, whichever goes further.
        theirs = deepcopy(self.accountant)
        theirs.history = []
        theirs.load_state_dict(state['accountant'])
        if len(theirs) != state['steps']:
            raise ValueError(
                f"the state's 'steps' needs to be {len(theirs)}, the length "
                f'of its history (got {state["steps"]})'
            )
        if len(theirs) >= self.steps:
            ahead = deepcopy(self.accountant)
            ahead.load_state_dict(state['accountant'])
            return ahead
        theirs.load_state_dict(self.accountant.state_dict())
        warn_user(
            f'the checkpoint has {state["steps"]} steps, and {self.steps} '
            'were spent: its weights are loaded, and these steps stay spent'
        )
        return self.accountant

    def _check_ledger(self, head: Any) -> None:
        # An older ledger than the checkpoint has lost what was spent since.
        if not isinstance(head, str):
            raise ValueError(
                "the state's 'ledger' needs to be a text (got "
                f'{type(head).__name__})'
            )
        if not head or not self._group.first:
            return
        if self._ledger is None:
            raise ValueError(
                'the state was made with a ledger: make the engine with '
                "'ledger', which alone has the later steps"
            )
        if not self._ledger.has(head):
            raise ValueError(
                f'the ledger {self._ledger.path} needs to continue the state, '
                'and is older or another ledger: spent budget would be lost'
            )

    def _setting(self) -> dict[str, Any]:
        # The settings that have to be equal where a run is resumed.
        own: dict[str, Any] = {}
        if self.clipping != 'flat':
            own['clipping'] = self.clipping
        if self._noise_kind != SYSTEM:
            own['noise'] = self._noise_kind
        norm: Any = self.max_grad_norm
        if self._adaptive is not None:
            norm = asdict(self._adaptive)
        return {
            **own,
            'noise_multiplier': self.noise_multiplier,
            'max_grad_norm': norm,
            'loss_reduction': self.loss_reduction,
            'target_epsilon': self.target_epsilon,
            'target_delta': self.target_delta,
            'seeded': self.seeded,
            'sampler': self._loader.setting(),
            'data': self._loader.fingerprint(),
            'parameters': {
                name: [list(p.shape), str(p.dtype), p.requires_grad]
                for name, p in self._attached().model.module.named_parameters()
            },
        }


def _after(
    history: Sequence[tuple[float, float, int]], steps: int
) -> list[tuple[float, float]]:
    # The steps of a history after so many.
    lines = [(z, q) for z, q, count in history for _ in range(count)]
    return lines[steps:]
