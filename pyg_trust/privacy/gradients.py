# Longer than 700 lines because a tape and what it is checked by are one.
r"""Gradients per subgraph, clipped and summed, for any PyG model.

A batch of node-disjoint subgraphs is one graph without edges between them. If
a model keeps them apart, the gradient of a loss
:math:`\sum_i \ell_i` that has one term per subgraph is

.. math::
    \sum_i g_i, \qquad g_i = J_i^\top \partial \ell_i / \partial z_i,

with :math:`z_i` the rows of the output that belong to subgraph :math:`i` and
:math:`J_i` their Jacobian by the parameters. Private training needs

.. math::
    \sum_i \min(1, C / \lVert g_i \rVert_2)\, g_i

over *all* trainable parameters, where a subgraph whose norm is not finite
counts as zero. :class:`SubgraphGradients` computes it.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from pyg_trust._checks import (
    Count,
    Natural,
    OneOf,
    check_instance,
    check_integer,
    check_number,
    validated,
)
from pyg_trust.privacy import fallbacks
from pyg_trust.privacy.bounds import ClippedSum, check_norm
from pyg_trust.privacy.calls import (
    Call,
    Unsupported,
    check_owner,
    noise,
    tensors_in,
)
from pyg_trust.privacy.clipping import clipped_sum
from pyg_trust.privacy.draws import (
    DrawsBySubgraph,
    KeepDraws,
    Mask,
    NoDropout,
    UseDraws,
    random_state,
    set_random_state,
)
from pyg_trust.privacy.fallbacks import Part
from pyg_trust.privacy.mechanisms import CLIPPINGS
from pyg_trust.privacy.recorder import Recorder
from pyg_trust.privacy.rows import Args, Kwargs, RowTracker, version_of

METHODS = ('auto', 'bookkeeping', 'functorch', 'vjp', 'loop')
_SEED = 0
_CHECKED = 8


@validated
class SubgraphGradients:
    r"""Sum of the clipped gradients of the subgraphs of a batch.

    .. code-block:: python

        gradients = SubgraphGradients(model)
        with gradients.record(batch.batch, num_subgraphs) as tape:
            out = model(batch.x, batch.edge_index)
        loss = F.cross_entropy(out[:m], batch.y[:m], reduction='sum')
        (grad_out,) = torch.autograd.grad(loss, out, retain_graph=True)
        result = tape.clipped_sum(out, grad_out, max_grad_norm=1.0)

    There are four ways to compute the same:

    * :obj:`'bookkeeping'`: watches how the forward pass uses parameters and
      computes norms and the clipped sum from one backward pass
      (:mod:`pyg_trust.privacy.clipping`). A parameter that is used in a
      way it does not know is an error.
    * :obj:`'vjp'`: calls the module again on :obj:`chunk_size` subgraphs at a
      time, with the masks that dropout drew, and back-propagates as many
      copies of the gradient at once, each with the rows of one subgraph. It
      works for any model. One that draws other random numbers is not called
      again, and every chunk is as dear as the whole batch.
    * :obj:`'functorch'`: ``vmap`` of the gradient over subgraphs of one
      shape. It calls the module again, which must draw no random numbers
      and have no shapes that depend on values.
    * :obj:`'loop'`: as :obj:`'vjp'`, one subgraph at a time.

    :obj:`'auto'` takes the bookkeeping if, on random features, it is equal to
    running some of the subgraphs alone (:meth:`check`; done at the first call
    unless done before), and :obj:`'vjp'` otherwise, or where one batch has
    something in it that the bookkeeping does not know. None of these choices
    depends on features.

    A subgraph whose gradient is not finite, or whose squared norm overflows,
    adds exactly zero, and does not change what others add. The bookkeeping
    also leaves out one with activations that are not finite.

    If one batch has something in it that the bookkeeping does not know and
    the model has drawn random numbers, :obj:`'vjp'` is as dear as said above.

    Args:
        module (torch.nn.Module): the model. Its parameters that require a
            gradient are trained; it must not mix subgraphs.
        method (str): :obj:`'auto'` or one of the above.
            (default: :obj:`'auto'`)
        chunk_size (int): how many subgraphs are back-propagated at once by
            :obj:`'vjp'` and :obj:`'functorch'`; memory grows with it.
            (default: :obj:`16`)
    """

    def __init__(
        self,
        module: nn.Module,
        method: Annotated[str, OneOf(METHODS)] = 'auto',
        chunk_size: Count = 16,
    ) -> None:
        if hasattr(module, '_orig_mod'):
            raise TypeError(
                "'module' needs to be the module itself (got one that "
                "torch.compile made, whose operations can't be inspected)"
            )
        self.module = module
        self.method = method
        self.chunk_size = chunk_size
        self.chosen: str | None = None if method == 'auto' else method
        self.reason = f'{method!r} was asked for'
        #: The user's own layer rules that were followed.
        self.own_rules: set[str] = set()
        #: Whether a row's bits are to be those of the row alone.
        self.rowwise = False
        #: Functions that may round a row otherwise in another batch.
        self.foreign: set[str] = set()
        #: Whether units were computed together with others.
        self.together = False

    def parameters(self) -> dict[str, Tensor]:
        """Return the trained parameters, by name."""
        named = self.module.named_parameters()
        return {name: p for name, p in named if p.requires_grad}

    def explain(self) -> str:
        """Explain which method computes the gradients, and why."""
        if self.chosen is None:
            return "'auto': the method is chosen at the first call"
        return f'{self.chosen!r}: {self.reason}'

    @contextmanager
    def record(self, owner: Tensor, num_subgraphs: int) -> Iterator['Tape']:
        r"""Record one call of the module.

        Args:
            owner (Tensor): int64, ``[num_nodes]``, the subgraph of each node,
                as ``batch.batch``.
            num_subgraphs (int): how many subgraphs there are.

        Raises:
            TypeError, ValueError: on wrong arguments, and if an edge joins
                two subgraphs.
            RuntimeError: if the module is called again.
        """
        # A module that writes into 'batch' does not change this one.
        owner = check_owner(owner, num_subgraphs).clone()
        tape = Tape(self, owner, num_subgraphs)
        with ExitStack() as stack:
            stack.callback(tape._stop)
            before = self.module.register_forward_pre_hook(
                tape._on_call, with_kwargs=True
            )
            stack.callback(before.remove)
            after = self.module.register_forward_hook(tape._on_return)
            stack.callback(after.remove)
            yield tape

    def check(
        self,
        owner: Tensor,
        num_subgraphs: int,
        *args: Any,
        **kwargs: Any,
    ) -> str:
        r"""Choose a method that gives the gradients of subgraphs run alone.

        Some subgraphs of a real batch, among them the largest and the
        smallest, get random features. Their gradients, clipped and summed by
        the method, are compared with those of each one run on its own, in
        double precision if the module can, with dropout switched off and
        other random numbers drawn for each subgraph by itself. The
        module is copied: neither it nor torch's random state is changed. A
        module that mixes subgraphs fails, whatever the method.

        Args:
            owner (Tensor): as of :meth:`record`.
            num_subgraphs (int): as of :meth:`record`.
            *args (Any): the positional arguments of the module's call.
            **kwargs (Any): the named arguments of the module's call.

        Returns:
            str: the method that will be used.

        Raises:
            ValueError: if no method (or the one that was asked for) gives the
                gradients of the subgraphs.
        """
        check_owner(owner, num_subgraphs)
        call = Call(self.module, args, kwargs, owner, num_subgraphs)
        self._choose(call)
        assert self.chosen is not None
        return self.chosen

    def _choose(self, call: Call) -> None:
        wanted = ['bookkeeping', 'vjp', 'loop']
        if self.method != 'auto':
            wanted = [self.method]
        failed: list[str] = []
        with torch.random.fork_rng():
            torch.manual_seed(_SEED)
            trial = _Trial(self.module, call)
            for method in wanted:
                problem = trial.problem(method, self.chunk_size)
                if problem is None:
                    self.chosen = method
                    self.reason = '; '.join(
                        [*failed, 'equal to each subgraph alone']
                    )
                    return
                failed.append(f'not {method!r}: {problem}')
        raise ValueError(
            "'module' needs gradients that 'bookkeeping', 'vjp' or 'loop' "
            f'computes for each subgraph ({"; ".join(failed)})'
        )


class Tape:
    """One call of a module; made by :meth:`SubgraphGradients.record`."""

    def __init__(
        self, gradients: SubgraphGradients, owner: Tensor, num_subgraphs: int
    ) -> None:
        self._gradients = gradients
        self._owner = owner
        self._num_subgraphs = num_subgraphs
        self._call: Call | None = None
        self._mode: Recorder | KeepDraws | None = None
        self._modes = ExitStack()
        self._masks: list[Mask] | None = None
        self._returned: list[Tensor] = []
        # The arguments as they were before the call, and the parameters as
        # they were after it.
        self._given: list[tuple[Tensor, int]] = []
        self._weights: list[tuple[Tensor, int]] = []
        # The trained parameters of a recorded call.
        self._params: dict[str, Tensor] = {}
        self._random_state = random_state(owner.device)

    def _on_call(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if self._call is not None:
            raise RuntimeError(
                'A tape records one call of the module (got a second one)'
            )
        call = Call(module, args, kwargs, self._owner, self._num_subgraphs)
        gradients = self._gradients
        if gradients.chosen is None:
            gradients._choose(call)
        self._call = call
        self._given = _versions(value for _, value in call.leaves())
        if gradients.chosen == 'functorch':
            return
        tracker = RowTracker()
        # Where rows of nodes are as many as edges, either may be meant.
        tracker.known(call.owner)
        if call.edges is not None and call.edges.size(1) == len(call.owner):
            tracker.known(call.owner[call.edges[0]])
        for name, value in call.leaves():
            rows = call.rows(name, value)
            if rows is not None:
                tracker.set(value, tracker.known(rows), 0)
        self._random_state = random_state(self._owner.device)
        if gradients.chosen == 'bookkeeping':
            named = dict(module.named_parameters())
            self._params = {n: p for n, p in named.items() if p.requires_grad}
            held = (part._buffers.values() for part in module.modules())
            constants = [b for some in held for b in some if b is not None]
            constants += [p for p in named.values() if not p.requires_grad]
            self._mode = Recorder(
                self._params, tracker, constants, gradients.rowwise
            )
        else:
            self._mode = KeepDraws(tracker, self._owner.device)
        self._modes.enter_context(self._mode)

    def _on_return(self, module: nn.Module, args: Args, output: Any) -> None:
        self._stop()
        self._returned = tensors_in(output)
        self._weights = _versions(module.parameters())
        if isinstance(self._mode, Recorder):
            self._gradients.own_rules |= self._mode.own
            self._gradients.foreign |= self._mode.foreign
        if self._mode is not None:
            self._mode.draws.look()
            if self._mode.draws.complete:
                self._masks = self._mode.draws.masks
            return
        now = random_state(self._owner.device)
        if all(map(torch.equal, now, self._random_state)):
            self._masks = []

    def _stop(self) -> None:
        self._modes.close()

    @validated
    def clipped_sum(
        self,
        output: Tensor | Sequence[Tensor],
        grad_output: Tensor | Sequence[Tensor],
        max_grad_norm: float,
        output_owner: Tensor | Sequence[Tensor] | None = None,
        clipping: Annotated[str, OneOf(CLIPPINGS)] = 'flat',
        of: Natural | None = None,
    ) -> ClippedSum:
        r"""Compute the sum of the clipped gradients of the subgraphs.

        The graph of :obj:`output` is kept.

        Args:
            output (Tensor or sequence): the outputs of the module.
            grad_output (Tensor or sequence): the gradient by the outputs of a
                loss with one term per subgraph. A row must be a function of
                the rows of the same subgraph only: for a mean over the batch,
                pass the gradient of the sum.
            max_grad_norm (float): :math:`C`, positive; infinity to leave the
                gradients as they are.
            output_owner (Tensor or sequence, optional): the subgraph of each
                row of each output; by default, rows are nodes.
            clipping (str): :obj:`'flat'` or :obj:`'automatic'`. (default:
                :obj:`'flat'`)
            of (int, optional): the subgraph of which to tell what it has
                added. (default: :obj:`None`)

        Raises:
            TypeError, ValueError: on wrong arguments, and if a method that
                was asked for does not know what the module does.
            RuntimeError: if the module was not called.
        """
        if self._call is None:
            raise RuntimeError(
                'The tape is blank: call the module inside record() first'
            )
        max_grad_norm = check_max_grad_norm(max_grad_norm)
        if of is not None:
            check_integer('of', of, 0, self._num_subgraphs - 1)
        automatic = clipping == 'automatic'
        outputs, grads, owners = self._checked(
            output, grad_output, output_owner
        )
        gradients = self._gradients
        params = self._params or gradients.parameters()
        if not params:
            raise ValueError(
                "'module' needs to have a parameter that requires a gradient"
            )
        method, reason = gradients.chosen, gradients.reason
        assert method is not None
        try:
            if isinstance(self._mode, Recorder):
                clipped = clipped_sum(
                    self._mode,
                    outputs,
                    grads,
                    self._num_subgraphs,
                    max_grad_norm,
                    automatic,
                    of,
                )
                return ClippedSum.of(clipped, params, method, reason)
            self._check_weights()
            if method == 'functorch':
                if not all(torch.equal(o, self._owner) for o in owners):
                    raise Unsupported(
                        "'functorch' needs one row of 'output' for each node"
                    )
                clipped = fallbacks.functorch(
                    params,
                    self._unchanged(),
                    grads,
                    max_grad_norm,
                    automatic,
                    gradients.chunk_size,
                    of,
                )
                return ClippedSum.of(clipped, params, method, reason)
        except Unsupported as error:
            if gradients.method != 'auto':
                raise ValueError(
                    f"'method' cannot be {method!r} for this module ({error})"
                ) from error
            reason = f'not {method!r}: {error}'
            method = 'vjp'
            self._check_weights()
        # A gradient that is not finite is searched for in smaller groups.
        gradients.together |= method != 'loop'
        chunk_size = 0 if method == 'loop' else gradients.chunk_size
        total = fallbacks.Total(
            params, self._num_subgraphs, max_grad_norm, automatic, of
        )
        apart = self._masks is not None and self._places(outputs) is not None
        part = self._extracted if apart else self._masked
        fallbacks.vjp(
            total, partial(part, outputs, grads, owners), chunk_size, apart
        )
        return ClippedSum.of(total.result(), params, method, reason)

    def _checked(
        self,
        output: Tensor | Sequence[Tensor],
        grad_output: Tensor | Sequence[Tensor],
        output_owner: Tensor | Sequence[Tensor] | None,
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        outputs = _as_list('output', output)
        grads = _as_list('grad_output', grad_output)
        owners = (
            [self._owner] * len(outputs)
            if output_owner is None
            else _as_list('output_owner', output_owner)
        )
        for name, values in (
            ('grad_output', grads),
            ('output_owner', owners),
        ):
            if len(values) != len(outputs):
                raise ValueError(
                    f"'{name}' needs to be {len(outputs)} tensors, "
                    f"as 'output' (got {len(values)})"
                )
        for out, grad, owner in zip(outputs, grads, owners, strict=True):
            if grad.shape != out.shape:
                raise ValueError(
                    f"'grad_output' needs to have the shape "
                    f"{list(out.shape)} of 'output' (got {list(grad.shape)})"
                )
            if grad.dtype != out.dtype:
                raise TypeError(
                    f"'grad_output' needs to be {out.dtype}, as 'output' "
                    f'(got {grad.dtype})'
                )
            rows = out.size(0) if out.dim() else None
            if owner.dim() != 1 or owner.numel() != rows:
                raise ValueError(
                    f"'output_owner' needs to hold the subgraph of each "
                    f"of the {rows} rows of 'output' (got shape "
                    f'{list(owner.shape)}); without it, rows are nodes'
                )
            if not out.requires_grad:
                raise ValueError("'output' needs to require a gradient")
            if owner is not self._owner:
                check_owner(owner, self._num_subgraphs, 'output_owner')
        return outputs, grads, owners

    def _places(self, outputs: list[Tensor]) -> list[int] | None:
        # The positions of the outputs among the tensors that the module
        # returned.
        found = [
            i
            for out in outputs
            for i, tensor in enumerate(self._returned)
            if tensor is out
        ]
        return found if len(found) == len(outputs) else None

    def _extracted(
        self,
        outputs: list[Tensor],
        grads: list[Tensor],
        owners: list[Tensor],
        group: Tensor,
    ) -> Part:
        # The subgraphs of a group, without the others, with the same masks
        # of dropout.
        places, masks = self._places(outputs), self._masks
        assert places is not None
        assert masks is not None
        call, _ = self._unchanged().extract(group)
        number = self._numbers(group)
        again = UseDraws(masks, number >= 0) if masks else nullcontext()
        with torch.enable_grad(), again:
            returned = tensors_in(call.run())
        # What the module itself writes, as an embedding of bounded norms.
        self._weights = _versions(call.module.parameters())
        part = Part([returned[i] for i in places], [], [])
        for out, grad, owner in zip(part.outputs, grads, owners, strict=True):
            here = (number[owner] >= 0).nonzero().view(-1)
            part.grads.append(grad[here])
            part.owners.append(number[owner[here]])
            if out.shape != part.grads[-1].shape:
                raise RuntimeError(
                    "'module' needs to return the same number of rows for a "
                    'subgraph alone as in the batch (got shapes '
                    f'{list(out.shape)} and {list(part.grads[-1].shape)})'
                )
        return part

    def _check_weights(self) -> None:
        if _changed(self._weights):
            raise ValueError(
                "'module' needs to keep its parameters until its gradients "
                'are summed (one was changed in place)'
            )

    def _unchanged(self) -> Call:
        # The call, which is about to be made again.
        assert self._call is not None
        if _changed(self._given):
            raise ValueError(
                "'module' needs to keep its arguments, as it is called again "
                'with them (one was changed in place)'
            )
        return self._call

    def _numbers(self, group: Tensor) -> Tensor:
        # The place of each subgraph in a group, -1 for those outside.
        number = self._owner.new_full((self._num_subgraphs,), -1)
        number[group] = torch.arange(group.numel(), device=group.device)
        return number

    def _masked(
        self,
        outputs: list[Tensor],
        grads: list[Tensor],
        owners: list[Tensor],
        group: Tensor,
    ) -> Part:
        # Run all subgraphs; for a group, repeat the call with the same random
        # numbers, and with noise as the features of all others.
        number = self._numbers(group)
        numbers = [number[owner] for owner in owners]
        if group.numel() == self._num_subgraphs:
            return Part(outputs, grads, numbers)
        places = self._places(outputs)
        if places is None:
            raise RuntimeError(
                "'output' needs to be a tensor that the module returned (a "
                'gradient is not finite, and its subgraph is found by a '
                'second call)'
            )
        call = self._unchanged()
        outside = (number < 0).nonzero().view(-1)
        leaf = call.without(outside, _SEED)
        with torch.random.fork_rng(), torch.enable_grad():
            set_random_state(self._random_state, self._owner.device)
            returned = tensors_in(call.run(leaf))
        self._weights = _versions(call.module.parameters())
        return Part([returned[i] for i in places], grads, numbers)


class _Trial:
    # Some subgraphs with random features, together and each alone.
    def __init__(self, module: nn.Module, call: Call) -> None:
        subgraphs = _some(call.owner, call.num_subgraphs)
        part, _ = call.extract(subgraphs, call.random(_SEED))
        with NoDropout(), torch.enable_grad():
            try:
                self.tolerance = 1e-6
                self.module = _copy(module).double()
                self.call = part.on(self.module, torch.float64)
                self._reference()
            except (RuntimeError, TypeError):
                # A part of the module does not run in double precision.
                self.tolerance = 1e-4
                self.module = _copy(module)
                self.call = part.on(self.module, None)
                self._reference()

    def _reference(self) -> None:
        call = self.call
        named = self.module.named_parameters()
        self.params = {n: p for n, p in named if p.requires_grad}
        generator = torch.Generator().manual_seed(_SEED)
        self.places, self.cotangents, self.owners = [], [], []
        terms = torch.arange(call.num_subgraphs, device=call.owner.device)
        is_read: Any = getattr(self.module, 'is_read', None)
        if is_read is not None:
            terms = call.owner[is_read(call.bound.arguments)]
        with self._draws(call, range(call.num_subgraphs)):
            self.together = tensors_in(call.run())
        for place, out in enumerate(self.together):
            if not out.requires_grad:
                continue
            owner = call.owner
            rows = out.size(0) if out.dim() else None
            if rows == len(terms) != owner.numel():
                owner = terms
            elif rows != owner.numel():
                raise ValueError(
                    "'module' needs to return a row for each node or each "
                    f'subgraph (got shape {list(out.shape)})'
                )
            self.places.append(place)
            self.owners.append(owner)
            self.cotangents.append(noise(out, generator))
        self.alone = [self._alone(i) for i in range(call.num_subgraphs)]

    def _alone(self, subgraph: int) -> list[Tensor]:
        subgraphs = torch.tensor([subgraph], device=self.call.owner.device)
        call, _ = self.call.extract(subgraphs)
        try:
            with self._draws(call, [subgraph]):
                outputs = tensors_in(call.run())
        except ValueError as error:
            raise ValueError(
                "'module' needs to keep subgraphs apart, and to run on each "
                f'of them alone ({error})'
            ) from error
        for i, owner in zip(self.places, self.owners, strict=True):
            rows = self.together[i][owner == subgraph]
            if rows.shape != outputs[i].shape or not torch.allclose(
                rows, outputs[i], self.tolerance, self.tolerance
            ):
                raise ValueError(
                    "'module' needs to keep subgraphs apart (the output of "
                    'one changes when it runs alone, or random numbers are '
                    'not drawn by rows of nodes or edges)'
                )
        params = list(self.params.values())
        found = torch.autograd.grad(
            [outputs[i] for i in self.places],
            params,
            [
                value[owner == subgraph]
                for value, owner in zip(
                    self.cotangents, self.owners, strict=True
                )
            ],
            allow_unused=True,
        )
        pairs = zip(params, found, strict=True)
        return [torch.zeros_like(p) if g is None else g for p, g in pairs]

    @staticmethod
    def _draws(call: Call, names: Sequence[int]) -> DrawsBySubgraph:
        edges = None if call.edges is None else call.owner[call.edges[0]]
        return DrawsBySubgraph(call.owner, edges, names, _SEED)

    def problem(self, method: str, chunk_size: int) -> str | None:
        """Describe how a method fails, or return :obj:`None`."""
        norms = torch.stack(
            [
                torch.stack([g.norm() for g in each]).norm()
                for each in self.alone
            ]
        )
        # At the median, some gradients are clipped, and others are not.
        max_grad_norm = float(norms.median()) or 1.0
        gradients = SubgraphGradients(self.module, method, chunk_size)
        call = self.call
        try:
            with NoDropout(), torch.enable_grad():
                with (
                    self._draws(call, range(call.num_subgraphs)),
                    gradients.record(call.owner, call.num_subgraphs) as tape,
                ):
                    outputs = tensors_in(call.run())
                result = tape.clipped_sum(
                    [outputs[i] for i in self.places],
                    self.cotangents,
                    max_grad_norm,
                    self.owners,
                )
        except (ValueError, RuntimeError) as error:
            return str(error.__cause__ or error)
        scale = norms.max()
        if not (result.norms - norms).abs().max() <= self.tolerance * scale:
            return 'its norms differ from those of subgraphs run alone'
        # Factors are at most those of the norms, up to the tolerance.
        factors = result.factors
        most = (max_grad_norm / norms).clamp(max=1) * (1 + self.tolerance)
        if not bool((factors <= most).all()):
            return 'it clips less than the norms of subgraphs run alone need'
        for i, name in enumerate(self.params):
            grads = torch.stack([each[i] for each in self.alone])
            expected = torch.tensordot(factors.to(grads), grads, 1)
            wrong = (result.sums[name] - expected).norm()
            limit = grads.reshape(len(grads), -1).norm(dim=1).sum()
            limit *= self.tolerance
            least = self.tolerance * (limit + 1e-3 * scale)
            if not wrong <= least + result.rounding.sum():
                return f"its sum for '{name}' differs from subgraphs run alone"
        return None


def _copy(module: nn.Module) -> nn.Module:
    # Without hooks: this function may run inside one of them.
    hooks = module._forward_pre_hooks, module._forward_hooks
    return copy.deepcopy(module, {id(hook): type(hook)() for hook in hooks})


def _some(owner: Tensor, num_subgraphs: int) -> Tensor:
    # The smallest and the largest, and some between.
    count = owner.bincount(minlength=num_subgraphs)
    order = count.argsort(stable=True)[int((count == 0).sum()) :]
    places = torch.linspace(0, order.numel() - 1, _CHECKED).long().unique()
    return order[places.to(order.device)].sort().values


def check_max_grad_norm(max_grad_norm: float) -> float:
    """Check a clipping norm: positive, where infinity clips nothing."""
    if max_grad_norm == float('inf'):
        return max_grad_norm
    max_grad_norm = check_number('max_grad_norm', max_grad_norm)
    if not max_grad_norm > 0:
        raise ValueError(
            f"'max_grad_norm' needs to be positive (got {max_grad_norm})"
        )
    check_norm('max_grad_norm', max_grad_norm)
    return max_grad_norm


def _changed(given: list[tuple[Tensor, int]]) -> bool:
    return any(version_of(tensor) != version for tensor, version in given)


def _versions(values: Iterable[Any]) -> list[tuple[Tensor, int]]:
    return [(v, version_of(v)) for v in values if isinstance(v, Tensor)]


def _as_list(name: str, value: Tensor | Sequence[Tensor]) -> list[Tensor]:
    values = [value] if isinstance(value, Tensor) else value
    if not isinstance(values, Sequence):
        raise TypeError(
            f"'{name}' needs to be a tensor or a list of tensors "
            f'(got {type(value).__name__})'
        )
    for entry in values:
        check_instance(name, entry, Tensor)
    return list(values)
