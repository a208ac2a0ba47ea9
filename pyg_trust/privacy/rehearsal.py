r"""Compute a loss on made-up rows, then repeat it on those of the batch.

A loss is the user's own code, and can read what a model, a hook or a function
kept of the forward pass: an attribute, a list, a global, a number. Such a
value may be made of all rows of a batch, and nothing tells where it came from.
So there is none: the model is called with a few subgraphs of rows that are
made up, and the loss is computed of its outputs, as often as the batch has
subgraphs, and of features that are made up as well. Labels
that are integers are the batch's, as those that are ignored are counted. What
it takes from this call, values, shapes or errors, is then of no private row.
That it reads the data by its batch alone is an assumption, and in the report.

No number of a followed tensor can be read before its gradient has come
(:mod:`pyg_trust.privacy.flow`), so that the operations of a loss and of its
backward pass are the same whatever the outputs are. They are written down,
and when the gradient is asked for, the model is called with the rows of the
batch, and the operations are done again on these outputs: the gradient is the
one that the loss would have had, to the bit. An operation that returns another
shape then is refused, and so is a model whose settings are others than when it
was called. What the model kept of its call, as an attribute or in a list or a
dictionary that is one, raises an error when the loss computes with it, as it
would be of rows that are made up. In other places it is a wrong constant.

**Whole graphs.** Where a unit is a graph, how many nodes and edges it has is
private. The loss then sees graphs that are made up, of a public number of
nodes. Where it is private who is there at all, it sees a public number of them
as well; each graph takes a place of its own, drawn at random, so that the
place says nothing of the others. So does each row, where a unit has any number
of rows that the loss reads: the term of a unit is the mean of theirs.
"""

import copy
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from pyg_trust.privacy.calls import Call
from pyg_trust.privacy.decoys import Decoys, cuda_of
from pyg_trust.privacy.draws import set_random_state
from pyg_trust.privacy.flow import (
    NAMES,
    Followed,
    Slot,
    Step,
    Watch,
    check_shape,
    follow,
    follow_batch,
    gradient,
    pairs,
    plain,
    plainly,
    replaced,
    writes,
)
from pyg_trust.privacy.owners import facts
from pyg_trust.privacy.rows import Args, Kwargs
from pyg_trust.privacy.validation import BatchCall, terms_of

# The subgraphs that a model is called with, to see what it returns.
_FEW = 2
# Attributes that torch itself keeps in each module.
_OWN_OF_MODULES = frozenset(vars(nn.Module()))


class _Proved(NamedTuple):
    # A loss that was followed: what the owners of its gradient follow from.
    program: list[Any]
    owners: list[Tensor]
    facts: list[Any]


