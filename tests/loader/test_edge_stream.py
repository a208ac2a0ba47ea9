"""Streams of edges against sets that are made anew for every batch."""

import pytest
import torch
from torch_geometric.data import Data, TemporalData
from torch_geometric.loader import TemporalDataLoader

from pyg_trust.agp.measures import Measure, sgc
from pyg_trust.graph import CSRGraph
from pyg_trust.loader import EdgeStream
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import PropagatedFeatures
from pyg_trust.unlearning import NodeClassifier

N = 8


def events(count, seed, removed=True, **more):
    random = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(N, (2, count), generator=random)
    t = torch.randint(0, 3, (count,), generator=random).cumsum(0)
    if removed:
        more['removed'] = torch.rand(count, generator=random) < 0.2
    return TemporalData(src=src, dst=dst, t=t, **more)


def there(data, upto, window, directed, start=()):
    """The edges after so many events, by the definition."""
    found = set()
    now = int(data.t[upto - 1]) if upto else 0
    rows = zip(data.src.tolist(), data.dst.tolist(), strict=True)
    pairs = [p if directed else tuple(sorted(p)) for p in rows][:upto]
    away = data.removed.tolist()
    for pair in {*pairs, *start}:
        mine = [k for k, other in enumerate(pairs) if other == pair]
        last = max([-1, *(k for k in mine if away[k])])
        later = [k for k in mine if k > last]
        times = [int(data.t[k]) for k in later]
        alive = [t for t in times if window is None or t > now - window]
        if alive or (pair in start and last < 0):
            found.add(pair)
    return found


