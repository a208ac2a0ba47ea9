"""Outputs of the models of all shards on one graph and on its views."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Module

from pyg_trust._progress import Bar
from pyg_trust.distributed import run_over_ranks
from pyg_trust.unlearning.shards.isolation import keeps_apart
from pyg_trust.unlearning.shards.products import (
    PreparedGraph,
    PreparedMode,
    prepared_layers,
    rows_of_nonzeros,
)
from pyg_trust.unlearning.shards.training import (
    Recipe,
    Shard,
    evaluate,
    restore,
    seeded,
    settled,
)


def evaluate_all(
    factory: Callable[[], Module],
    graph: Shard,
    states: Sequence[dict[str, Tensor]],
    num_classes: int,
    recipe: Recipe,
    *,
    over_ranks: bool = False,
    progress_bar: bool | None = None,
) -> Tensor:
    """Compute the outputs of models of one kind for all nodes of a graph.

    The graph is normalised, and the features are read, once for all models.

    Args:
        factory (Callable): the function that makes a model.
        graph (Shard): the graph; its labels and seed are ignored.
        states (list): the result of :func:`~.training.snapshot` for each
            model; empty for a model without data, whose logits are zero.
        num_classes (int): the number of classes.
        recipe (Recipe): the settings that the models were trained with.
        over_ranks (bool): whether the processes of torchrun share the models.
            (default: :obj:`False`)
        progress_bar (bool, optional): by default in terminals, after 2 s.

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
            with Bar(states, progress_bar, desc='inference') as bar:
                outputs = [output(state) for state in bar]
    # Convert to the dtype of the models.
    kinds = (out.dtype for out in outputs if out.is_floating_point())
    dtype = next(kinds, graph.x.dtype)
    return torch.stack([out.to(dtype) for out in outputs])


class ViewRunner:
    """Run the models of shards on views of a graph, one at a time.

    Args:
        factory (Callable): the function that makes a model.
        states (list): as :func:`evaluate_all` takes them.
        num_classes (int): the number of classes.
        recipe (Recipe): the settings that the models were trained with.
    """

    def __init__(
        self,
        factory: Callable[[], Module],
        states: Sequence[dict[str, Tensor]],
        num_classes: int,
        recipe: Recipe,
    ) -> None:
        self.states, self.num_classes = states, num_classes
        self.recipe = recipe
        # The graph of the last call, as layers multiply by it.
        self._last: tuple[PreparedGraph, int] | None = None
        with seeded(0):
            self.module = factory()
        self.apart = keeps_apart(self.module)
        self._own = self.module.state_dict(keep_vars=True)
        self._settled = False

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Set up the process once for all calls in a block.

        For models of known classes, which draw nothing in evaluation mode;
        for all others nothing changes.
        """
        if not self.apart:
            yield
            return
        with settled(), torch.no_grad():
            self.module.eval()
            self._settled = True
            try:
                yield
            finally:
                self._settled = False

    def expect(self, prepared: PreparedGraph) -> None:
        """Store the prepared graph of the next call."""
        weight = prepared.edge_weight
        self._last = prepared, 0 if weight is None else weight._version

    def _load(self, state: dict[str, Tensor]) -> None:
        # Known classes keep nothing but what is in their state.
        own = self._own
        if not self._settled or any(
            name not in own or own[name].shape != value.shape
            for name, value in state.items()
        ):
            restore(self.module, state)
            return
        for name, value in state.items():
            own[name].copy_(value)

    def _prepared(self, graph: Shard) -> PreparedGraph:
        weight = graph.edge_weight
        version = 0 if weight is None else weight._version
        if self._last is not None:
            made, of = self._last
            if (
                made.edge_index is graph.edge_index
                and made.edge_weight is weight
                and (made.version, of) == (graph.edge_index._version, version)
                and (made.num_nodes, made.dtype)
                == (graph.x.size(0), graph.x.dtype)
            ):
                return made
        self._last = (graph.prepared(), version)
        return self._last[0]

    def takes_rows(self, x: Tensor, edge_weight: Tensor | None) -> bool:
        """Test whether CSR features keep a model's outputs, up to rounding.

        Tests a new model on a made-up graph, so that no shard and no attacked
        data can influence how others are run.
        """
        if self.apart and x.dtype in (torch.float32, torch.float64):
            # Linear layers of rows, and sums of rows, which are made dense.
            return True
        n = 6
        like = torch.arange(n * x.size(1)).view(n, -1)
        some = ((like * 2654435761 >> 8) % 3 == 0).to(x.dtype)
        ring = torch.arange(n)
        edges = torch.stack([ring, (ring + 1) % n])
        graph = Shard(
            seed=0,
            x=some,
            y=torch.zeros(n, dtype=torch.int64),
            edge_index=torch.cat([edges, edges.flip(0)], 1),
            edge_weight=None
            if edge_weight is None
            else torch.ones(2 * n, dtype=edge_weight.dtype),
        )
        sparse = graph._replace(x=rows_of_nonzeros(some))
        try:
            one = evaluate(
                self.module, graph, sparse_adj=self.recipe.sparse_adj
            )
            two = evaluate(
                self.module, sparse, sparse_adj=self.recipe.sparse_adj
            )
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return False
        apart = (one - two).abs().max()
        return bool(apart <= 1e-5 * one.abs().max().clamp(min=1e-30))

    def __call__(
        self, graph: Shard, number: int, dense: Tensor | None = None
    ) -> Tensor:
        """Compute the outputs of one model for all nodes.

        Args:
            graph (Shard): the view.
            number (int): the number of the model.
            dense (Tensor, optional): CSR features as a dense matrix, if the
                caller has it. (default: :obj:`None`)
        """
        state = self.states[number]
        if not state:
            return graph.y.new_zeros(graph.x.size(0), self.num_classes)
        if self.recipe.sparse_x:
            graph = graph._replace(x=rows_of_nonzeros(graph.x))
        self._load(state)
        prepared = self._prepared(graph)
        with prepared_layers(self.module, prepared, self.recipe.sparse_adj):
            if not self._settled:
                return evaluate(self.module, graph, prepared, dense=dense)
            with PreparedMode(graph.x, prepared, 0, dense):
                return self.module(*graph.inputs)
