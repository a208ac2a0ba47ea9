"""Fingerprints: SHA-256 digests of values, graphs and weights.

The one home of digests that are stored and compared. The digest of a list of
parts is the kernel's (:func:`pyg_trust.verify.arrays.fingerprint`), so that
the checker recomputes it without torch. For models with their code and
attributes see ``identity``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import files
from pyg_trust._checks import check_instance
from pyg_trust.verify import arrays
from pyg_trust.verify.arrays import named

__all__ = [
    'DATA_FIELDS',
    'fingerprint',
    'fingerprint_data',
    'fingerprint_model',
    'save_tensors',
    'stored',
]

# Integers of the width of types that numpy lacks.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(*parts: Tensor | str | float | None) -> str:
    """Return the SHA-256 of tensors, texts and numbers.

    A tensor counts by its dtype, its shape and its values.

    Args:
        *parts (Tensor or str or float or None): the values, in this order.

    Returns:
        str: 64 hexadecimal digits, the same on every device.

    Example:
        >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(2, 1))
        False
    """
    check = (str, int, float, type(None), Tensor)
    for part in parts:
        check_instance('parts', part, *check)
    return arrays.fingerprint(*map(_array, parts))


def stored(x: Tensor) -> list[Tensor]:
    """Return the tensors that represent a dense or sparse tensor."""
    if x.layout == torch.strided:
        return [x]
    coo = x.to_sparse_coo().coalesce()
    return [coo.indices(), coo.values()]


def _array(part: Any) -> Any:
    if not isinstance(part, Tensor):
        return part
    value = part.detach().cpu().resolve_conj().resolve_neg()
    try:
        array = value.numpy()
    except TypeError:
        array = value.contiguous().view(_BITS[value.itemsize]).numpy()
    return arrays.Tensor(str(part.dtype), array)


#: The fields of a graph that a fingerprint takes, if present.
DATA_FIELDS = (
    'x',
    'edge_index',
    'adj_t',
    'edge_weight',
    'edge_attr',
    'y',
    'n_id',
    'num_nodes',
)


def fingerprint_data(
    data: Data | Sequence[Data], fields: Sequence[str] = DATA_FIELDS
) -> str:
    """Return the SHA-256 of one or several graphs: 64 hexadecimal digits.

    Another order of the edges gives another result.

    Args:
        data (Data or list[Data]): the graphs.
        fields (sequence of str): the attributes of each graph that are read,
            in this order; a missing one counts as None.
    """
    check_instance('data', data, Data, list, tuple)
    check_instance('fields', fields, list, tuple)
    graphs = [data] if isinstance(data, Data) else data
    parts: list[Tensor | str | int | None] = []
    for graph in graphs:
        check_instance('data', graph, Data)
        for name in fields:
            check_instance('fields', name, str)
            value = graph.num_nodes if name == 'num_nodes' else graph.get(name)
            parts += [name, *_pieces(value)]
    return fingerprint(*parts)


def fingerprint_model(state: Mapping[Any, Any]) -> str:
    """Return the SHA-256 of the tensors of a ``state_dict``.

    Args:
        state (dict): a module's ``state_dict()``, or a dictionary of these,
            for example one per shard. Values that are no tensors are ignored.

    Returns:
        str: 64 hexadecimal digits; '' if there is no tensor.
    """
    check_instance('state', state, Mapping)
    parts = named(state, Tensor)
    return fingerprint(*parts) if parts else ''


def save_tensors(path: str | Path, content: Any) -> None:
    """Write weights or graphs to a file that ``check_report`` can read.

    The file is in the format of safetensors, and is replaced atomically.

    Args:
        path (str or Path): the path of the file.
        content (Data or list or dict): a graph, a list of graphs, a dictionary
            of graphs by the keys that removal requests use, a model's
            ``state_dict()``, or a dictionary of these.

    Example:
        >>> save_tensors('remaining.safetensors', data)  # doctest: +SKIP
        >>> save_tensors('model.safetensors', model.state_dict())
        ... # doctest: +SKIP
    """
    check_instance('content', content, Data, list, tuple, Mapping)
    if isinstance(content, list | tuple):
        content = dict(enumerate(content))
    graphs = {'': content} if isinstance(content, Data) else content
    made: dict[str, Any] = {}
    if any(isinstance(graph, Data) for graph in graphs.values()):
        for key, graph in graphs.items():
            check_instance('content', graph, Data)
            made |= _stored_graph(f'{key}/' * (key != ''), graph)
    else:
        flat = named(graphs, Tensor)
        made = dict(zip(flat[::2], flat[1::2], strict=True))
    files.write(path, safetensors.torch.save(_apart(made)))


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    # Safetensors takes contiguous tensors that share no memory.
    return {
        name: value.detach()
        .cpu()
        .resolve_conj()
        .resolve_neg()
        .clone(memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }


def _stored_graph(start: str, graph: Data) -> dict[str, Tensor]:
    made = {f'{start}num_nodes': torch.tensor(graph.num_nodes)}
    for name, value in graph.to_dict().items():
        first, *rest = _pieces(value)
        if isinstance(first, Tensor):
            made[f'{start}{name}'] = first
        elif rest:
            shape = 'x'.join(str(n) for n in rest if isinstance(n, int))
            parts = [part for part in rest if isinstance(part, Tensor)]
            made |= {
                f'{start}{name}:{first}:{shape}:{at}': part
                for at, part in enumerate(parts)
            }
    return made


def _pieces(value: Any) -> list[Tensor | str | int | None]:
    # Sparse matrices by what they are made of.
    if hasattr(value, 'csr'):
        return ['sparse', *value.sizes(), *value.csr()]
    if not isinstance(value, Tensor) or value.layout == torch.strided:
        return [value]
    if value.layout == torch.sparse_coo:
        value = value.coalesce()
        inside = [value.indices(), value.values()]
    elif value.layout == torch.sparse_csc:
        inside = [value.ccol_indices(), value.row_indices(), value.values()]
    else:
        inside = [value.crow_indices(), value.col_indices(), value.values()]
    return [str(value.layout), *value.shape, *inside]
