"""Marks of tests for what not every machine has."""

import os

import pytest
import torch.distributed as dist

fork = pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
gloo = pytest.mark.skipif(not dist.is_gloo_available(), reason='needs gloo')
# Of a module whose ranks are forked processes.
ranks = [fork, gloo]
