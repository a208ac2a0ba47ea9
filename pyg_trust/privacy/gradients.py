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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pyg_trust.functional.dp import clip_factors
from pyg_trust.functional.measures import check_number
from pyg_trust.privacy.calls import Call

METHODS = ('auto', 'bookkeeping', 'functorch', 'vjp', 'loop')
_SEED = 0


@dataclass(frozen=True)
class ClippedSum:
    r"""The sum of clipped gradients, and what it was made of.

    Args:
        sums (dict): by the name of each trainable parameter, the sum of its
            clipped gradients; zero if it was not used.
        norms (Tensor): ``[num_subgraphs]``, the norms before clipping, over
            all parameters; not finite where a subgraph counts as zero.
        method (str): how it was computed.
        reason (str): why this way.
    """

    sums: dict[str, Tensor]
    norms: Tensor
    method: str
    reason: str


class SubgraphGradients:
    r"""Clips the gradient of each subgraph of a batch, and sums.

    .. code-block:: python

        gradients = SubgraphGradients(model)
        with gradients.record(batch.batch, num_subgraphs) as tape:
            out = model(batch.x, batch.edge_index)
        loss = F.cross_entropy(out[:m], batch.y[:m], reduction='sum')
        (grad_out,) = torch.autograd.grad(loss, out, retain_graph=True)
        result = tape.clipped_sum(out, grad_out, max_grad_norm=1.0)

    Args:
        module (torch.nn.Module): the model. Its parameters that require a
            gradient are trained; it must not mix subgraphs.
        method (str): one of :obj:`'auto'`, :obj:`'bookkeeping'`,
            :obj:`'functorch'`, :obj:`'vjp'` and :obj:`'loop'`.
            (default: :obj:`'auto'`)
        chunk_size (int): how many subgraphs are back-propagated at once by
            :obj:`'vjp'` and :obj:`'functorch'`; memory grows with it.
            (default: :obj:`16`)
    """

    def __init__(
        self,
        module: nn.Module,
        method: str = 'auto',
        chunk_size: int = 16,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(
                "'module' needs to be a torch.nn.Module "
                f'(got {type(module).__name__})'
            )
        if method not in METHODS:
            raise ValueError(
                f"'method' needs to be one of {METHODS} (got {method!r})"
            )
        if isinstance(chunk_size, bool) or not isinstance(chunk_size, int):
            raise TypeError(
                "'chunk_size' needs to be an integer "
                f'(got {type(chunk_size).__name__})'
            )
        if chunk_size < 1:
            raise ValueError(
                f"'chunk_size' needs to be at least 1 (got {chunk_size})"
            )
        self.module = module
        self.method = method
        self.chunk_size = chunk_size

    def parameters(self) -> dict[str, Tensor]:
        """The parameters that are trained, by name."""
        named = self.module.named_parameters()
        return {name: p for name, p in named if p.requires_grad}

    @contextmanager
    def record(self, owner: Tensor, num_subgraphs: int) -> Iterator['Tape']:
        r"""Records one call of the module.

        Args:
            owner (Tensor): int64, ``[num_nodes]``, the subgraph of each node,
                as ``batch.batch``.
            num_subgraphs (int): how many subgraphs there are.

        Raises:
            TypeError, ValueError: on wrong arguments, and if an edge joins
                two subgraphs.
            RuntimeError: if the module is called again.
        """
        tape = Tape(self, check_owner(owner, num_subgraphs), num_subgraphs)
        handles = [
            self.module.register_forward_pre_hook(
                tape._on_call, with_kwargs=True
            ),
            self.module.register_forward_hook(tape._on_return),
        ]
        try:
            yield tape
        finally:
            for handle in handles:
                handle.remove()


class Tape:
    """One call of a module; made by :meth:`SubgraphGradients.record`."""

    def __init__(
        self, gradients: SubgraphGradients, owner: Tensor, num_subgraphs: int
    ) -> None:
        self._gradients = gradients
        self._owner = owner
        self._num_subgraphs = num_subgraphs
        self._call: Call | None = None
        self._returned: list[Tensor] = []
        self._rng_state = torch.get_rng_state()

    def _on_return(
        self, module: nn.Module, args: tuple[Any, ...], output: Any
    ) -> None:
        self._returned = _tensors(output)

    def _on_call(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._call is not None:
            raise RuntimeError(
                'A tape records one call of the module (got a second one)'
            )
        self._call = Call(
            module, args, kwargs, self._owner, self._num_subgraphs
        )

    def clipped_sum(
        self,
        output: Tensor | Sequence[Tensor],
        grad_output: Tensor | Sequence[Tensor],
        max_grad_norm: float,
        output_owner: Tensor | Sequence[Tensor] | None = None,
    ) -> ClippedSum:
        r"""The sum of the clipped gradients of the subgraphs.

        The graph of :obj:`output` is kept.

        Args:
            output (Tensor or sequence): what the module returned, or parts of
                it.
            grad_output (Tensor or sequence): the gradient by it of a loss
                with one term per subgraph. A row must be a function of the
                rows of the same subgraph only: of a mean over the batch,
                hand in the sum's.
            max_grad_norm (float): :math:`C`, positive; infinity to leave the
                gradients as they are.
            output_owner (Tensor or sequence, optional): the subgraph of each
                row of each output; by default, rows are nodes.
                (default: :obj:`None`)
        """
        if self._call is None:
            raise RuntimeError('The tape is blank: the module was not called')
        max_grad_norm = check_max_grad_norm(max_grad_norm)
        outputs, grads, owners = self._checked(
            output, grad_output, output_owner
        )
        params = self._gradients.parameters()
        reason = f"'{self._gradients.method}' was asked for"
        sums, norms = self._vjp(
            outputs,
            grads,
            owners,
            params,
            max_grad_norm,
            self._gradients.method != 'loop',
        )
        return ClippedSum(sums, norms, 'vjp', reason)

    def _checked(
        self,
        output: Tensor | Sequence[Tensor],
        grad_output: Tensor | Sequence[Tensor],
        output_owner: Tensor | Sequence[Tensor] | None,
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        outputs, grads = _as_list(output), _as_list(grad_output)
        owners = (
            [self._owner] * len(outputs)
            if output_owner is None
            else _as_list(output_owner)
        )
        for name, values in (
            ('grad_output', grads),
            ('output_owner', owners),
        ):
            if len(values) != len(outputs):
                raise ValueError(
                    f"'{name}' needs to be {len(outputs)} tensors "
                    f"as 'output' (got {len(values)})"
                )
        for out, grad, owner in zip(outputs, grads, owners, strict=True):
            if grad.shape != out.shape:
                raise ValueError(
                    f"'grad_output' needs to have the shape "
                    f"{list(out.shape)} of 'output' (got {list(grad.shape)})"
                )
            rows = out.size(0) if out.dim() else None
            if owner.dim() != 1 or owner.numel() != rows:
                raise ValueError(
                    f"'output_owner' needs to tell the subgraph of each of "
                    f"the {rows} rows of 'output' (got shape "
                    f'{list(owner.shape)}); without it, rows are nodes'
                )
            if not out.requires_grad:
                raise ValueError("'output' needs to require a gradient")
            check_owner(owner, self._num_subgraphs, 'output_owner')
        return outputs, grads, owners

    def _vjp(
        self,
        outputs: list[Tensor],
        grads: list[Tensor],
        owners: list[Tensor],
        params: dict[str, Tensor],
        max_grad_norm: float,
        batched: bool,
    ) -> tuple[dict[str, Tensor], Tensor]:
        # A row that is not finite makes every gradient of the batch so, since
        # 0 * inf is nan. Those that are not finite are tried again in smaller
        # and smaller groups, with noise in all other rows.
        everything = torch.arange(
            self._num_subgraphs, device=self._owner.device
        )
        sums = {n: torch.zeros_like(p) for n, p in params.items()}
        norms = torch.full(
            (self._num_subgraphs,), torch.inf, device=self._owner.device
        ).to(grads[0].dtype)
        groups = [everything]
        while groups:
            group = groups.pop()
            if group.numel() == 0:
                continue
            targets = outputs
            if group.numel() < self._num_subgraphs:
                targets = self._rerun(outputs, group)
            left = self._vjp_group(
                group,
                targets,
                grads,
                owners,
                list(params.values()),
                list(sums.values()),
                norms,
                max_grad_norm,
                batched,
            )
            if group.numel() == 1:
                continue
            if left.numel() < group.numel():
                groups.append(left)
            else:
                groups += left.tensor_split(2)
        return sums, norms

    def _vjp_group(
        self,
        group: Tensor,
        outputs: list[Tensor],
        grads: list[Tensor],
        owners: list[Tensor],
        params: list[Tensor],
        sums: list[Tensor],
        norms: Tensor,
        max_grad_norm: float,
        batched: bool,
    ) -> Tensor:
        # Adds the clipped gradients of a group; returns those not finite.
        left = []
        for chunk in group.split(self._gradients.chunk_size if batched else 1):
            masked = []
            for grad, owner in zip(grads, owners, strict=True):
                mask = owner == chunk.view(-1, 1)
                mask = mask.view(*mask.shape, *[1] * (grad.dim() - 1))
                masked.append(torch.where(mask, grad, 0))
            if not batched:
                masked = [grad[0] for grad in masked]
            found = torch.autograd.grad(
                outputs,
                params,
                masked,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )
            each = [g if batched else g[None] for g in found if g is not None]
            squares = [g.flatten(1).square().sum(1) for g in each]
            norm = torch.stack(squares or [norms.new_zeros(len(chunk))])
            norm = norm.sum(0).sqrt()
            norms[chunk] = norm.to(norms)
            finite = norm.isfinite()
            left.append(chunk[~finite])
            factors = clip_factors(norm, max_grad_norm)
            used = [
                s for s, g in zip(sums, found, strict=True) if g is not None
            ]
            for total, g in zip(used, each, strict=True):
                g = torch.where(finite.view(-1, *[1] * total.dim()), g, 0)
                total += torch.tensordot(factors.to(g), g, 1)
        return torch.cat(left)

    def _rerun(self, outputs: list[Tensor], group: Tensor) -> list[Tensor]:
        # The same call with the same random numbers, and noise in the
        # features of all subgraphs but those of the group.
        assert self._call is not None
        places = [
            next((i for i, t in enumerate(self._returned) if t is out), None)
            for out in outputs
        ]
        if None in places:
            raise RuntimeError(
                'Some gradient is not finite, and which subgraph it comes '
                "from cannot be told unless 'output' is what the module "
                'returned'
            )
        outside = torch.ones(
            self._num_subgraphs, dtype=torch.bool, device=group.device
        )
        outside[group] = False
        leaf = self._call.without(outside.nonzero().view(-1), _SEED)
        with torch.random.fork_rng(), torch.enable_grad():
            torch.set_rng_state(self._rng_state)
            returned = _tensors(self._call.run(leaf))
        return [returned[i] for i in places if i is not None]


def check_owner(
    owner: Tensor, num_subgraphs: int, name: str = 'owner'
) -> Tensor:
    """Checks the subgraph of each row.

    Args:
        owner (Tensor): int64, ``[num_rows]``, in ``[0, num_subgraphs)``.
        num_subgraphs (int): how many subgraphs there are.
        name (str): what :obj:`owner` is called. (default: :obj:`'owner'`)
    """
    if isinstance(num_subgraphs, bool) or not isinstance(num_subgraphs, int):
        raise TypeError(
            "'num_subgraphs' needs to be an integer "
            f'(got {type(num_subgraphs).__name__})'
        )
    if num_subgraphs < 1:
        raise ValueError(
            f"'num_subgraphs' needs to be at least 1 (got {num_subgraphs})"
        )
    if not isinstance(owner, Tensor) or owner.dtype != torch.int64:
        kind = owner.dtype if isinstance(owner, Tensor) else type(owner)
        raise TypeError(f"'{name}' needs to be an int64 tensor (got {kind})")
    if owner.dim() != 1:
        raise ValueError(
            f"'{name}' needs to have one dimension (got {owner.dim()})"
        )
    if owner.numel() and (
        int(owner.min()) < 0 or int(owner.max()) >= num_subgraphs
    ):
        raise ValueError(
            f"'{name}' needs to be in [0, {num_subgraphs}) (got values in "
            f'[{int(owner.min())}, {int(owner.max())}])'
        )
    return owner


def check_max_grad_norm(max_grad_norm: float) -> float:
    """Checks the norm to clip to: positive; infinity to leave all as it is."""
    if max_grad_norm != float('inf'):
        max_grad_norm = check_number('max_grad_norm', max_grad_norm)
    if not max_grad_norm > 0:
        raise ValueError(
            f"'max_grad_norm' needs to be positive (got {max_grad_norm})"
        )
    return max_grad_norm


def _as_list(value: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
