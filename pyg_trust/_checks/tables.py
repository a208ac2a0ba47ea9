"""Detection of table columns and rows that contain other persons' data."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pyg_trust._checks.degrees import (
    FREE,
    KINDS,
    LINE,
    MEMBERS,
    on_a_line,
    one_for_each,
)

# Rows tried first for sums, and how many have to tell.
_TRIED, _FEW = 256, 5
# Rows in a row that are searched for elsewhere, one for columns of many
# values; how many such places; how often one may be found, and how many have
# to agree on a lag; the most lags that are tried.
_WINDOWS, _PLACES, _RARE, _VOTES, _CANDIDATES = (
    (1, 8, 32, 128, 512),
    16,
    64,
    3,
    16,
)
# How often a value changes in such rows.
_MOVES = 8
# Hashes are polynomials of an odd number; so many of their bits come first.
_BASE, _ODD, _BITS = 0x9E3779B97F4A7C15, -0x61C8864680B583EB, 20
# Logarithm of the number of orders of which one comes by chance.
_CHANCE = 14
# Above this many rows, rows of equal sums are searched first.
_LARGE = 2**16
# Columns of a sparse attribute at a time.
_BLOCK = 64


def tells_counts(x: Tensor, count: Tensor) -> bool:
    """Tell whether a column of features is a count or a rank.

    It does if it rises, or falls, wherever the count does; if it is on a line
    with the count; or if it has one value for each count. Orders that chance
    gives once in a million pass.

    Args:
        x (Tensor): ``[num_rows, num_columns]``.
        count (Tensor): int64, ``[num_rows]``: the counts.
    """
    values, back, size = count.unique(return_inverse=True, return_counts=True)
    if values.numel() < 3:
        return False
    x = x.double()
    if len(x) >= LINE and bool(on_a_line(x, count).any()):
        return True
    often = size >= MEMBERS
    if int(often.sum()) >= KINDS and int((size[often] - 1).sum()) >= FREE:
        inside = often[back]
        if bool(one_for_each(x[inside], count[inside]).any()):
            return True
    if _num_orders(back) < _CHANCE:
        return False
    shape = (values.numel(), x.size(1))
    index = back[:, None].expand_as(x)
    empty = torch.full(shape, torch.inf, dtype=torch.float64)
    low = empty.scatter_reduce(0, index, x, 'amin')
    high = (-empty).scatter_reduce(0, index, x, 'amax')
    moves = (high != high[:1]).any(0)
    rises = (low[1:] >= high[:-1]).all(0)
    falls = (high[1:] <= low[:-1]).all(0)
    for column in x.t()[(rises | falls) & moves]:
        kinds, place = column.unique(return_inverse=True)
        # Of all orders of both, those in which one rises with the other.
        ways = _num_orders(back) + _num_orders(place)
        ways -= _num_orders(back * kinds.numel() + place)
        if kinds.numel() >= 3 and ways > _CHANCE + math.log(2 * x.size(1)):
            return True
    return False


def tells_neighbors(x: Tensor, y: Tensor, ends: Tensor) -> bool:
    """Tell whether a column sums up, averages or bounds others' values.

    Averages and extremes are tested on rows whose neighbours differ: a value
    that all share may have been copied to them.

    Args:
        x (Tensor): ``[num_receivers, num_columns]``.
        y (Tensor): ``[num_senders, num_other_columns]``.
        ends (Tensor): int64, ``[2, num_edges]``: receivers and senders.
    """
    count = torch.bincount(ends[0], minlength=len(x))
    rows = (count > 1).nonzero().view(-1)
    if rows.numel() < _FEW:
        return False
    most = min(rows.numel(), _TRIED)
    some = rows[count[rows].topk(most, largest=False).indices]
    for how in ('sum', 'mean', 'amax', 'amin'):
        z, mask, value = _summed(x, y, ends, some, how)
        square = mask * z.square()
        off = square.sum(0)[:, None] + mask.t() @ value.square()
        like = off - 2 * (mask * z).t() @ value <= 1e-8 * off
        like &= mask.sum(0)[:, None] >= _FEW
        for a in like.any(1).nonzero().view(-1).tolist():
            z, mask, _ = _summed(x[:, :0], y[:, [a]], ends, rows, how)
            z, inside = z[mask > 0], rows[mask[:, 0] > 0]
            off = 1e-5 * (z - z.mean()).abs().amax()
            if not off:
                continue  # a column that follows has one order alone
            columns = like[a].nonzero().view(-1)
            for most in (_TRIED, len(z)):
                value = x[inside[:most][:, None], columns].double()
                columns = columns[
                    ((z[:most, None] - value).abs() <= off).all(0)
                ]
            chance = _CHANCE + math.log(x.size(1) * y.size(1))
            for b in columns.tolist():
                if _num_orders(x[inside, b].double()) > chance:
                    return True
    return False


def _summed(
    x: Tensor, y: Tensor, ends: Tensor, rows: Tensor, how: str
) -> tuple[Tensor, Tensor, Tensor]:
    # The others' values of some receivers, where they tell, and their own.
    place = ends.new_full((len(x),), -1)
    place[rows] = torch.arange(rows.numel())
    at = place[ends[0]]
    sent = y[ends[1][at >= 0]].double()
    at = at[at >= 0][:, None].expand_as(sent)

    def reduced(how: str) -> Tensor:
        out = sent.new_zeros(rows.numel(), y.size(1))
        return out.scatter_reduce(0, at, sent, how, include_self=False)

    z = reduced(how)
    mask = z != 0 if how == 'sum' else reduced('amax') > reduced('amin')
    return z, mask.double(), x[rows].double()


def lags(given: list[Tensor], least: int) -> list[int]:
    """Return lags at which a column may hold another's earlier values.

    Some short runs of rows of each column are searched for in all others, by
    hashes; a lag is returned if several runs are that far from where they are
    found. Time is linear in the size of the table.

    Args:
        given (list[Tensor]): matrices with a row for each row of the table.
        least (int): the least lag.
    """
    blocks = [x for each in given for x in each.split(_BLOCK, dim=1)]
    n, width = len(blocks[0]), sum(x.size(1) for x in blocks)
    windows = [w for w in _WINDOWS if n - w >= least]
    sought = [_Sought(blocks, w, least) for w in windows]
    found, first = [torch.empty((2, 0), dtype=torch.float64)], 0
    for x in blocks:
        hashes = _hashes(x)
        for w, runs in zip(windows, sought, strict=True):
            if runs.keys.numel():
                found.append(runs.lags(hashes(w), first, width))
        first += x.size(1)
    lag, weight = torch.cat(found, 1)
    lag, back, votes = lag.long().unique(
        return_inverse=True, return_counts=True
    )
    # Rows that are found in many places tell least.
    total = torch.zeros(len(lag), dtype=torch.float64)
    total = total.index_add(0, back, weight) * (votes >= _VOTES)
    best = total.argsort(descending=True, stable=True)[:_CANDIDATES]
    return lag[best[total[best] > 0]].tolist()


class _Sought:
    # Some runs of so many rows of each column, by their hashes.
    def __init__(self, blocks: list[Tensor], window: int, least: int) -> None:
        end = len(blocks[0]) - window
        tail = torch.arange(max(least, end - _PLACES + 1), end + 1)
        more = torch.linspace(least, end, _PLACES).long()
        self.at, self.least = torch.cat([tail, more]).unique(), least
        near = self.at[:, None] + torch.arange(window)
        size = len(self.at)
        parts = []
        for x in blocks:
            rows = x[near.flatten()].view(size, window, -1)
            found = torch.stack([_hashes(each)(window)[0] for each in rows])
            if window == 1:
                # Columns of many values.
                kinds = found.sort(0).values.diff(dim=0) != 0
                good = (4 * kinds.sum(0) >= 3 * (size - 1)).expand_as(found)
            else:
                moves = (rows[:, 1:] != rows[:, :-1]).sum(1)
                good = moves >= min(_MOVES, window // 2)
            parts.append(torch.where(good, found, 0))
        keys = torch.cat(parts, 1).flatten()
        self.keys, back = keys.unique(return_inverse=True)
        # One of the places that have such rows.
        self.place = torch.empty_like(self.keys)
        self.place[back] = torch.arange(len(back))
        self.place = self.place[self.keys != 0]
        self.keys = self.keys[self.keys != 0]
        self.here = torch.zeros(2**_BITS, dtype=torch.bool)
        self.here[_start(self.keys)] = True

    def lags(self, have: Tensor, first: int, width: int) -> Tensor:
        # How far runs are from where columns, from a first one on, have them,
        # and one over how often that is.
        row, column = self.here[_start(have)].nonzero(as_tuple=True)
        value = have[row, column]
        key = torch.searchsorted(self.keys, value)
        key = key.clamp(max=len(self.keys) - 1)
        place = self.place[key]
        lag = self.at[place // width] - row
        same = (self.keys[key] == value) & (column + first != place % width)
        often = key[same].bincount(minlength=len(self.keys))[key]
        good = same & (often <= _RARE) & (lag >= self.least)
        return torch.stack([lag.double(), 1.0 / often])[:, good]


def _start(hashes: Tensor) -> Tensor:
    return hashes >> (63 - _BITS) & (2**_BITS - 1)


def _hashes(x: Tensor) -> Callable[[int], Tensor]:
    # Hashes of so many rows from each one on, for rising powers of two.
    bits = (x.double() + 0.0).contiguous().view(torch.int64)
    bits = (bits ^ bits >> 29) * _ODD
    held = [bits ^ bits >> 32]
    base, size = _BASE, 1

    def hashes(window: int) -> Tensor:
        nonlocal base, size
        while size < window:
            power = (base + 2**63) % 2**64 - 2**63
            held[0] = held[0][:-size] + held[0][size:] * power
            base, size = base * base % 2**64, 2 * size
        return held[0] * _ODD

    return hashes


def follows(
    given: list[Tensor], later: Tensor, before: Tensor, tries: int = 1
) -> int | None:
    """Return a column that holds another one's previous value.

    Or its change since then, the sum of all that came before, or a linear map
    of the value. Columns of periodic values or steps depend on the position
    alone, and pass. So does a column whose next value is a linear map of its
    own last one: it tells nothing of others.

    Args:
        given (list[Tensor]): matrices with a row for each row of the table.
        later (Tensor): int64, ``[k]``: rows.
        before (Tensor): int64, ``[k]``: the row before each, of a stranger.
        tries (int): how many such lists were looked through.
            (default: :obj:`1`)

    Returns:
        int or None: the column, counted through all matrices.
    """
    if later.numel() < 8 or not given:
        return None
    now = torch.cat([x[later[:64]] for x in given], 1).double()
    then = torch.cat([x[before[:64]] for x in given], 1).double()
    width = now.size(1)
    chance = _CHANCE + 2 * math.log(width) + math.log(tries)
    place = [(i, j) for i, x in enumerate(given) for j in range(x.size(1))]
    # Columns that are alike have like products with a random vector.
    seed = torch.Generator().manual_seed(0)
    draw = torch.randn(later.numel(), dtype=torch.float64, generator=seed)

    def column(c: int) -> Tensor:
        i, j = place[c]
        return given[i][:, j].double()

    def far(other: Tensor, since: bool) -> Tensor:
        # How far products may be of columns that are alike.
        size = draw[: len(other)].abs()
        most = other.abs().amax(0) * size.sum() * 1e-6
        return 1e-9 * (size @ other.abs()) + since * most

    # What was there, what came since, and what came since as a sum so far.
    for since, at in ((False, later), (True, later), (True, before)):
        other = now - then if since else then
        few = draw[: len(now)]
        mine, theirs = few @ (now if at is later else then), few @ other
        off = far(other, since)
        product = torch.full((width,), torch.nan, dtype=torch.float64)
        for b in range(width):
            like = (mine - theirs[b]).abs() <= off[b]
            like[b] = False
            if not like.any():
                continue
            base = column(b)
            strange = value = base[before]
            if since:
                value = base[later] - strange
            for a in (like & product.isnan()).nonzero().view(-1).tolist():
                product[a] = draw @ column(a)[at]
            like &= (product - draw @ value).abs() <= far(value, since)
            if not like.any():
                continue
            # A change tells of a stranger whose value varies.
            if any(each.max() == each.min() for each in (value, strange)):
                continue
            if min(_num_orders(value), _num_orders(strange)) <= chance:
                continue
            size = 1e-6 * value.abs().amax() if since else 0
            for a in like.nonzero().view(-1).tolist():
                own = column(a)
                alike = bool(((own[at] - value).abs() <= size).all())
                # What does not change from row to row is of both, as the
                # price of one item is.
                stays = torch.equal(own[later], own[before])
                if alike and not stays and not _repeats(own):
                    return a
    return _mapped(now, then, column, later, before, chance + math.log(2))


def _mapped(
    now: Tensor,
    then: Tensor,
    column: Callable[[int], Tensor],
    later: Tensor,
    before: Tensor,
    chance: float,
) -> int | None:
    # A column that is on a line with another one's previous value, given some
    # rows of all of them.
    near = _centred(now).t() @ _centred(then)
    near = (1 - near.abs() <= 1e-8).fill_diagonal_(False)
    seed = torch.Generator().manual_seed(1)
    draw = torch.randn(later.numel(), dtype=torch.float64, generator=seed)
    product: dict[int, float] = {}
    for b in near.any(0).nonzero().view(-1).tolist():
        base = column(b)
        value = base[before]
        mine = abs(float(draw @ _centred(value)))
        found = []
        for a in near[:, b].nonzero().view(-1).tolist():
            if a not in product:
                product[a] = abs(float(draw @ _centred(column(a)[later])))
            if abs(product[a] - mine) <= 1e-4:
                found.append(a)
        # What goes on by itself tells of nobody.
        few = not found or _num_orders(value) <= chance
        if few or _on_line(base[later], value):
            continue
        for a in found:
            own = column(a)
            goes_on = _on_line(own[later], own[before])
            alike = not goes_on and _on_line(own[later], value)
            few = alike and _num_orders(own[later]) <= chance
            if alike and not few and not _repeats(own):
                return a
    return None


def _centred(value: Tensor) -> Tensor:
    # With a mean of 0 and a length of 1; NaN if it is constant.
    value = value - value.mean(0)
    return value / value.square().sum(0).sqrt()


def _on_line(x: Tensor, y: Tensor) -> bool:
    # Whether one is a linear map of the other, to rounding.
    one, two = _centred(x), _centred(y)
    off = torch.minimum((one - two).abs().amax(), (one + two).abs().amax())
    size = sum(
        v.abs().amax() / (v - v.mean()).square().sum().sqrt() for v in (x, y)
    )
    return bool(off <= 1e-6 * size)


def _num_orders(value: Tensor) -> float:
    # Logarithm of the number of orders that values could be in.
    size = value.unique(return_counts=True)[1]
    ways = torch.lgamma(torch.tensor(value.numel() + 1.0))
    return float(ways - torch.lgamma(size + 1.0).sum())


def _repeats(value: Tensor) -> bool:
    # Whether values, or the steps between them, are periodic.
    step = value.diff()
    step = (step / (1e-6 * step.abs().amax().clamp(min=1e-300))).round()
    return any(_period(each) <= len(each) // 2 for each in (value, step))


def _period(value: Tensor) -> int:
    # The least period, by the borders of Knuth, Morris and Pratt.
    few = value[:_LARGE].tolist()
    border, k = [0] * len(few), 0
    for i in range(1, len(few)):
        while k and few[i] != few[k]:
            k = border[k - 1]
        k += few[i] == few[k]
        border[i] = k
    period = len(few) - k
    whole = torch.equal(value[period:], value[: len(value) - period])
    return period if whole else len(value)


def shares_rows(
    a: Tensor, owner_a: Tensor, b: Tensor, owner_b: Tensor
) -> bool:
    """Tell whether two tables share a row under different owners.

    The row is not constant and occurs once in each table.

    Args:
        a (Tensor): ``[num_rows, num_columns]``: one table.
        owner_a (Tensor): int64, ``[num_rows]``: the owners of its rows.
        b (Tensor): the other table.
        owner_b (Tensor): the owners of its rows.
    """
    if a.size(1) != b.size(1) or a.dtype != b.dtype or a.size(1) < 2:
        return False
    if len(a) + len(b) > _LARGE:
        # Rows of other sums are other rows.
        one, two = _sums(a), _sums(b)
        there = torch.zeros(2**27, dtype=torch.bool).index_fill(0, one, 1)[two]
        here = torch.zeros(2**27, dtype=torch.bool)
        here = here.index_fill(0, two[there], 1)[one]
        a, owner_a = a[here], owner_a[here]
        b, owner_b = b[there], owner_b[there]
    rows, back, count = torch.cat([a, b]).unique(
        dim=0, return_inverse=True, return_counts=True
    )
    first, second = back[: len(a)], back[len(a) :]
    n = len(rows)
    twice = (count == 2) & (rows != rows[:, :1]).any(1)
    twice &= torch.bincount(first, minlength=n) == 1
    place = torch.zeros((2, n), dtype=torch.int64)
    place[0, first], place[1, second] = owner_a, owner_b
    return bool((place[0] != place[1])[twice].any())


def _sums(x: Tensor) -> Tensor:
    # The same 27 bits for equal rows.
    total = torch.zeros(len(x), dtype=torch.float64)
    for i in range(x.size(1)):
        total = (total * 0.7390851332151607).add_(x[:, i])
    bits = total.add_(0.0).view(torch.int64)
    return (bits * 0x9E3779B97F4A7C1 >> 31) & 0x7FFFFFF


def columns(store: Any) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the numbers that a node type has for each of its rows.

    Masks that are no labels and names (``n_id``) are left out. Wide sparse
    attributes come in blocks of columns.

    Yields:
        tuple[str, Tensor]: the attribute and its matrix, dense.
    """
    for key, value in store.items():
        if key == 'n_id' or not _in_rows(store, key, value):
            continue
        if value.dtype == torch.bool and key == 'y':
            value = value.byte()
        if value.dtype == torch.bool or value.is_complex():
            continue
        if value.layout == torch.strided:
            yield key, value[:, None] if value.dim() == 1 else value.flatten(1)
        elif value.dim() == 2:
            for block in torch.arange(value.size(1)).split(_BLOCK):
                some = value.to_sparse_coo().index_select(1, block)
                yield key, some.to_dense()


def _in_rows(store: Any, key: str, value: Any) -> bool:
    if not isinstance(value, Tensor) or not value.dim():
        return False
    if 'index' in key or key == 'ptr':
        return False
    edges = isinstance(store._key, tuple)
    return value.size(0) == (store.num_edges if edges else store.num_nodes)


def has_rows(store: Any, key: str, value: Any) -> bool:
    """Tell whether an attribute has a row for each node or edge.

    Args:
        store (NodeStorage or EdgeStorage): where it stands.
        key (str): its name.
        value (Any): the attribute.

    Raises:
        ValueError: if an attribute may hold rows that a removal would keep.
    """
    if isinstance(value, str | int | float):
        return False
    if isinstance(value, Tensor) and not value.dim():
        return False
    if _in_rows(store, key, value):
        return True
    raise ValueError(
        "'data' needs tensors with a row for each node or edge (got "
        f'{key!r} of {store._key}): take it off first'
    )