@pytest.mark.parametrize('size', [1, 7, 60])
@pytest.mark.parametrize('window', [None, 4, 2.5])
@pytest.mark.parametrize('directed', [False, True])
def test_edges_are_there_as_long_as_their_events(directed, window, size):
    data = events(60, seed=size)
    start = {(0, 1), (2, 2)}
    first = torch.tensor(sorted(start)).t()
    both = first if directed else torch.cat([first, first[:, :1].flip(0)], 1)
    measure = Measure(0.5, 0.5, (0.0, 1.0)) if directed else sgc(2)
    graph = CSRGraph.from_edge_index(both, N)
    live = PropagatedFeatures(graph, torch.eye(N), measure)
    stream = EdgeStream(
        TemporalDataLoader(data, batch_size=size),
        window=window,
        directed=directed,
        start=first,
    )
    count = 0
    for count, update in enumerate(stream, 1):
        live.update(update)
        upto = min(count * size, 60)
        wanted = there(data, upto, window, directed, start)
        if not directed:
            wanted |= {edge[::-1] for edge in wanted}
        found = live.graph.to_edge_index()[0].t().tolist()
        assert {tuple(edge) for edge in found} == wanted
    assert count == -(-60 // size)


def test_windows_are_exact_at_nanoseconds():
    times = 10**18 + torch.tensor([1, 4, 5])
    ends = torch.tensor([0, 2, 2])
    data = TemporalData(src=ends, dst=ends + 1, t=times)
    stream = EdgeStream(TemporalDataLoader(data, batch_size=1), window=4)
    removed = [update.to_dict().get('remove') for update in stream]
    assert removed == [None, None, {'edges': [[0, 1]]}]


def test_the_time_of_a_skipped_event_counts():
    ends = torch.tensor([0, 7, 0])
    data = TemporalData(src=ends, dst=ends + 1, t=torch.tensor([1, 9, 3]))
    loader = TemporalDataLoader(data, batch_size=1)
    stream = EdgeStream(loader, window=4, on_removed='skip')
    stream.forget(torch.tensor([7]))
    updates = iter(stream)
    next(updates)
    assert next(updates).to_dict() == {'remove': {'edges': [[0, 1]]}}
    assert stream.num_skipped == 1
    with pytest.raises(ValueError, match='do not fall'):
        next(updates)


@pytest.mark.parametrize('scale', [1, 10**17])
def test_a_stream_goes_on_where_it_was_saved(scale):
    # Nanoseconds are more than doubles hold.
    data = events(60, seed=3)
    data.t = data.t * scale + (scale > 1)
    whole = EdgeStream(TemporalDataLoader(data, 10), window=5 * scale)
    wanted = [update.to_dict() for update in whole]
    first = EdgeStream(TemporalDataLoader(data[:30], 10), window=5 * scale)
    made = [update.to_dict() for update in first]
    rest = EdgeStream(TemporalDataLoader(data[30:], 10), window=5 * scale)
    rest.load_state_dict(first.state_dict())
    made += [update.to_dict() for update in rest]
    assert made == wanted
    with pytest.raises(ValueError, match="'edges'"):
        rest.load_state_dict({})
    with pytest.raises(ValueError, match='state'):
        rest.load_state_dict({**first.state_dict(), 'edges': 3})


def test_a_removed_node_is_dropped_and_its_events_are_refused_or_counted():
    data = TemporalData(
        src=torch.tensor([0, 1, 2, 0]),
        dst=torch.tensor([1, 2, 3, 4]),
        t=torch.tensor([0, 0, 9, 9]),
    )
    for how in ('raise', 'skip'):
        loader = TemporalDataLoader(data, batch_size=2)
        stream = EdgeStream(loader, window=5, on_removed=how)
        updates = iter(stream)
        assert next(updates).to_dict() == {'edges': [[0, 1], [1, 2]]}
        stream.forget(torch.tensor([0]))
        assert 0 not in stream.state_dict()['edges']
        if how == 'raise':
            before = stream.state_dict()
            with pytest.raises(ValueError, match='position 1'):
                next(updates)
            after = stream.state_dict()
            assert torch.equal(before['edges'], after['edges'])
            assert before['now'] == after['now']
            continue
        # The edge of node 0 went with it, and does not expire.
        update = next(updates).to_dict()
        assert update == {'edges': [[2, 3]], 'remove': {'edges': [[1, 2]]}}
        assert stream.num_skipped == 1


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'t': torch.tensor([1, 0, 2])}, 'position 1'),
        ({'t': torch.tensor([0.0, float('nan'), 1.0])}, "'t'"),
        ({'t': torch.tensor([0, 1])}, "'t'"),
        ({'src': torch.tensor([0, -1, 2])}, "'src' needs ids"),
        ({'src': torch.tensor([0.0, 1.0, 2.0])}, "'src'"),
        ({'removed': torch.tensor([0, 1, 0])}, "'removed'"),
        ({'msg': torch.ones(3, 2)}, 'ignore_msg'),
    ],
)
def test_events_that_do_not_fit_change_nothing(change, message):
    held = {'src': torch.arange(3), 'dst': torch.arange(3) + 1}
    held |= {'t': torch.arange(3)}
    stream = EdgeStream([TemporalData(**{**held, **change})], window=2)
    with pytest.raises((ValueError, TypeError), match=message):
        next(iter(stream))
    assert stream.state_dict()['edges'].numel() == 0
    good = {**held, 'msg': torch.ones(3, 2)}
    other = EdgeStream(TemporalData(**good), ignore_msg=True)
    assert next(iter(other)).edges.size(1) == 3
    with pytest.raises(TypeError, match="'loader'"):
        next(iter(EdgeStream([3])))


def test_an_edge_that_went_with_a_node_ends_without_an_error():
    # A window ends for an edge, an end of which was removed in between.
    stars = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    ring = torch.cat([stars, stars.flip(0)], 1)
    data = Data(x=torch.rand(6, 2).double(), edge_index=ring)
    data.y, data.train_mask = torch.arange(6) % 2, torch.ones(6).bool()
    model = NodeClassifier(weight_decay=0.1, K=1, max_pending=50).fit(data)
    features = PropagatedFeatures(data, 'sgc')
    for each in (model, features):
        batches = [
            TemporalData(src=end(2), dst=end(v), t=end(t))
            for v, t in ((4, 1), (5, 100))
        ]
        stream = iter(EdgeStream(batches, window=10))
        each.update(next(stream))
        assert each.graph.num_edges == 10
        each.update(RemovalRequest(nodes=[4]))
        each.update(next(stream))
        assert each.graph.num_edges == 10
    assert model.verify().ok


def end(value):
    return torch.tensor([value])
