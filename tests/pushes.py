"""What randomized propagation is called with."""

from pyg_trust.agp.propagation import push_levels


def push_arguments(graph, measure, x):
    """All that :func:`pyg_trust.ops.push` takes but thresholds and a seed."""
    graph = graph.with_self_loops() if measure.self_loops else graph
    _, ratio, keep = push_levels(measure)
    return {
        'graph': graph.push_graph(measure.a, x.dtype, measure.along),
        'receivers': graph.receivers(measure.along),
        'recv': graph.degree_power(-measure.a, x.dtype),
        'send': graph.degree_power(-measure.b, x.dtype),
        'x': x,
        'ratio': ratio,
        'keep': keep,
    }
