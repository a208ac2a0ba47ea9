"""Private training of models of typed graphs, in which a person is a unit."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import together
from references import Silence
from shops import HAS, KNOWS, SEES, SOLD, declared, shop
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GraphSAGE,
    HANConv,
    HeteroConv,
    HeteroDictLinear,
    HGTConv,
    Linear,
    RGCNConv,
    SAGEConv,
    to_hetero,
)

from pyg_trust.loader import DisjointWalkLoader, UnitLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.removal import RemovalRequest

TYPES, RELATIONS = shop().metadata()


class Convs(nn.Module):
    """Layers of one kind for each relation, added up."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        layer = {e: conv() for e in RELATIONS}
        self.first = HeteroConv(layer, aggr='sum')
        self.second = HeteroConv({e: conv() for e in RELATIONS}, aggr='mean')
        self.out = Linear(6, 3)

    def forward(self, x: Any, edges: Any) -> Tensor:
        for layer in (self.first, self.second):
            x = {**x, **{t: v.relu() for t, v in layer(x, edges).items()}}
        return self.out(x['user'])


class RGCN(nn.Module):
    """One graph of all rows, after a linear map by type."""

    def __init__(self, bases: int | None) -> None:
        super().__init__()
        self.into = HeteroDictLinear(-1, 6, TYPES)
        self.conv = RGCNConv(6, 6, len(RELATIONS), num_bases=bases)
        self.out = Linear(6, 3)

    def forward(self, x: Any, edges: Any) -> dict[str, Tensor]:
        found = self.into(x)
        start, first = {}, 0
        for t in TYPES:
            start[t], first = first, first + len(found[t])
        joined = torch.cat(
            [
                index + index.new_tensor([[start[e[0]]], [start[e[2]]]])
                for e, index in edges.items()
            ],
            1,
        )
        kind = torch.cat(
            [
                index.new_full((index.size(1),), k)
                for k, index in enumerate(edges.values())
            ]
        )
        rows = torch.cat([found[t] for t in TYPES]).relu()
        out = self.conv(rows, joined, kind).relu()
        return {'user': self.out(out[: len(found['user'])])}


