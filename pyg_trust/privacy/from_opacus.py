"""Where things are that users of Opacus look for."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

__all__ = ['as_in_opacus', 'check_plain', 'refuse_attribute']

_NO_SEED = (
    'leave it out: noise and batches come from the operating system, unless '
    'there is an insecure_seed, which is not private'
)
_ADAPTIVE = (
    'give max_grad_norm=AdaptiveNorm(initial=..., quantile=...), of '
    'pyg_trust.privacy'
)
# Arguments of Opacus' engine, or values of them, that have another place.
_ARGUMENTS = {
    'poisson_sampling': "give sampling='poisson' to the loader",
    'grad_sample_mode': 'leave it out: there is one method, for any PyG model',
    'secure_mode': _NO_SEED,
    'noise_generator': _NO_SEED,
    'batch_first': 'leave it out: batches are those of PyG',
    'wrap_model': 'leave it out: the model is wrapped',
    'rand_on_empty': 'leave it out: a step without subgraphs adds noise alone',
    'normalize_clipping': "clipping='automatic' scales every gradient",
    'total_steps': "give steps= in place of it, or 'epochs'",
    "clipping='per_layer'": (
        "there is one norm for all layers, clipping='flat'"
    ),
    "clipping='adaptive'": _ADAPTIVE,
    **dict.fromkeys(
        (
            'target_unclipped_quantile',
            'clipbound_learning_rate',
            'max_clipbound',
            'min_clipbound',
            'unclipped_num_std',
        ),
        _ADAPTIVE,
    ),
}
_SAVE = (
    'save the state_dict() of model, optimizer and engine by torch.save, and '
    'load each by load_state_dict()'
)
_STEP = 'step() clips, adds noise and moves the weights in one'
_COPY = 'copy.deepcopy(model) is the plain model'
# Attributes of Opacus' engine, optimizer and module.
_ATTRIBUTES = {
    'save_checkpoint': _SAVE,
    'load_checkpoint': _SAVE,
    'get_compatible_module': 'validate(module, strict=False) says what to do',
    'validate': 'PrivacyEngine.validate(model) checks a model',
    'expected_batch_size': "it is the loader's 'subgraphs_per_batch'",
    'accumulated_iterations': (
        'give max_physical_batch_size= to make_private, which takes a step '
        'from several parts'
    ),
    'attach_step_hook': (
        'the engine counts steps by itself; register_step_post_hook() calls '
        'a function after each'
    ),
    'original_optimizer': 'step the private optimizer alone',
    **dict.fromkeys(
        (
            'params',
            'grad_samples',
            'pre_step',
            'clip_and_accumulate',
            'add_noise',
            'scale_grad',
        ),
        _STEP,
    ),
    **dict.fromkeys(
        (
            '_module',
            'to_standard_module',
            'add_hooks',
            'remove_hooks',
            'enable_hooks',
            'disable_hooks',
            'cleanup',
        ),
        _COPY,
    ),
    **dict.fromkeys(
        (
            'set_grad_sample_to_none',
            'del_grad_sample',
            'capture_activations_hook',
            'capture_backprops_hook',
            'rearrange_grad_samples',
            'iterate_submodules',
            'is_supported',
            'GRAD_SAMPLERS',
            'forbid_grad_accumulation',
            'allow_grad_accumulation',
        ),
        'no layer keeps gradients of single subgraphs',
    ),
}
_WRAPPERS = ('opacus.grad_sample', 'opacus.optimizers', 'opacus.distributed')
_Call = TypeVar('_Call', bound=Callable[..., Any])


def as_in_opacus(call: _Call) -> _Call:
    """Decorate a call to say where an argument of Opacus' engine is."""
    taken = inspect.signature(call).parameters.values()
    places = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in taken)

    @functools.wraps(call)
    def explained(*args: Any, **kwargs: Any) -> Any:
        if len(args) > places == 1:
            raise TypeError(
                f"'{call.__name__}' takes arguments by name: module=model, "
                'optimizer=optimizer, data_loader=loader, ... (got '
                f'{len(args) - 1} without)'
            )
        for name, value in kwargs.items():
            one = f'{name}={value!r}' if isinstance(value, str) else name
            for key in (name, one):
                if key in _ARGUMENTS:
                    raise TypeError(
                        f"'{key}' of Opacus is not taken: {_ARGUMENTS[key]}"
                    )
        return call(*args, **kwargs)

    return explained  # type: ignore[return-value]


def refuse_attribute(owner: Any, name: str) -> NoReturn:
    """Raise an ``AttributeError`` that says where Opacus' attribute is."""
    text = f"'{type(owner).__name__}' object has no attribute '{name}'"
    if name in _ATTRIBUTES:
        text += f', unlike that of Opacus: {_ATTRIBUTES[name]}'
    raise AttributeError(text, name=name, obj=owner)


def check_plain(name: str, given: Any) -> None:
    """Refuse what Opacus has wrapped."""
    if type(given).__module__.startswith(_WRAPPERS):
        raise TypeError(
            f"'{name}' needs to be plain, as it was before Opacus wrapped it "
            f'(got a {type(given).__name__})'
        )
