# Longer than 700 lines because every check before training is one list.
"""Checks that have to pass before private training may start.

The guarantee rests on one sentence: the clipped gradient of a subgraph is a
function of this subgraph's rows alone. What a model does is up to its author,
so it is put to the test on random features, where a coupling shows; layers
that couple rows by design, or remember data, are refused by name.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn.models.basic_gnn import BasicGNN

from pyg_trust.loader.schema import FlatBatch

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Criterion = Callable[[Tensor, Tensor], Tensor]
Forward = Callable[[nn.Module, Data], Tensor]

#: The seed of what checks draw.
SEED = 0
_GRAPH_WIDE = (
    'normalises by the statistics of all rows of a batch, so that a '
    "subgraph's output depends on the others, and keeps running statistics "
    'of data'
)
# Advice by the layer that BatchNorm is a part of.
_INSTEAD: tuple[tuple[type, str], ...] = (
    (pyg.GENConv, "GENConv(norm='layer')"),
    (pyg.GPSConv, "GPSConv(norm='layer_norm') and hand it 'batch'"),
    (
        pyg.MLP,
        "MLP(norm='layer_norm', norm_kwargs={'mode': 'node'})",
    ),
    (
        BasicGNN,
        "norm='layer_norm', norm_kwargs={'mode': 'node'} in the model",
    ),
)


def check_layers(module: nn.Module) -> None:
    """Refuse layers that mix subgraphs or store their inputs.

    Whether other norms treat subgraphs apart depends on whether they are
    given ``batch``: the test of isolation tells.

    Raises:
        ValueError: if there is one, with all of them and the reasons.
    """
    found = []
    layers = dict(module.named_modules())
    for name, layer in layers.items():
        reason = _objection(layer)
        if reason is None:
            continue
        # The innermost layer around it that has an argument for it.
        around = [
            advice
            for other, outer in layers.items()
            if other == '' or name.startswith(f'{other}.')
            for kind, advice in _INSTEAD
            if isinstance(layer, _BatchNorm) and isinstance(outer, kind)
        ]
        if around:
            reason += f' (use {around[-1]})'
        kind_of_it = type(layer).__name__
        found.append(f"'{name or 'module'}' ({kind_of_it}) {reason}")
    if found:
        raise ValueError(
            "'module' needs to treat subgraphs apart, and this does not: "
            + '; '.join(found)
            + ". LayerNorm(mode='node') and MessageNorm are fine, and so are "
            "GraphNorm, PairNorm and InstanceNorm that are given 'batch'"
        )


def _objection(layer: nn.Module) -> str | None:
    if isinstance(layer, _BatchNorm | pyg.HeteroBatchNorm | pyg.DiffGroupNorm):
        return _GRAPH_WIDE
    if getattr(layer, 'cached', None) is True:
        return 'caches what it computed for the first batch (use cached=False)'
    if any(isinstance(p, UninitializedParameter) for p in layer.parameters()):
        return 'has parameters without a shape: call the model once before'
    return None


def check_parameters(
    module: nn.Module, optimizer: torch.optim.Optimizer
) -> list[nn.Parameter]:
    """Check that the optimizer trains all parameters of the model.

    Returns:
        list[Parameter]: what is trained, each once.

    Raises:
        ValueError: if nothing is, one is not in the optimizer, or the
            optimizer has others.
    """
    named = {
        parameter: name
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    own = set(module.parameters())
    given = {p for group in optimizer.param_groups for p in group['params']}
    if not named:
        raise ValueError("'module' needs to have a parameter to train")
    missing = [name for p, name in named.items() if p not in given]
    if missing:
        raise ValueError(
            "'optimizer' needs to have every trainable parameter of 'module' "
            f'(not {missing}); freeze with requires_grad_(False) what is not '
            'to be trained'
        )
    foreign = [tuple(p.shape) for p in given if p not in own]
    if foreign:
        raise ValueError(
            "'optimizer' needs to have parameters of 'module' alone (got "
            f'others, of the shapes {foreign})'
        )
    for parameter, name in named.items():
        if parameter.grad is not None:
            raise ValueError(
                f"'module' needs to be without gradients ('{name}' has one): "
                'call optimizer.zero_grad() first'
            )
        if not parameter.is_floating_point():
            raise ValueError(
                f"'module' needs to have real parameters ('{name}' is "
                f'{parameter.dtype})'
            )
    return list(named)


class BatchCall:
    """Arguments of a model's call, by the names of batch attributes.

    Every tensor has to be one that the batch was delivered with, the same
    object and unchanged: only then is it known which row belongs to which
    subgraph.

    Args:
        batch (Data): a batch as delivered.
        versions (dict): :func:`snapshot` of the batch when it was delivered.
        args (tuple): the positional arguments of a call.
        kwargs (dict): its named arguments.

    Raises:
        ValueError: if an argument is neither of the batch nor a plain value.
    """

    def __init__(
        self,
        batch: Data,
        versions: dict[str, tuple[int, int]],
        args: Args,
        kwargs: Kwargs,
    ) -> None:
        self._names = {key: name for name, (key, _) in versions.items() if key}
        self._batch = batch
        self._versions = versions
        self.args = self._template(args)
        self.kwargs = self._template(kwargs)
        del self._batch, self._names, self._versions

    def __call__(self, module: nn.Module, batch: Data) -> Tensor:
        """Call a model with the attributes of another batch."""
        args, kwargs = self.arguments(batch)
        return module(*args, **kwargs)

    def arguments(self, batch: Data) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the call for another batch."""
        return _fill(self.args, batch), _fill(self.kwargs, batch)

    @property
    def key(self) -> str:
        """Text that is equal for calls that use the same attributes."""
        return repr((self.args, self.kwargs))

    def _template(self, value: Any) -> Any:
        if value is self._batch:
            current = self.snapshot(self._batch)
            for key, what in self._versions.items():
                if current.get(key) != what:
                    self._refuse(f"its '{key}' was changed")
            extra = sorted(current.keys() - self._versions.keys())
            if extra:
                self._refuse(f"'{extra[0]}' was added to it")
            return Key(None)
        if isinstance(value, tuple | list):
            return tuple(self._template(item) for item in value)
        if isinstance(value, dict):
            return {key: self._template(item) for key, item in value.items()}
        name = self._names.get(id(value))
        if name is not None and self._get(self._batch, name) is value:
            if _version(value) != self._versions[name][1]:
                self._refuse(f"its '{name}' was changed in place")
            return Key(name)
        if isinstance(value, int | float | str | bool | None):
            return value
        got = f'got a {type(value).__name__}'
        if isinstance(value, Tensor):
            got = f'got a Tensor of shape {list(value.shape)}'
        return self._refuse(got)

    @staticmethod
    def snapshot(batch: Any) -> dict[Any, tuple[int, int]]:
        """Return the identity and version of every attribute of a batch."""
        return snapshot(batch)

    @staticmethod
    def _get(batch: Any, name: Any) -> Any:
        return batch.get(name)

    @staticmethod
    def _refuse(what: str) -> Any:
        raise ValueError(
            'the model needs to be called with the attributes of the batch '
            f"that 'data_loader' gave last, as they are ({what}). The "
            'subgraph of a row is known for these alone: compute other inputs '
            "inside the model, row by row, or in the loader's 'transform'"
        )


