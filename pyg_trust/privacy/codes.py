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
algebra (``privacy/rules.py``). A check after Freivalds compares :math:`\sum_u
r_u \langle g_u, z \rangle`, for a random :math:`z`, with autograd's own
gradient of the second pass, so that a use of a parameter that nobody noted is
noticed (:class:`Unseen`).

All scales are powers of two, so that what a unit's rows are does not depend on
the others by a bit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from pyg_trust import ops
from pyg_trust.privacy.recorder import (
    Gathered,
    Recorder,
    constants_of,
    followed,
)
from pyg_trust.privacy.rules import Mixing, Unseen, apply_rule

__all__ = ['Attributed', 'Attributor']

T = TypeVar('T')
Inputs = Sequence[tuple[Tensor, Tensor | None]]
#: The owners of the rows of each use, and their dimension.
Found = list[tuple[Tensor, int] | None]


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
        self, call: Callable[[], T], given: Sequence[Tensor], num_units: int
    ) -> T:
        """Run the model and record how it uses parameters."""
        units = torch.arange(num_units, device=given[0].device)
        self._given, self._num_units = [*given, units], num_units
        sizes = {len(u) for u in self._given}
        recorder = Recorder(
            self.parameters(), constants_of(self.module), sizes, self.exact
        )
        with followed(self.module, recorder), recorder:
            out = call()
        self.foreign |= recorder.foreign
        self._recorder = recorder
        return out

    def attribute(
        self,
        out: Tensor,
        grad: Tensor,
        owner: Tensor,
        inputs: Inputs = (),
        verify: bool = True,
    ) -> 'Attributed':
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
        if recorder is None:
            raise RuntimeError('run the model first')
        count = self._num_units
        scale, inverse = _scales(grad, owner, count)
        first = grad * _rows(scale.to(grad)[owner], out)
        first = first.nan_to_num(0.0, 0.0, 0.0)
        ends: list[Any] = [use.edge for use in recorder.uses]
        ends += [x for x, _ in inputs]
        signals = self._back(out, ends, first)
        wrong = ~grad.detach().isfinite().flatten(1).all(1)
        broken = torch.zeros(count, dtype=torch.bool, device=grad.device)
        broken[owner[wrong]] = True
        made = Gathered(recorder, count)
        key = tuple((use.name, use.where) for use in recorder.uses)
        found = None if verify else self._planned(key, signals)
        if found is None:
            owners, refs, found, names = self._verified(
                out, first, owner, inputs, ends, signals
            )
            broken |= owners.broken
        for use, b, whose in zip(recorder.uses, signals, found, strict=False):
            if whose is not None:
                apply_rule(made, use, b, *whose)
        self.foreign |= recorder.foreign
        if verify or key not in self._plans:
            if not bool(broken.any()):
                self._freivalds(out, first, made, refs, owners)
            self._plans[key] = names
        return Attributed(made, inverse, broken)

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

    def _verified(
        self,
        out: Tensor,
        first: Tensor,
        owner: Tensor,
        inputs: Inputs,
        ends: list[Any],
        signals: list[Any],
    ) -> 'tuple[Owners, list[Any], Found, list[Any]]':
        # The owners of all rows by a second pass, the gradients of parameters
        # in it, and the names of the owners.
        recorder = self._recorder
        assert recorder is not None
        code = _codes(self._num_units).to(out.device)
        second = first * _rows(code.to(first)[owner], out)
        whole = [
            *recorder.params.values(),
            *(d.tensor for d in recorder.derived),
        ]
        coded = _grad(out, [*ends, *whole], second)

        def third() -> list[Any]:
            again = self._back(out, ends, first * KAPPA)
            return list(zip(signals, again, strict=True))

        owners = Owners(
            *(code, self._given, recorder.edges, first.dtype, third)
        )
        owners.see(owner, first.double().flatten(1).square().sum(1).sqrt())
        found: Found = [None] * len(recorder.uses)
        names: list[Any] = [None] * len(recorder.uses)
        for i in reversed(range(len(recorder.uses))):
            use, b = recorder.uses[i], signals[i]
            if b is None or not b.numel():
                continue
            whose = owners.find(i, b, coded[i]) if b.dim() else (1, 1)
            if len(whose) == 2:
                raise Mixing(_mixing(f"'{use.where}'", use.name, whose))
            found[i], names[i] = whose[:2], (whose[2], whose[1])
            if whose[2] is None and self.exact:
                recorder.foreign.add(f'{use.name} (owners decoded)')
        for i, (_, own) in enumerate(inputs, len(recorder.uses)):
            if signals[i] is None:
                continue
            lost: tuple[Any, ...]
            if own is not None:
                lost = owners.check(i, own, signals[i], coded[i])
            else:
                lost = owners.find(i, signals[i], coded[i])
            if len(lost) == 2 and lost[0]:
                raise Mixing(_mixing('the model', 'its inputs', lost))
        return owners, coded[len(ends) :], found, names

    def _planned(self, key: Any, signals: list[Any]) -> Found | None:
        # The owners that were verified for the same calls; None if they have
        # to be verified again.
        names, recorder = self._plans.get(key), self._recorder
        if names is None:
            return None
        assert recorder is not None
        out: Found = []
        same: dict[Any, Tensor | None] = {}
        for b, plan in zip(signals, names, strict=False):
            if b is None or not b.numel():
                out.append(None)
                continue
            if plan is None or plan[0] is None:
                return None
            name, d = plan
            n = b.shape[d] if b.dim() > d else -1
            if (name, n) not in same:
                same[name, n] = _known(n, name, self._given, recorder.edges)
            mine = same[name, n]
            if mine is None:
                return None
            out.append((mine, d))
        return out

    def _freivalds(
        self,
        out: Tensor,
        first: Tensor,
        made: Gathered,
        refs: list[Any],
        owners: 'Owners',
    ) -> None:
        # Compare random products with those of autograd's own gradients.
        recorder = made.recorder
        whole = [*made.params, *(each.tensor for each in recorder.derived)]
        direct = dict(zip(map(id, whole), refs, strict=True))
        used = {id(base.base): base for base in made.bases()}
        # What came by way of a tensor that has uses of its own is its own.
        for k in reversed(range(len(made.params), len(whole))):
            t, ref = whole[k], direct[id(whole[k])]
            if ref is None or id(t) not in used:
                continue
            for each, g in zip(
                whole[:k], _grad(t, whole[:k], ref), strict=True
            ):
                if g is not None and direct[id(each)] is not None:
                    direct[id(each)] = direct[id(each)] - g
        largest, tolerance = float(owners.scale.norm()), owners.tolerance
        for t in whole:
            base, ref = used.get(id(t)), direct[id(t)]
            if base is None and id(t) not in made.names:
                continue
            z = _probe(t)
            total, size, want = 0.0, 0.0, 0.0
            if base is not None:
                total, size = made.probed(base, z, owners.code)
            if ref is not None:
                dense = torch.outer(*z) if isinstance(z, tuple) else z
                want = float((ref.double() * dense.double()).sum())
            if not math.isfinite(want):
                # Of an input that is not finite, whose unit adds nothing.
                continue
            size += abs(want)
            off = abs(total - want)
            least = tolerance.unit * largest * math.sqrt(t.numel())
            if off <= tolerance.sums * size + least:
                continue
            # Rounding shows in a pass with one constant for all.
            h, h3 = (_grad(out, [t], first * by)[0] for by in (1, KAPPA))
            if h is not None and (
                off <= 100 * float((h3 - KAPPA * h).norm()) + size * 1e-6
            ):
                continue
            names = [made.names[id(p)] for p in made.params_of(t)]
            raise Unseen(
                f"'{', '.join(names)}' is used where its gradient by "
                'subgraphs is not seen (in a function with a backward pass of '
                'its own, or behind a hook): write it with functions of torch'
            )