class HGT(nn.Module):
    """Attention by types."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.ModuleDict({t: Linear(-1, 4) for t in TYPES})
        self.conv = HGTConv(4, 4, (TYPES, RELATIONS), 2)
        self.out = Linear(4, 3)

    def forward(self, x: Any, edges: Any) -> Tensor:
        x = {t: self.into[t](v).relu() for t, v in x.items()}
        return self.out(self.conv(x, edges)['user'])


def sage() -> nn.Module:
    return to_hetero(GraphSAGE((-1, -1), 6, 2, 3), (TYPES, RELATIONS))


MODELS: dict[str, Any] = {
    'to_hetero(GraphSAGE)': sage,
    'HeteroConv(SAGE)': lambda: Convs(lambda: SAGEConv((-1, -1), 6)),
    'HeteroConv(GAT)': lambda: Convs(
        lambda: GATConv((-1, -1), 6, add_self_loops=False)
    ),
    'HeteroConv(GATv2)': lambda: Convs(
        lambda: GATv2Conv((-1, -1), 6, add_self_loops=False)
    ),
    'RGCN': lambda: RGCN(None),
    'RGCN of bases': lambda: RGCN(2),
    'HGT': HGT,
}


def ready(model: nn.Module, data: HeteroData) -> nn.Module:
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)
    return model


def attach(
    model: nn.Module,
    data: HeteroData | None = None,
    loader: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    data = shop() if data is None else data
    given = {'batch_size': 5, 'seed': 0, **(loader or {})}
    made = UnitLoader(data, declared(data), **given)
    private = PrivacyEngine(**{'insecure_seed': 1, **(engine or {})})
    training = private.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=made,
        **{'noise_multiplier': 4.0, 'max_grad_norm': 0.2, **options},
    )
    return private, training


def rows(out: Any) -> Tensor:
    return out['user'] if isinstance(out, dict) else out


def step(model: Any, batch: HeteroData, optimizer: Any) -> None:
    out = rows(model(batch.x_dict, batch.edge_index_dict))
    F.cross_entropy(out, batch['user'].y).backward()
    optimizer.step()


def alone(
    model: nn.Module,
    made: UnitLoader,
    persons: list[int],
    norm: float,
    target: str = 'user',
) -> list[Tensor]:
    """The clipped sum, each person run by itself in double precision."""
    model = copy.deepcopy(model).double()
    params = list(model.parameters())
    total = [torch.zeros_like(p) for p in params]
    for person in persons:
        batch = made([person])
        x = {t: v.double() for t, v in batch.x_dict.items()}
        labels = batch[target].y.flatten()
        if not len(labels):
            continue
        out = model(x, batch.edge_index_dict)
        out = rows(out) if target == 'user' else out[target]
        loss = F.cross_entropy(out[: len(labels)], labels)
        found = torch.autograd.grad(loss, params, materialize_grads=True)
        size = math.sqrt(sum(float(g.square().sum()) for g in found))
        for one, grad in zip(total, found, strict=True):
            one += grad * min(1.0, norm / size)
    return total


def check_step(
    model: nn.Module,
    data: HeteroData,
    options: dict[str, Any],
    isolation: str = 'checked',
    target: str = 'user',
    off: float = 5e-6,
) -> tuple[Any, UnitLoader]:
    """One step is the sum of its units, each run alone."""
    plain = copy.deepcopy(model)
    engine, (private, optimizer, loader) = attach(
        model, data, options, isolation=isolation
    )
    engine._noise = Silence()
    batch = next(iter(loader))
    out = private(batch.x_dict, batch.edge_index_dict)
    out = rows(out) if target == 'user' else out[target]
    labels = batch[target].y.flatten()
    # The loop is PyG's: roots come first.
    F.cross_entropy(out[: len(labels)], labels).backward()
    optimizer.step()
    made, ids = loader.loader, batch[target].input_id.tolist()
    size = made.subgraphs_per_batch
    want = alone(plain, made, ids, 0.2, target)
    # Of each parameter; in float32, norms are rounded up by this.
    errors = [
        (p.grad * size - w).norm()
        for p, w in zip(model.parameters(), want, strict=True)
    ]
    assert float(torch.stack(errors).max()) <= off * size * 0.2
    return batch, made


@pytest.mark.parametrize('isolation', ['checked', 'construction'])
@pytest.mark.parametrize('name', MODELS)
def test_a_step_is_the_sum_of_persons_run_alone(
    name: str, isolation: str
) -> None:
    torch.manual_seed(0)
    data = shop()
    model = ready(MODELS[name](), data)
    check_step(model, data, {'batch_size': 8}, isolation)


WALKS = {
    'neighboring': 'contents',
    'walk_length': 2,
    'restarts': 2,
    'along': (KNOWS,),
    'batch_size': 4,
    'num_steps': 3,
}


@pytest.mark.parametrize('isolation', ['checked', 'construction'])
@pytest.mark.parametrize('name', ['to_hetero(GraphSAGE)', 'HGT'])
def test_a_step_is_the_sum_of_claims_run_alone(
    name: str, isolation: str
) -> None:
    torch.manual_seed(0)
    data = shop(3, 30)
    model = ready(MODELS[name](), data)
    batch, _ = check_step(model, data, WALKS, isolation)
    assert len(batch['user'].x) > 4


TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    'joint rows': ('chat', WALKS),
    'orders of a claim': ('order', WALKS),
    'orders': ('order', {'batch_size': 9}),
    'orders by coins': (
        'order',
        {
            'sampling': 'poisson',
            'neighboring': 'add_remove',
            'sample_rate': 0.5,
            'num_steps': 2,
        },
    ),
}


def labelled(seed: int = 3, n: int = 30) -> HeteroData:
    """A shop with labels on orders and chats, of which most are read."""
    data = shop(seed, n)
    for t in ('order', 'chat'):
        data[t].y = (data[t].x[:, 0] * 10).long() % 3
        data[t].train_mask = data[t].x[:, 1] > -0.8
    return data


@pytest.mark.parametrize('isolation', ['checked', 'construction'])
@pytest.mark.parametrize('case', TARGETS)
def test_a_term_is_the_mean_of_the_rows_of_a_unit(
    case: str, isolation: str
) -> None:
    torch.manual_seed(0)
    target, options = TARGETS[case]
    data = labelled()
    options = {**options, 'input_nodes': (target, data[target].train_mask)}
    model = ready(sage(), data)
    batch, _ = check_step(model, data, options, isolation, target, 3e-5)
    # There are some with none, one and several.
    mask, drawn = batch[target].root_mask, batch[target].input_id
    count = batch[target].batch[mask].bincount(minlength=len(drawn))
    assert int(count.min()) == 0 < int(count.max())
    assert int(count.max()) > 1 or target == 'chat'


@pytest.mark.parametrize('isolation', ['checked', 'construction'])
def test_persons_without_a_target_row_add_exactly_nothing(
    isolation: str,
) -> None:
    torch.manual_seed(0)
    data = labelled()
    none = torch.zeros(len(data['order'].x), dtype=torch.bool)
    model = ready(sage(), data)
    engine, (private, optimizer, loader) = attach(
        model, data, {'input_nodes': ('order', none)}, isolation=isolation
    )
    engine._noise = Silence()
    for batch in loader:
        out = private(batch.x_dict, batch.edge_index_dict)['order']
        F.cross_entropy(out, batch['order'].y).backward()
        optimizer.step()
        assert not any(p.grad.any() for p in model.parameters())


@pytest.mark.parametrize('column', [False, True])
@pytest.mark.parametrize('name', ['joint rows', 'orders'])
def test_rows_with_ignored_labels_have_no_term(
    name: str, column: bool
) -> None:
    torch.manual_seed(0)
    data = labelled()
    target, options = TARGETS[name]
    y = data[target].y.clone()
    y[torch.arange(len(y)) % 3 == 0] = -100
    data[target].y = y[:, None] if column else y
    model = ready(sage(), data)
    given = {**options, 'input_nodes': (target, None)}
    batch, made = check_step(model, data, given, target=target)
    # As if the mask had left them out.
    assert torch.equal(made._read, y != -100)
    assert (batch[target].y >= 0).all()


def test_contents_cost_what_rows_on_walks_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shop(3, 30)
    ledger = tmp_path / 'ledger'

    def run(**options: Any) -> Any:
        torch.manual_seed(0)
        model = ready(sage(), data)
        engine, (private, optimizer, loader) = attach(
            model, data, engine={'ledger': ledger}, loader=options
        )
        for batch in loader:
            step(private, batch, optimizer)
        return engine

    engine = run(**WALKS)
    report = engine.report(1e-4)
    pairs = declared(data).pairs((KNOWS,))
    rows = Data(
        x=torch.rand(30, 3),
        y=torch.zeros(30).long(),
        edge_index=torch.cat([pairs, pairs.flip(0)], 1),
    )
    plain = PrivacyEngine(insecure_seed=1)
    linear = nn.Linear(3, 2)
    private, optimizer, loader = plain.make_private(
        module=linear,
        optimizer=torch.optim.SGD(linear.parameters(), lr=0.1),
        data_loader=DisjointWalkLoader(rows, 4, 2, 2, num_steps=3, seed=0),
        noise_multiplier=4.0,
        max_grad_norm=0.2,
        forward=lambda model, batch: model(batch.x),
    )
    for batch in loader:
        out = private(batch.x)[: batch.batch_size]
        F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()
    assert report.epsilon == plain.report(1e-4).epsilon
    assert report.sensitivity == 2 * 0.2
    assert report.neighboring == 'replace-contents-of-one-person'
    made = report.guarantee()
    assert "any one person's contents" in made.promise
    assert made.not_covered[-1] == (
        'who shares chat, user/knows/user with whom, and by which rows: '
        'fixed and public'
    )
    assert (
        'how many it owns alone (not counting rows with edges of '
        'user/knows/user), features'
    ) in report.explain()
    assert [k for k, _ in report.together] == [2, 5]
    # Removal leaves with whom one shared rows; no ledger is of both promises.
    request = RemovalRequest(persons=[1], unit=declared(data))
    with monkeypatch.context() as patch:
        patch.setattr(PrivacyEngine, 'seeded', False)
        with pytest.raises(ValueError, match='private in the contents'):
            engine.covers(request, 1e-4)
    engine.close()
    for options in (
        {'num_steps': 3, 'batch_size': 4},
        {**WALKS, 'along': ()},
        {**WALKS, 'max_joint': 2},
    ):
        with pytest.raises(ValueError, match='ledger'):
            run(**options)


@pytest.mark.parametrize('sampling', ['poisson', 'without_replacement'])
def test_fresh_claims_pay_for_each_partition_and_resume(
    sampling: str,
) -> None:
    data = shop(4, 40)
    options = {**WALKS, 'resample_every': 2, 'sampling': sampling}

    def run(steps: int, state: Any = None, **more: Any) -> Any:
        torch.manual_seed(0)
        model = ready(sage(), data)
        engine, training = attach(model, data, {**options, **more})
        if state is not None:
            engine.load_state_dict(state)
        claims = []
        while engine.steps < steps:
            for batch in training.loader:
                step(training.model, batch, training.optimizer)
                claims.append(batch['user'].n_id.tolist())
                if engine.steps == steps:
                    break
        return engine, training.loader.loader, claims

    engine, made, claims = run(6)
    counts = [made.num_subgraphs_at(i) for i in range(6)]
    assert len({*counts}) > 1
    spent = [
        rate
        for _, rate, count in engine.accountant.history
        for _ in range(count)
    ]
    for i, rate in enumerate(spent):
        assert 4 / counts[i] <= rate <= 4 / counts[i] + 1 / 4096
    report = engine.report(1e-4)
    # Several together are counted where it is known how.
    assert bool(report.together) == (sampling == 'poisson')
    # A resumed run goes on with the claims of its step.
    half, _, first = run(3)
    again, _, rest = run(6, half.state_dict())
    assert again.get_epsilon(1e-4) == report.epsilon
    assert [first, rest] == [claims[:3], claims[3:]]
    with pytest.raises(ValueError, match='setting'):
        run(6, half.state_dict(), resample_every=3)


@pytest.mark.parametrize('count', [0, 1, 2])
@pytest.mark.parametrize('persons', [1, 12])
def test_hgt_of_few_edges_is_followed(count: int, persons: int) -> None:
    # PyG makes no copy of a relation's prior where a type has one edge.
    torch.manual_seed(0)
    data = shop()
    for e in (HAS, SOLD, SEES):
        data[e].edge_index = data[e].edge_index[:, :count]
    model = ready(HGT(), data)
    with torch.no_grad():
        for prior in model.conv.p_rel.values():
            prior += torch.rand(1, 2)
    plain = copy.deepcopy(model)
    engine, (private, optimizer, loader) = attach(
        model, data, loader={'batch_size': persons, 'num_steps': 12}
    )
    engine._noise = Silence()
    for batch in loader:
        before = copy.deepcopy(plain)
        before.load_state_dict(model.state_dict())
        step(private, batch, optimizer)
        drawn = batch['user'].input_id.tolist()
        want = alone(before, loader.loader, drawn, 0.2)
        for p, w in zip(model.parameters(), want, strict=True):
            error = float((p.grad * persons - w).norm())
            assert error <= 1e-5 * persons * 0.2


@pytest.mark.parametrize('name', ['to_hetero(GraphSAGE)', 'HeteroConv(GAT)'])
def test_persons_come_by_coins_and_nobody_too(name: str) -> None:
    torch.manual_seed(0)
    data = shop()
    for relation in ('replace', 'add_remove'):
        model = ready(MODELS[name](), data)
        away = relation == 'add_remove'
        engine, (private, optimizer, loader) = attach(
            model,
            data,
            loader={
                'batch_size': 1,
                'sampling': 'poisson',
                'num_steps': 20,
                'neighboring': relation,
                'sample_rate': 1 / 12 if away else None,
            },
        )
        sizes = []
        for batch in loader:
            step(private, batch, optimizer)
            sizes.append(len(batch['user'].input_id))
        assert min(sizes) == 0 < max(sizes)
        report = engine.report(1e-4)
        if name != 'HeteroConv(GAT)':
            # A mean divides by how many came.
            assert report.arithmetic == ('sums' if away else 'exact')
        there = 'add-or-remove' if away else 'replace'
        assert report.neighboring == f'{there}-one-person'
        assert report.sensitivity == (0.2 if away else 0.4)
        assert ('whether it is there' in report.guarantee().promise) == away
        assert 'DECLARED PUBLIC: item, category, item/in/category' in (
            report.guarantee().not_covered
        )


# Models and losses that couple persons #######################################


class Coupled(nn.Module):
    """An honest model, and something of the whole batch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.model = how, sage()

    def forward(self, x: Any, edges: Any) -> Tensor:
        x = dict(x)
        if self.how == 'mean':
            x['item'] = x['item'] - x['item'].mean(0)
        out = self.model(x, edges)['user']
        if self.how == 'count':
            out = out / (1 + len(x['order']))
        if self.how == 'place':
            places = torch.arange(len(out), dtype=out.dtype)
            out = out + places.view(-1, 1)
        return out