class Rehearsal:
    """One batch: the copy that the loss sees, and the real rows.

    Args:
        batch (Data): the batch.
        owner (Tensor): int64, ``[num_nodes]``: the subgraph of each node.
        count (int): the number of subgraphs.
        decoys (Decoys): makes the rows that are shown instead.
        by_unit (bool): whether subgraphs are whole graphs, whose sizes are
            private. (default: :obj:`False`)
    """

    def __init__(
        self,
        batch: Data,
        owner: Tensor,
        count: int,
        decoys: Decoys,
        by_unit: bool = False,
    ) -> None:
        # Writing into the batch that is handed out does not change this.
        self.batch = batch.clone()
        self.owner, self.count = owner, count
        self.watch = Watch(rehearses=True)
        self.by_unit = by_unit
        self._decoys = decoys
        self._out: Followed | None = None
        self._seen: list[str] = []
        # The unit of each row of outputs; the place of each, unless it is its
        # number.
        self._terms = terms_of(self.batch, owner, count)
        self._at: Tensor | None = None
        self._marked: list[tuple[Any, Any, Tensor, Followed]] = []
        if by_unit:
            self._made = decoys.graphs(self.batch, count)
            self.shown = self._hidden(batch, decoys)
            self.size = int(self._made.batch_size)
        else:
            self._made = decoys.batch(self.batch, owner, count)
            # How many labels are ignored is public; nothing else is private
            # and there while the loss is computed, not even for a shape.
            shown = copy.copy(self._made)
            if _has_labels(batch):
                shown.y = batch.y
            self.shown = follow_batch(shown, owner, count, self.watch)
            self.size = count
        self._roots = {
            value._slot: (name, _whose(value), value._memory.is_label)
            for name, value in self.shown.to_dict().items()
            if isinstance(value, Followed)
        }

    def _hidden(self, batch: Data, decoys: Decoys) -> Data:
        # Graphs whose rows nothing but the model may read.
        out = copy.copy(self._made)
        size = int(out.batch_size)
        units = torch.arange(size, device=self.owner.device)
        for name, value in self._made.to_dict().items():
            if not isinstance(value, Tensor):
                continue
            if name in ('ptr', 'batch') or value.size(0) != size:
                level = 'other'
            else:
                level = decoys.level(self.batch, name, value, size)
            if name == 'input_id' or level == 'unit':
                self._seen.append(name)
                hidden = decoys.by_row or size != self.count
                real = value if hidden else batch[name]
                out[name] = follow(real, units, self.watch, name in NAMES)
                # How many are left out is private where their number is.
                is_label = name == 'y' and decoys.num_units is None
                is_label &= not decoys.by_row
                out[name]._memory.is_label = is_label
            else:
                rows = torch.zeros(len(value), device=value.device).long()
                out[name] = follow(value, rows, self.watch, name in NAMES)
                out[name]._memory.hidden = name
        return out

    def call(self, module: nn.Module, call: BatchCall) -> Followed:
        """Call the model on made-up rows; return its outputs, followed."""
        self.restore()
        # Kept here, so that nothing new is found under the id of an old one.
        old = [value for *_, value in _kept(module)]
        before = set(map(id, old))
        with torch.enable_grad():
            out = self._few(module, call)
            if out is None:
                out = call(module, self._made)
        for name, place, key, value in _kept(module):
            if id(value) in before:
                continue
            if isinstance(value, Tensor):
                if value.layout != torch.strided:
                    continue
                storage = value.untyped_storage()
                self.watch.kept['at', storage._cdata] = name
                marked = Followed(value.detach(), None, self.watch)
                marked._memory.kept = name
                place[key] = marked
                self._marked.append((place, key, value, marked))
            else:
                self.watch.kept[value] = name
        self._out = follow(out.detach(), self._rows(out), self.watch)
        return self._out

    def _few(self, module: nn.Module, call: BatchCall) -> Tensor | None:
        # Outputs of few subgraphs, repeated, as only the shape matters. None
        # if few subgraphs do not tell the shape.
        if self.size <= _FEW:
            return None
        owner = self._made.batch if self.by_unit else self.owner
        try:
            few, nodes = self._part(module, call, owner)
            out = few.run(_cloned)
            rows = {_FEW: self.size, nodes: owner.numel()}[len(out)]
        except Exception:
            # The full call then raises the error, if there is one.
            return None
        return out.detach()[torch.arange(rows, device=out.device) % len(out)]

    def _part(
        self, module: nn.Module, call: BatchCall, owner: Tensor
    ) -> tuple[Call, int]:
        # A call with few subgraphs, and the number of their nodes.
        shapes = tuple(
            (name, value.shape[1:], value.dtype)
            for name, value in self._made.to_dict().items()
            if isinstance(value, Tensor)
        )
        key = call.key, shapes, self.size, len(owner)
        found = self._decoys.few.get(key) if self.by_unit else None
        if found is None or found[0].module is not module:
            args, kwargs = call.arguments(self._made)
            count = owner.bincount(minlength=self.size)
            largest = count.topk(_FEW).indices.sort().values
            whole = Call(module, args, kwargs, owner, self.size)
            few, nodes = whole.extract(largest)
            found = few, nodes.numel()
            if self.by_unit:
                # Decoys do not depend on the batch.
                self._decoys.few = {key: found}
        return found

    def restore(self) -> None:
        """Put back the model's tensors that markers have replaced."""
        for place, key, value, marked in self._marked:
            held = place.values() if isinstance(place, dict) else place
            if any(found is marked for found in held):
                place[key] = value
        self._marked.clear()

    def _rows(self, out: Tensor) -> Tensor:
        if not self.by_unit and out.size(0) == self.owner.numel():
            return self.owner
        return torch.arange(self.size, device=self.owner.device)

    def gradient(self, grad: Tensor, out: Tensor) -> Tensor:
        """Compute the loss's gradient with respect to the real outputs.

        Raises:
            ValueError: if a row's gradient depends on other subgraphs, or is
                not known to depend on its own alone.
        """
        shown = self._out
        assert shown is not None
        rows = self._rows(shown)
        if not isinstance(grad, Followed):
            return gradient(grad, rows, self.watch)
        if out.shape[1:] != shown.shape[1:] or out.dtype != shown.dtype:
            raise ValueError(
                "'module' needs to return rows of one shape, whatever the "
                f'features are (got {list(out.shape[1:])}, and '
                f'{list(shown.shape[1:])} on random features)'
            )
        by_row, terms = self._decoys.by_row, self._terms
        if self.size == self.count and not by_row:
            return self._again(grad, out, rows, {})
        found = torch.zeros_like(out)
        places = _places(len(terms), self.size)
        self._at = places[0]
        # Run each real row at its own place, among made-up rows.
        for turn in range(int(places[1].max()) + 1 if len(terms) else 0):
            here = (places[1] == turn).nonzero().view(-1).to(out.device)
            at = places[0].to(out.device)[here]
            values = {
                name: _put(
                    self._made[name],
                    at,
                    self.batch[name][self._of(name, here)],
                )
                for name in self._seen
            }
            made = _put(shown._value, at, out[here])
            found[here] = self._again(grad, made, rows, values)[at]
        share = terms.bincount(minlength=1)[terms].to(found)
        return found / share.view(-1, *[1] * (found.dim() - 1))

    def _of(self, name: str, rows: Tensor) -> Tensor:
        # Where an attribute has what is of some rows of outputs.
        of_row = self._decoys.by_row and name == 'y'
        return rows if of_row else self._terms[rows]

    def _again(
        self,
        grad: Followed,
        out: Tensor,
        rows: Tensor,
        values: dict[str, Tensor],
    ) -> Tensor:
        # Repeat all operations of the loss on other outputs.
        now = self._known(grad, out, rows, values)
        if now is None:
            now, found = self._followed(grad, out, rows, values)
        else:
            found = now[grad._slot]
        if self.watch.live:
            # From here on, the real batch may be read.
            self.watch.live = False
            if not self.by_unit:
                for slot in self._roots:
                    if slot not in now:
                        now[slot] = self._root(slot, values)
            for slot, value in now.items():
                handed = slot.get()
                if handed is None or (self.by_unit and slot in self._roots):
                    continue
                handed._value = value
        return found

    def _root(self, slot: Slot, values: dict[str, Tensor]) -> Tensor:
        # The real values of an attribute that was handed out.
        name = self._roots[slot][0]
        return values.get(name, self.batch[name]).clone()

    def _followed(
        self,
        grad: Followed,
        out: Tensor,
        rows: Tensor,
        values: dict[str, Tensor],
    ) -> tuple[dict[Slot, Tensor], Tensor]:
        # Repeat all operations, and follow whose data each number depends on.
        watch, steps = Watch(), self.watch.steps
        assert steps is not None
        assert self._out is not None
        watch.failed = self.watch.failed
        watch.weighted = self.watch.weighted
        now = {self._out._slot: follow(out, rows, watch)}
        seen: list[tuple[bool, ...] | None] = []

        def find(value: Any) -> Any:
            if not isinstance(value, Slot):
                return value
            if value not in now:
                name, whose, is_label = self._roots[value]
                real = self._root(value, values)
                now[value] = follow(real, whose, watch, name in NAMES)
                now[value]._memory.is_label = is_label
            return now[value]

        with torch.random.fork_rng(cuda_of(out)), torch.no_grad():
            for step in steps:
                args = replaced(step.args, find)
                kwargs = replaced(step.kwargs, find)
                seen.append(facts(step.func, args, kwargs, plain))
                watch.again = (step.node,)
                if step.states is not None:
                    set_random_state(step.states, out.device)
                made = _do(step, args, kwargs, watch)
                for slot, value in pairs(step, made):
                    check_shape(step.func, slot.shape, value.shape)
                    assert isinstance(value, Followed)
                    now[slot] = value
            found = gradient(now.get(grad._slot, grad), rows, watch)
        key = self._key(grad, out, rows)
        if key is not None and None not in seen and watch.failed is None:
            self._decoys.proved = _Proved(*key, seen)
        return {slot: value._value for slot, value in now.items()}, found

    def _known(
        self,
        grad: Followed,
        out: Tensor,
        rows: Tensor,
        values: dict[str, Tensor],
    ) -> dict[Slot, Tensor] | None:
        # Repeat all operations without following them, if the last loss had
        # the same operations: owners are a function of the key compared here.
        proved, key = self._decoys.proved, None
        if proved is not None and self.watch.failed is None:
            key = self._key(grad, out, rows)
        if proved is None or key is None or key[0] != proved.program:
            return None
        if not all(map(torch.equal, key[1], proved.owners)):
            return None
        steps = self.watch.steps
        assert steps is not None
        assert self._out is not None
        now = {self._out._slot: out}

        def find(value: Any) -> Any:
            if not isinstance(value, Slot):
                return value
            if value not in now:
                now[value] = self._root(value, values)
            return now[value]

        with torch.no_grad():
            for step, before in zip(steps, proved.facts, strict=True):
                args = replaced(step.args, find)
                kwargs = replaced(step.kwargs, find)
                if facts(step.func, args, kwargs, plain) != before:
                    return None
                for slot, value in pairs(step, plainly(step, find)):
                    check_shape(step.func, slot.shape, value.shape)
                    now[slot] = value
        return now

    def _key(
        self, grad: Followed, out: Tensor, rows: Tensor
    ) -> tuple[Any, list[Tensor]] | None:
        # What owners follow from: operations, shapes, types, constants and
        # the owners of what they begin with. None where memory is written to
        # or random numbers are drawn, or what comes back is not theirs.
        assert self.watch.steps is not None
        assert self._out is not None
        number: dict[Slot, Any] = {self._out._slot: -1}
        program: list[Any] = [out.shape, out.dtype]
        owners, foreign = [rows], False

        def name(value: Any) -> Any:
            nonlocal foreign
            if isinstance(value, Tensor):
                # A followed constant is of an earlier batch.
                foreign |= isinstance(value, Followed)
                return 'constant', value.shape, value.dtype, value.layout
            if not isinstance(value, Slot):
                return type(value), value
            if value not in number:
                called, whose, is_label = self._roots[value]
                number[value] = called, is_label, self.batch[called].dtype
                owners.append(whose)
            return number[value], value.shape

        for step in self.watch.steps:
            if step.states is not None or writes(step.func):
                return None
            program += [step.func, replaced(step.args, name)]
            program.append(replaced(step.kwargs, name))
            shown = step.out if isinstance(step.out, list) else [step.out]
            for slot in shown:
                if isinstance(slot, Slot) and slot not in number:
                    number[slot] = len(number)
                program.append(name(slot))
        if foreign or not isinstance(number.get(grad._slot), int):
            return None
        return [*program, number[grad._slot]], owners

    def pull(
        self, grad: Tensor, unit: int, scale: float = 1
    ) -> Callable[[Tensor], Tensor]:
        """Return a function that differentiates the term of one subgraph.

        It repeats the operations of the loss with real outputs and rows for
        the subgraph, made-up ones elsewhere, and the subgraph's integer label
        in all rows.

        Returns:
            callable: maps the subgraph's outputs to the gradient by them.
        """
        of = (self._terms == unit).nonzero().view(-1)
        if not self._decoys.by_row:
            return self._pull_row(grad, unit, scale)
        each = [
            self._pull_row(grad, row, scale / len(of)) for row in of.tolist()
        ]

        def pulled(out: Tensor) -> Tensor:
            if not each:
                return torch.zeros_like(out)
            rows = zip(each, out.split(1), strict=True)
            return torch.cat([pull(row) for pull, row in rows])

        return pulled

    def _pull_row(
        self, grad: Tensor, unit: int, scale: float
    ) -> Callable[[Tensor], Tensor]:
        # Of a unit, or of a row where the loss reads any number of them.
        shown = self._out
        assert shown is not None
        rows = self._rows(shown)
        at = unit if self._at is None else int(self._at[unit])
        here = (rows == at).nonzero().view(-1)
        values = {}
        for name, whose, _ in self._roots.values():
            made = self.batch[name]
            seen = name in self._seen
            if seen or (not self.by_unit and name not in NAMES):
                one = self._of(name, torch.tensor([unit], device=made.device))
                own = made[one] if seen else made[whose == unit]
                made = self._made[name].clone()
                if name == 'y' and not own.is_floating_point() and len(own):
                    made = own[:1].expand(len(whose), *own.shape[1:]).clone()
                made[whose == (at if seen else unit)] = own
            values[name] = made

        def pulled(out: Tensor) -> Tensor:
            made = shown._value.clone()
            made[here] = out
            return self._plainly(grad, made, values)[here] * scale

        return pulled

    def _plainly(
        self, grad: Tensor, out: Tensor, values: dict[str, Tensor]
    ) -> Tensor:
        # Repeat all operations on plain tensors.
        assert self.watch.steps is not None
        assert self._out is not None
        assert isinstance(grad, Followed)
        now: dict[Slot, Any] = {self._out._slot: out}

        def find(value: Any) -> Any:
            if not isinstance(value, Slot):
                return value
            if value not in now:
                now[value] = values[self._roots[value][0]].clone()
            return now[value]

        with torch.random.fork_rng(cuda_of(out)), torch.no_grad():
            for step in self.watch.steps:
                if step.states is not None:
                    set_random_state(step.states, out.device)
                now.update(pairs(step, plainly(step, find)))
        return now[grad._slot]

    def reveal(self) -> None:
        """Put the real rows into the batch that was handed out.

        This is done after the backward pass. The rows may not come back in
        the loss of another batch.
        """
        self.watch.live = False
        for name, value in self.batch.to_dict().items():
            if not self.by_unit:
                break
            is_rows = isinstance(value, Tensor) and value.dim()
            if is_rows and value.layout == torch.strided:
                rows = torch.zeros(len(value), device=value.device).long()
                value = follow(value, rows, self.watch)
            self.shown[name] = value

    def numbers(self) -> frozenset[Any]:
        """Return the numbers in the loss that are not from the batch.

        They are numbers and constant tensors, by operation; sizes are left
        out.
        """
        found, sizes = set(), {0, 1}
        for step in self.watch.steps or []:
            values = []
            for value in _leaves([step.args, step.kwargs]):
                if isinstance(value, Slot):
                    sizes |= {value.shape.numel(), *value.shape}
                elif isinstance(value, Tensor):
                    few = value.is_floating_point() or value.numel() == 1
                    if few and value.layout == torch.strided:
                        held = value.detach().double().cpu().numpy()
                        values.append(hash(held.tobytes()))
                elif isinstance(value, float):
                    inverse = 1 / value if value else 0
                    if value not in sizes and inverse not in sizes:
                        values.append(hash(value))
            found.add((str(step.func), *values))
        return frozenset(found)


