import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pyg_trust.privacy import SubgraphGradients
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


def by_type(x, mask):
    """What models with a layer for each type of rows do."""
    out = torch.empty_like(x)
    for some in (mask, ~mask):
        out[some] = x[some].relu()
    return out


def column(x):
    """A column is a part of the same rows."""
    out = x.clone()
    out.select(1, 3).add_(x[:, 3])
    return out


def twice(x):
    """One row has the values of two; nobody says which come last."""
    out = torch.empty_like(x)
    out[torch.tensor([0, 1, 2, 3, 3])] = x[torch.tensor([0, 1, 2, 3, 0])]
    return out


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
    'a column': column,
    'mask by mask': lambda x: by_type(x, torch.tensor([True, False] * 2)),
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
        twice,
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


def gathered(x, at):
    return x.gather(0, at.view(-1, 1).expand_as(x))


def each_row(x, back, write):
    out = x.clone()
    for i, row in enumerate(gathered(x, back)):
        write(out, i, row)
    return out


def exchanged(x, back):
    out = x.clone()
    out.data = gathered(x, back)
    return out


def put_into(x, write):
    out = x.clone()
    write(out)
    return out


# Ways to put rows `x[order]` back, of which not all are known; `back` is the
# inverse of the order.
BACK = {
    'index': lambda x, back: x[back],
    'empty_like': lambda x, back: put_into(
        torch.empty_like(x), lambda out: out.__setitem__(back.argsort(), x)
    ),
    'zeros_like': lambda x, back: torch.zeros_like(x) + gathered(x, back),
    'setitem': lambda x, back: put_into(
        x, lambda out: out.__setitem__(back.argsort(), x)
    ),
    'ellipsis': lambda x, back: put_into(
        x, lambda out: out.__setitem__(..., x[back])
    ),
    'index_put_': lambda x, back: put_into(
        x, lambda out: out.index_put_((back.argsort(),), x)
    ),
    'index_copy_': lambda x, back: put_into(
        x, lambda out: out.index_copy_(0, back.argsort(), x)
    ),
    'copy_': lambda x, back: put_into(
        x, lambda out: out.copy_(gathered(x, back))
    ),
    'copy_ of known rows': lambda x, back: put_into(
        x, lambda out: out.copy_(x[back])
    ),
    'through a view': lambda x, back: put_into(
        x, lambda out: out.view(-1).copy_(gathered(x, back).view(-1))
    ),
    'masked_scatter_': lambda x, back: put_into(
        x,
        lambda out: out.masked_scatter_(
            torch.ones_like(x).bool(), gathered(x, back)
        ),
    ),
    'put_': lambda x, back: put_into(
        x, lambda out: out.put_(torch.arange(x.numel()), gathered(x, back))
    ),
    '_foreach_copy_': lambda x, back: put_into(
        x, lambda out: torch._foreach_copy_([out], [gathered(x, back)])
    ),
    'out=': lambda x, back: put_into(
        x, lambda out: torch.sin(gathered(x, back), out=out)
    ),
    'data': exchanged,
    'detach': lambda x, back: put_into(
        x, lambda out: out.data.copy_(gathered(x, back))
    ),
    'a part of it': lambda x, back: put_into(
        x * 0, lambda out: out.narrow(0, 0, len(out)).add_(x[back])
    ),
    'row by row': lambda x, back: each_row(
        x, back, lambda out, i, row: out.__setitem__(i, row)
    ),
    'select': lambda x, back: each_row(
        x, back, lambda out, i, row: out.select(0, i).copy_(row)
    ),
    'zero_': lambda x, back: x.clone().zero_() + gathered(x, back),
    'sparse': lambda x, back: (
        torch.sparse_coo_tensor(
            torch.stack([torch.arange(len(x)), back]),
            torch.ones(len(x), dtype=x.dtype),
            (len(x), len(x)),
            check_invariants=True,
        )
        @ x
    ),
}


class There(nn.Module):
    """A layer on rows that were put into another order, and back."""

    def __init__(self, way):
        super().__init__()
        self.layer = nn.Linear(4, 3, dtype=torch.float64)
        self.way = BACK.get(way, way)

    def forward(self, x):
        order = x[:, 0].argsort()
        return self.layer(self.way(x[order], order.argsort()))


def alone(model, x, owner, cotangent):
    """The norms of the gradients of subgraphs that are run by themselves."""
    norms = []
    for i in owner.unique():
        out = model(x[owner == i])
        found = torch.autograd.grad(
            out, list(model.parameters()), cotangent[owner == i]
        )
        norms.append(torch.cat([g.flatten() for g in found]).norm())
    return torch.stack(norms)


