"""Marks of tests for what not every machine has."""

import os
import shutil

import pytest
import torch.distributed as dist

fork = pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
gloo = pytest.mark.skipif(not dist.is_gloo_available(), reason='needs gloo')
# Of a module whose ranks are forked processes.
ranks = [fork, gloo]


def compiler():
    """A C++ compiler, or None."""
    named = os.environ.get('CXX')
    for name in (named, 'g++', 'clang++', 'c++'):
        if name and shutil.which(name):
            return name
    return None