class Attributed:
    """Gradients of a batch by units, as rows that parameters got.

    Args:
        made (Gathered): the rows, of gradients times their units' scales.
        inverse (Tensor): float64, what undoes the scale of each unit.
        broken (Tensor): bool, units that are not finite.
    """

    def __init__(
        self, made: Gathered, inverse: Tensor, broken: Tensor
    ) -> None:
        self.made, self.inverse, self.broken = made, inverse, broken


def _grad(out: Tensor, ends: Sequence[Any], grad: Tensor) -> list[Any]:
    return list(
        torch.autograd.grad(
            *(out, ends, grad), retain_graph=True, allow_unused=True
        )
    )


def _rows(values: Tensor, like: Tensor) -> Tensor:
    # A number for each row.
    return values.view(-1, *[1] * (like.dim() - 1))


def _mixing(where: str, what: str, rows: Any) -> str:
    return (
        'the model needs to treat subgraphs apart, but rows of several '
        f'subgraphs meet behind {what} in {where} ({rows[0]} of {rows[1]} '
        'rows): look for normalisation, pooling or attention over the whole '
        'batch. Rounding of very large features shows in the same way: try it '
        'in float64'
    )


def _generator() -> torch.Generator:
    # Nothing rests on more than that nobody foresaw its numbers; torch's own
    # is the user's.
    generator = torch.Generator()
    generator.seed()
    return generator