def norms_of(gradients, model, inputs, owner, cotangent):
    with gradients.record(owner, int(owner.max()) + 1) as tape:
        out = model(*inputs)
    return tape.clipped_sum(out, cotangent, 1.0)


@pytest.mark.parametrize('way', BACK)
def test_what_is_written_in_place_is_of_whom_it_is(way):
    torch.manual_seed(0)
    model, owner = There(way), torch.tensor([0, 1, 0, 2, 2, 1, 2])
    x = torch.randn(7, 4, dtype=torch.float64)
    cotangent = torch.randn(7, 3, dtype=torch.float64)
    want = alone(model, x, owner, cotangent)
    # What was chosen for an earlier batch, in which rows kept their order.
    gradients = SubgraphGradients(model)
    gradients.chosen = 'bookkeeping'
    got = norms_of(gradients, model, (x,), owner, cotangent)
    torch.testing.assert_close(got.norms, want)


def test_what_is_known_of_rows_stays_where_it_is_written_to():
    def written(x):
        out = x.relu()
        out[:, 0] *= 2
        out[:, 1] = x[:, 2]
        out[1:3] = x[1:3]
        out[torch.tensor([0, 3])] = x[torch.tensor([0, 3])]
        out[out > 3] = 3.0
        return out.masked_fill_(x < 0, 0.0).add_(x)

    owner, axis = follow(written, torch.randn(4, 6))
    assert torch.equal(owner, OWNER)
    assert axis == 0


class Twice(nn.Module):
    """A weight that is written to between two uses of it."""

    def __init__(self, write):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
        self.write = write

    def forward(self, x):
        weight = self.weight * 1
        first = F.linear(x, weight)
        self.write(weight, self.weight)
        return first + F.linear(x, weight)


@pytest.mark.parametrize(
    'write',
    [
        lambda made, weight: made.__setitem__(0, 0.0),
        lambda made, weight: made.__setitem__(0, weight[1]),
        lambda made, weight: torch.ops.aten.mul_.Tensor(made, 2),
    ],
)
def test_a_weight_that_is_written_to_is_none(write):
    torch.manual_seed(0)
    model, owner = Twice(write), torch.tensor([0, 0, 1])
    x = torch.randn(3, 4, dtype=torch.float64)
    want = alone(model, x, owner, x)
    for method in ('auto', 'bookkeeping'):
        gradients = SubgraphGradients(model, method)
        gradients.chosen = 'bookkeeping'
        if method == 'auto':
            got = norms_of(gradients, model, (x,), owner, x)
            torch.testing.assert_close(got.norms, want)
            continue
        with pytest.raises(ValueError, match='writes into it'):
            norms_of(gradients, model, (x,), owner, x)


class Heard(nn.Module):
    """What nodes hear along edges; some hear nothing."""

    def __init__(self, dim):
        super().__init__()
        self.edge = nn.Linear(dim, 4, dtype=torch.float64)
        self.node = nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, edge_attr, edge_index, num_nodes):
        out = self.edge(edge_attr)
        out = out.new_zeros(num_nodes, 4).index_add_(0, edge_index[1], out)
        return self.node(out)


def test_who_hears_nothing_is_not_whom_an_edge_is_of():
    # As many edges as nodes: the owners of both agree on those who hear.
    torch.manual_seed(0)
    model, owner = Heard(3), torch.tensor([0, 0, 1, 1])
    edges = torch.tensor([[0, 3, 3, 3], [0, 3, 3, 3]])
    values = torch.randn(4, 3, dtype=torch.float64)
    cotangent = torch.randn(4, 2, dtype=torch.float64)
    want = []
    for nodes, some in (([0, 1], [0]), ([2, 3], [1, 2, 3])):
        out = model(values[some], edges[:, some] - nodes[0], 2)
        params = list(model.parameters())
        found = torch.autograd.grad(out, params, cotangent[nodes])
        want.append(torch.cat([g.flatten() for g in found]).norm())
    gradients = SubgraphGradients(model)
    gradients.chosen = 'bookkeeping'
    inputs = values, edges, 4
    got = norms_of(gradients, model, inputs, owner, cotangent)
    torch.testing.assert_close(got.norms, torch.stack(want))


class Writes(nn.Module):
    """A model that writes into what it gets."""

    def __init__(self, into):
        super().__init__()
        self.layer = nn.Linear(4, 4, dtype=torch.float64)
        self.into = into

    def forward(self, x, batch):
        out = self.layer(x.mul_(2) if self.into == 'x' else x)
        if self.into == 'batch':
            batch.zero_()
        return out


