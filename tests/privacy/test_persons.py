"""Private training on persons who are rows in several tables."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import shops
import torch
from shops import BY, HAS, IN, declared
from torch_geometric.data import Data, HeteroData

from pyg_trust.check import check_report
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy.accountant import GroupAccountant
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import TrustReport
from pyg_trust.transforms import MetapathFeatures
from pyg_trust.unit import PrivacyUnit
from pyg_trust.verify.claims import digest

PATHS = [[BY], [BY, HAS], [BY, HAS, IN]]
shop = partial(shops.shop, n=40)


def featured(data: HeteroData, unit: PrivacyUnit) -> HeteroData:
    return MetapathFeatures(PATHS, 'user', unit=unit)(data)


def loader(data: HeteroData, unit: Any, **options: Any) -> DisjointWalkLoader:
    given = {'walk_length': 0, 'num_steps': 3, 'seed': 0, **options}
    return DisjointWalkLoader(data, 8, unit=unit, **given)


def trained(walks: DisjointWalkLoader, **options: Any) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(walks.data.x.size(1), 3)
    engine = PrivacyEngine(insecure_seed=0, **options)
    model, optimizer, walks = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=walks,
        noise_multiplier=4.0,
        max_grad_norm=1.0,
        forward=lambda model, batch: model(batch.x),
    )
    for batch in walks:
        optimizer.zero_grad()
        out = model(batch.x)
        torch.nn.functional.cross_entropy(out, batch.y).backward()
        optimizer.step()
    return engine


@pytest.mark.parametrize('sampling', ['poisson', 'without_replacement'])
def test_persons_cost_what_rows_cost(sampling: str) -> None:
    data = shop()
    unit = declared(data)
    featured_ = featured(data, unit)
    report = trained(loader(featured_, unit, sampling=sampling)).report(1e-4)
    row = Data(
        x=featured_['user'].x,
        y=featured_['user'].y,
        edge_index=torch.empty((2, 0), dtype=torch.int64),
    )
    walks = DisjointWalkLoader(
        row, 8, 0, num_steps=3, seed=0, sampling=sampling
    )
    rows = trained(walks).report(1e-4)
    assert report.epsilon == rows.epsilon
    assert report.weights_sha256 == rows.weights_sha256
    assert report.neighboring == 'replace-one-person'
    assert rows.neighboring == 'replace-one-feature-row'
    assert report.persons == unit.summary()
    assert not rows.persons
    assert not rows.together


def test_a_report_names_what_is_declared_public() -> None:
    data = shop()
    unit = declared(data)
    report = trained(loader(featured(data, unit), unit)).report(1e-4)
    made = report.guarantee()
    assert 'any one person: all rows that it owns' in made.promise
    public = 'DECLARED PUBLIC: item, category, item/in/category'
    assert public in made.not_covered
    text = report.explain()
    assert f'{public}.' in text
    assert 'rows of user, order, how many they are' in text
    # Several together are in as many units.
    for k, epsilon in report.together:
        many = GroupAccountant(40, k)
        for _ in range(3):
            many.step(noise_multiplier=4.0, sample_rate=8 / 40)
        assert epsilon == many.get_epsilon(1e-4)
        assert epsilon > report.epsilon
        assert f'For {k} persons together' in text
    assert [k for k, _ in report.together] == [2, 5]


@pytest.mark.parametrize('sampling', ['poisson', 'without_replacement'])
def test_the_check_proves_epsilon_of_several_persons(
    sampling: str, tmp_path: Path
) -> None:
    data = shop()
    unit = declared(data)
    rows = loader(featured(data, unit), unit, sampling=sampling)
    whole = json.loads(TrustReport.of(trained(rows).report(1e-4)).to_json())
    (each,) = whole['guarantees']
    honest = each['values']['together']

    def answers(pairs: Any) -> list[str]:
        each['values']['together'] = pairs
        whole['digest'] = digest(whole)
        path = tmp_path / 'trust.json'
        path.write_text(json.dumps(whole))
        found = [
            check for check in check_report(path) if 'persons' in check.text
        ]
        return [check.status for check in found]

    assert answers(honest) == ['holds', 'holds']
    for forged in (
        [[k, 0.99 * epsilon] for k, epsilon in honest],
        [[k + 1, epsilon] for k, epsilon in honest],
    ):
        assert 'holds' not in answers(forged)
    if sampling == 'poisson':
        return
    # A long list takes no time: so many proofs would take hours.
    long = answers([[2, 3.0 + i / 10_000] for i in range(10_000)])
    assert long.count('holds') <= 8
    assert set(long[8:]) == {'not proved'}


@pytest.mark.parametrize('seed', range(3))
def test_one_person_is_in_one_row(seed: int) -> None:
    """All that a person owns is exchanged: one row of the table changes."""

    def table(**changed: Any) -> Data:
        data = shop(seed, **changed)
        unit = declared(data)
        return unit.table(featured(data, unit))

    before = table()
    for person in random.Random(seed).sample(range(40), 10):
        after = table(changed=person)
        changed = (before.x != after.x).any(1) | (before.y != after.y)
        assert changed.nonzero().view(-1).tolist() == [person]


def test_batches_are_of_the_table_and_of_no_edge() -> None:
    data = shop()
    unit = declared(data)
    walks = loader(featured(data, unit), unit)
    table = unit.table(featured(data, unit))
    for batch in walks:
        assert batch.edge_index.numel() == 0
        assert torch.equal(batch.x, table.x[batch.n_id])
        assert torch.equal(batch.y, table.y[batch.n_id])


def test_a_ledger_of_persons_is_of_no_rows(tmp_path) -> None:
    data = shop()
    unit = declared(data)
    walks = loader(featured(data, unit), unit)
    engine = trained(walks, ledger=tmp_path / 'ledger')
    engine.close()
    row = Data(
        x=unit.table(featured(data, unit)).x,
        y=data['user'].y,
        edge_index=torch.empty((2, 0), dtype=torch.int64),
    )
    with pytest.raises(ValueError, match='ledger'):
        trained(
            DisjointWalkLoader(row, 8, 0, num_steps=3, seed=0),
            ledger=tmp_path / 'ledger',
        )
    # Nor is it of another declaration of what is public.
    none = data.clone()
    del none[IN]
    less = declared(none, public_edges=())
    paths = MetapathFeatures(PATHS[:2], 'user', unit=less)
    with pytest.raises(ValueError, match='ledger'):
        trained(loader(paths(none), less), ledger=tmp_path / 'ledger')


def test_weights_cover_persons_and_no_features(monkeypatch) -> None:
    data = shop()
    unit = declared(data)
    engine = trained(loader(featured(data, unit), unit))
    monkeypatch.setattr(PrivacyEngine, 'seeded', False)
    one, two = (
        engine.covers(RemovalRequest(persons=range(k), unit=unit), 1e-4)
        for k in (1, 2)
    )
    assert engine.report(1e-4).together[0] == (2, two)
    assert 2 * one < two
    with pytest.raises(ValueError, match=r"'request' .*persons alone"):
        engine.covers(RemovalRequest(features=[0]), 1e-4)
    # A person of another unit may be several of this one.
    other = declared(data, same=torch.tensor([[], []]).long())
    engine.covers(RemovalRequest(persons=[1], unit=other), 1e-4)
    other = declared(shop(n=41))
    asked = RemovalRequest(persons=[1], unit=other)
    for request in (asked, RemovalRequest.batch([asked])):
        with pytest.raises(ValueError, match='of the privacy unit that was'):
            engine.covers(request, 1e-4)
