import pytest
import torch
import torch.nn.functional as F

from pyg_trust.privacy.draws import DrawsBySubgraph, KeepDraws
from pyg_trust.privacy.rows import Conflict, RowTracker

OWNER = torch.tensor([2, 0, 1, 0])
EDGES = torch.tensor([[1, 3, 1], [3, 1, 1]])


def follow(function, *inputs):
    """The subgraphs of a result's rows and their dimension, if known."""
    tracker = RowTracker()
    for x in inputs:
        tracker.set(x, tracker.known(OWNER), x.size().index(4))
    # Calls every function with a tracker beside it.
    with KeepDraws(tracker, torch.device('cpu')):
        out = function(*inputs)
    found = tracker.get(out)
    return None if found is None else (found[0].owner, found[1])


SAME = {
    'arithmetic': lambda x: 2 * x.relu() + x.exp() / 3 - 1,
    'broadcast': lambda x: x.view(4, 1, 6) * x.view(4, 2, 3).repeat(1, 1, 2),
    'reduce': lambda x: x.view(4, 2, 3).sum(-1).softmax(dim=1),
    'keepdim': lambda x: x - x.mean(1, keepdim=True),
    'norm': lambda x: F.layer_norm(F.normalize(x, p=2.0, dim=-1), (6,)),
    'transpose': lambda x: x.t().unsqueeze(0).transpose(1, 2).squeeze(0),
    'permute': lambda x: x.view(4, 2, 3).permute(2, 0, 1).permute(1, 2, 0),
    'slice': lambda x: x[:, None, 1:5:2][..., 0],
    'columns': lambda x: x[:, torch.tensor([1, 3])],
    'split': lambda x: torch.cat(x.split(2, dim=1)[::2], dim=-1),
    'stack': lambda x: torch.stack([x, x], dim=1).unbind(1)[0],
    'flatten': lambda x: x.view(4, 2, 3).flatten(1),
    'in place': lambda x: x.clone().add_(1).mul_(x),
    'dropout': lambda x: F.dropout(x, 0.5),
    'linear': lambda x: x @ torch.ones(6, 2),
    'mask': lambda x: torch.where(x > 0, x, 0.0).masked_fill(x < 1, 2.0),
    'back and forth': lambda x: x.flip(0).flip(0) + x,
    'there and back': lambda x: x.reshape(-1, 3).sin().view(-1, 6),
    'scatter': lambda x: x.new_zeros(4, 6).scatter_add_(
        0,
        EDGES[1].view(-1, 1).expand(-1, 6),
        x.index_select(0, EDGES[0]),
    ),
    'index_add': lambda x: x.new_zeros(4, 6).index_add_(0, torch.arange(4), x),
}


@pytest.mark.parametrize('name', SAME)
def test_rows_stay_where_they_are(name):
    owner, axis = follow(SAME[name], torch.randn(4, 6))
    assert torch.equal(owner, OWNER)
    assert axis == 0


@pytest.mark.parametrize(
    ('function', 'owner', 'axis'),
    [
        (lambda x: x.t(), [2, 0, 1, 0], 1),
        (lambda x: x[None, :, :3], [2, 0, 1, 0], 1),
        (lambda x: x.index_select(0, EDGES[0]), [0, 0, 0], 0),
        (lambda x: x[torch.tensor([0, 0, 2])], [2, 2, 1], 0),
        (lambda x: x[torch.tensor([True, False, True, True])], [2, 1, 0], 0),
        (lambda x: x[1:], [0, 1, 0], 0),
        (lambda x: torch.cat([x, x[:1]]), [2, 0, 1, 0, 2], 0),
        (lambda x: x.view(-1, 3), [2, 2, 0, 0, 1, 1, 0, 0], 0),
        (lambda x: x.view(4, 2, 3).transpose(0, 1), [2, 0, 1, 0], 1),
        # A sum over what stands before the rows, as long as what is behind.
        (lambda x: x[:, :4].expand(2, 4, 4).sum(0), [2, 0, 1, 0], 0),
        (lambda x: x.view(4, 2, 3).transpose(0, 1).mean(0), [2, 0, 1, 0], 0),
        (lambda x: x[:, :4].expand(2, 4, 4).sum((0, 2)), [2, 0, 1, 0], 0),
        (
            # Pooling.
            lambda x: x.new_zeros(3, 6).index_add_(0, OWNER, x),
            [0, 1, 2],
            0,
        ),
    ],
)
def test_rows_go_where_they_are_sent(function, owner, axis):
    found, at = follow(function, torch.randn(4, 6))
    assert found.tolist() == owner
    assert at == axis


@pytest.mark.parametrize(
    'function',
    [
        lambda x: x.flip(0),
        lambda x: x.roll(1, 0),
        lambda x: x.sort(0).values,
        lambda x: x.sum(0),
        lambda x: x.sum(),
        lambda x: x.softmax(0).mean(),
        lambda x: x.t() @ x,
        lambda x: x @ x.t(),
        lambda x: x[0],
        lambda x: x.t().reshape(4, 6),
        lambda x: x.view(2, 12),
        lambda x: torch.cat([x, torch.zeros(1, 6)]),
        lambda x: x[torch.tensor([[0, 1], [2, 3]])],
        lambda x: x.view(4, 1, 6) + x.view(1, 4, 6),
    ],
)
def test_what_moves_or_mixes_rows_is_not_known(function):
    assert follow(function, torch.randn(4, 6)) is None


def test_rows_of_different_subgraphs_do_not_meet():
    tracker = RowTracker()
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    tracker.set(x, tracker.known(OWNER), 0)
    tracker.set(y, tracker.known(OWNER.flip(0)), 0)
    with pytest.raises(Conflict, match='different subgraphs meet'):
        tracker.follow('add', (x, y), {}, x + y)


def test_calls_of_another_form_are_let_be():
    tracker = RowTracker()
    x = torch.randn(4, 6)
    tracker.set(x, tracker.known(OWNER), 0)
    tracker.follow('index_select', (x,), {}, x.clone())
    tracker.follow('transpose', (x, 'a'), {}, x.t())
    tracker.set(x, tracker.known(OWNER), 5)
    assert tracker.get(x)[1] == 0


def test_a_subgraph_draws_what_it_would_alone_and_never_twice():
    def drawn(owner, names):
        with DrawsBySubgraph(torch.tensor(owner), None, names, 5):
            rows = [torch.rand(len(owner), 2) for _ in range(3)]
            # Of no subgraph.
            return rows, [torch.rand(()) for _ in range(3)]

    rows, whole = drawn([2, 0, 1, 0], [7, 8, 9])
    for several in (rows, whole):
        assert not torch.equal(several[0], several[1])
        assert not torch.equal(several[1], several[2])
    assert not torch.equal(rows[0][0], rows[0][2])
    alone, other = drawn([0, 0], [7])
    for one, both in zip(alone, rows, strict=True):
        assert torch.equal(one, both[[1, 3]])
    assert other == whole