def _leaves(value: Any) -> Iterator[Any]:
    # What is in recorded arguments, which are lists and dictionaries alone.
    if type(value) in (list, tuple):
        for item in value:
            yield from _leaves(item)
    elif type(value) is dict:
        yield from _leaves([*value.values()])
    else:
        yield value


def _has_labels(batch: Data) -> bool:
    labels = batch.get('y')
    return isinstance(labels, Tensor) and not labels.is_floating_point()


def _cloned(name: str, value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _whose(value: Followed) -> Tensor:
    # The subgraph of each row.
    owner = value._owner
    assert owner is not None
    return owner.reshape(len(owner), -1)[:, 0].long() - 1


def _do(step: Step, args: Args, kwargs: Kwargs, watch: Watch) -> Any:
    try:
        return Followed.__torch_dispatch__(step.func, (), args, kwargs)
    except ValueError:
        if watch.failed is None:
            raise
    except (RuntimeError, IndexError, TypeError):
        if watch.failed is None:
            raise
    # The message of the error may tell of the values.
    raise ValueError(
        'the loss needs to be computed in a way that rows of the batch can be '
        f"followed, but '{watch.failed}' has raised an error on them"
    ) from None


def _places(count: int, size: int) -> tuple[Tensor, Tensor]:
    # A place for each, all alike and apart from the others', and its turn.
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(os.urandom(8), 'big') >> 1)
    place = torch.randint(size, (count,), generator=generator)
    order = place.argsort(stable=True)
    ordered = place[order]
    first = torch.searchsorted(ordered, ordered)
    turn = torch.empty_like(place)
    turn[order] = torch.arange(count) - first
    return place, turn