@pytest.mark.parametrize('into', ['x', 'batch'])
def test_a_model_that_writes_into_its_arguments_is_not_called_again(into):
    torch.manual_seed(0)
    model, owner = Writes(into), torch.tensor([0, 0, 1])
    x = torch.randn(3, 4, dtype=torch.float64)
    made = x * 2 if into == 'x' else x
    want = [
        torch.cat([made[o].t() @ x[o], x[o].sum(0)[None]]).norm()
        for o in (owner == 0, owner == 1)
    ]
    # The tensor that the model gets is the one that owners are read of.
    given = owner.clone()
    gradients = SubgraphGradients(model, 'bookkeeping')
    got = norms_of(gradients, model, (x.clone(), given), given, x)
    torch.testing.assert_close(got.norms, torch.stack(want))
    for method in ('vjp', 'loop', 'functorch'):
        gradients = SubgraphGradients(model, method)
        with pytest.raises(ValueError, match='needs to keep its arguments'):
            norms_of(gradients, model, (x.clone(), owner.clone()), owner, x)


@pytest.mark.parametrize('method', ['vjp', 'loop', 'functorch'])
def test_weights_that_moved_since_the_call_are_refused(method):
    torch.manual_seed(0)
    model, owner = Writes(None), torch.tensor([0, 0, 1])
    x = torch.randn(3, 4, dtype=torch.float64)
    with SubgraphGradients(model, method).record(owner, 2) as tape:
        out = model(x, owner)
    with torch.no_grad():
        model.layer.weight.mul_(3)
    with pytest.raises(ValueError, match='needs to keep its parameters'):
        tape.clipped_sum(out, x, 1.0)


def test_hooks_on_parameters_count_as_where_subgraphs_are_alone():
    torch.manual_seed(0)
    model, owner = Writes(None), torch.tensor([0, 0, 1])
    model.layer.weight.register_hook(lambda grad: 3 * grad)
    x = torch.randn(3, 4, dtype=torch.float64)
    want = [
        torch.cat([3 * x[o].t() @ x[o], x[o].sum(0)[None]]).norm()
        for o in (owner == 0, owner == 1)
    ]
    got = norms_of(SubgraphGradients(model), model, (x, owner), owner, x)
    torch.testing.assert_close(got.norms, torch.stack(want))
    gradients = SubgraphGradients(model, 'bookkeeping')
    with pytest.raises(ValueError, match='has a hook on its gradient'):
        norms_of(gradients, model, (x, owner), owner, x)


class Calls(nn.Module):
    """A layer, and something before it whose tensors have no memory."""

    def __init__(self, before, layer=None):
        super().__init__()
        self.layer = layer or nn.Linear(4, 3)
        self.before = before

    def forward(self, x):
        return self.layer(self.before(x))


with torch.inference_mode():
    CONSTANT = torch.arange(4.0)


@pytest.mark.parametrize(
    'model',
    [
        lambda: Calls(torch.relu, nn.LazyLinear(3)),
        lambda: Calls(
            lambda x: torch.vmap(lambda c: (c * x).relu_().clone().mul_(c))(
                torch.arange(1.0, 3.0)
            ).sum(0)
        ),
        lambda: Calls(lambda x: (x + CONSTANT).relu_()),
    ],
    ids=['lazy', 'vmap', 'inference'],
)
def test_tensors_without_memory_or_versions_are_followed(model):
    # Or at least let be: such models were trained before.
    torch.manual_seed(0)
    model, owner = model(), torch.tensor([0, 1, 0, 2, 2])
    x, cotangent = torch.randn(5, 4), torch.randn(5, 3)
    got = norms_of(SubgraphGradients(model), model, (x,), owner, cotangent)
    want = alone(model, x, owner, cotangent)
    torch.testing.assert_close(got.norms, want, check_dtype=False)


@pytest.mark.parametrize('method', ['vjp', 'loop'])
def test_a_module_may_write_into_its_own_weights(method):
    # An embedding of bounded norms: whoever is called again keeps them.
    torch.manual_seed(0)
    layer = nn.Embedding(5, 4, max_norm=0.5)
    model, owner = Calls(lambda x: x, layer), torch.tensor([0, 0, 1])
    z, cotangent = torch.tensor([0, 3, 3]), torch.randn(3, 4)
    with SubgraphGradients(model, method).record(owner, 2) as tape:
        out = model(z)
    once, twice = (tape.clipped_sum(out, cotangent, 1.0) for _ in range(2))
    assert torch.equal(once.norms, twice.norms)
