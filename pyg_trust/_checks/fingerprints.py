"""Fingerprints: SHA-256 digests of values, graphs and weights.

The one home of digests that are stored and compared. The digest of a list of
parts is the kernel's (:func:`pyg_trust.verify.arrays.fingerprint`), so that
the checker recomputes it without torch. For models with their code and
attributes see ``identity``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import check_instance
from pyg_trust.verify import arrays
from pyg_trust.verify.arrays import named

# Integers of the width of types that numpy lacks.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(*parts: Tensor | str | float | None) -> str:
    """Digest tensors (dtype, shape and values), texts and numbers.

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
    """Digest one or several graphs, in a way that anybody can repeat.

    Another order of edges gives another digest.

    Args:
        data (Data or list[Data]): the graphs.
        fields (sequence of str): the fields of each graph, in this order;
            missing fields are digested as missing.
            (default: :obj:`DATA_FIELDS`)
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
    """Digest the tensors of a ``state_dict``, in the order of names.

    Args:
        state (dict): a module's ``state_dict()``, or a dictionary of these, as
            of shards; other values are left out.

    Returns:
        str: 64 hexadecimal digits; empty if there is no tensor.
    """
    check_instance('state', state, Mapping)
    parts = named(state, Tensor)
    return fingerprint(*parts) if parts else ''


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
