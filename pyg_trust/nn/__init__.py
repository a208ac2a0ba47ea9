"""PyG layers and models."""

from pyg_trust.nn.agp_conv import APPNP, SGConv
from pyg_trust.nn.partitioner import (
    ShardPartitioner,
    learned_partition,
    partition_embedding,
)
from pyg_trust.nn.ppnp import (
    PPNP,
    CorrectAndSmooth,
    FeaturePropagation,
    LabelPropagation,
    PageRankDiffusion,
)
from pyg_trust.unlearning.aggregate import (
    AttentiveAggregator,
    LBAggregator,
    MajorityAggregator,
    MeanAggregator,
    ShardAggregator,
    make_aggregator,
)

__all__ = [
    'APPNP',
    'PPNP',
    'AttentiveAggregator',
    'CorrectAndSmooth',
    'FeaturePropagation',
    'LBAggregator',
    'LabelPropagation',
    'MajorityAggregator',
    'MeanAggregator',
    'PageRankDiffusion',
    'SGConv',
    'ShardAggregator',
    'ShardPartitioner',
    'learned_partition',
    'make_aggregator',
    'partition_embedding',
]
