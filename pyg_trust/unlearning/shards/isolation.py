r"""Detection of models that never mix nodes.

Isolated votes need a model whose output for a node depends on what this node
hears, directly or over others, and on nothing else of the graph. For known
classes that is how they are written:

- linear layers, activations and dropout in evaluation mode act on each row by
  itself;
- a sum or mean over incoming messages reads the sources of a node's own
  edges;
- the weights of :obj:`gcn_norm` are :math:`w_{uv} / \sqrt{d_u d_v}` with the
  *incoming* degrees of both ends, so that of the source counts whom it hears,
  and not who listens to it.

A composition of these reads what it is reached by along edges. All other
models are probed (:func:`~pyg_trust.transforms.division.check_apart`).
"""

import torch
from torch.nn import Module
from torch_geometric import nn as pyg
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.utils._trim_to_layer import TrimToLayer

from pyg_trust.unlearning.shards.products import can_multiply
from pyg_trust.unlearning.shards.replay import can_replay

# Exact classes whose rows do not interact: no norms over several rows, and no
# weights learnt from pairs of rows.
_BY_ROWS = frozenset(
    [
        torch.nn.Dropout,
        torch.nn.ELU,
        torch.nn.Identity,
        torch.nn.LeakyReLU,
        torch.nn.Linear,
        torch.nn.ModuleList,
        torch.nn.ReLU,
        torch.nn.Tanh,
        pyg.GCN,
        pyg.GIN,
        pyg.GraphSAGE,
        pyg.Linear,
        pyg.MLP,
        pyg.MeanAggregation,
        pyg.SumAggregation,
        TrimToLayer,
    ]
)


def keeps_apart(module: Module) -> bool:
    """Test whether a model consists of modules that never mix nodes.

    Returns:
        bool: :obj:`False` for unknown modules, even if they never mix nodes.
    """
    return can_replay(module) and all(map(_is_apart, module.modules()))


def _is_apart(part: Module) -> bool:
    # An activation that is no module may do anything.
    for value in vars(part).values():
        if callable(value) and not isinstance(value, Module | type):
            return False
    if isinstance(part, MessagePassing):
        # A layer that caches its first graph would ignore all others.
        return can_multiply(part) and not getattr(part, 'cached', False)
    # A layer that writes to its input may write to the features.
    return type(part) in _BY_ROWS and not getattr(part, 'inplace', False)
