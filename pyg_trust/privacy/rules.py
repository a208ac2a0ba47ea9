"""Gradients that the rows of one recorded call give to its parameters.

Functions that use parameters several times at once (recurrent layers,
attention) are computed as the functions that they are made of. Linear maps,
sums, products, norms and tables have a rule; every other function gets the
gradient of each row by ``torch.vmap``, or else of each unit by itself.
"""

import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

__all__ = [
    'ADDS',
    'OPEN',
    'Mixing',
    'Unseen',
    'apply_rule',
    'opens',
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


def _opened(f: Any) -> Any:
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
    x: Any, state: Any, wi: Any, wh: Any, bi: Any = None, bh: Any = None
) -> Any:
    both = F.linear(x, wi, bi) + F.linear(state[0], wh, bh)
    i, f, g, o = both.chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _recurrent(
    cell: Callable[..., Any],
    x: Any,
    state: Any,
    weights: Any,
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    both: bool,
    batch_first: bool,
) -> Any:
    # torch.lstm and torch.gru of a padded input, step by step.
    x = x.transpose(0, 1) if batch_first else x
    ways = 2 if both else 1
    n, k = len(weights) // (layers * ways), 0
    ends: list[Any] = []
    for layer in range(layers):
        outs = []
        for back in range(ways):
            w = weights[n * k : n * k + n]
            several = isinstance(state, (tuple, list))
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
    if isinstance(ends[0], tuple):
        return x, *(torch.stack([e[i] for e in ends]) for i in (0, 1))
    return x, torch.stack(ends)


