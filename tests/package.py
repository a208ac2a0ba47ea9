"""The parts of the package: modules, reports, examples."""

import importlib
import pkgutil
from pathlib import Path

import warm

import pyg_trust
from pyg_trust.report import Report

EXAMPLES = Path(__file__).resolve().parents[1] / 'examples'


def modules():
    """The names of all modules."""
    yield 'pyg_trust'
    for module in pkgutil.walk_packages(pyg_trust.__path__, 'pyg_trust.'):
        if not module.name.endswith('._C'):
            yield module.name


def import_all():
    """Imports all modules but private ones, so that all classes are known."""
    for name in modules():
        if not name.rpartition('.')[2].startswith('_'):
            importlib.import_module(name)


def reports(of=Report):
    """The classes of all reports of the package."""
    for each in of.__subclasses__():
        if each.__module__.startswith('pyg_trust.'):
            yield each
        yield from reports(each)


def run(name, *arguments):
    """What an example prints, which may not warn."""
    done = warm.run(EXAMPLES / name, *arguments)
    assert done.returncode == 0, done.stderr
    assert 'Warning' not in done.stderr
    return done.stdout
