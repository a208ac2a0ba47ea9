"""Which rows and edges a claim of persons gets."""

import importlib.util
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from shops import declared, shop
from torch import Tensor
from torch_geometric.data import HeteroData

from pyg_trust.graph import CSRGraph
from pyg_trust.loader.claims import Ownership, TypedSubgraphs, expand
from pyg_trust.sampler.walks import disjoint_walks
from pyg_trust.unit import PrivacyUnit

Found = tuple[list[tuple[str, int]], dict[str, list[tuple[int, int]]]]


def content(found: TypedSubgraphs, number: int) -> Found:
    """Rows and edges of one subgraph, by their names in the tables."""
    rows, edges = [], {}
    for t, n_id in found.n_id.items():
        mine = n_id[found.batch[t] == number].tolist()
        assert mine == sorted(mine)
        rows += [(t, i) for i in mine]
    for e, index in found.edge_index.items():
        ends = [found.batch[t][i] for t, i in zip(e[::2], index, strict=True)]
        assert torch.equal(*ends)
        pairs = torch.stack(
            [found.n_id[t][i] for t, i in zip(e[::2], index, strict=True)]
        )[:, ends[0] == number]
        if pairs.numel():
            edges['/'.join(e)] = sorted(map(tuple, pairs.t().tolist()))
    return sorted(rows), edges


def claims(of: list[list[int]]) -> tuple[Tensor, Tensor]:
    sizes = torch.tensor([0, *(len(each) for each in of)])
    return sizes.cumsum(0), torch.tensor(
        [p for each in of for p in each]
    ).long()


def of_oracle(db: Any) -> tuple[PrivacyUnit, Ownership]:
    """The unit of a database of the oracle, whose persons have no table."""
    data, owners = HeteroData(), db['owners']
    for t, rows in owners.items():
        data[t].num_nodes = len(rows)
    for e, pairs in db['edges'].items():
        index = torch.tensor(pairs).long().view(-1, 2).t()
        data[e].edge_index = index
    chats = [(i, p) for i, o in enumerate(owners['chat']) for p in sorted(o)]
    unit = PrivacyUnit(
        data,
        num_persons=1 + max(p for t in owners for o in owners[t] for p in o),
        owned={
            t: torch.tensor([next(iter(o)) for o in owners[t]]).long().view(-1)
            for t in ('profile', 'order')
        },
        joint={'chat': torch.tensor(chats).long().view(-1, 2).t()},
        public=('item',),
        public_edges=(('item', 'like', 'item'),),
    )
    return unit, Ownership(unit, data)


def test_subgraphs_are_those_of_the_oracle(shared: Path) -> None:
    path = shared / 'oracles' / 'typed_graphs' / 'ownership.json'
    compared = 0
    for case in json.loads(path.read_text()):
        edges = {tuple(e.split('/')): v for e, v in case['edges'].items()}
        _, ownership = of_oracle({'owners': case['owners'], 'edges': edges})
        of = [s['claim'] for s in case['subgraphs'] if s['hops'] == 0]
        for each in case['subgraphs']:
            found = expand(ownership, *claims(of), each['hops'])
            rows, edges = content(found, of.index(each['claim']))
            assert rows == [tuple(row) for row in each['rows']]
            want = {e: [tuple(p) for p in v] for e, v in each['edges'].items()}
            assert edges == want
            compared += 1
    assert compared == 72


def by_hand(
    data: HeteroData, unit: PrivacyUnit, claim: set[int], hops: int
) -> Found:
    """The rule, row by row and edge by edge."""

    def owners(t: str, i: int) -> set[int]:
        if t in unit.public:
            return set()
        ptr, who = unit.owners(t)
        return set(who[ptr[i] : ptr[i + 1]].tolist())

    def pairs(e: Any) -> list[tuple[int, int, set[int]]]:
        more = unit.edge_owner.get(e)
        return [
            (
                i,
                j,
                owners(e[0], i)
                | owners(e[2], j)
                | (set() if more is None else {int(more[k])}),
            )
            for k, (i, j) in enumerate(data[e].edge_index.t().tolist())
        ]

    inside = {
        (t, i)
        for t in data.node_types
        for i in range(int(data[t].num_nodes))
        if owners(t, i) and owners(t, i) <= claim
    }
    for hop in range(hops):
        new = set()
        for e in data.edge_types:
            for i, j, who in pairs(e):
                a, b = (e[0], i), (e[2], j)
                if not who <= claim:
                    continue
                for here, there in ((a, b), (b, a)):
                    if here in inside or (hop == 0 and e in unit.edge_owner):
                        new |= {there} if there[0] in unit.public else set()
                        if e in unit.edge_owner and here[0] in unit.public:
                            new |= {here} if hop == 0 else set()
        inside |= new
    edges = {
        '/'.join(e): sorted(
            (i, j)
            for i, j, who in pairs(e)
            if who <= claim and {(e[0], i), (e[2], j)} <= inside
        )
        for e in data.edge_types
    }
    return sorted(inside), {e: found for e, found in edges.items() if found}


