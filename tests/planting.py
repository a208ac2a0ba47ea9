"""Faults, planted into one function of the package for a while.

The code of the function is what changes: whoever imported it by name runs the
faulty one, too. The kernel knows nothing of it.
"""

import contextlib
import inspect
import sys
import textwrap


@contextlib.contextmanager
def planted(function, old, new):
    """Run a function with a piece of its source replaced.

    Args:
        function (callable): of the package, maybe cached or a property.
        old (str): what stands there, once.
        new (str): what stands there instead.
    """
    plain = getattr(function, 'fget', None) or inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(plain))
    assert source.count(old) == 1, f'{old!r} stands {source.count(old)} times'
    made = compile(
        source.replace(old, new), plain.__code__.co_filename, 'exec'
    )
    (code,) = (
        each
        for each in made.co_consts
        if hasattr(each, 'co_freevars')
        if each.co_name == plain.__name__
    )
    honest = plain.__code__
    assert code.co_freevars == honest.co_freevars == ()
    plain.__code__ = code
    try:
        _forget()
        yield
    finally:
        plain.__code__ = honest
        _forget()


def _forget():
    # What is kept was computed by the other code.
    for name, module in list(sys.modules.items()):
        if name.startswith('pyg_trust.'):
            for value in vars(module).values():
                if hasattr(value, 'cache_clear'):
                    value.cache_clear()