def _codes(count: int) -> Tensor:
    # A permutation of a grid, with jitter.
    generator = _generator()
    order = torch.randperm(count, generator=generator)
    jitter = torch.rand(count, dtype=torch.float64, generator=generator) / 2
    return 1 + (order + jitter) / max(count, 1)


def _probe(t: Tensor) -> Any:
    # Random numbers, of a matrix the outer product of two vectors.
    generator = _generator()
    sizes = [(n,) for n in t.shape] if t.dim() == 2 else [tuple(t.shape)]
    made = [
        torch.randn(size, dtype=t.dtype, generator=generator).to(t)
        for size in sizes
    ]
    return tuple(made) if t.dim() == 2 else made[0]


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


class Tolerance(NamedTuple):
    """How far numbers of a type may be off by rounding alone.

    A row from its code, over its norm and over the largest row of its unit;
    the sums of the check after Freivalds, over their size.
    """

    row: float
    unit: float
    sums: float


TOLERANCES = {
    torch.float32: Tolerance(2e-4, 1e-5, 1e-3),
    torch.float64: Tolerance(1e-9, 1e-12, 1e-8),
}
# The factor of the third pass, in which rounding shows and mixing does not.
KAPPA = 1.3719
# The factor between what the third pass shows of a unit and what is allowed.
_ROUNDING = 30