@pytest.mark.parametrize('how', ['mean', 'count', 'place'])
def test_models_that_couple_persons_are_refused(how: str) -> None:
    model = ready(Coupled(how), shop())
    with pytest.raises(ValueError, match=r'apart|changes with the'):
        attach(model)


class HAN(nn.Module):
    """Attention over relations, by a mean over all rows of a type."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.ModuleDict({t: Linear(-1, 4) for t in TYPES})
        self.conv = HANConv(4, 4, (TYPES, RELATIONS), heads=1)
        self.out = Linear(4, 3)

    def forward(self, x: Any, edges: Any) -> Tensor:
        x = {t: self.into[t](v) for t, v in x.items()}
        return self.out(self.conv(x, edges)['user'])


def test_attention_over_a_whole_type_is_refused() -> None:
    with pytest.raises(ValueError, match='apart'):
        attach(ready(HAN(), shop()))


def test_arguments_that_are_not_of_the_batch_are_refused() -> None:
    _, (model, _, loader) = attach(ready(sage(), shop()))
    batch = next(iter(loader))
    x = dict(batch.x_dict)
    x['order'] = torch.zeros(3, 2)
    with pytest.raises(ValueError, match='called with the attributes'):
        model(x, batch.edge_index_dict)
    with pytest.raises(ValueError, match='called with the attributes'):
        model(batch.x_dict, batch.edge_index_dict, batch.n_id_dict)


def test_a_model_may_take_the_batch() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = ready(sage(), shop())

        def forward(self, batch: HeteroData) -> Tensor:
            return self.model(batch.x_dict, batch.edge_index_dict)['user']

    engine, (model, optimizer, loader) = attach(Whole())
    for batch in loader:
        F.cross_entropy(model(batch), batch['user'].y).backward()
        optimizer.step()
    assert engine.steps == 2


def test_lazy_layers_are_named() -> None:
    with pytest.raises(ValueError, match='call it once under'):
        attach(sage())


def test_transforms_by_row_pass() -> None:
    def rowwise(batch: HeteroData) -> HeteroData:
        for t in batch.node_types:
            batch[t].x = F.normalize(torch.cat([batch[t].x] * 2, 1), dim=1)
        return batch

    data = shop()
    wide = rowwise(copy.copy(data))
    model = ready(sage(), wide)
    engine, (private, optimizer, loader) = attach(
        model, data, loader={'transform': rowwise}
    )
    for batch in loader:
        step(private, batch, optimizer)
    assert engine.steps == 2


def test_a_probe_reads_no_private_row() -> None:
    # What is chosen, and refused, is the same for other data of the persons.
    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.seen = ready(sage(), shop()), []

        def forward(self, x: Any, edges: Any) -> Any:
            self.seen.append(tuple(len(v) for v in x.values()))
            return self.model(x, edges)

    sizes = []
    for data in (shop(), shop(orders=dict.fromkeys(range(12), 50))):
        model = Spy()
        attach(model, data)
        sizes.append(model.seen)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize('name', ['joint rows', 'orders'])
def test_processes_and_workers_train_on_target_rows_as_one(
    name: str, tmp_path: Path
) -> None:
    target, options = TARGETS[name]
    data = labelled()

    def train(path: Path, **more: Any) -> None:
        torch.manual_seed(0)
        model = ready(sage(), data)
        given = {**options, 'num_steps': 2, 'input_nodes': (target, None)}
        engine, (private, optimizer, loader) = attach(
            model, data, {**given, **more}
        )
        for batch in loader:
            out = private(batch.x_dict, batch.edge_index_dict)[target]
            F.cross_entropy(out, batch[target].y).backward()
            optimizer.step()
        report = engine.report(1e-4)
        found = model.state_dict(), report.epsilon, report.processes
        torch.save(found, path)

    def there(rank: int) -> None:
        train(tmp_path / f'{rank}.pt')

    together(2, tmp_path, there)
    train(tmp_path / 'alone.pt')
    train(tmp_path / 'workers.pt', num_workers=2)
    one, *others = (
        torch.load(tmp_path / f'{each}.pt')
        for each in ('alone', 'workers', '0', '1')
    )
    assert [each[2] for each in others] == [1, 2, 2]
    assert {each[1] for each in others} == {one[1]}
    workers, first, second = (each[0] for each in others)
    for key, value in one[0].items():
        assert torch.equal(workers[key], value)
        assert torch.equal(first[key], second[key])
        # Parts of a batch round as they are multiplied.
        assert torch.allclose(first[key], value, atol=1e-6)
