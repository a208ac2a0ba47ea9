"""Made-up rows and graphs that stand in for private ones."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from pyg_trust.privacy.calls import Call
from pyg_trust.privacy.flow import NAMES, private_rows
from pyg_trust.privacy.validation import BatchCall, in_training

_SEED = 0
# The nodes of a graph that is made up: a ring.
_NODES = 8


class Decoys:
    """Maker of rows and graphs that hold nothing private.

    Args:
        num_units (int, optional): how many graphs a batch shows; by default as
            many as it has. (default: :obj:`None`)
    """

    def __init__(self, num_units: int | None = None) -> None:
        self.num_units = num_units
        #: The nodes of each graph.
        self.num_nodes = _NODES
        #: Calls of a model with few graphs, by how it is called.
        self.few: dict[Any, tuple[Call, int]] = {}
        #: The last loss whose gradient was followed to the end.
        self.proved: Any = None
        #: Makes a batch of so many graphs up, if they are of a schema.
        self.make: Callable[[int], Data] | None = None
        #: Whether a unit has any number of rows that the loss reads.
        self.by_row = False
        self._levels: dict[str, str] = {}
        self._made: Data | None = None
        self._rows: dict[Any, Tensor] = {}

    def rows(self, like: Tensor, size: int) -> Tensor:
        """Make rows like a tensor's: random numbers, or zeros for integers.

        Args:
            like (Tensor): ``[num_rows, *]``; its values are not used.
            size (int): the number of rows.
        """
        shape = like.shape[1:]
        if not like.is_floating_point():
            return like.new_zeros(size, *shape)
        key = shape, like.dtype, like.device
        if key not in self._rows or len(self._rows[key]) < size:
            generator = torch.Generator().manual_seed(_SEED)
            made = torch.randn((2 * size, *shape), generator=generator)
            # Weights are often to be positive.
            made = made if shape else made.abs() + 0.1
            self._rows[key] = made.to(like)
        return self._rows[key][:size].clone()

    def batch(self, batch: Data, owner: Tensor, count: int) -> Data:
        """Copy a batch's structure, with made-up rows.

        Args:
            batch (Data): the batch.
            owner (Tensor): int64, ``[num_nodes]``: the subgraph of each node.
            count (int): the number of subgraphs.
        """
        out = copy.copy(batch)
        for name, value, _ in private_rows(batch, owner, count):
            if name not in NAMES:
                out[name] = self.rows(value, len(value))
        return out

    def graphs(self, batch: Data, count: int) -> Data:
        """Make a batch of rings with the attributes of a batch of graphs."""
        shown = count if self.num_units is None else self.num_units
        n, device = self.num_nodes, batch.batch.device
        if self.make is not None:
            if self._made is None or self._made.batch_size != shown:
                self._made = self.make(shown).to(device)
            return copy.copy(self._made)
        units = torch.arange(shown, device=device)
        nodes = torch.arange(shown * n, device=device)
        ring = torch.stack([nodes, nodes - nodes % n + (nodes + 1) % n])
        edges = torch.cat([ring, ring.flip(0)], 1)
        sizes = {'unit': shown, 'node': len(nodes), 'edge': edges.size(1)}
        own = {
            'batch': nodes // n,
            'ptr': torch.arange(shown + 1, device=device) * n,
            'n_id': nodes,
            'input_id': units,
            'batch_size': shown,
            'num_nodes': len(nodes),
        }
        out = Batch()
        out._num_graphs = shown
        for name, value in batch.to_dict().items():
            level = self.level(batch, name, value, count)
            if name in own:
                out[name] = own[name]
            elif level == 'index':
                out[name] = edges
            elif level in sizes:
                out[name] = self.rows(value, sizes[level])
        return out

    def fit(
        self, module: nn.Module, call: BatchCall, batch: Data, count: int
    ) -> None:
        """Find graphs that are large enough for a model to run on.

        Raises:
            ValueError: if the model runs on no made-up graph.
        """
        kept = {n: b.detach().clone() for n, b in module.named_buffers()}
        error: Exception | None = None
        for nodes in (self.num_nodes, int((batch.batch == 0).sum())):
            self.num_nodes = nodes
            try:
                with (
                    in_training(module, kept),
                    torch.no_grad(),
                    torch.random.fork_rng(cuda_of(batch.batch)),
                ):
                    call(module, self.graphs(batch, count))
            except Exception as found:
                error = found
            else:
                return
        raise ValueError(
            "'module' needs to run on made-up graphs, which replace private "
            f'ones to test the loss (got rings of {_NODES} nodes with random '
            'features, or zeros where they are integers)'
        ) from error

    def level(self, batch: Data, name: str, value: Any, count: int) -> str:
        """Return whether an attribute is of graphs, nodes or edges.

        The first batch, that of the probe, decides: in small ones, sizes may
        be equal by chance.
        """
        if name not in self._levels:
            self._levels[name] = _level(batch, name, value, count)
        return self._levels[name]


def _level(batch: Data, name: str, value: Any, count: int) -> str:
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return 'other'
    if value.dim() == 2 and len(value) == 2 and 'index' in name:
        return 'index'
    if value.dim() == 0:
        return 'other'
    if name == 'y' and len(value) == count:
        return 'unit'
    if batch.is_node_attr(name):
        return 'node'
    if batch.is_edge_attr(name):
        return 'edge'
    return 'unit' if len(value) == count else 'other'


def cuda_of(tensor: Tensor) -> list[torch.device]:
    """Return the devices whose generators ``fork_rng`` has to keep."""
    return [tensor.device] if tensor.is_cuda else []
