r"""Gradients of units of any PyG model, from two backward passes.

A batch of units (subgraphs, graphs, persons) is one graph without edges
between them. :class:`Recorder` notes each call that has a parameter, or a
tensor made of parameters alone, as an argument, with the gradient edge of its
result. The gradient by the outputs, scaled to about 1 for each unit, is sent
back twice: as it is, and with the rows of unit :math:`u` times a secret code
:math:`r_u \in [1, 2)`.

If units are isolated, the signal of each row of each noted result is in the
second pass :math:`r_u` times that in the first, for the one unit that the row
belongs to, as backpropagation is linear. So the owners of rows are verified,
or decoded from the ratio, and a row with a signal but without one ratio proves
that units meet (:class:`Mixing`). What parameters get from a row is then plain
algebra (``privacy/rules.py``). At last :math:`\sum_u r_u g_u` is compared with
autograd's own gradient of the second pass, so that a use of a parameter that
nobody noted is noticed (:class:`Unseen`).

All scales are powers of two, so that what a unit's rows are does not depend on
the others by a bit.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from pyg_trust import ops
from pyg_trust.privacy import rowwise
from pyg_trust.privacy.clipping import Book
from pyg_trust.privacy.rules import (
    ADDS,
    Mixing,
    Unseen,
    apply_rule,
    opened,
    tensors,
)

__all__ = ['Attributor', 'Recorder']

T = TypeVar('T')
Inputs = Sequence[tuple[Tensor, Tensor | None]]
#: The owners of the rows of each use, and their dimension.
Found = list[tuple[Tensor, int] | None]


# What uses parameters #######################################################


class Use(NamedTuple):
    """One call with parameters, and where its signal comes from."""

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    pick: int | None
    edge: GradientEdge
    where: str


class Known(NamedTuple):
    """A tensor made of parameters and constants alone.

    It is kept alive, with the tensor that it is a view of (or itself), and the
    parameters that it is made of; constants have none.
    """

    tensor: Tensor
    base: Tensor
    leaves: tuple[Tensor, ...]


def _is_place(name: str) -> bool:
    # Whether a function writes into its first argument.
    if name.endswith('_') and not name.endswith('__'):
        return True
    return name == '__setitem__' or (
        name[:3] == '__i' and name not in ('__invert__', '__index__')
    )


class Recorder(TorchFunctionMode):
    """Mode that notes calls with parameters.

    Args:
        params (dict[str, Tensor]): the trained parameters, by name.
        constants (iterable of Tensor): frozen parameters and buffers.
        sizes (set[int]): the numbers of rows of units, nodes and edges.
        exact (bool): whether each row's bits are to be those of the row
            alone (``privacy/rowwise.py``). (default: :obj:`False`)
    """

    def __init__(
        self,
        params: dict[str, Tensor],
        constants: Iterable[Tensor],
        sizes: set[int],
        exact: bool = False,
    ) -> None:
        super().__init__()
        self.params, self.sizes, self.exact = params, sizes, exact
        self.known = {id(t): Known(t, t, ()) for t in constants}
        self.known |= {id(t): Known(t, t, (t,)) for t in params.values()}
        self.uses: list[Use] = []
        #: The nodes that rows were taken from, as of messages, by the first
        #: number in memory and how many they are.
        self.taken: dict[tuple[int, int], Tensor] = {}
        #: The names of the modules that are running.
        self.stack = ['']
        #: Functions that may round a row otherwise in another batch.
        self.foreign: set[str] = set()

    @contextmanager
    def of(self, module: nn.Module) -> Iterator[None]:
        """Record a block, with the names of the modules that run."""
        names = {layer: name for name, layer in module.named_modules()}

        def enter(layer: nn.Module, _: Any) -> None:
            if layer in names:
                self.stack.append(names[layer] or type(layer).__name__)

        def leave(layer: nn.Module, *_: Any) -> None:
            if layer in names:
                self.stack.pop()

        with (
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
            self,
        ):
            yield

    def trained(self, t: Tensor) -> bool:
        """Return whether a tensor is made of trained parameters alone."""
        return t.requires_grad and id(t) in self.known

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, known = kwargs or {}, self.known
        name = rowwise.name_of(func)
        if name is None:
            return func(*args, **kwargs)
        given = list(tensors(args, kwargs))
        noted = any(id(t) in known for t in given)
        if noted or self.exact:
            parts = opened(func)
            if parts is not None:
                with self:
                    return parts(*args, **kwargs)
        if not noted:
            out = self._compute(func, name, args, kwargs)
            if name == 'index_select' and given[-1].dim() == 1:
                index = given[-1]
                self.taken[index.data_ptr(), len(index)] = index
            made = not given and isinstance(out, Tensor)
            # Made of nothing: a constant, unless it has rows.
            if made and self.sizes.isdisjoint(out.shape):
                known[id(out)] = Known(out, out, ())
            return out
        kept = args
        if _is_place(name) and isinstance(args[0], Tensor):
            first = args[0].detach()
            kept = (first if name in ADDS else first.clone(), *args[1:])
            # What is written into is a constant no more.
            before = known.get(id(args[0]))
            private = any(id(t) not in known for t in given)
            if private and before is not None and not before.leaves:
                del known[id(args[0])]
        out = self._compute(func, name, args, kwargs)
        trained = [t for t in given if self.trained(t)]
        if out is not None:
            self._note((func, name, kept, kwargs), out, given, trained)
        elif trained and name == '__setitem__' and torch.is_grad_enabled():
            raise Unseen(
                f"'{self.stack[-1]}': a parameter is written into a "
                'tensor (x[...] = weight): use torch.where or torch.cat'
            )
        return out

    def _note(
        self, call: Any, out: Any, given: list[Tensor], trained: list[Tensor]
    ) -> None:
        known, many = self.known, type(out) in (tuple, list)
        made = [
            (k, t)
            for k, t in enumerate(out if many else (out,))
            if isinstance(t, Tensor) and id(t) not in known
        ]
        live = [(k, t) for k, t in made if t.requires_grad]
        private = any(
            id(t) not in known and (t.dim() or t.requires_grad) for t in given
        )
        if not live or not trained:
            for _, t in made:
                if not private and not t.requires_grad:
                    known[id(t)] = Known(t, t, ())
            return
        shape = live[0][1].shape
        rows = call[1] in ('expand', 'repeat') and shape and shape[0]
        if not private and not (rows and shape[0] in self.sizes):
            for _, t in live:
                known[id(t)] = self._derived(t, trained)
            return
        if len(live) > 1:
            raise Unseen(
                f"'{self.stack[-1]}': {call[1]} has several results that "
                'depend on a parameter'
            )
        ((pick, t),) = live
        func, name, args, kwargs = call
        self.uses.append(
            Use(
                *(func, name, args, kwargs, pick if many else None),
                *(get_gradient_edge(t), self.stack[-1]),
            )
        )

    def _derived(self, t: Tensor, trained: list[Tensor]) -> Known:
        of = [self.known[id(q)] for q in trained]
        leaves = tuple({id(p): p for k in of for p in k.leaves}.values())
        base = of[0].base
        view = len(of) == 1 and t._is_view() and t.layout == torch.strided
        same = view and (
            t.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        )
        return Known(t, base if same else t, leaves)

    def _compute(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if not self.exact:
            return func(*args, **kwargs)
        out, local = rowwise.call(func, name, args, kwargs)
        if not local:
            self.foreign.add(name)
        return out


# Two passes #################################################################


class Attributor:
    """Maker of per-unit gradients of a model.

    Args:
        module (torch.nn.Module): the model.
        exact (bool): whether each row's bits are to be those of the row
            alone. (default: :obj:`False`)
    """

    def __init__(self, module: nn.Module, exact: bool = False) -> None:
        self.module, self.exact = module, exact
        #: Functions that may round a row otherwise in another batch.
        self.foreign: set[str] = set()
        self._recorder: Recorder | None = None
        self._given: list[Tensor] = []
        self._num_units = 0
        # By the noted calls that were verified, the names of their owners.
        self._plans: dict[Any, list[Any]] = {}

    def parameters(self) -> dict[str, Tensor]:
        """Return the trained parameters, by name."""
        named = self.module.named_parameters()
        return {name: p for name, p in named if p.requires_grad}

    def run(
        self,
        call: Callable[[], T],
        given: Sequence[Tensor],
        num_units: int,
        sizes: Iterable[int] = (),
    ) -> T:
        """Run the model and record how it uses parameters.

        ``given`` are vectors of units, and ``sizes`` the numbers of the rows
        of which nobody says whose they are.
        """
        units = torch.arange(num_units, device=given[0].device)
        self._given, self._num_units = [*given, units], num_units
        # What layers keep, frozen parameters and buffers are constants.
        constants = (
            value
            for layer in self.module.modules()
            for held in (layer._parameters, layer._buffers, vars(layer))
            for value in held.values()
            if isinstance(value, Tensor) and not value.requires_grad
        )
        rows = {*sizes, *map(len, self._given)}
        self._recorder = recorder = Recorder(
            self.parameters(), constants, rows, self.exact
        )
        with recorder.of(self.module):
            out = call()
        return out

    def attribute(
        self,
        out: Tensor,
        grad: Tensor,
        owner: Tensor,
        inputs: Inputs = (),
        verify: bool = True,
    ) -> Book:
        """Attribute gradients of the recorded call to units.

        ``grad`` is that by the outputs, of a loss with a term per unit, and
        ``owner`` the unit of each row of the outputs. ``inputs`` require a
        gradient, with the unit of each row (None where it is to be found), so
        that units show that meet before the first parameter. ``verify`` sends
        the gradient back twice, also where the same calls were verified.

        Raises:
            Mixing: if rows of several units meet.
            Unseen: if a parameter is used where nothing recorded it.
        """
        recorder = self._recorder
        assert recorder is not None
        scale, inverse = _scales(grad, owner, self._num_units)
        first = grad * _rows(scale.to(grad)[owner], out)
        first = first.nan_to_num(0.0, 0.0, 0.0)
        ends = [use.edge for use in recorder.uses] + [x for x, _ in inputs]
        signals = self._back(out, ends, first)
        wrong = ~grad.detach().isfinite().flatten(1).all(1)
        broken = torch.zeros_like(scale, dtype=torch.bool)
        broken[owner[wrong]] = True
        made = Book(recorder, inverse, broken)
        key = tuple((use.name, use.where) for use in recorder.uses)
        found = None if verify else self._planned(key, signals)
        code = None
        if found is None:
            code = _codes(self._num_units).to(out.device)
            second = first * _rows(code.to(first)[owner], out)
            params = list(recorder.params.values())
            coded = _grad(out, [*ends, *params], second)
            owners = Owners(
                code,
                self._tried,
                first.dtype,
                lambda: self._back(out, ends, first * KAPPA),
                list(zip(signals, coded, strict=False)),
            )
            owners.see(owner, first.double().flatten(1).square().sum(1).sqrt())
            found = self._verified(owners, inputs)
            broken |= owners.broken
        for use, b, whose in zip(recorder.uses, signals, found, strict=False):
            if whose is not None:
                apply_rule(made, use, b, *whose)
        self.foreign |= recorder.foreign
        if code is not None:
            if not bool(broken.any()):
                self._compare(out, first, made, coded[len(ends) :], owners)
            self._plans[key] = owners.names[: len(key)]
        return made

    def _back(self, out: Tensor, ends: list[Any], grad: Tensor) -> list[Any]:
        # Signals; gradients of parameters are not computed.
        if not ends:
            return []
        stops = set()
        if self.exact:
            assert self._recorder is not None
            for each in self._recorder.known.values():
                if each.leaves:
                    stops.add(get_gradient_edge(each.tensor).node)
        with ops.without_gradients(stops):
            return _grad(out, ends, grad)

    def _verified(self, owners: 'Owners', inputs: Inputs) -> Found:
        # The owners of the rows of all uses.
        recorder = self._recorder
        assert recorder is not None
        found: Found = [None] * len(recorder.uses)
        for i in reversed(range(len(recorder.uses))):
            use = recorder.uses[i]
            whose = owners.find(i)
            if isinstance(whose, str):
                raise Mixing(_mixing(f"'{use.where}'", use.name, whose))
            found[i] = whose
            if whose is not None and owners.names[i] is None and self.exact:
                recorder.foreign.add(f'{use.name} (owners decoded)')
        for i, (_, own) in enumerate(inputs, len(recorder.uses)):
            whose = owners.find(i, own)
            if isinstance(whose, str):
                raise Mixing(_mixing('the model', 'its inputs', whose))
        return found

    def _tried(self, n: int) -> Iterator[tuple[Any, Tensor]]:
        # Owners that may be of so many rows, with names: those given, and
        # those of the nodes that so many rows were taken from.
        for j, u in enumerate(self._given):
            if len(u) == n:
                yield (j,), u
        assert self._recorder is not None
        for k, index in enumerate(self._recorder.taken.values()):
            last = int(index.max()) if len(index) == n > 0 else math.inf
            for j, u in enumerate(self._given):
                if len(u) > last:
                    yield (j, k), u[index]

    def _planned(self, key: Any, signals: list[Any]) -> Found | None:
        # The owners that were verified for the same calls; None if they have
        # to be verified again: if there are none now, or others that may be
        # meant, as owners of as many rows are told by codes alone.
        plan = self._plans.get(key)
        if plan is None:
            return None
        out: Found = []
        known: dict[int, Any] = {}
        for b, each in zip(signals, plan, strict=False):
            if b is None or not b.numel():
                out.append(None)
                continue
            if each is None or b.dim() <= each[1]:
                return None
            name, d = each
            n = b.shape[d]
            if n not in known:
                known[n] = dict(self._tried(n))
            mine = known[n].get(name)
            if mine is None or any(
                len(k) == 1 and u is not mine and not torch.equal(u, mine)
                for k, u in known[n].items()
            ):
                return None
            out.append((mine, d))
        return out

    def _compare(
        self,
        out: Tensor,
        first: Tensor,
        made: Book,
        refs: list[Any],
        owners: 'Owners',
    ) -> None:
        # Compare the sum of coded gradients with autograd's own.
        totals, sizes = made.total(owners.code)
        largest = float(owners.scale.norm())
        _, by_unit, by_size = owners.tolerance
        for p, ref in zip(made.params, refs, strict=True):
            total, size = totals[id(p)], sizes[id(p)]
            off = float((total if ref is None else total - ref).norm())
            size += 0.0 if ref is None else float(ref.norm())
            least = by_unit * largest * math.sqrt(p.numel())
            # What is not finite is of an input, whose unit adds nothing.
            if not off > by_size * size + least:
                continue
            # Rounding shows in a pass with one constant for all.
            h, h3 = (_grad(out, [p], first * by)[0] for by in (1, KAPPA))
            if h is not None and (
                off <= 100 * float((h3 - KAPPA * h).norm()) + size * 1e-6
            ):
                continue
            raise Unseen(
                f"'{made.names[id(p)]}' is used where its gradient by "
                'subgraphs is not seen (in a function with a backward pass of '
                'its own, or behind a hook): write it with functions of torch'
            )


def _grad(out: Tensor, ends: Sequence[Any], grad: Tensor) -> list[Any]:
    return list(
        torch.autograd.grad(
            *(out, ends, grad), retain_graph=True, allow_unused=True
        )
    )


def _rows(values: Tensor, like: Tensor) -> Tensor:
    # A number for each row.
    return values.view(-1, *[1] * (like.dim() - 1))


def _mixing(where: str, what: str, rows: str) -> str:
    return (
        'the model needs to treat subgraphs apart, but rows of several '
        f'subgraphs meet behind {what} in {where} ({rows}): look for '
        'normalisation, pooling or attention over the whole batch. Rounding '
        'of very large features shows in the same way: try it in float64'
    )


def _codes(count: int) -> Tensor:
    # A permutation of a grid, with jitter. Nothing rests on more than that
    # nobody foresaw its numbers; torch's own generator is the user's.
    generator = torch.Generator()
    generator.seed()
    order = torch.randperm(count, generator=generator)
    jitter = torch.rand(count, dtype=torch.float64, generator=generator) / 2
    return 1 + (order + jitter) / max(count, 1)


def _scales(grad: Tensor, owner: Tensor, count: int) -> tuple[Tensor, Tensor]:
    # Powers of two that bring the largest entry of each unit into [1/2, 1),
    # and their inverses.
    top = grad.detach().abs().flatten(1).amax(1).double()
    most = top.new_zeros(count).scatter_reduce_(0, owner, top, 'amax')
    live = (most > 0) & most.isfinite()
    power = torch.frexp(torch.where(live, most, 1.0))[1]
    if grad.dtype == torch.float32:
        power = power.clamp(-120, 120)
    one = torch.ones_like(most)
    scale = torch.where(live, torch.ldexp(one, -power), 0.0)
    return scale, torch.where(live, torch.ldexp(one, power), 0.0)


# Whose each row is ###########################################################


# How far numbers of a type may be off by rounding alone: a row from its code,
# over its norm and over the largest row of its unit; sums over their size.
_TOLERANCES = {
    torch.float32: (2e-4, 1e-5, 1e-3),
    torch.float64: (1e-9, 1e-12, 1e-8),
}
# The factor of the third pass, in which rounding shows and mixing does not,
# and that between what it shows of a unit and what is allowed.
KAPPA, _ROUNDING = 1.3719, 30


class _Projected(NamedTuple):
    # The rows of a signal, along dimension d of that with number i: a few
    # numbers each, those of the coded signal, and their norms.
    i: int
    d: int
    one: Tensor
    coded: Tensor
    size: Tensor


class Owners:
    """Finder of whose each row of a signal is.

    Args:
        code (Tensor): float64, ``[num_units]``.
        tried (callable): yields owners of so many rows that are worth a try,
            each with a name.
        dtype (torch.dtype): of the signals.
        third (callable): makes the pass in which rounding shows.
        pairs (list): the signals, each with that of the coded pass.
    """

    def __init__(
        self,
        code: Tensor,
        tried: Callable[[int], Iterator[tuple[Any, Tensor]]],
        dtype: torch.dtype,
        third: Callable[[], list[Any]],
        pairs: list[tuple[Any, Any]],
    ) -> None:
        self.code, self._pairs = code, pairs
        self._order = code.argsort()
        ordered = code[self._order]
        self._mids = (ordered[1:] + ordered[:-1]) / 2
        self.tolerance = _TOLERANCES.get(dtype, _TOLERANCES[torch.float32])
        #: The largest row of each unit, from here to the outputs.
        self.scale = torch.zeros_like(code)
        #: Units with rows that are not finite.
        self.broken = torch.zeros_like(code, dtype=torch.bool)
        #: What was found by: a name and the dimension of the rows; None where
        #: the owners were decoded.
        self.names: list[Any] = [None] * len(pairs)
        self._third, self._noise = third, list[Any]()
        self._tried = tried
        self._tries: dict[int, list[tuple[Any, Tensor]]] = {}
        self._drawn: dict[int, Tensor] = {}

    def see(self, u: Tensor, size: Tensor) -> None:
        """Note how large the rows of each unit are."""
        self.scale.scatter_reduce_(0, u, size, 'amax')

    def find(
        self, i: int, own: Tensor | None = None
    ) -> tuple[Tensor, int] | str | None:
        """Find which subgraph owns each row of the signal with a number.

        With ``own``, compare with these owners alone.

        Returns the owners (-1 for none) and the dimension of the rows; None
        without a signal. Where rows of several subgraphs were added up,
        returns how many rows these are.
        """
        b, coded = self._pairs[i]
        if b is None or not b.numel():
            return None
        worst = 1, 1
        for d in range(b.dim() if own is None else 1):
            n = b.shape[d]
            rows = self._projected(i, d, b, coded)
            broken = ~(rows.size.isfinite() & rows.coded.isfinite().all(1))
            some = bool(broken.any())
            if some:
                rows = rows._replace(
                    one=_without(rows.one, broken),
                    coded=_without(rows.coded, broken),
                    size=_without(rows.size, broken),
                )
            if n not in self._tries:
                self._tries[n] = list(self._tried(n))
            tries = self._tries[n] if own is None else [(None, own)]
            for name, u in tries:
                off, may = self._off(rows, u)
                if bool((off <= may).all()):
                    self.see(u, rows.size)
                    self.names[i] = name, d
                    if some:
                        self.broken[u[broken]] = True
                        u = u.masked_fill(broken, -1)
                    return u, d
            if own is None:
                one = rows.one
                ratio = (rows.coded * one).sum(1)
                ratio /= one.square().sum(1).clamp_min(1e-300)
                u = self._order[torch.searchsorted(self._mids, ratio)]
                off, may = self._off(rows, u, 0.2 / len(self.code))
            lost = off > may
            if not bool(lost.any()):
                self.see(u, rows.size)
                return u.masked_fill((off > 0) | (rows.size == 0), -1), d
            part = int(lost.sum()), len(lost)
            if part[0] * worst[1] <= worst[0] * part[1]:
                worst = part
        return f'{worst[0]} of {worst[1]} rows'

    def _projected(
        self, i: int, d: int, b: Tensor, coded: Tensor
    ) -> _Projected:
        m, mr = (v.movedim(d, 0).reshape(b.shape[d], -1) for v in (b, coded))
        k = m.shape[1]
        if k > 4:
            if k not in self._drawn:
                drawn = torch.randn(k, 3, dtype=b.dtype, device=b.device)
                self._drawn[k] = drawn / 3**0.5
            m, mr = m @ self._drawn[k], mr @ self._drawn[k]
        m, mr = m.double(), mr.double()
        return _Projected(i, d, m, mr, m.square().sum(1).sqrt())

    def _off(
        self, rows: _Projected, u: Tensor, most: float = math.inf
    ) -> tuple[Tensor, Tensor]:
        # How far rows are from their unit's code, and how far they may be.
        by_row, by_unit, _ = self.tolerance
        relative = min(by_row, 0.5 / len(self.code), most)
        off = rows.coded - self.code[u].unsqueeze(1) * rows.one
        off = off.square().sum(1).sqrt() - relative * rows.size
        may = by_unit * self.scale[u]
        lost = int((off > may).sum())
        if lost and 8 * lost < len(off):
            self._noise = self._noise or self._third()
            given = rows.i, rows.d, self._pairs[rows.i][0], self._noise[rows.i]
            third = self._projected(*given)
            by = (third.coded - KAPPA * third.one).square().sum(1).sqrt()
            rounding = torch.zeros_like(self.scale)
            rounding.scatter_reduce_(0, u, by.nan_to_num(0.0), 'amax')
            may = torch.maximum(may, _ROUNDING * rounding[u])
        return off, may


def _without(values: Tensor, broken: Tensor) -> Tensor:
    return values.masked_fill(_rows(broken, values), 0)
