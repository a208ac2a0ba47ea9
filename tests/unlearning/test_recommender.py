"""Recommenders that forget: the bits of counting anew, whatever the way."""

import copy
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from states import same
from test_recommender_values import ORACLE
from torch_geometric.data import HeteroData
