"""Track whose data each number of a tensor depends on, by operation.

An *owner* is an int32 tensor of the shape of a value (expanded, where it can
be): 0 for a number that depends on nothing private, :math:`i + 1` for one
that depends on subgraph :math:`i` alone, and ``MIXED`` for one that may
depend on several. ``None`` stands for 0 everywhere. :func:`owners_after` maps
the owners of what an ATen operation reads to those of what it returns. An
operation that is not known here makes each number that it returns depend on
every number that it reads: a missing rule never hides a dependence.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_trust.privacy.rows import FAILURES, Args, Kwargs, names

PUBLIC, MIXED = 0, 2**31 - 1
_MASKS = (torch.bool, torch.uint8)

Owner = Tensor | None
OwnerOf = Callable[[Any], Owner]

# Pointwise operations that torch does not tag as pointwise.
_POINTWISE = names(
    """
    _to_copy clone log_sigmoid_forward log_sigmoid_backward native_dropout
    native_dropout_backward copy nan_to_num bernoulli prelu _prelu_kernel
    _prelu_kernel_backward rrelu_with_noise lift clamp_min clamp_max
    elu_backward where masked_fill logit_backward silu_backward
    """
)
# Read the shape of a tensor alone, and not its values.
_NEW = names(
    """
    ones_like zeros_like empty_like full_like rand_like randn_like
    randint_like new_zeros new_ones new_empty new_full new_empty_strided
    """
)
_REDUCTIONS = names(
    """
    sum mean amax amin max min argmax argmin logsumexp norm prod var std
    linalg_vector_norm var_mean std_mean all any count_nonzero median
    nanmedian nansum mode kthvalue aminmax nanmean
    """
)
# Mix numbers along a dimension, which stays.
_ALONG = names(
    """
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data
    cumsum cumprod logcumsumexp cummax cummin sort topk argsort glu
    """
)
# Move numbers to public positions, and fill with zeros.
_MOVES = names(
    """
    cat repeat flip roll constant_pad_nd slice_backward select_backward tril
    triu diagonal_backward diagonal_copy view_copy expand_copy permute_copy
    slice_scatter select_scatter stack unsqueeze_copy squeeze_copy
    """
)
_RESHAPES = names('view _unsafe_view reshape _reshape_alias')
_PRODUCTS = names('mm bmm addmm baddbmm')
_PICKS = names('index_select gather embedding')
_SCATTERS = names(
    """
    scatter scatter_add scatter_reduce index_add index_copy index_reduce
    index_fill
    """
)
# Take positions from the values of a tensor.
_PLACED = _PICKS | _SCATTERS | names('index index_put _index_put_impl')
_PLACED |= names('_unsafe_index _unsafe_index_put')
_LOSSES = names(
    """
    mse_loss smooth_l1_loss huber_loss binary_cross_entropy l1_loss kl_div
    binary_cross_entropy_with_logits soft_margin_loss
    """
)
_ROW_LOSSES = names(
    'nll_loss_forward multi_margin_loss multilabel_margin_loss_forward'
)
_ROW_LOSSES_BACKWARD = names(
    'nll_loss_backward multi_margin_loss_backward '
    'multilabel_margin_loss_backward'
)


class _Call(NamedTuple):
    # A call of an ATen operation: arguments by name, and its results.
    func: Any
    got: dict[str, Any]
    results: list[Tensor]
    of: OwnerOf
    value_of: Callable[[Any], Any]

    @property
    def name(self) -> str:
        return base_name(self.func)

    def owners(self) -> list[Owner]:
        # The owners of all tensors that it reads.
        return [self.of(t) for t in tensors_of_tree(list(self.got.values()))]


def owners_after(
    func: Any,
    args: Args,
    kwargs: Kwargs,
    out: Any,
    owner_of: OwnerOf,
    value_of: Callable[[Any], Any],
) -> list[Owner]:
    """Compute the owners of the tensors that an operation returns.

    Returns:
        list[Owner]: of each tensor in :obj:`out`, in order.
    """
    results = tensors_of_tree(out)
    got = _bind(func, args, kwargs)
    if facts(func, args, kwargs, value_of) == ():
        value_of = _unseen
    call = _Call(func, got, results, owner_of, value_of)
    owner: Owner | list[Owner]
    try:
        owner = _rule(call.name, func, 'other' in got)(call)
    except FAILURES:
        # The rule does not cover this form of the call.
        owner = _everything(call)
    owners = owner if isinstance(owner, list) else [owner] * len(results)
    return [
        None if o is None else _fit(o, result)
        for o, result in zip(owners, results, strict=True)
    ]


def facts(
    func: Any, args: Args, kwargs: Kwargs, value_of: Callable[[Any], Any]
) -> tuple[bool, ...] | None:
    """Return the values, besides shapes and types, that owners depend on.

    The owners after an operation follow from the owners, shapes and types of
    its arguments and from these values. No rule can read other values.

    Returns:
        tuple, optional: None if they depend on all values of some tensor.
    """
    name = base_name(func)
    if name in _PLACED:
        return None
    if name in _ROW_LOSSES:
        got = _bind(func, args, kwargs)
        if 'ignore_index' in got:
            return (_ignores(got, value_of),)
    return ()


def _ignores(got: dict[str, Any], value_of: Callable[[Any], Any]) -> bool:
    found = value_of(got['target']) == got['ignore_index']
    return bool(found.any())


def _unseen(value: Any) -> Any:
    raise ValueError('the rule reads values that facts() does not return')


@cache
def base_name(func: Any) -> str:
    """Return an operation's name, without the mark of in-place variants."""
    name: str = func._overloadpacket.__name__
    return name[:-1] if name.endswith('_') else name