def _addmm(
    b: Any, x: Any, w: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    made = x @ w if alpha == 1 else (x @ w) * alpha
    return (b if beta == 1 else b * beta) + made


#: Functions that are computed as those that they are made of.
OPEN: dict[Any, Callable[..., Any]] = {
    F.multi_head_attention_forward: _opened(F.multi_head_attention_forward),
    torch.gru_cell: _gru_cell,
    torch.lstm_cell: _lstm_cell,
    torch.lstm: lambda x, *a: _recurrent(_lstm_cell, x, *a),
    torch.gru: lambda x, *a: _recurrent(_gru_cell, x, *a),
    torch.addmm: _addmm,
}


def opens(func: Any, args: Any) -> bool:
    """Return whether a call is replaced by the calls that it consists of."""
    # Packed sequences have other arguments.
    packed = func in (torch.lstm, torch.gru) and len(args) != 9
    return func in OPEN and not packed


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
    if any(t._version != version for t, version in use.versions):
        raise Unseen(
            f"'{use.where}': an input of {use.name} was changed in place "
            'after its use: change a copy (x.clone())'
        )
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
        c.out.linear(w, c.u, rows, c.flat(x))
    if c.has(bias):
        c.out.rows(bias, c.u, rows)
    return True


def _product(c: _Call) -> bool:
    if len(c.args) != 2:
        return False
    b, d = c.b, c.d
    x, w = c.args[::-1] if c.name == '__rmatmul__' else c.args
    if c.has(w) and not c.has(x):
        if w.dim() == 2 and d < b.dim() - 1:
            rows = c.flat(b)
            c.out.linear(w, c.u, rows, c.flat(x), transposed=True)
            return True
        if w.dim() == 1:
            made = (x.detach() * b[..., None]).movedim(d, 0)
            rows = made.reshape(-1, x.shape[-1])
            c.out.rows(w, c.u, rows)
            return True
        batched = w.dim() == 3 and x.dim() in (2, 3) and d == 1
        if batched and w.shape[0] == b.shape[0]:
            inputs = x.detach().expand(len(w), *x.shape[-2:])
            for k in range(len(w)):
                c.out.linear(w, c.u, b[k], inputs[k], transposed=True, at=k)
            return True
    if c.has(x) and not c.has(w) and x.dim() == w.dim() == 2 and d == 1:
        c.out.linear(x, c.u, b.t(), w.detach().t())
        return True
    return False


def _table(c: _Call) -> bool:
    args, kwargs = c.args, c.kwargs
    if c.name == 'embedding':
        i, w = c.arg(0, 'input'), c.arg(1, 'weight')
        if kwargs.get('scale_grad_by_freq') or c.arg(3, 'max_norm'):
            return False
    elif c.name == 'index_select':
        i, w = c.arg(2, 'index'), args[0]
        if c.arg(1, 'dim') != 0:
            return False
    else:
        w, i = args
        floats = not isinstance(i, Tensor) or i.is_floating_point()
        if floats or i.dtype == torch.bool:
            return False
    if not c.has(w) or c.d >= i.dim() or c.has(i):
        return False
    index = i.movedim(c.d, 0).reshape(-1)
    rows = c.b.movedim(c.d, 0).reshape(len(index), -1)
    pad = c.arg(2, 'padding_idx') if c.name == 'embedding' else None
    if pad is not None:
        rows = rows * (index != pad % len(w)).to(rows).view(-1, 1)
    c.out.table(w, c.u, index % len(w), rows)
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
    lead = c.b.dim() - w.dim()
    shape = (1,) * lead + tuple(w.shape)
    own = shape[c.d] == c.n > 1  # a row of the parameter for each row
    if shape[c.d] != 1 and not (own and c.d == lead):
        return False
    # Rows first, and what is summed over last in memory: elsewhere, the order
    # in which a row's numbers are added depends on how many others there are.
    full = full.movedim(c.d, 0)
    sizes = [s for k, s in enumerate(shape) if k != c.d]
    over = [k + 1 for k, s in enumerate(sizes) if s == 1 < full.shape[k + 1]]
    if over:
        full = full.movedim(over, [*range(-len(over), 0)]).contiguous()
        full = full.flatten(-len(over)).sum(-1)
    rows = full.reshape(c.n, math.prod(full.shape[1:]))
    if own:
        c.out.table(w, c.u, torch.arange(c.n, device=rows.device), rows)
    else:
        c.out.rows(w, c.u, rows)
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
            c.out.table(part, c.u[first:last], index, rows)
        first = last
    return True


def _norm(c: _Call) -> bool:
    x = c.args[0].detach()
    layer = c.name == 'layer_norm'
    w, bias = (
        c.arg(2 if layer else 3, 'weight'),
        c.arg(3 if layer else 4, 'bias'),
    )
    if c.d != 0 or not (layer or (x.dim() == 2 and not c.arg(5, 'training'))):
        return False
    width = next(t for t in (w, bias) if t is not None).numel()
    rows = c.b.reshape(-1, width)
    if c.has(w):
        with torch.no_grad():
            if layer:
                eps = c.arg(4, 'eps', 1e-5)
                hat = F.layer_norm(x, c.arg(1, 'normalized_shape'), eps=eps)
            else:
                eps = c.arg(7, 'eps', 1e-5)
                mean, var = c.arg(1, 'running_mean'), c.arg(2, 'running_var')
                hat = F.batch_norm(x, mean, var, eps=eps)
        made = (c.b * hat).reshape(-1, width)
        c.out.rows(w, c.u, made)
    if c.has(bias):
        c.out.rows(bias, c.u, rows)
    return True


_RULES: tuple[tuple[Any, Callable[[_Call], bool]], ...] = (
    (('linear',), _linear),
    (_PRODUCTS, _product),
    (('embedding', 'index_select', '__getitem__'), _table),
    (ADDS | _MULS, _broadcast),
    (('cat', 'concat', 'concatenate'), _cat),
    (('layer_norm', 'batch_norm'), _norm),
)


def _generic(c: _Call) -> None:
    # Each row with its own copy of the weights, by vmap; else each unit.
    use, b, u, d = c.use, c.b, c.u, c.d
    if c.out.recorder.exact:
        c.out.recorder.foreign.add(use.name)
    leaves, spec = tree_flatten((use.args, use.kwargs))
    ws = list({id(t): t for t in leaves if c.has(t)}.values())
    place = {id(w): k for k, w in enumerate(ws)}
    xs = [t for t in leaves if isinstance(t, Tensor) and not c.has(t)]
    fixed = [w.detach() for w in ws]

    def dim(x: Tensor) -> int | None:
        # Where an input has its rows.
        q = d - (b.dim() - x.dim())
        if not x.dim() or c.out.is_known(x):
            return None
        if q >= 0 and x.shape[q] == c.n:
            return q
        return 0 if d == 0 and x.shape[0] == c.n else None

    at = [dim(x) for x in xs]

    def one(grad: Tensor, *inputs: Tensor) -> Any:
        def again(*weights: Tensor) -> Any:
            given = iter(inputs)
            values = [
                t
                if not isinstance(t, Tensor)
                else weights[place[id(t)]]
                if c.has(t)
                else next(given)
                for t in leaves
            ]
            args, kwargs = tree_unflatten(values, spec)
            made = use.func(*args, **kwargs)
            return made if use.pick is None else made[use.pick]

        return torch.func.vjp(again, *fixed)[1](grad)

    def taken(i: Tensor) -> list[Tensor]:
        return [
            x.detach() if q is None else x.detach().index_select(q, i)
            for x, q in zip(xs, at, strict=True)
        ]

    def first(t: Tensor, q: int | None) -> Tensor:
        return t if q is None else t.movedim(q, 0).unsqueeze(q + 1)

    live = (u >= 0).nonzero().view(-1)
    step = max(1, _CHUNK // max(1, sum(w.numel() for w in ws)))
    dims = (0, *[None if q is None else 0 for q in at])
    started = False
    try:
        for i in live.split(step):
            rows = [*map(first, taken(i), at)]
            pulled = first(b.index_select(d, i), d)
            found = torch.vmap(one, in_dims=dims)(pulled, *rows)
            started = True
            for w, g in zip(ws, found, strict=True):
                c.out.whole(w, u[i], g)
        return
    except (RuntimeError, ValueError):
        if started:
            raise
    for k in u[live].unique().tolist():
        i = (u == k).nonzero().view(-1)
        try:
            found = one(b.index_select(d, i), *taken(i))
        except (RuntimeError, ValueError) as error:
            raise Unseen(
                f"'{use.where}': {use.name} uses a parameter in a way that "
                'gives no gradient by subgraphs '
                f'({str(error).splitlines()[0][:80]})'
            ) from None
        for w, g in zip(ws, found, strict=True):
            c.out.whole(w, u.new_tensor([k]), g.unsqueeze(0))
