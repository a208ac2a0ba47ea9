"""Transforms for PyG data."""

from pyg_trust.certificates.flip_bits import FlipBits
from pyg_trust.transforms.aggregation_report import AggregationReport
from pyg_trust.transforms.agp import AGP
from pyg_trust.transforms.bounded_degree import BoundedDegree
from pyg_trust.transforms.division import Division
from pyg_trust.transforms.gdc import GDC
from pyg_trust.transforms.graph_scattering import (
    GFT,
    GraphEmbedding,
    GraphScattering,
)
from pyg_trust.transforms.metapath_features import MetapathFeatures
from pyg_trust.transforms.private_agp import PrivateAGP
from pyg_trust.transforms.propagated_features import PropagatedFeatures
from pyg_trust.transforms.shards import Shards

__all__ = [
    'AGP',
    'GDC',
    'GFT',
    'AggregationReport',
    'BoundedDegree',
    'Division',
    'FlipBits',
    'GraphEmbedding',
    'GraphScattering',
    'MetapathFeatures',
    'PrivateAGP',
    'PropagatedFeatures',
    'Shards',
]
