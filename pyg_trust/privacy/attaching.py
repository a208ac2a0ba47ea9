"""Checks of the parts of a training that is to become private."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import LinkLoader

from pyg_trust._checks import Is, Sizes
from pyg_trust.graph._marks import marked
from pyg_trust.loader import StepLoader, UnitLoader
from pyg_trust.loader.step_batches import POISSON
from pyg_trust.loader.whole_units import WholeUnitLoader
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.group import Group
from pyg_trust.privacy.training import PrivateStep
from pyg_trust.privacy.typed import PROBED, TypedCall, TypedModel
from pyg_trust.privacy.validation import (
    SEED,
    Criterion,
    Forward,
    check_autocast,
    check_criterion,
    features_of,
    find_call,
    other_rows,
    randomised,
    same,
)
from pyg_trust.privacy.wrappers import PrivateModule, PrivateOptimizer

_PROBED = 32


class IsLoader(Is):
    """Requirement that accountants cover the sampling of a loader."""

    def check(self, name: str, value: Any, sizes: Sizes = None) -> Any:
        """Return the loader, or raise a ``TypeError``."""
        if isinstance(value, LinkLoader):
            raise TypeError(
                f"'{name}' can't be of pairs: an edge and a node are in the "
                'subgraphs of many pairs, and no unit bounds that '
                '(PrivateLinkPredictor protects edges; got '
                f'{type(value).__name__})'
            )
        if not isinstance(value, self.kinds):
            raise TypeError(
                f"'{name}' needs to be {self.need}, as "
                'pyg_trust.loader.DisjointWalkLoader(data, batch_size, '
                'walk_length) of a graph, GraphLoader(graphs, batch_size) of '
                'graphs and UnitLoader(data, unit, batch_size) of a typed '
                'graph are: other loaders draw batches and neighbours in '
                'ways that are not accounted for '
                f'(got {type(value).__name__})'
            )
        return value


Loader = Annotated[StepLoader, IsLoader(StepLoader)]


# Arguments of Opacus' engine that have another place here.
_OPACUS = {
    'poisson_sampling': "give sampling='poisson' to the loader, as "
    "DisjointWalkLoader(data, batch_size, walk_length, sampling='poisson')",
    'grad_sample_mode': 'leave it out: there is one method, and it takes any '
    'PyG model',
    'secure_mode': 'leave it out: noise and batches always come from the '
    'operating system, unless there is a seed',
    'noise_generator': 'leave it out: noise comes from the operating system, '
    'or from PrivacyEngine(seed=...), which is not private',
    'batch_first': 'leave it out: batches are those of PyG',
}
_Call = TypeVar('_Call', bound=Callable[..., Any])


def as_in_opacus(call: _Call) -> _Call:
    """Say where an argument of Opacus' engine is here, if it is given."""
    known = inspect.signature(call).parameters
    named = not any(
        p.kind is p.POSITIONAL_OR_KEYWORD and name != 'self'
        for name, p in known.items()
    )

    @functools.wraps(call)
    def explained(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and named:
            raise TypeError(
                f"'{call.__name__}' takes arguments by name: module=model, "
                'optimizer=optimizer, data_loader=loader, ... (got '
                f'{len(args)} without)'
            )
        for name in kwargs:
            if name in _OPACUS and name not in known:
                raise TypeError(
                    f"'{name}' of Opacus is not taken: {_OPACUS[name]}"
                )
        return call(self, *args, **kwargs)

    return explained  # type: ignore[return-value]


def check_parts(module: Any, optimizer: Any, loader: Any = None) -> None:
    """Refuse objects that are private already, or can't be made private.

    Args:
        module (torch.nn.Module): the model.
        optimizer (torch.optim.Optimizer): its optimizer.
        loader (StepLoader, optional): its loader.

    Raises:
        TypeError: if an object is of a type that can't be used.
        ValueError: if an object is private already, or can't be made so.
    """
    if isinstance(module, PrivateModule) or isinstance(
        optimizer, PrivateOptimizer
    ):
        raise ValueError("'module' and 'optimizer' are private already")
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise TypeError(
            "'module' needs to be the model itself (got a "
            'DistributedDataParallel, which adds up gradients without noise): '
            "pass 'module.module'; the engine synchronizes the processes"
        )
    if hasattr(module, '_orig_mod'):
        raise TypeError(
            "'module' needs to be the model itself (got one that "
            "torch.compile made): pass 'module._orig_mod'"
        )
    check_autocast(next(module.parameters(), torch.empty(0)).device)
    check_optimizer(optimizer)
    check_types(module)
    if loader is None:
        return
    IsLoader(StepLoader).check('data_loader', loader)
    if loader.batch_sampler.choose is not None:
        raise ValueError("'data_loader' is private already")
    loader.batch_sampler.check_present()
    check_rows(loader)


def check_rows(loader: StepLoader) -> None:
    """Check that features are one tensor with a node's own data in each row.

    Raises:
        TypeError: if features are not one tensor.
        ValueError: if features are marked as propagated.
    """
    x = loader.data.get('x')
    if x is not None and not isinstance(x, Tensor):
        raise TypeError(
            "'data_loader' needs features 'x' in one tensor, with a row per "
            f'node (got a {type(x).__name__})'
        )
    mixed = marked(loader.data)
    if mixed:
        raise ValueError(
            "'data_loader' needs features that are a node's own (got "
            f'{", ".join(map(repr, mixed))}, marked as propagated: the rows '
            'of other nodes are in them, and no row would be protected; '
            'train on raw features and propagate the logits)'
        )
    if loader.data.get('own_of') is not None:
        raise ValueError(
            "'data_loader' needs 'unit', the PrivacyUnit by which features "
            "along metapaths are a person's own (got none: a person may own "
            'several rows, and the promise would cover one)'
        )


def check_types(module: nn.Module) -> None:
    """Refuse parameters of a type in which norms can't be bounded.

    Raises:
        ValueError: if a parameter has less than 32 bits: rounding a clipped
            gradient to 8 bits of a mantissa makes it larger than the clipping
            norm.
    """
    for name, p in module.named_parameters():
        if p.dtype in (torch.bfloat16, torch.float16):
            raise ValueError(
                "'module' needs parameters of float32 or float64, as "
                f"gradients are clipped in their type ('{name}' is "
                f'{p.dtype})'
            )


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuse optimizers with a closure, sparse gradients or a state."""
    step = inspect.signature(type(optimizer).step).parameters
    closure = step.get('closure')
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            "'optimizer' needs to take a step from one gradient (got "
            f'{type(optimizer).__name__}, whose closure reads the data more '
            'than once, which is not accounted for)'
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError(
            "'optimizer' needs to accept dense gradients: noisy gradients are "
            'dense (got SparseAdam)'
        )
    if any(optimizer.state.values()):
        raise ValueError(
            "'optimizer' needs to be new (got one with the state of earlier "
            'steps, which may hold gradients of private data without noise)'
        )


def check_group(group: Group, loader: StepLoader) -> None:
    """Check that all processes have the same loader.

    Raises:
        ValueError: if loaders differ, or have too few units for all.
    """
    if group.size == 1:
        return
    group.agree(
        {
            "the data of 'data_loader'": loader.fingerprint(),
            "an argument of 'data_loader'": loader.setting(),
            "'num_steps' of 'data_loader'": loader.batch_sampler.num_steps,
            "the 'seed' of 'data_loader', which makes subgraphs,": (
                loader.layout()
            ),
        }
    )
    whole = isinstance(loader, WholeUnitLoader)
    if not whole and loader.subgraphs_per_batch < group.size:
        raise ValueError(
            f"'data_loader' needs a batch_size of at least {group.size}, one "
            f'for each process (got {loader.subgraphs_per_batch})'
        )


def probe(
    step: PrivateStep,
    loader: StepLoader,
    forward: Forward | None,
    criterion: Criterion | None,
) -> None:
    """Test a model, a loader and a loss before training.

    Tests run on the structure of some subgraphs, and not on their features.

    Raises:
        ValueError: if a test fails.
    """
    transform = loader.transform
    if isinstance(loader, UnitLoader):
        # No private batch is read: what tests find may not depend on one.
        batch, plain, transform = loader.made(PROBED)
        owner, count = batch.batch, PROBED
    else:
        count = min(_PROBED, loader.subgraphs_per_batch, loader.num_subgraphs)
        index = loader.batch_sampler.write(0, torch.arange(count))
        batch = loader(index)
        owner, count = loader.check_batch(batch, 0, count)
        plain = loader.untransformed(index)
        # No private row may reach 'forward', or stay in a model.
        generator = torch.Generator().manual_seed(SEED)
        rows = features_of(batch, owner.numel())
        batch = randomised(batch, rows, generator)
    if loader.transform is not None:
        check_transform(transform, plain)
    device = step.parameters[0].device
    batch, owner = batch.to(device), owner.to(device)
    if isinstance(step.module, TypedModel):
        call = find_call(
            step.module.model,
            step.module.schema.typed(batch),
            forward,
            TypedCall,
        )
    else:
        call = find_call(step.module, batch, forward, by_unit=loader.by_unit)
    step.probe(call, batch, owner)
    if criterion is not None:
        with torch.no_grad():
            out = call(step.module, batch)
        check_criterion(criterion, out, batch.y, step.loss_reduction)


def check_transform(transform: Callable[..., Any], batch: Data) -> None:
    """Test that a loader's transform works on each subgraph by itself.

    Args:
        transform (callable): the transform.
        batch (Data): a batch before it was transformed; its structure is
            used, and made-up features.

    Raises:
        ValueError: if features of a subgraph change with those of others.
    """
    owner, count = batch.batch, int(batch.batch.max()) + 1
    generator = torch.Generator().manual_seed(SEED)
    names = features_of(batch, owner.numel())
    base = randomised(batch, names, generator)
    for value in (None, 1e4):
        half = torch.randperm(count, generator=generator) < (count + 1) // 2
        mine = half[owner]
        other = other_rows(batch, base, names, generator, mine, value)
        made = []
        for given in (base, other):
            with torch.random.fork_rng():
                torch.manual_seed(SEED)
                made.append(transform(given.clone()))
        for name, one in made[0].to_dict().items():
            two = made[1].get(name)
            if not isinstance(one, Tensor) or not one.is_floating_point():
                continue
            if one.dim() and len(one) == len(owner) == len(two):
                one, two = one[mine], two[mine]
            elif one.dim() and len(one) == count == len(two):
                one, two = one[half], two[half]
            elif made[0].is_edge_attr(name):
                continue
            if not same(one, two):
                raise ValueError(
                    "'transform' of 'data_loader' needs to treat subgraphs "
                    f"apart, but the '{name}' of one changes with the rows of "
                    'others (row-wise scaling is fine; standardisation, PCA '
                    'and propagation are not)'
                )


def check_totals(found: Tensor, drawn: int, multiplier: float) -> None:
    """Check that a sum is of all drawn units, and of no more than allowed.

    Args:
        found (Tensor): the number of units in the sum.
        drawn (int): the number of units that were drawn.
        multiplier (float): the noise on the sum over the clipping norm.
    """
    most = int(clip.MOST_UNITS * min(1.0, multiplier))
    if int(found) != drawn or drawn > most:
        raise RuntimeError(
            'a clipped sum has other units than were drawn, or more than '
            f'{most}; the step was not taken'
        )


def check_grid(name: str, multiplier: float, count: int) -> None:
    """Check that the grid of the noise is finer than the values it hides.

    Args:
        name (str): the name of the argument that is too large.
        multiplier (float): the noise over what one unit adds at most.
        count (int): how many numbers are released.
    """
    try:
        clip.noise_grid(multiplier, 1.0, count)
    except ValueError:
        raise ValueError(
            f"'{name}' is too large for {count} numbers: the grid of the "
            'noise is then coarser than what it hides (got a noise of '
            f'{multiplier:g} times the clipping norm)'
        ) from None


def check_arithmetic(
    loader: StepLoader, multiplier: float, parameters: Sequence[Tensor]
) -> None:
    """Check that sums and noise are exact in integers.

    Args:
        loader (StepLoader): draws the units of a step.
        multiplier (float): the noise on the gradients over the clipping norm.
        parameters (sequence of Tensor): the trained parameters.

    Raises:
        ValueError: if a batch is too large for that, or torch was set to
            round more than its types do.
    """
    units = loader.subgraphs_per_batch
    if loader.sampling == POISSON:
        # More units than batches will have; a larger batch is refused.
        units = min(2 * units, loader.num_subgraphs)
    if units > clip.MOST_UNITS * min(1.0, multiplier or 1.0):
        raise ValueError(
            f"'batch_size' needs to be at most {clip.MOST_UNITS}, and as "
            'many times the noise multiplier, for sums that are exact in 64 '
            f'bits (got up to {units} units and a multiplier of '
            f'{multiplier:g})'
        )
    if multiplier:
        check_grid(
            'noise_multiplier', multiplier, sum(p.numel() for p in parameters)
        )
    if torch.get_float32_matmul_precision() != 'highest':
        raise ValueError(
            'float32 products need all their digits: call '
            "torch.set_float32_matmul_precision('highest') (got "
            f'{torch.get_float32_matmul_precision()!r})'
        )
