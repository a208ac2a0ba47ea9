"""What an audit of unlearning runs: four calls, for any unlearner."""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import check_callable, check_instance
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.unlearning.shards import ShardedUnlearner

Released = dict[str, Tensor | bytes]


@runtime_checkable
class Subject(Protocol):
    """An unlearner as :func:`~pyg_trust.unlearning.audit_removal` sees it.

    Any object with these four methods will do.
    """

    def fit(self, data: Data, seed: int) -> None:
        """Trains on a graph, with all randomness from a seed.

        Args:
            data (Data): the graph, with a ``train_mask``.
            seed (int): the seed.
        """

    def remove(self, request: RemovalRequest) -> None:
        """Forgets what a request names.

        Args:
            request (RemovalRequest): of graph 0.
        """

    def predict_proba(self, data: Data) -> Tensor:
        """The probabilities of classes, ``[num_nodes, num_classes]``.

        Args:
            data (Data): any graph with the same features.
        """

    def released(self) -> Released:
        """All that leaves the process: weights, cached outputs, files.

        Tensors and bytes by name; files under their names.
        """


class ShardedSubject:
    """A :class:`~pyg_trust.unlearning.ShardedUnlearner`, to be audited.

    It releases the weights of all shards, the aggregator, the outputs, the
    probabilities, its ``state_dict`` value by value and, with :obj:`on_disk`,
    all files of its folder.

    Args:
        make (Callable): makes an unlearner that is not fitted:
            ``make(seed=..., folder=...)``.
        on_disk (bool): whether it gets a folder, for the time of the audit.
            (default: :obj:`False`)
    """

    def __init__(
        self,
        make: Callable[..., ShardedUnlearner],
        *,
        on_disk: bool = False,
    ) -> None:
        check_callable('make', make)
        check_instance('on_disk', on_disk, bool)
        self._make, self._on_disk = make, on_disk
        self._folder: tempfile.TemporaryDirectory | None = None
        self._unlearner: ShardedUnlearner | None = None

    @property
    def unlearner(self) -> ShardedUnlearner:
        """The unlearner that is audited."""
        if self._unlearner is None:
            raise ValueError('the subject needs to be fitted first')
        return self._unlearner

    def fit(self, data: Data, seed: int) -> None:
        """Makes an unlearner and fits it.

        Args:
            data (Data): the graph, with a ``train_mask``.
            seed (int): the seed.
        """
        self._folder = tempfile.TemporaryDirectory() if self._on_disk else None
        folder = None if self._folder is None else self._folder.name
        made = self._make(seed=seed, folder=folder)
        check_instance('make', made, ShardedUnlearner)
        self._unlearner = made.fit(data)

    def remove(self, request: RemovalRequest) -> None:
        """Forgets what a request names, on the disk too.

        Args:
            request (RemovalRequest): of graph 0.
        """
        self.unlearner.remove(request)

    def predict_proba(self, data: Data) -> Tensor:
        """The probabilities of classes, ``[num_nodes, num_classes]``.

        Args:
            data (Data): any graph with the same features.
        """
        return self.unlearner.predict_proba(data)

    def released(self) -> Released:
        """All that leaves the process."""
        unlearner = self.unlearner
        found: Released = {
            f'shard {i}: {name}': value
            for i in range(unlearner.num_shards)
            for name, value in unlearner.shard_state(i).items()
        }
        state = unlearner.state_dict()
        for name, value in state['aggregator'].items():
            found[f'aggregator: {name}'] = value
        found['outputs'] = unlearner.outputs
        found['probabilities'] = unlearner.predict_proba()
        found |= _flat('state_dict', state)
        if self._folder is not None:
            for path in sorted(Path(self._folder.name).rglob('*')):
                if path.is_file():
                    found[f'file {path.name}'] = path.read_bytes()
        return found


def _flat(name: str, value: Any) -> Released:
    # Value by value, so that the one that differs has a name.
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, dict):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return {name: repr(value).encode()}
    found: Released = {}
    for key, item in items:
        found |= _flat(f'{name}/{key}', item)
    return found


class RetrainSubject(ShardedSubject):
    """The control: to forget, it starts over on what remains.

    Args:
        make (Callable): as in :class:`ShardedSubject`.
        on_disk (bool): as there. (default: :obj:`False`)
    """

    _fitted_to: tuple[Data, int] | None = None

    def fit(self, data: Data, seed: int) -> None:
        """Makes an unlearner and fits it.

        Args:
            data (Data): the graph, with a ``train_mask``.
            seed (int): the seed.
        """
        super().fit(data, seed)
        self._fitted_to = data, seed

    def remove(self, request: RemovalRequest) -> None:
        """Starts over on what remains.

        Args:
            request (RemovalRequest): of graph 0.
        """
        check_instance('request', request, RemovalRequest)
        if self._fitted_to is None:
            raise ValueError('the subject needs to be fitted first')
        data, seed = self._fitted_to
        self.fit(remove_from_data(data, request.parts[0]), seed)