def tensors_of_tree(value: Any) -> list[Tensor]:
    """List the tensors in nested arguments of an operation."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [t for item in value for t in tensors_of_tree(item)]
    return []


def join(*owners: Owner) -> Owner:
    """Combine the owners of operands elementwise, with broadcasting."""
    found: Owner = None
    for owner in owners:
        if owner is None or owner is found:
            continue
        if found is None:
            found = owner
            continue
        shape = _broadcast(found.shape, owner.shape)
        a, b = compact(found), compact(owner)
        both = torch.where(b == PUBLIC, a, MIXED)
        both = torch.where((a == PUBLIC) | (a == b), b, both)
        found = both.expand(shape)
    return found


def _broadcast(one: Sequence[int], other: Sequence[int]) -> list[int]:
    # torch.broadcast_shapes of two, which takes longer than the rest.
    if len(one) < len(other):
        one, other = other, one
    lead = len(one) - len(other)
    pairs = zip(one[lead:], other, strict=True)
    return [*one[:lead], *(b if a == 1 else a for a, b in pairs)]


def compact(owner: Tensor) -> Tensor:
    """Narrow every expanded dimension to one entry."""
    for dim, (size, stride) in enumerate(
        zip(owner.shape, owner.stride(), strict=True)
    ):
        if stride == 0 and size > 1:
            owner = owner.narrow(dim, 0, 1)
    return owner


def reduce(
    owner: Owner, dims: Sequence[int] | None = None, keepdim: bool = False
) -> Owner:
    """Combine owners along some dimensions, as a reduction does."""
    if owner is None:
        return None
    n = owner.dim()
    chosen = sorted({d % n for d in dims}) if dims and n else list(range(n))
    if owner.numel() == 0:
        return None
    if all(owner.stride(d) == 0 or owner.size(d) == 1 for d in chosen):
        for d in reversed(chosen):
            owner = owner.narrow(d, 0, 1) if keepdim else owner.select(d, 0)
        return owner
    small = compact(owner)
    high = small.amax(chosen, keepdim)
    low = torch.where(small == PUBLIC, MIXED, small).amin(chosen, keepdim)
    found = torch.where((high == PUBLIC) | (high == low), high, MIXED)
    shape = [
        1 if d in chosen else size
        for d, size in enumerate(owner.shape)
        if keepdim or d not in chosen
    ]
    return found.expand(shape)


def is_mixed(owner: Owner) -> bool:
    """Return whether any number may depend on several subgraphs."""
    return owner is not None and bool((compact(owner) == MIXED).any())


def _fit(owner: Tensor, result: Tensor) -> Tensor:
    if owner.shape == result.shape:
        return owner
    try:
        return owner.expand(result.shape)
    except RuntimeError:
        found = reduce(owner)
        assert found is not None
        return found.expand(result.shape)


@cache
def _arguments(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


def _bind(func: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    return {**dict(zip(_arguments(func), args, strict=False)), **kwargs}


@cache
def _rule(
    name: str, func: Any, binary: bool
) -> Callable[[_Call], Owner | list[Owner]]:
    if name in _NEW:
        return _new
    if name in _REDUCTIONS and not binary:
        return _reduction
    for group, rule in _RULES:
        if name in group:
            return rule
    if torch.Tag.pointwise in func.tags or name in _POINTWISE:
        return _pointwise
    if func.is_view:
        return _move
    return _everything


def _everything(call: _Call) -> Owner:
    return join(*map(reduce, call.owners()))


def _new(call: _Call) -> Owner:
    return None


def _pointwise(call: _Call) -> Owner:
    return join(*call.owners())


def _dims(got: dict[str, Any]) -> list[int] | None:
    dims = got.get('dim')
    if dims is None:
        return None
    return [dims] if isinstance(dims, int) else list(dims) or None


def _reduction(call: _Call) -> Owner:
    got, dims = call.got, _dims(call.got)
    if dims is None and call.name in ('kthvalue', 'mode'):
        dims = [-1]
    return reduce(call.of(got['self']), dims, bool(got.get('keepdim', False)))


def _along(call: _Call) -> Owner:
    dim = call.got.get('dim', -1)
    return reduce(join(*call.owners()), [dim], keepdim=True)


def _as_owner(value: Any, of: OwnerOf) -> Any:
    # Arguments with owners in the place of values.
    if isinstance(value, Tensor):
        owner = of(value)
        if owner is None:
            owner = torch.zeros((), dtype=torch.int32, device=value.device)
        return owner.expand(value.shape)
    if isinstance(value, tuple | list):
        return [_as_owner(item, of) for item in value]
    return value


def _move(call: _Call) -> list[Owner]:
    got = call.got
    if call.name in ('as_strided', 'view_as_real', 'view_as_complex'):
        raise ValueError('the view changes the dtype or the strides')
    if isinstance(got.get('dtype'), torch.dtype):
        raise ValueError('the view changes the dtype or the strides')
    named = {k: _as_owner(v, call.of) for k, v in got.items() if k != 'value'}
    moved = call.func(**named)
    return list(tensors_of_tree(moved))


def _reshape(call: _Call) -> Owner:
    owner = call.of(call.got['self'])
    if 'dtype' in call.got:
        raise ValueError('the view changes the dtype or the strides')
    return None if owner is None else owner.reshape(call.results[0].shape)


def _product(call: _Call) -> Owner:
    got, of, added = call.got, call.of, None
    left, right = got.get('self'), got.get('mat2')
    if call.name == 'addmm':
        added, left, right = of(got['self']), got['mat1'], got['mat2']
    elif call.name == 'baddbmm':
        added, left, right = of(got['self']), got['batch1'], got['batch2']
    return join(
        added,
        reduce(of(left), [-1], keepdim=True),
        reduce(of(right), [-2], keepdim=True),
    )


def _pick(call: _Call) -> Owner:
    name, got, of, out = call.name, call.got, call.of, call.results[0]
    source = got['weight' if name == 'embedding' else 'self']
    index = got['indices' if name == 'embedding' else 'index']
    dim = 0 if name == 'embedding' else got['dim'] % max(1, source.dim())
    owner, of_index, place = of(source), of(index), call.value_of(index)
    if of_index is None and owner is not None:
        if name == 'gather':
            return owner.gather(dim, place)
        shape = [*source.shape[:dim], *place.shape, *source.shape[dim + 1 :]]
        return owner.index_select(dim, place.reshape(-1)).view(shape)
    owner = reduce(owner, [dim], keepdim=True)
    if name == 'gather':
        if owner is not None:
            for d, size in enumerate(out.shape):
                if d != dim:
                    owner = owner.narrow(d, 0, size)
        return join(owner, of_index)
    if owner is not None and name == 'embedding':
        owner = owner[0]
    if of_index is not None:
        rest = source.dim() - 1 - dim
        of_index = of_index.view(*of_index.shape, *[1] * rest)
    return join(owner, of_index)


def _scatter(call: _Call) -> Owner:
    got, of, index = call.got, call.of, call.got['index']
    source = got.get('src', got.get('source', got.get('value')))
    own, dim = of(got['self']), got['dim'] % max(1, got['self'].dim())
    given = of(source) if isinstance(source, Tensor) else None
    place, of_index = call.value_of(index), of(index)
    if call.name.startswith('index'):
        shape = list(got['self'].shape)
        shape[dim] = place.numel()
        around = [1] * (len(shape) - 1 - dim)
        place = place.view(-1, *around).expand(shape)
        if of_index is not None:
            of_index = of_index.view(-1, *around).expand(shape)
    if of_index is not None:
        return join(own, reduce(join(given, of_index), [dim], keepdim=True))
    if given is None or source is None:
        return own
    size = got['self'].shape
    part = tuple(slice(0, n) for n in place.shape)
    given = given.expand(source.shape)[part]
    return join(own, _gathered(size, dim, place, given))


def _gathered(
    size: Sequence[int], dim: int, place: Tensor, given: Tensor
) -> Tensor:
    # The owner of each place after numbers are scattered into it.
    high = given.new_zeros(size)
    low = given.new_full(size, MIXED)
    high = high.scatter_reduce(dim, place, given, 'amax')
    low = low.scatter_reduce(
        dim, place, torch.where(given == PUBLIC, MIXED, given), 'amin'
    )
    return torch.where((high == PUBLIC) | (high == low), high, MIXED)


def _index(call: _Call) -> Owner:
    owner, indices = call.of(call.got['self']), list(call.got['indices'])
    owner, by, places = _by_private(owner, indices, call)
    picked = None if owner is None else owner[places]
    return join(picked, _in_place(by, indices, call.results[0].dim()))


def _by_private(
    owner: Owner, indices: list[Any], call: _Call
) -> tuple[Owner, list[Tensor], tuple[Any, ...]]:
    # A private index may point to any place along its dimension.
    by, places = [], []
    dim = 0
    for index in indices:
        if index is None:
            places.append(slice(None))
            dim += 1
            continue
        private = call.of(index)
        value = call.value_of(index)
        if private is not None:
            if value.dtype in _MASKS:
                raise ValueError('the boolean mask depends on a subgraph')
            by.append(private)
            owner = reduce(owner, [dim], keepdim=True)
            value = torch.zeros_like(value)
        places.append(value)
        dim += value.dim() if value.dtype in _MASKS else 1
    return owner, by, tuple(places)


def _in_place(by: list[Tensor], indices: list[Any], dim: int) -> Owner:
    # Expand the owners of indices to the shape of the result.
    owner = join(*by)
    if owner is None:
        return None
    used = [i for i, index in enumerate(indices) if index is not None]
    first = used[0] if used[-1] - used[0] + 1 == len(used) else 0
    shape = torch.broadcast_shapes(
        *(index.shape for index in indices if index is not None)
    )
    owner = owner.expand(shape)
    rest = dim - first - len(shape)
    return owner.reshape(*shape, *[1] * rest)


def _index_put(call: _Call) -> Owner:
    of, target, values = call.of, call.got['self'], call.got['values']
    indices = list(call.got['indices'])
    own, given = of(target), of(values)
    first = indices[0]
    if (
        len(indices) == 1
        and first is not None
        and first.dtype == torch.bool
        and of(first) is not None
    ):
        if values.numel() != 1:
            raise ValueError('the boolean mask depends on a subgraph')
        by = of(first)
        assert by is not None
        by = by.reshape(*by.shape, *[1] * (target.dim() - by.dim()))
        return join(own, by, reduce(given))
    size = list(target.shape)
    dim = 0
    for index in indices:
        if index is not None and of(index) is not None:
            size[dim] = 1
        is_mask = index is not None and index.dtype in _MASKS
        dim += index.dim() if is_mask else 1
    count = 1
    for n in size:
        count *= n
    places = torch.arange(count, device=target.device).view(size)
    _, by_list, at = _by_private(None, indices, call)
    picked = places[at]
    # The shape in which values are broadcast.
    given = join(given, _in_place(by_list, indices, picked.dim()))
    if given is None:
        return own
    given = given.expand(picked.shape).reshape(-1)
    found = _gathered([count], 0, picked.reshape(-1), given).view(size)
    return join(own, found.expand(target.shape))


def _loss(call: _Call) -> Owner:
    owner = join(*call.owners())
    each = call.got.get('reduction', 1) == 0
    return owner if each else reduce(owner)


def _row_loss(call: _Call) -> list[Owner]:
    # One loss per row of outputs.
    got, of = call.got, call.of
    outputs = of(got['self'])
    rows = reduce(outputs, [-1]) if got['self'].dim() > 1 else outputs
    target = of(got['target'])
    if target is not None and got['target'].dim() > 1:
        target = reduce(target, [-1])
    if of(got.get('weight')) is not None:
        raise ValueError('the class weights depend on a subgraph')
    rows = join(rows, target)
    reduction = got.get('reduction', 1)
    owner = rows if reduction == 0 else reduce(rows)
    if 'ignore_index' not in got:
        extra: Owner = of(got['target'])
        return [owner, extra][: 2 if 'margin' not in got else 1]
    # The divisor of a mean is a constant unless classes have weights.
    divisor: Owner = None
    if got.get('weight') is not None or _ignores(got, call.value_of):
        divisor = reduce(target)
    if reduction == 1:
        owner = join(owner, divisor)
    return [owner, divisor]


def _row_loss_backward(call: _Call) -> Owner:
    got, of = call.got, call.of
    owner = reduce(of(got['self']), [-1], keepdim=True)
    if call.name == 'nll_loss_backward':
        # The gradient depends on the target, and not on the outputs.
        owner = None
    target = of(got['target'])
    if target is not None and got['target'].dim() < got['self'].dim():
        target = target.unsqueeze(-1)
    elif target is not None and got['self'].dim() > 1:
        target = reduce(target, [-1], keepdim=True)
    grad = of(got['grad_output'])
    if grad is not None and 0 < grad.dim() < got['self'].dim():
        grad = grad.unsqueeze(-1)
    divisor = None
    if got.get('reduction', 1) == 1 and 'total_weight' in got:
        divisor = reduce(of(got['total_weight']))
    return join(owner, target, grad, divisor, reduce(of(got.get('weight'))))


_RULES: tuple[tuple[Iterable[str], Any], ...] = (
    (_ALONG, _along),
    (_MOVES, _move),
    (_RESHAPES, _reshape),
    (_PRODUCTS, _product),
    (_PICKS, _pick),
    (_SCATTERS, _scatter),
    (('index', '_unsafe_index'), _index),
    (('index_put', '_index_put_impl', '_unsafe_index_put'), _index_put),
    (_LOSSES, _loss),
    ({f'{name}_backward' for name in _LOSSES}, _pointwise),
    (_ROW_LOSSES, _row_loss),
    (_ROW_LOSSES_BACKWARD, _row_loss_backward),
)