class Owners:
    """Finder of whose each row of a signal is.

    Args:
        code (Tensor): float64, ``[num_units]``.
        given (sequence of Tensor): owners of rows that are worth a try.
        edges (sequence of Tensor): indices along which messages went.
        dtype (torch.dtype): of the signals.
        third (callable): makes the pass in which rounding shows.
    """

    def __init__(
        self,
        code: Tensor,
        given: Sequence[Tensor],
        edges: Sequence[Tensor],
        dtype: torch.dtype,
        third: Callable[[], list[Any]],
    ) -> None:
        self.code, self.num_units = code, len(code)
        self._order = code.argsort()
        ordered = code[self._order]
        self._mids = (ordered[1:] + ordered[:-1]) / 2
        self.tolerance = TOLERANCES.get(dtype, TOLERANCES[torch.float32])
        #: The largest row of each unit, from here to the outputs.
        self.scale = torch.zeros_like(code)
        #: Units with rows that are not finite.
        self.broken = torch.zeros_like(code, dtype=torch.bool)
        self._third = third
        self._noise: list[Any] | None = None
        self._drawn: dict[int, Tensor] = {}
        self._tries: dict[int, list[tuple[Any, Tensor]]] = {}
        self._given, self._edges = given, edges

    def see(self, u: Tensor, size: Tensor) -> None:
        """Note how large the rows of each unit are."""
        self.scale.scatter_reduce_(0, u, size, 'amax')

    def find(
        self, i: int, b: Tensor, coded: Tensor
    ) -> tuple[Tensor, int, Any] | tuple[int, int]:
        """Find which subgraph owns each row of a gradient.

        Returns the owners (-1 for none), the dimension of the rows, and its
        name, or :obj:`None` if the owners were decoded. Where rows of several
        subgraphs were added up, returns the numbers of such rows and of all.
        """
        worst = 2, 1
        for d in range(b.dim()):
            m, mr, size = self._projected(b, coded, d)
            broken = ~(size.isfinite() & mr.isfinite().all(1))
            some = bool(broken.any())
            if some:
                mask = broken.view(-1, 1)
                m, mr = m.masked_fill(mask, 0), mr.masked_fill(mask, 0)
                size = size.masked_fill(broken, 0)
            n = b.shape[d]
            if n not in self._tries:
                self._tries[n] = list(_tried(n, self._given, self._edges))
            for name, u in self._tries[n]:
                off, may = self._off(i, d, u, m, mr, size)
                if bool((off <= may).all()):
                    self.see(u, size)
                    if some:
                        self.broken[u[broken]] = True
                        u = u.masked_fill(broken, -1)
                    return u, d, name
            ratio = (mr * m).sum(1) / m.square().sum(1).clamp_min(1e-300)
            u = self._order[torch.searchsorted(self._mids, ratio)]
            off, may = self._off(i, d, u, m, mr, size, 0.2 / self.num_units)
            lost = off > may
            if not bool(lost.any()):
                self.see(u, size)
                return u.masked_fill((off > 0) | (size == 0), -1), d, None
            part = int(lost.sum()), len(lost)
            if part[0] * worst[1] < worst[0] * part[1]:
                worst = part
        return worst

    def check(
        self, i: int, u: Tensor, b: Tensor, coded: Tensor
    ) -> tuple[int, int]:
        """Return how many rows contradict the given owners, of how many."""
        m, mr, size = self._projected(b, coded, 0)
        broken = ~(size.isfinite() & mr.isfinite().all(1))
        off, may = self._off(i, 0, u, m, mr, size)
        return int(((off > may) & ~broken).sum()), len(u)

    def _projected(
        self, b: Tensor, coded: Tensor, d: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        n = b.shape[d]
        m, mr = (v.movedim(d, 0).reshape(n, -1) for v in (b, coded))
        k = m.shape[1]
        if k > 4:
            if k not in self._drawn:
                drawn = torch.randn(k, 3, dtype=b.dtype, device=b.device)
                self._drawn[k] = drawn / 3**0.5
            m, mr = m @ self._drawn[k], mr @ self._drawn[k]
        m, mr = m.double(), mr.double()
        return m, mr, m.square().sum(1).sqrt()

    def _off(
        self,
        i: int,
        d: int,
        u: Tensor,
        m: Tensor,
        mr: Tensor,
        size: Tensor,
        most: float = math.inf,
    ) -> tuple[Tensor, Tensor]:
        # How far rows are from their unit's code, and how far they may be.
        relative = min(self.tolerance.row, 0.5 / self.num_units, most)
        off = (mr - self.code[u].unsqueeze(1) * m).square().sum(1).sqrt()
        off = off - relative * size
        may = self.tolerance.unit * self.scale[u]
        lost = int((off > may).sum())
        if lost and 8 * lost < len(off):
            if self._noise is None:
                self._noise = self._third()
            one, other = self._noise[i]
            p, p3, _ = self._projected(one, other, d)
            by = (p3 - KAPPA * p).square().sum(1).sqrt()
            rounding = torch.zeros_like(self.scale)
            rounding.scatter_reduce_(0, u, by.nan_to_num(0.0), 'amax')
            may = torch.maximum(may, _ROUNDING * rounding[u])
        return off, may


def _tried(
    n: int, given: Sequence[Tensor], edges: Sequence[Tensor]
) -> Iterator[tuple[Any, Tensor]]:
    # Owners that may be of so many rows, with names: those given, and those
    # of the nodes to which messages went.
    for j, u in enumerate(given):
        if len(u) == n:
            yield ('given', j), u
    seen = set()
    for k, e in enumerate(edges):
        if e.size(1) != n or id(e) in seen:
            continue
        seen.add(id(e))
        last = int(e[1].max()) if n else 0
        for j, u in enumerate(given):
            if len(u) > last:
                yield ('edges', k, j), u[e[1]]


def _known(
    n: int, name: Any, given: Sequence[Tensor], edges: Sequence[Tensor]
) -> Tensor | None:
    # The owners of so many rows by the name they were found with; None if
    # there are none, or others that may be meant: owners of as many rows that
    # differ are distinguished by codes alone.
    if name[0] == 'given':
        found = given[name[1]]
    elif name[1] < len(edges) and edges[name[1]].size(1) == n:
        e, u = edges[name[1]][1], given[name[2]]
        found = u[e] if len(u) > int(e.max() if n else 0) else u[:0]
    else:
        return None
    if len(found) != n or any(
        len(u) == n and u is not found and not torch.equal(u, found)
        for u in given
    ):
        return None
    return found
