"""Base of the models that forget and can be saved: state and ledger."""

import contextlib
import inspect
from pathlib import Path
from typing import Any, TypeVar

import torch

from pyg_trust import files
from pyg_trust._checks import check_instance
from pyg_trust._checks.states import (
    FORMAT,
    check_settings,
    check_state,
    kind_of,
    reading,
)
from pyg_trust._describe import described
from pyg_trust.files import commit
from pyg_trust.files.commit import ObjectLock, editing, synchronized
from pyg_trust.ledger import RemovalLedger

__all__ = ['FORMAT', 'Saved']


S = TypeVar('S', bound='Saved')


class Saved:
    """Base of models that keep, save and load their state.

    A subclass keeps its state in ``_model``, with ``ledger`` and
    ``is_sealed`` (whether the ledger's last line records it). It is replaced
    as a whole, at the end of an operation that may fail. ``_config`` lists the
    settings that a saved one has to agree with, ``_packed`` writes it and
    ``_rebuilt`` makes it again.
    """

    #: The most that the ledger may spend.
    budget: float = 0.0
    # Versions of saved states that can be read.
    _formats: tuple[int, ...] = (1, FORMAT)

    _params: dict[str, Any]

    def __new__(cls: type[S], *args: Any, **kwargs: Any) -> S:
        """Keep the arguments as they came, for :meth:`get_params`."""
        made, new = super().__new__(cls), getattr(cls.__init__, 'new', {})
        kwargs = {new.get(name, name): kwargs[name] for name in kwargs}
        kwargs.pop('', None)
        with contextlib.suppress(TypeError):
            given = inspect.signature(cls).bind_partial(*args, **kwargs)
            given.apply_defaults()
            made._params = dict(given.arguments)
        return made

    def __init__(self) -> None:
        self._model: Any = None
        self._lock = ObjectLock()

    def __repr__(self) -> str:
        shown = {
            name: type(value) if isinstance(value, torch.nn.Module) else value
            for name, value in self._params.items()
        }
        return described(self, **shown)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor, as scikit-learn does."""
        return dict(self._params)

    @property
    def ledger(self) -> RemovalLedger:
        """A copy of the removal ledger, which lists the removed items."""
        if self._model is None:
            return RemovalLedger(self.budget)
        return self._model.ledger.copy()

    @synchronized
    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the complete state; keep it secret."""
        model = self._fitted
        return {
            'format': FORMAT,
            'class': kind_of(self),
            'config': self._config(),
            'ledger': model.ledger.state_dict(),
            **self._packed(model),
        }

    @editing
    def load_state_dict(self: S, state: dict[str, Any]) -> S:
        """Load a saved state; recompute the other parts; return the model.

        Args:
            state (dict): the :meth:`state_dict` of an object with the same
                arguments.

        Raises:
            ValueError: if the arguments differ, the parts do not fit together,
                or the state or its ledger does not continue the present one.
        """
        self._load(state)
        return self

    @synchronized
    def save(self, path: str | Path) -> None:
        """Write the state to a file atomically.

        After an interrupt the file holds the state before or after a removal.
        Backups and snapshots may keep the content of a file that was replaced.

        Args:
            path (str or Path): the path of the file, which is replaced.

        Raises:
            StaleStateError: if another object has changed the file since this
                one read or wrote it.
            ValueError: if the file holds another fit's state, or anything
                else.
        """
        check_instance('path', path, str, Path)
        commit.save(path, self.state_dict())

    @editing
    def load(self: S, path: str | Path) -> S:
        """Load the state that :meth:`save` has written; return the model.

        Raises:
            ValueError: as :meth:`load_state_dict`.
        """
        self._load(files.load(path))
        return self

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        # A pickle holds the saved state, and no more.
        self._settle()
        state = None if self._model is None else self.state_dict()
        return {**vars(self), '_model': None, 'saved': state}

    def __setstate__(self, held: dict[str, Any]) -> None:
        state = held.pop('saved')
        vars(self).update(held)
        if state is not None:
            self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        check_instance('state', state, dict)
        check_state(state, ('config',), self._formats, self)
        with reading():
            self._model = self._unpacked(state)

    def _unpacked(self, state: dict[str, Any]) -> Any:
        check_settings('config', state['config'], self._config())
        ledger = self.ledger
        ledger.load_state_dict(state['ledger'])
        model = self._rebuilt(state, ledger)
        if not model.is_sealed:
            raise ValueError(
                'the data or weights of the state do not match its ledger: '
                'they were changed'
            )
        return model

    def _config(self) -> dict[str, Any]:
        raise NotImplementedError

    def _packed(self, model: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _rebuilt(self, state: dict[str, Any], ledger: RemovalLedger) -> Any:
        raise NotImplementedError

    def _settle(self) -> None:
        # Ends an edit in place that was interrupted.
        pass

    @property
    def _fitted(self) -> Any:
        self._settle()
        if self._model is None:
            raise ValueError('the model needs to be fitted first')
        return self._model