def _put(made: Tensor, at: Tensor, rows: Tensor) -> Tensor:
    out = made.clone()
    out[at] = rows.detach()
    return out


def _kept(module: nn.Module) -> list[tuple[str, Any, Any, Any]]:
    # Tensors and numbers that layers have as attributes, or in lists there,
    # each with its place.
    found = []
    for prefix, layer in module.named_modules():
        own = vars(layer)
        for key, held in own.items():
            if key in _OWN_OF_MODULES:
                continue
            inside: Any = ()
            if type(held) is dict:
                inside = held.items()
            elif type(held) is list:
                inside = enumerate(held)
            name = f'{prefix}.{key}' if prefix else key
            if type(held) in (Tensor, float):
                found.append((name, own, key, held))
            for key, value in inside:
                if type(value) is Tensor:
                    found.append((name, held, key, value))
    return found


@contextmanager
def forgetting(module: nn.Module) -> Iterator[None]:
    """Restore the layers' attributes, lists and tables after the block.

    So nothing that layers keep of made-up rows leaves it. A tensor that is
    written to in place is not restored.
    """
    saved = []
    for place in map(vars, module.modules()):
        held = {k: v for k, v in place.items() if k not in _OWN_OF_MODULES}
        full = [(v, copy.copy(v)) for v in held.values() if _is_full(v)]
        saved.append((place, held, full))
    try:
        yield
    finally:
        for place, held, full in saved:
            for key in {*place} - {*held} - _OWN_OF_MODULES:
                del place[key]
            place.update(held)
            for value, inside in full:
                value.clear()
                fill = value.extend if hasattr(value, 'extend') else None
                (fill or value.update)(inside)


def _is_full(value: Any) -> bool:
    return isinstance(value, list | dict | set | deque)


def settings(module: nn.Module) -> dict[str, str]:
    """Return the bools, numbers and strings that layers hold, by name."""
    return {
        f'{prefix}.{name}' if prefix else name: repr(value)
        for prefix, layer in module.named_modules()
        for name, value in vars(layer).items()
        if type(value) in (bool, int, float, str)
    }
