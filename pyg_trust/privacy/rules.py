"""Gradients that the rows of one recorded call give to its parameters.

Functions that use parameters several times at once (recurrent layers,
attention, norms) are computed as the functions that they are made of. Linear
maps, sums, products and tables have a rule; every other function gets the
gradient of each row by ``torch.vmap``, or else of each unit by itself.
"""

import functools
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from pyg_trust.privacy.clipping import LINEAR, ROWS, TABLE

__all__ = [
    'ADDS',
    'Mixing',
    'Unseen',
    'apply_rule',
    'opened',
    'tensors',
]

# How many numbers a rule may hold at once.
_CHUNK = 2**24


class Mixing(ValueError):
    """Rows of several units meet."""


class Unseen(ValueError):
    """A parameter is used where, or in a way that, nothing records."""


def tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Iterate over the tensors among arguments, in lists as well."""
    for a in (*args, *kwargs.values()):
        if isinstance(a, Tensor):
            yield a
        elif type(a) in (list, tuple):
            for b in a:
                if isinstance(b, Tensor):
                    yield b


# Functions of several uses #################################################


def _in_python(f: Any) -> Any:
    # A Python function of torch whose body is recorded as well.
    def no(*args: Any) -> bool:
        return False

    names = ('', '_unary', '_variadic')
    hidden = {f'has_torch_function{name}': no for name in names}
    made = types.FunctionType(
        *(f.__code__, {**f.__globals__, **hidden}, f.__name__),
        *(f.__defaults__, f.__closure__),
    )
    made.__kwdefaults__ = f.__kwdefaults__
    return made


def _gru_cell(
    x: Any, h: Any, wi: Any, wh: Any, bi: Any = None, bh: Any = None
) -> Any:
    r, z, n = F.linear(x, wi, bi).chunk(3, -1)
    a, b, c = F.linear(h, wh, bh).chunk(3, -1)
    z = (z + b).sigmoid()
    n = (n + (r + a).sigmoid() * c).tanh()
    return n + z * (h - n)


def _lstm_cell(
    x: Any,
    state: Any,
    wi: Any,
    wh: Any,
    bi: Any = None,
    bh: Any = None,
    short: Any = None,
) -> Any:
    both = F.linear(x, wi, bi) + F.linear(state[0], wh, bh)
    i, f, g, o = both.chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return h if short is None else F.linear(h, short), c


def _tanh_cell(x: Any, h: Any, wi: Any, wh: Any, bi: Any, bh: Any) -> Any:
    return (F.linear(x, wi, bi) + F.linear(h, wh, bh)).tanh()


def _relu_cell(x: Any, h: Any, wi: Any, wh: Any, bi: Any, bh: Any) -> Any:
    return (F.linear(x, wi, bi) + F.linear(h, wh, bh)).relu()


def _recurrent(cell: Callable[..., Any], x: Any, *given: Any) -> Any:
    # torch's recurrent layers of a padded input, step by step.
    if isinstance(given[0], Tensor) and not given[0].is_floating_point():
        raise Unseen(
            'a packed sequence is sorted by length, so that the rounding of a '
            "row depends on others' lengths: give the layer padded sequences, "
            'and pick the outputs at the ends of rows'
        )
    state, weights, bias, layers, dropout, training, both, batch_first = given
    x = x.transpose(0, 1) if batch_first else x
    ways = 2 if both else 1
    n, k = len(weights) // (layers * ways), 0
    several = isinstance(state, (tuple, list))
    ends: list[Any] = []
    for layer in range(layers):
        outs = []
        for back in range(ways):
            w = [*weights[n * k : n * k + n]]
            w[2:2] = [] if bias else [None, None]
            h = tuple(s[k] for s in state) if several else state[k]
            steps: list[Any] = []
            for t in range(len(x))[:: -1 if back else 1]:
                h = cell(x[t], h, *w)
                steps.append(h[0] if several else h)
            outs.append(torch.stack(steps[::-1] if back else steps))
            ends.append(h)
            k += 1
        x = torch.cat(outs, -1)
        if dropout and layer + 1 < layers:
            x = F.dropout(x, dropout, training)
    x = x.transpose(0, 1) if batch_first else x
    if several:
        return x, *(torch.stack([e[i] for e in ends]) for i in (0, 1))
    return x, torch.stack(ends)


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _layer_norm(
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    made = torch.layer_norm(input, normalized_shape, None, None, eps)
    return _affine(made, weight, bias)


def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    given = None, None, running_mean, running_var, training, momentum, eps
    made = torch.batch_norm(input, *given, False)
    shape = -1, *[1] * (input.dim() - 2)
    return _affine(
        made, *(v if v is None else v.view(shape) for v in (weight, bias))
    )


def _addmm(
    input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    return input * beta + (mat1 @ mat2) * alpha


_OPEN: dict[Any, Callable[..., Any]] = {
    F.multi_head_attention_forward: _in_python(F.multi_head_attention_forward),
    F.layer_norm: _layer_norm,
    F.batch_norm: _batch_norm,
    torch.gru_cell: _gru_cell,
    torch.lstm_cell: _lstm_cell,
    torch.lstm: functools.partial(_recurrent, _lstm_cell),
    torch.gru: functools.partial(_recurrent, _gru_cell),
    torch.rnn_tanh: functools.partial(_recurrent, _tanh_cell),
    torch.rnn_relu: functools.partial(_recurrent, _relu_cell),
    torch.addmm: _addmm,
}


def opened(func: Any) -> Callable[..., Any] | None:
    """Return what computes a call by the functions that it is made of."""
    return _OPEN.get(func)


# Rules #####################################################################

ADDS = frozenset(
    (
        *('add', '__add__', '__radd__', '__iadd__', 'add_', 'sub', '__sub__'),
        *('__rsub__', '__isub__', 'sub_', 'expand', 'expand_as'),
    )
)
_MULS = frozenset(
    ('mul', '__mul__', '__rmul__', '__imul__', 'mul_', 'multiply')
)
_PRODUCTS = frozenset(('matmul', 'mm', '__matmul__', '__rmatmul__', 'bmm'))


class _Call:
    # One use, with the signal at its result: rows lie in dimension d.
    def __init__(self, out: Any, use: Any, b: Tensor, u: Tensor, d: int):
        self.out, self.use, self.b, self.u, self.d = out, use, b, u, d
        self.args, self.kwargs, self.name = use.args, use.kwargs, use.name
        self.n = b.shape[d]

    def has(self, t: Any) -> bool:
        return isinstance(t, Tensor) and self.out.recorder.trained(t)

    def arg(self, place: int, name: str, default: Any = None) -> Any:
        if len(self.args) > place:
            return self.args[place]
        return self.kwargs.get(name, default)

    def flat(self, t: Tensor) -> Tensor:
        return t.detach().movedim(self.d, 0).reshape(-1, t.shape[-1])


def apply_rule(out: Any, use: Any, b: Tensor, u: Tensor, d: int) -> None:
    """Add what the rows of one call give to its parameters."""
    call = _Call(out, use, b, u, d)
    for names, rule in _RULES:
        if use.name in names and rule(call):
            return
    _generic(call)


def _linear(c: _Call) -> bool:
    x, w, bias = c.arg(0, 'input'), c.arg(1, 'weight'), c.arg(2, 'bias')
    if w.dim() != 2 or c.has(x) or c.d == c.b.dim() - 1:
        return False
    rows = c.flat(c.b)
    if c.has(w):
        c.out.add(LINEAR, w, c.u, rows, c.flat(x))
    if c.has(bias):
        c.out.add(ROWS, bias, c.u, rows)
    return True


def _product(c: _Call) -> bool:
    if len(c.args) != 2:
        return False
    b, d = c.b, c.d
    x, w = c.args[::-1] if c.name == '__rmatmul__' else c.args
    if c.has(w) and not c.has(x):
        part = w.detach().mT if w.dim() > 1 else w
        if w.dim() == 2 and d < b.dim() - 1:
            c.out.add(LINEAR, w, c.u, c.flat(b), c.flat(x), part)
            return True
        if w.dim() == 1:
            c.out.add(ROWS, w, c.u, c.flat(x.detach() * b[..., None]))
            return True
        batched = w.dim() == 3 and x.dim() in (2, 3) and d == 1
        if batched and w.shape[0] == b.shape[0]:
            inputs = x.detach().expand(len(w), *x.shape[-2:])
            for k in range(len(w)):
                c.out.add(LINEAR, w, c.u, b[k], inputs[k], part[k])
            return True
    if c.has(x) and not c.has(w) and x.dim() == w.dim() == 2 and d == 1:
        c.out.add(LINEAR, x, c.u, b.t(), w.detach().t())
        return True
    return False


def _table(c: _Call) -> bool:
    pad = None
    if c.name == 'embedding':
        i, w, pad = (
            c.arg(0, 'input'),
            c.arg(1, 'weight'),
            c.arg(2, 'padding_idx'),
        )
        if c.kwargs.get('scale_grad_by_freq') or c.arg(3, 'max_norm'):
            return False
    elif c.name == 'index_select':
        i, w = c.arg(2, 'index'), c.args[0]
        if c.arg(1, 'dim') != 0:
            return False
    else:
        w, i = c.args
        if not isinstance(i, Tensor) or i.dtype != torch.int64:
            return False
    if not c.has(w) or c.d >= i.dim():
        return False
    index = i.movedim(c.d, 0).reshape(-1)
    rows = c.b.movedim(c.d, 0).reshape(len(index), -1)
    if pad is not None:
        rows = rows * (index != pad % len(w)).to(rows).view(-1, 1)
    c.out.add(TABLE, w, c.u, rows, index % len(w))
    return True


def _broadcast(c: _Call) -> bool:
    args, name = c.args, c.name
    two = len(args) > 1 and isinstance(args[1], Tensor)
    both: tuple[Any, ...] = args[:2] if two else (args[0], None)
    ws = [t for t in both if c.has(t)]
    if len(ws) != 1 or c.kwargs:
        return False
    (w,), full, first = ws, c.b, c.has(both[0])
    if name in _MULS:
        full = c.b * both[1 if first else 0].detach()
    elif 'sub' in name and first == (name == '__rsub__'):
        full = -c.b
    shape = (1,) * (c.b.dim() - w.dim()) + tuple(w.shape)
    if shape[c.d] != 1:
        return False
    # Rows first, and what is summed over last in memory: elsewhere, the order
    # in which a row's numbers are added depends on how many others there are.
    full = full.movedim(c.d, 0)
    sizes = [s for k, s in enumerate(shape) if k != c.d]
    over = [k + 1 for k, s in enumerate(sizes) if s == 1 < full.shape[k + 1]]
    if over:
        full = full.movedim(over, [*range(-len(over), 0)]).contiguous()
        full = full.flatten(-len(over)).sum(-1)
    c.out.add(ROWS, w, c.u, full.reshape(c.n, math.prod(full.shape[1:])))
    return True


def _cat(c: _Call) -> bool:
    parts, dim = c.arg(0, 'tensors'), c.arg(1, 'dim', 0)
    if dim % c.b.dim() != c.d or c.d != 0:
        return False
    first = 0
    for part in parts:
        last = first + len(part)
        if c.has(part):
            index = torch.arange(len(part), device=part.device)
            width = math.prod(part.shape[1:])
            rows = c.b[first:last].reshape(len(part), width)
            c.out.add(TABLE, part, c.u[first:last], rows, index)
        first = last
    return True


_RULES: tuple[tuple[Any, Callable[[_Call], bool]], ...] = (
    (('linear',), _linear),
    (_PRODUCTS, _product),
    (('embedding', 'index_select', '__getitem__'), _table),
    (ADDS | _MULS, _broadcast),
    (('cat', 'concat', 'concatenate'), _cat),
)


def _generic(c: _Call) -> None:
    # Each row with its own copy of the weights, by vmap; else each unit.
    use, b, u, d = c.use, c.b, c.u, c.d
    if c.out.recorder.exact:
        c.out.recorder.foreign.add(use.name)
    leaves, spec = tree_flatten((use.args, use.kwargs))
    ws = list({id(t): t for t in leaves if c.has(t)}.values())
    xs = [t for t in leaves if isinstance(t, Tensor) and not c.has(t)]

    def dim(x: Tensor) -> int | None:
        # Where an input has its rows.
        q = d - (b.dim() - x.dim())
        if not x.dim() or id(x) in c.out.recorder.known:
            return None
        if q >= 0 and x.shape[q] == c.n:
            return q
        return 0 if d == 0 and x.shape[0] == c.n else None

    at = [dim(x) for x in xs]

    def one(grad: Tensor, *inputs: Tensor) -> Any:
        # The gradients of the weights, of some rows.
        def again(*weights: Tensor) -> Any:
            given = iter(inputs)
            new = dict(zip(map(id, ws), weights, strict=True))
            values = [
                t
                if not isinstance(t, Tensor)
                else new[id(t)]
                if id(t) in new
                else next(given)
                for t in leaves
            ]
            args, kwargs = tree_unflatten(values, spec)
            made = use.func(*args, **kwargs)
            return made if use.pick is None else made[use.pick]

        return torch.func.vjp(again, *[w.detach() for w in ws])[1](grad)

    def taken(i: Tensor, alone: bool) -> list[Tensor]:
        # The rows of the signal and of all inputs, for vmap if alone.
        out = []
        for x, q in zip((b, *xs), (d, *at), strict=True):
            x = x.detach() if q is None else x.detach().index_select(q, i)
            if alone and q is not None:
                x = x.movedim(q, 0).unsqueeze(q + 1)
            out.append(x)
        return out

    live = (u >= 0).nonzero().view(-1)
    step = max(1, _CHUNK // max(1, sum(w.numel() for w in ws)))
    dims = (0, *[None if q is None else 0 for q in at])
    started = False
    try:
        for i in live.split(step):
            found = torch.vmap(one, in_dims=dims)(*taken(i, True))
            started = True
            for w, g in zip(ws, found, strict=True):
                c.out.whole(w, u[i], g)
        return
    except (RuntimeError, ValueError):
        if started:
            raise
    for k in u[live].unique().tolist():
        try:
            found = one(*taken((u == k).nonzero().view(-1), False))
        except (RuntimeError, ValueError) as error:
            raise Unseen(
                f"'{use.where}': {use.name} uses a parameter in a way that "
                'gives no gradient by subgraphs '
                f'({str(error).splitlines()[0][:80]})'
            ) from None
        for w, g in zip(ws, found, strict=True):
            c.out.whole(w, u.new_tensor([k]), g.unsqueeze(0))