class Key:
    """Stands for an attribute of a batch, or for the batch.

    Args:
        name (optional): the attribute's name; None for the batch.
    """

    def __init__(self, name: Any) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f'<{self.name}>'


def _fill(value: Any, batch: Data) -> Any:
    if isinstance(value, Key):
        return batch if value.name is None else batch[value.name]
    if isinstance(value, tuple):
        return tuple(_fill(item, batch) for item in value)
    if isinstance(value, dict):
        return {key: _fill(item, batch) for key, item in value.items()}
    return value


def snapshot(batch: Data) -> dict[str, tuple[int, int]]:
    """Return the identity and version of every attribute of a batch."""
    found = {}
    for name, value in batch.to_dict().items():
        is_data = hasattr(value, 'shape') or hasattr(value, 'sizes')
        found[name] = (id(value) if is_data else 0, _version(value))
    return found


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) else 0


def find_call(
    module: nn.Module,
    batch: Any,
    forward: Forward | None,
    kind: type[BatchCall] = BatchCall,
    by_unit: bool = False,
) -> BatchCall:
    """Find the attributes of a batch that a model is called with.

    Args:
        module (torch.nn.Module): the model.
        batch (Data or HeteroData): a batch.
        forward (callable, optional): calls a model with a batch, once; by
            default the model gets what its arguments are named after
            (``batch``, ``edge_attr``, ...), ``x`` and ``edge_index`` first,
            and those by type if the batch is typed.
        kind (type): what notes the arguments. (default: :class:`BatchCall`)
        by_unit (bool): whether subgraphs are whole graphs, so that an
            optional ``batch`` is passed as well. (default: :obj:`False`)

    Raises:
        ValueError: if the attributes can't be found.
    """
    calls = []

    class Spy:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(kind(batch, kind.snapshot(batch), args, kwargs))
            with torch.no_grad():
                return module(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(module, name)

    if forward is not None:
        with torch.random.fork_rng():
            forward(Spy(), batch)  # type: ignore[arg-type]
        if len(calls) != 1:
            raise ValueError(
                "'forward' needs to call the model once (got "
                f'{len(calls)} calls)'
            )
        return calls[0]
    args = arguments_of(module, batch, by_unit)
    return kind(batch, kind.snapshot(batch), args, {})


def arguments_of(module: nn.Module, batch: Any, by_unit: bool) -> Args:
    """Return what a model takes of a batch, by the names of its arguments."""
    typed = isinstance(batch, HeteroData)

    def attribute(name: str) -> Any:
        if typed:
            return getattr(batch, f'{name.removesuffix("_dict")}_dict')
        return batch[name]

    def has(name: str) -> bool:
        if not typed:
            return name in batch
        return any(name.removesuffix('_dict') in s for s in batch.stores)

    found: list[Any] = []
    unknown = []
    parameters = inspect.signature(module.forward).parameters.values()
    for place, p in enumerate(parameters):
        pools = by_unit and place == 2 and p.name == 'batch'
        if p.default is not p.empty and not pools:
            break
        if p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            break
        if place == 0 and p.name in ('data', 'batch'):
            found.append(batch)
        elif has(p.name):
            found.append(attribute(p.name))
        elif place < 2:
            found.append(attribute(('x', 'edge_index')[place]))
        else:
            unknown.append(p.name)
    if unknown:
        raise ValueError(
            "'forward' needs to be given for a model that takes what the "
            f'batch does not have (got a model that takes {unknown}): '
            'forward=lambda model, batch: model(batch.x, batch.edge_index, '
            '...)'
        )
    if not found:
        found = [attribute('x'), attribute('edge_index')]
    return tuple(found)


def check_autocast(device: torch.device) -> None:
    """Refuse to be called under autocast.

    Raises:
        ValueError: if it is switched on.
    """
    known = torch.amp.is_autocast_available(device.type)
    if known and torch.is_autocast_enabled(device.type):
        raise ValueError(
            'in private training, the model needs to be called without '
            'autocast: gradients are clipped in the type of the parameters, '
            'and in half precision they can exceed their computed norms'
        )


def check_edges(batch: Data, owner: Tensor) -> None:
    """Check that no edge of a batch joins two subgraphs.

    Args:
        batch (Data): the batch.
        owner (Tensor): int64, ``[num_nodes]``: the subgraph of each node.

    Raises:
        ValueError: if an edge joins two subgraphs, or has no such node.
    """
    for name, value in batch.to_dict().items():
        ends = _ends(name, value)
        if ends is None or ends.numel() == 0:
            continue
        low, high = int(ends.min()), int(ends.max())
        if low < 0 or high >= owner.numel():
            raise ValueError(
                f"'{name}' of the batch needs to name its nodes, from 0 on "
                '(got others)'
            )
        if not bool((owner[ends[0]] == owner[ends[1]]).all()):
            raise ValueError(
                f"'{name}' of the batch needs to stay inside each subgraph, "
                'but an edge joins two of them'
            )


def _ends(name: str, value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        if value.layout == torch.sparse_coo:
            return value.coalesce().indices()[:2]
        if value.layout in (torch.sparse_csr, torch.sparse_csc):
            return value.to_sparse_coo().indices()[:2]
        is_index = 'index' in name or 'face' in name
        if is_index and value.dim() == 2 and value.size(0) == 2:
            return value
        return None
    if hasattr(value, 'coo') and hasattr(value, 'sizes'):
        row, col, _ = value.coo()
        return torch.stack([row, col])
    return None


def check_isolation(
    module: nn.Module,
    call: Forward,
    batch: Data,
    owner: Tensor,
    by_unit: bool = False,
) -> None:
    r"""Test a model on a batch's structure and random features.

    In training mode, with the same dropout in every pass:

    1. no buffer may change (it would carry data from step to step);
    2. the gradient of the outputs of some subgraphs with respect to the rows
       of the others is exactly 0;
    3. the outputs of some subgraphs do not change by a bit if the rows of the
       others do: to other numbers, to infinity, to what is no number.

    Parameters, buffers and the state of torch's generators are as before when
    it is done. Private features are not read.

    Args:
        module (torch.nn.Module): the model.
        call (callable): calls it with a batch.
        batch (Data): a batch, best of two subgraphs or more.
        owner (Tensor): int64, ``[num_nodes]``: the subgraph of each node.
        by_unit (bool): whether it has to give a row per subgraph.
            (default: :obj:`False`)

    Raises:
        ValueError: if the model fails one.
    """
    count = int(owner.max()) + 1
    generator = torch.Generator().manual_seed(SEED)
    names = features_of(batch, owner.numel())
    kept = {n: b.detach().clone() for n, b in module.named_buffers()}
    with in_training(module, kept):
        base = randomised(batch, names, generator)
        with torch.no_grad():
            out = _run(module, call, base)
        terms = terms_of(batch, owner, count)
        check_output(out, owner.numel(), len(terms), by_unit)
        changed = [
            name
            for name, buffer in module.named_buffers()
            if name not in kept or not same(buffer, kept[name])
        ]
        if changed:
            raise ValueError(
                "'module' needs to keep its buffers as they are in training, "
                f'as they would carry data on (it changes {changed})'
            )
        rows = owner if out.size(0) == owner.numel() else terms
        for trial in range(5 if count > 1 else 0):
            # Half of the subgraphs against the others.
            half = torch.randperm(count, generator=generator) < count // 2
            half = half.to(owner.device)
            mine = half[owner]
            _check_gradient(module, call, base, names, mine, half[rows])
            value = (None, 1e30, math.inf, math.nan, None)[trial]
            others = partial(other_rows, batch, base, names, generator, mine)
            with torch.no_grad():
                before = _run(module, call, base)
                try:
                    after = _run(module, call, others(value))
                except (ValueError, RuntimeError):
                    if value is None:
                        raise
                    # The model accepts finite features alone.
                    value = 1e6
                    after = _run(module, call, others(value))
            if not same(before[half[rows]], after[half[rows]]):
                what = '' if value is None else f' ({value})'
                what = f'the output of one depends on the features{what}'
                _coupled(module, what)


@contextmanager
def in_training(
    module: nn.Module, buffers: dict[str, Tensor]
) -> Iterator[None]:
    """Put a model into training mode; restore modes and buffers at the end.

    Each layer gets back a mode of its own, which may not be the model's.
    """
    modes = [(layer, layer.training) for layer in module.modules()]
    try:
        module.train()
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in buffers and not same(buffer, buffers[name]):
                    buffer.copy_(buffers[name])


def _check_gradient(
    module: nn.Module,
    call: Forward,
    base: Data,
    names: '_Features',
    inner: Tensor,
    mine: Tensor,
) -> None:
    batch = base.clone()
    for name in names.floating:
        batch[name] = base[name].detach().clone().requires_grad_()
    leaves = [batch[name] for name in names.floating]
    with torch.enable_grad():
        out = _run(module, call, batch)
        if not leaves or not out.requires_grad:
            return
        weight = torch.randn(
            out.shape, generator=torch.Generator().manual_seed(SEED)
        )
        mask = mine.view([-1] + [1] * (out.dim() - 1))
        grads = torch.autograd.grad(
            out, leaves, weight.to(out) * mask, allow_unused=True
        )
    for name, grad in zip(names.floating, grads, strict=True):
        if grad is not None and not bool((grad[~inner] == 0).all()):
            _coupled(module, f"the gradient of one depends on the '{name}'")


class _Features:
    def __init__(self, floating: list[str], integer: list[str]) -> None:
        self.floating = floating
        self.both = floating + integer


def features_of(batch: Data, num_nodes: int) -> _Features:
    """List the attributes with a row per node, graph structure aside."""
    floating, integer = [], []
    for name, value in batch.to_dict().items():
        if (
            not isinstance(value, Tensor)
            or value.layout != torch.strided
            or value.dim() == 0
            or value.size(0) != num_nodes
            or not batch.is_node_attr(name)
        ):
            continue
        if value.is_floating_point():
            floating.append(name)
        elif name == 'x':
            integer.append(name)
    return _Features(floating, integer)


def randomised(
    batch: Data,
    names: _Features,
    generator: torch.Generator,
    value: float | None = None,
) -> Data:
    """Copy a batch with random rows, or with one value everywhere."""
    out = batch.clone()
    for name in names.both:
        tensor = batch[name]
        if not tensor.is_floating_point():
            # Values that occur, in another order: embeddings have an end.
            order = torch.randperm(tensor.size(0), generator=generator)
            out[name] = tensor[order.to(tensor.device)]
        elif value is None:
            drawn = torch.randn(tensor.shape, generator=generator)
            out[name] = drawn.to(tensor)
        else:
            out[name] = torch.full_like(tensor, value)
    return out


def other_rows(
    batch: Data,
    base: Data,
    names: _Features,
    generator: torch.Generator,
    mine: Tensor,
    value: float | None,
) -> Data:
    """Copy a batch, and replace the rows where :obj:`mine` is false."""
    other = randomised(batch, names, generator, value)
    for name in names.both:
        shape = [-1] + [1] * (base[name].dim() - 1)
        other[name] = torch.where(mine.view(shape), base[name], other[name])
    return other


def _run(
    module: nn.Module,
    call: Callable[[nn.Module, Data], Tensor],
    batch: Data,
) -> Tensor:
    devices = {p.device for p in module.parameters() if p.is_cuda}
    with torch.random.fork_rng(list(devices)):
        torch.manual_seed(SEED)
        return call(module, batch)


def check_output(
    out: Any, num_nodes: int, count: int, by_unit: bool = False
) -> None:
    """Check that a model returns a row per node or per subgraph."""
    if not isinstance(out, Tensor) or not out.is_floating_point():
        got = getattr(out, 'dtype', type(out).__name__)
        raise ValueError(
            f"'module' needs to return one real tensor (got {got})"
        )
    if not by_unit and (
        out.dim() == 0 or out.size(0) not in (num_nodes, count)
    ):
        raise ValueError(
            "'module' needs to return a row per node, or one per subgraph: "
            f'{num_nodes} or {count} (got the shape {list(out.shape)})'
        )
    if by_unit and (out.dim() == 0 or out.size(0) != count):
        raise ValueError(
            "'module' needs to return a row per graph, as how many nodes "
            'there are is private (got another number of rows): pool them'
        )


def terms_of(batch: Data, owner: Tensor, count: int) -> Tensor:
    """Return the subgraph of each row of outputs, unless they are of nodes.

    Args:
        batch (Data): the batch.
        owner (Tensor): int64, ``[num_nodes]``: the subgraph of each node.
        count (int): the number of subgraphs.
    """
    if isinstance(batch, FlatBatch):
        return batch.terms
    return torch.arange(count, device=owner.device)


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, where NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # Five times as fast, where nothing is NaN.
    return torch.equal(one, other) or torch.allclose(
        one, other, rtol=0, atol=0, equal_nan=True
    )


def _coupled(module: nn.Module, what: str) -> None:
    graph_wide = [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, pyg.LayerNorm) and layer.mode == 'graph'
    ]
    advice = ''
    if graph_wide:
        advice = (
            f'. {graph_wide} are LayerNorms over all rows: use '
            "LayerNorm(mode='node'), in a model of PyG norm='layer_norm', "
            "norm_kwargs={'mode': 'node'}"
        )
    raise ValueError(
        f"'module' needs to treat subgraphs apart, but {what} of another: "
        'look for normalisation, pooling or attention over the whole batch '
        '(most norms and pools of PyG treat subgraphs apart if given '
        f"'batch'){advice}"
    )


def buffer_versions(module: nn.Module) -> list[tuple[int, int]]:
    """Return the identity and version of every buffer."""
    return [(id(b), b._version) for b in module.buffers()]


def check_criterion(
    criterion: Criterion,
    out: Tensor,
    target: Tensor,
    loss_reduction: str,
) -> None:
    r"""Test that a loss is the mean (or the sum) of one term per row.

    Its gradient with respect to a row has to be that of the row by itself,
    over the number of rows for a mean, at random outputs and targets. Class
    weights with :obj:`reduction='mean'`, contrastive or ranking losses, and
    anything normalised by the data of a batch fail.

    Args:
        criterion (callable): maps outputs and targets to a loss.
        out (Tensor): a tensor like the outputs, ``[num_rows, ...]``.
        target (Tensor): a tensor like the targets; their *values* are used for
            integers alone, in another order.
        loss_reduction (str): :obj:`'mean'` or :obj:`'sum'`.

    Raises:
        ValueError: if the loss is none.
    """
    generator = torch.Generator().manual_seed(SEED)
    count = min(out.size(0), 16)
    for _ in range(3):
        values = torch.randn(
            (count, *out.shape[1:]), generator=generator, dtype=torch.float64
        )
        values = (3 * values).to(out)
        order = torch.randperm(target.size(0), generator=generator)[:count]
        labels = target[order.to(target.device)]
        if labels.is_floating_point():
            drawn = torch.rand(labels.shape, generator=generator)
            labels = drawn.to(labels)
        elif labels.dim() == 1 and out.dim() == 2 and out.size(1) > 1:
            drawn = torch.randint(
                out.size(1), labels.shape, generator=generator
            )
            labels = drawn.to(labels)
        together = _loss_grad(criterion, values, labels)
        if loss_reduction == 'mean':
            together = together * count
        alone = torch.cat(
            [
                _loss_grad(criterion, values[i : i + 1], labels[i : i + 1])
                for i in range(count)
            ]
        )
        if not torch.allclose(together, alone, rtol=1e-4, atol=1e-6):
            raise ValueError(
                f"'criterion' needs to be a {loss_reduction} of one term per "
                'row, each of its own output and target alone, but the '
                'gradient of a row changes with the others (class weights '
                "with reduction='mean' do that: use reduction='sum', also as "
                "'loss_reduction', or 'none', and take the mean of the "
                'weighted terms)'
            )


def _loss_grad(criterion: Criterion, out: Tensor, target: Tensor) -> Tensor:
    leaf = out.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = criterion(leaf, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError("'criterion' needs to return one number")
        (grad,) = torch.autograd.grad(loss, leaf)
    return grad
