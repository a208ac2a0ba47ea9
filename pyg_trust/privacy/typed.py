"""Models of typed graphs in a private step, which follows one graph.

Inside a step a typed batch is one graph of all rows (:class:`Schema`), so that
gradients, isolation, owners and noise are those of every other batch. A
:class:`TypedModel` takes that graph apart again and calls the user's model as
the user did.
"""

from typing import Any, NoReturn

from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from pyg_trust.loader.schema import Schema
from pyg_trust.privacy.validation import BatchCall, Key

#: The made-up subgraphs on which a model is tried.
PROBED = 8
# What a flat batch hands to the model.
_LEAVES = ('x', 'edge_index', 'node_type', 'edge_type', 'batch')
# Attributes by type that a model may read.
_SEEN = ('x', 'edge_index', 'batch')


class Form:
    """Arguments of a call, with names in place of tensors of a typed batch.

    Args:
        args (tuple): the positional arguments.
        kwargs (dict): the named arguments.
    """

    def __init__(self, args: Any, kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

    def fill(self, batch: HeteroData) -> tuple[Any, Any]:
        """Return the arguments for a batch."""
        return _fill(self.args, batch), _fill(self.kwargs, batch)

    def __repr__(self) -> str:
        return repr((self.args, self.kwargs))


def _fill(value: Any, batch: HeteroData) -> Any:
    if isinstance(value, Key):
        if value.name is None:
            return batch
        of, name = value.name
        return batch[of][name]
    if isinstance(value, tuple):
        return tuple(_fill(item, batch) for item in value)
    if isinstance(value, dict):
        return {key: _fill(item, batch) for key, item in value.items()}
    return value


class TypedCall(BatchCall):
    """Call of a model on a typed batch, in the form of one on a flat batch.

    Args:
        batch (HeteroData): a batch as delivered.
        versions (dict): :meth:`snapshot` of it when it was delivered.
        args (tuple): the positional arguments of a call.
        kwargs (dict): its named arguments.
    """

    def __init__(
        self,
        batch: HeteroData,
        versions: dict[Any, tuple[int, int]],
        args: Any,
        kwargs: Any,
    ) -> None:
        super().__init__(batch, versions, args, kwargs)
        form = Form(self.args, self.kwargs)
        self.args, self.kwargs = (*map(Key, _LEAVES), form), {}

    @staticmethod
    def snapshot(batch: HeteroData) -> dict[Any, tuple[int, int]]:
        """Return the identity and version of what a model may read."""
        return {
            (of, name): (id(value), value._version)
            for of, store in _stores(batch)
            for name, value in store.items()
            if isinstance(value, Tensor) and name in _SEEN
        }

    @staticmethod
    def _get(batch: HeteroData, name: Any) -> Any:
        of, attribute = name
        return batch[of].get(attribute)


class TypedModel(nn.Module):
    """A model of a typed graph, as one of a flat batch.

    Args:
        model (torch.nn.Module): the model.
        schema (Schema): the types of its batches.
    """

    def __init__(self, model: nn.Module, schema: Schema) -> None:
        super().__init__()
        self.model, self.schema = model, schema
        #: Whether the model returns its rows by type.
        self.by_type = False

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        node_type: Tensor,
        edge_type: Tensor,
        batch: Tensor,
        form: Form,
    ) -> Tensor:
        """Call the model; return the rows that the loss reads."""
        flat = Data(x=x, edge_index=edge_index, batch=batch)
        flat.node_type, flat.edge_type = node_type, edge_type
        args, kwargs = form.fill(self.schema.typed(flat))
        out = self.model(*args, **kwargs)
        self.by_type = isinstance(out, dict)
        if isinstance(out, dict):
            target = self.schema.target
            if target not in out:
                raise ValueError(
                    "'module' needs to return rows of the target type, "
                    f'{target!r} (got {list(out)})'
                )
            out = out[target]
        roots = len((node_type == 0).nonzero())
        return out[:roots] if self.schema.several else out

    @staticmethod
    def is_read(arguments: dict[str, Any]) -> Tensor:
        """Return a mask of the rows of which a call returns outputs."""
        return arguments['node_type'] == 0

    def owners(self, batch: Data, owner: Tensor) -> list[Tensor]:
        """Return the units of rows of each type of nodes and edges."""
        made = self.schema.typed(batch)
        nodes = [made[t].batch for t in self.schema.node_types]
        edges = [
            made[e[0]].batch[made[e].edge_index[0]]
            for e in self.schema.edge_types
        ]
        return nodes + edges

    def handed(self, out: Any) -> Any:
        """Return outputs as the model does."""
        return Target(self.schema.target, out) if self.by_type else out


class Target(dict[str, Tensor]):
    """Outputs by type, of which the loss may read those of the target type.

    Args:
        target (str): the target type.
        out (Tensor): a row for each unit that is shown.
    """

    def __init__(self, target: str, out: Tensor) -> None:
        super().__init__({target: out})

    def __missing__(self, name: Any) -> NoReturn:
        raise KeyError(
            f'{name!r}: in private training the loss reads the outputs of '
            f'{list(self)} alone, a row for each person'
        )


def plain_model(module: nn.Module) -> nn.Module:
    """Return the user's model."""
    return module.model if isinstance(module, TypedModel) else module


def _stores(batch: HeteroData) -> list[tuple[Any, Any]]:
    return [*batch._node_store_dict.items(), *batch._edge_store_dict.items()]
