"""Outputs of the models of all shards over one graph."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import Module
from tqdm import tqdm

from pyg_trust.distributed import run_over_ranks
from pyg_trust.unlearning.shards.products import (
    prepared_layers,
    rows_of_nonzeros,
)
from pyg_trust.unlearning.shards.training import (
    Recipe,
    Shard,
    evaluate,
    restore,
    seeded,
)


def evaluate_all(
    factory: Callable[[], Module],
    graph: Shard,
    states: Sequence[dict[str, Tensor]],
    num_classes: int,
    recipe: Recipe,
    *,
    over_ranks: bool = False,
    progress_bar: bool = False,
) -> Tensor:
    """The outputs of many models of one kind for all nodes of a graph.

    The graph is normalised, and the features are read, once for all models.

    Args:
        factory (Callable): makes a model.
        graph (Shard): the graph; its labels and seed are not looked at.
        states (list): what :func:`~.training.snapshot` gave for each model;
            an empty one is of a model without data, whose logits are zero.
        num_classes (int): the number of classes.
        recipe (Recipe): how they were trained.
        over_ranks (bool): whether the processes of torchrun share the models.
            (default: :obj:`False`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        Tensor: ``[num_models, num_nodes, num_classes]``.
    """
    with seeded(0):
        module = factory()
    if recipe.sparse_x:
        graph = graph._replace(x=rows_of_nonzeros(graph.x))
    prepared = graph.prepared()

    def output(state: dict[str, Tensor]) -> Tensor:
        if not state:
            return graph.y.new_zeros(graph.x.size(0), num_classes)
        restore(module, state)
        return evaluate(module, graph, prepared)

    with prepared_layers(module, prepared, recipe.sparse_adj):
        if over_ranks:
            outputs = run_over_ranks(states, output)
        else:
            with tqdm(
                states, disable=not progress_bar, desc='inference'
            ) as bar:
                outputs = [output(state) for state in bar]
    # Of one type: that of the models.
    kinds = (out.dtype for out in outputs if out.is_floating_point())
    dtype = next(kinds, graph.x.dtype)
    return torch.stack([out.to(dtype) for out in outputs])
