"""Checkpoints of private training."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyg_trust._checks import check_positive
from pyg_trust.noise import SYSTEM
from pyg_trust.privacy.accountant import Accountant
from pyg_trust.report import fingerprint

if TYPE_CHECKING:
    from pyg_trust.privacy.engine import PrivacyEngine

ENTRIES = ('steps', 'ledger', 'setting', 'accountant', 'model', 'optimizer')
FORMAT = 2


def save(engine: 'PrivacyEngine') -> dict[str, Any]:
    """Everything to go on with, see :meth:`PrivacyEngine.state_dict`."""
    model, optimizer, _ = engine._attached()
    adaptive = engine._adaptive is not None
    return {
        **({'max_grad_norm': engine.max_grad_norm} if adaptive else {}),
        'format': FORMAT,
        'steps': engine.steps,
        'ledger': engine.ledger_head or '',
        'setting': setting(engine),
        'accountant': deepcopy(engine.accountant.state_dict()),
        'model': {
            name: value.detach().clone()
            for name, value in model.state_dict().items()
        },
        'optimizer': deepcopy(optimizer.state_dict()),
    }


def load(engine: 'PrivacyEngine', state: dict[str, Any], rewind: bool) -> None:
    """Goes on from a state, see :meth:`PrivacyEngine.load_state_dict`."""
    model, optimizer, _ = engine._attached()
    names = ['format', *ENTRIES]
    if engine._adaptive is not None:
        names.append('max_grad_norm')
    for name in names:
        if not isinstance(state, dict) or name not in state:
            raise ValueError(f"the state needs an entry '{name}'")
    if state['format'] != FORMAT:
        raise ValueError(
            f"the state's 'format' needs to be {FORMAT} (got "
            f'{state["format"]})'
        )
    for name in ('setting', 'accountant', 'model', 'optimizer'):
        if not isinstance(state[name], dict):
            raise ValueError(
                f"the state's '{name}' needs to be a dictionary (got "
                f'{type(state[name]).__name__})'
            )
    _compare('setting', state['setting'], setting(engine))
    _check_ledger(engine, state['ledger'])
    theirs = create_like(engine.accountant)
    theirs.load_state_dict(state['accountant'])
    if len(theirs) != state['steps']:
        raise ValueError(
            f"the state's 'steps' needs to be {len(theirs)}, the length "
            f'of its history (got {state["steps"]})'
        )
    if len(theirs) >= engine.steps:
        ahead = deepcopy(engine.accountant)
        ahead.load_state_dict(state['accountant'])
    else:
        # The account is ahead: does it go on from the state's?
        theirs.load_state_dict(engine.accountant.state_dict())
        ahead = engine.accountant
        if not rewind:
            raise ValueError(
                f"the state's {state['steps']} steps lie behind the "
                f"{engine.steps} that were spent, and what was spent can't "
                "be taken back: load it with 'rewind=True' to go on from "
                'its weights with these on the account'
            )
    _compare(
        'model',
        {k: list(v.shape) for k, v in state['model'].items()},
        {k: list(v.shape) for k, v in model.state_dict().items()},
    )
    norm = engine.max_grad_norm
    if engine._adaptive is not None:
        norm = check_positive('max_grad_norm', state['max_grad_norm'])
    before = deepcopy(optimizer.state_dict())
    weights = deepcopy(model.state_dict())
    pins = engine._training_step().pins
    try:
        try:
            optimizer.optimizer.load_state_dict(deepcopy(state['optimizer']))
            optimizer._hold()
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"the state's 'optimizer' does not fit: {error}"
            ) from error
        if engine._ledger is not None:
            for line in _after(ahead.history, engine._ledger.steps):
                engine._ledger.record(*line)
            more = ahead.pure_epsilon - engine._ledger.pure_epsilon
            if more > 0:
                engine._ledger.record_pure(more)
        engine.accountant.load_state_dict(ahead.state_dict())
        engine._note_spent()
        engine._limit = None
        # Before there are weights that may have seen the present one.
        engine._fresh_noise()
        engine._training_step().reset()
        engine._set_norm(norm)
        pins.release()
        model.module.load_state_dict(state['model'])
        pins.hold()
    except BaseException:
        # What was paid stays paid.
        optimizer.optimizer.load_state_dict(before)
        optimizer._hold()
        pins.release()
        model.module.load_state_dict(weights)
        pins.hold()
        raise


def _check_ledger(engine: 'PrivacyEngine', head: Any) -> None:
    # A ledger that was behind the checkpoint has lost what was spent since.
    if not isinstance(head, str):
        raise ValueError(
            f"the state's 'ledger' needs to be a text (got "
            f'{type(head).__name__})'
        )
    if not head or not engine._group.first:
        return
    if engine._ledger is None:
        raise ValueError(
            "the state was made with a ledger: make the engine with 'ledger', "
            'as steps that were taken since are on it alone'
        )
    if not engine._ledger.has(head):
        raise ValueError(
            f'the ledger {engine._ledger.path} needs to go on from where the '
            'state was made, and is older or another: what was spent since '
            'would be lost'
        )


def setting(engine: 'PrivacyEngine') -> dict[str, Any]:
    """The settings that have to be equal where a run is resumed."""
    model = engine._attached().model.module
    more: dict[str, Any] = {}
    if engine.clipping != 'flat':
        more['clipping'] = engine.clipping
    norm: Any = engine.max_grad_norm
    if engine._adaptive is not None:
        norm = asdict(engine._adaptive)
    if engine._noise_kind != SYSTEM:
        more['noise'] = engine._noise_kind
    return {
        **more,
        'noise_multiplier': engine.noise_multiplier,
        'max_grad_norm': norm,
        'loss_reduction': engine.loss_reduction,
        'target_epsilon': engine.target_epsilon,
        'target_delta': engine.target_delta,
        'seeded': engine.seeded,
        'sampler': engine._loader.setting(),
        'data': public_fingerprint(engine._loader),
        'parameters': {
            name: [list(p.shape), str(p.dtype), p.requires_grad]
            for name, p in model.named_parameters()
        },
    }


def public_fingerprint(loader: Any) -> str:
    """A hash of what is public of a loader's data.

    Nodes, edges, roots and what the features look like, not the features: a
    hash of these in a file would tell two neighbouring graphs apart.
    """
    return fingerprint(*loader.public())


def create_like(accountant: Accountant) -> Accountant:
    """An accountant of the same kind that nothing was spent on."""
    made = deepcopy(accountant)
    made.history = []
    return made


def _after(
    history: Sequence[tuple[float, float, int]], steps: int
) -> list[tuple[float, float]]:
    # The steps of a history after so many.
    lines = [(z, q) for z, q, count in history for _ in range(count)]
    return lines[steps:]


def _compare(what: str, found: Any, expected: dict[str, Any]) -> None:
    if not isinstance(found, dict):
        raise ValueError(
            f"the state's '{what}' needs to be a dictionary (got "
            f'{type(found).__name__})'
        )
    for name in (*expected, *found):
        if found.get(name) != expected.get(name):
            raise ValueError(
                f"the state's '{what}' needs to have '{name}' = "
                f'{expected.get(name)!r} (got {found.get(name)!r})'
            )
