"""Checkpoints of private training."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from pyg_trust._checks import check_positive
from pyg_trust._checks.states import FORMAT, check_settings, check_state
from pyg_trust.noise import SYSTEM
from pyg_trust.privacy.accountant import Accountant
from pyg_trust.privacy.bounds import check_norm
from pyg_trust.privacy.spending import Spending
from pyg_trust.privacy.wrappers import PrivateTraining

__all__ = ['Checkpoints']

ENTRIES = ('steps', 'ledger', 'setting', 'accountant', 'model', 'optimizer')


class Checkpoints(Spending):
    """Checkpoints of an engine: its account, and the training's state."""

    def _checkpoint(
        self,
        training: PrivateTraining,
        settings: dict[str, Any],
        norm: float | None,
    ) -> dict[str, Any]:
        # See `PrivacyEngine.state_dict`; the norm if it adapts.
        model, optimizer, _ = training
        return {
            **({} if norm is None else {'max_grad_norm': norm}),
            'format': FORMAT,
            'steps': self.steps,
            'ledger': self.ledger_head or '',
            'setting': settings,
            'accountant': deepcopy(self.accountant.state_dict()),
            'model': {
                name: value.detach().clone()
                for name, value in model.state_dict().items()
            },
            'optimizer': deepcopy(optimizer.state_dict()),
        }

    def _restore(
        self,
        training: PrivateTraining,
        settings: dict[str, Any],
        set_norm: Callable[[float], None] | None,
        state: dict[str, Any],
        rewind: bool,
    ) -> None:
        # See `PrivacyEngine.load_state_dict`.
        model, optimizer, _ = training
        adapts = () if set_norm is None else ('max_grad_norm',)
        check_state(state, (*ENTRIES, *adapts), (FORMAT,))
        for name in ('setting', 'accountant', 'model', 'optimizer'):
            if not isinstance(state[name], dict):
                raise ValueError(
                    f"the state's '{name}' needs to be a dictionary (got "
                    f'{type(state[name]).__name__})'
                )
        check_settings('setting', state['setting'], settings)
        self._check_ledger(state['ledger'])
        ahead = self._continue(state, rewind)
        check_settings(
            'model',
            {k: list(v.shape) for k, v in state['model'].items()},
            {k: list(v.shape) for k, v in model.state_dict().items()},
        )
        if set_norm is not None:
            norm = check_norm(
                'max_grad_norm',
                check_positive('max_grad_norm', state['max_grad_norm']),
            )
        before = deepcopy(optimizer.state_dict())
        weights = deepcopy(model.state_dict())
        step = model._step

        def load(values: dict[str, Any]) -> None:
            step.release()
            model.module.load_state_dict(values)
            step.hold()

        try:
            try:
                optimizer.restore(deepcopy(state['optimizer']))
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
            if set_norm is not None:
                set_norm(norm)
            load(state['model'])
            self._start, self._continued = self.steps, state['steps']
        except BaseException:
            # The budget that was spent stays spent.
            optimizer.restore(before)
            load(weights)
            raise

    def _continue(self, state: dict[str, Any], rewind: bool) -> Accountant:
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
        if not rewind:
            raise ValueError(
                f"the state's {state['steps']} steps lie behind the "
                f"{self.steps} that were spent, and what was spent can't "
                "be taken back: load it with 'rewind=True' to go on from "
                'its weights with these on the account'
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

    def _settings(
        self, training: PrivateTraining, clipping: str, **own: Any
    ) -> dict[str, Any]:
        # The settings that have to be equal where a run is resumed.
        if clipping != 'flat':
            own['clipping'] = clipping
        if self._noise_kind != SYSTEM:
            own['noise'] = self._noise_kind
        return {
            **own,
            'seeded': self.seeded,
            'sampler': self._loader.setting(),
            'data': self._loader.fingerprint(),
            'parameters': {
                name: [list(p.shape), str(p.dtype), p.requires_grad]
                for name, p in training.model.module.named_parameters()
            },
        }


def _after(
    history: Sequence[tuple[float, float, int]], steps: int
) -> list[tuple[float, float]]:
    # The steps of a history after so many.
    lines = [(z, q) for z, q, count in history for _ in range(count)]
    return lines[steps:]