@pytest.mark.parametrize('seed', range(40))
def test_subgraphs_are_those_of_the_rule(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(2, 8)
    data = shop(seed, n)
    unit = declared(data)
    persons = rng.sample(range(n), rng.randint(1, n))
    of: list[list[int]] = []
    while persons:
        size = rng.randint(1, len(persons))
        of.append(persons[:size])
        persons = persons[size:]
    for hops in range(4):
        found = expand(Ownership(unit, data), *claims(of), hops)
        alone = expand(Ownership(unit, data, max_joint=0), *claims(of), hops)
        for number, claim in enumerate(of):
            want = by_hand(data, unit, set(claim), hops)
            assert content(found, number) == want
            # Rows of several persons, and their edges, are left out.
            rows, edges = content(alone, number)
            assert rows == [row for row in want[0] if row[0] != 'chat']
            assert edges == {
                e: pairs for e, pairs in want[1].items() if 'chat' not in e
            }


def test_a_person_in_two_claims_is_refused() -> None:
    data = shop()
    with pytest.raises(ValueError, match="'persons' needs to hold each"):
        expand(Ownership(declared(data), data), *claims([[1], [2, 1]]), 1)


def test_nobody_has_empty_rows_and_edges() -> None:
    data = shop()
    found = expand(Ownership(declared(data), data), *claims([]), 2)
    assert all(rows.shape == (0,) for rows in found.n_id.values())
    assert all(e.shape == (2, 0) for e in found.edge_index.values())
    assert found.n_id.keys() == set(data.node_types)
    assert found.edge_index.keys() == set(data.edge_types)


@pytest.mark.parametrize('block', range(20))
def test_one_person_changes_the_claim_that_has_it(
    block: int, shared: Path
) -> None:
    # 4,000 databases with the persons' pairs, walks, rows and edges of the
    # oracle; 400 with walks of our own.
    path = shared / 'oracles' / 'typed_graphs' / 'owner_walks.py'
    spec = importlib.util.spec_from_file_location('owner_walks', path)
    assert spec is not None
    assert spec.loader is not None
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    for seed in range(200 * block, 200 * block + 200):
        rng = random.Random(seed)
        db = oracle.random_db(rng, rng.randint(2, 6))
        along = [('profile', 'knows', 'profile')] if seed % 2 else []
        length, restarts, hops = rng.randint(0, 3), rng.randint(1, 2), seed % 3
        worst, _ = oracle.check(db, along, length, restarts, hops, rng)
        assert worst <= 1
        if seed % 10:
            continue
        unit, ownership = of_oracle(db)
        pairs = unit.pairs(along)
        near = {
            tuple(sorted((p, q)))
            for p, others in oracle.person_graph(db, along).items()
            for q in others
        }
        assert {tuple(pair) for pair in pairs.t().tolist()} == near
        graph = CSRGraph.from_edge_index(
            torch.cat([pairs, pairs.flip(0)], 1), unit.num_names
        )
        walks = disjoint_walks(graph, length, restarts, seed=seed)
        of = [
            walks.node[a:b].tolist() for a, b in pairwise(walks.ptr.tolist())
        ]
        before = expand(ownership, *walks, hops)
        for number, claim in enumerate(of):
            inside, edges = oracle.expand(db, claim, hops)
            want = {'/'.join(e): sorted(v) for e, v in edges.items() if v}
            assert content(before, number) == (sorted(inside), want)
