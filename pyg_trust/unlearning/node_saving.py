"""States of a node classifier, written and read."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyg_trust import commit, files, noise
from pyg_trust._checks import check_instance, check_integer, check_tensor
from pyg_trust.commit import Lineage, editing, synchronized
from pyg_trust.functional.measures import Measure
from pyg_trust.seals import (
    Seals,
)
from pyg_trust.unlearning.node_checks import evidence
from pyg_trust.unlearning.node_release import Model, Releasing
from pyg_trust.unlearning.node_state import NodeState, Settings


class Saving(Releasing):
    """The part of a node classifier that keeps its state."""

    measure: Measure
    features: str
    lam: float
    tol: float
    _settings: Settings

    @synchronized
    def state_dict(self) -> dict[str, Any]:
        """Everything it takes to go on: a secret.

        It holds what remains of the data and the released weights, not those
        before the noise, which would let guesses of what was removed be
        tested, nor the factored Hessian: both are made anew of what remains.
        Destroy older states after a removal: they hold what was removed.
        """
        model = self._fitted
        linear = {} if model.B is None else {'B': model.B.clone()}
        return {
            **linear,
            'config': self._config(),
            'lineage': list(model.lineage.names),
            'classes': self.classes,
            'ledger': model.ledger.state_dict(),
            'seals': model.seals.state_dict(),
            'data': model.data.to_dict(),
            'weight': model.weight.clone(),
            'releases': model.releases,
            'secure': model.secure,
        }

    @editing
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a saved state; computes features and weights anew.

        Args:
            state (dict): of :meth:`state_dict` of a classifier with the same
                arguments.

        Raises:
            ValueError: if the arguments differ, the parts do not fit
                together, or the state or its ledger does not continue the
                present one.
        """
        check_instance('state', state, dict)
        try:
            self._model = self._unpacked(state)
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

    def save(self, path: str | Path) -> None:
        """Writes the state to a file, whole or not at all.

        A removal is done once it is saved. A file system, a backup or a
        snapshot may keep the old content of a file that was replaced.

        Args:
            path (str or Path): of the file, which is replaced.
        """
        commit.save(path, self.state_dict())

    def load(self, path: str | Path) -> None:
        """Takes over what :meth:`save` has written.

        Args:
            path (str or Path): of the file.

        Raises:
            ValueError: as :meth:`load_state_dict`.
        """
        self.load_state_dict(files.load(path))

    @synchronized
    def save_for_check(self, path: str | Path) -> None:
        """Writes what a check of a report proves the last removal from.

        .. code-block:: bash

            python -m pyg_trust check trust.json --data proof.npz

        An ``.npz`` of the data that remain, their salts, the released weights
        and those before the noise. It is as secret as :meth:`state_dict` and
        the noise together: hand it to an auditor, and delete it.

        Args:
            path (str or Path): of the file, which is replaced.

        Raises:
            ValueError: with ``features='push'`` or ``noise='objective'``, of
                which the kernel proves nothing.
        """
        arrays = evidence(self._fitted, self.release_std)
        if arrays is None:
            raise ValueError(
                "'save_for_check' needs features='exact' and noise='output': "
                'of others the kernel proves nothing (got features='
                f'{self.features!r}, noise={self.noise!r})'
            )
        stream = io.BytesIO()
        np.savez(stream, **arrays)  # type: ignore[arg-type]
        files.write(path, stream.getvalue())

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        # What is pickled is what is saved, and no more.
        self._settle()
        state = None if self._model is None else self.state_dict()
        return {**vars(self), '_model': None, 'saved': state}

    def __setstate__(self, held: dict[str, Any]) -> None:
        state = held.pop('saved')
        vars(self).update(held)
        if state is not None:
            self.load_state_dict(state)

    def _config(self) -> dict[str, Any]:
        measure = {
            name: getattr(self.measure, name)
            for name in self.measure.__dataclass_fields__
        }
        return {
            'measure': measure,
            'alpha': self._settings.alpha,
            'theta': self._settings.theta,
            'head': self.head,
            'lam': self.lam,
            'release_std': self.release_std,
            'epsilon': self.epsilon,
            'delta': self.delta,
            'noise': self.noise,
            'features': self.features,
            'encoder': None
            if self.encoder is None
            else type(self.encoder).__name__,
            'tol': self.tol,
        }

    def _unpacked(self, state: dict[str, Any]) -> Model:
        if state['config'] != self._config():
            raise ValueError(
                'the state was saved with other arguments (got '
                f'{state["config"]}, need {self._config()})'
            )
        # Two branches may have equal ledgers: each has released weights with
        # noise of its own, and neither counts those of the other.
        present = self._model
        lineage = Lineage.of(
            state, None if present is None else present.lineage
        )
        ledger = self.ledger
        ledger.load_state_dict(state['ledger'])
        held, classes = state['data'], tuple(state['classes'])
        data = NodeState.from_dict(self._settings, classes, held)
        seals = Seals.of(state['seals'], data.blocks())
        shape = (held['x'].size(1), data.Y.size(1))
        given = [state['weight']]
        if self.noise == 'objective':
            given.append(state['B'])
        elif 'B' in state:
            raise ValueError("'state' can't have a 'B' with noise='output'")
        for value in given:
            check_tensor('state', value, torch.float64, shape, finite=True)
        check_instance('secure', state['secure'], bool)
        releases = check_integer('releases', state['releases'], 1)
        # Files of version 0.1 have weights before the noise too: from these a
        # guess of what was removed could be tested. They are solved again.
        B = state['B'].clone() if 'B' in state else None
        W, gradient = self._weights(data, B, state['weight'])
        model = Model(
            data,
            ledger,
            seals,
            lineage,
            W,
            B,
            state['weight'].clone(),
            gradient,
            self._factor(data, W, B),
            False,
            releases,
            state['secure'],
        )
        if not model.is_sealed:
            raise ValueError(
                'the data, released weights or account of the state are not '
                'those of its ledger: something was changed or exchanged'
            )
        residual, bound = gradient.norm.measured, self._bound(model)
        if self.noise == 'objective' and not residual <= bound:
            raise ValueError(
                'the weights of the state are not those of its ledger: their '
                f'residual is {residual:.6g}, not at most {bound:.6g}'
            )
        if self._noise_p_value(model) < noise.LEAST_P_VALUE:
            raise ValueError(
                'the released weights of the state are not its weights with '
                'their noise: they may be those of an earlier release'
            )
        return model
