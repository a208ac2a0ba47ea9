"""Votes: against exhaustive replacement."""

import itertools
import json
from fractions import Fraction

import torch

from pyg_trust.certificates.voting import (
    certified_mean,
    certified_votes,
    collective_votes,
    survives_votes,
)


def read(shared, name):
    file = shared / 'oracles/any_model_certificates' / f'{name}.json'
    return json.loads(file.read_text())


def test_votes_are_those_of_all_replacements(shared):
    for entry in read(shared, 'voting'):
        votes = torch.tensor(entry['votes'])[:, None]
        first = certified_votes(votes, 4, ties='first')
        assert int(first.predicted) == entry['predicted']
        assert int(first.radius) == entry['ties_first']
        assert int(certified_votes(votes, 4).radius) == entry['ties_any']


def test_no_replacement_within_the_radius_changes_the_class():
    generator = torch.Generator().manual_seed(1)
    reached = set()
    for _ in range(60):
        votes = torch.randint(3, (5, 1), generator=generator)
        votes[:3] = votes[0]
        made = certified_votes(votes, 3, ties='first')
        radius = int(made.radius)
        reached.add(radius)
        beaten = False
        for k in (radius, radius + 1):
            for which in itertools.combinations(range(5), min(k, 5)):
                for new in itertools.product(range(3), repeat=len(which)):
                    other = votes.clone()
                    other[list(which), 0] = torch.tensor(new).long()
                    now = certified_votes(other, 3, ties='first').predicted
                    if k == radius:
                        assert torch.equal(now, made.predicted)
                    else:
                        beaten |= not torch.equal(now, made.predicted)
        assert beaten
    assert len(reached) > 1


def test_mean_probabilities_are_those_of_all_replacements(shared):
    for entry in read(shared, 'soft_voting'):
        p = torch.tensor(
            [
                [float(Fraction(v)) for v in row]
                for row in entry['probabilities']
            ],
            dtype=torch.float64,
        )[:, None]
        made = certified_mean(p)
        assert int(made.predicted) == entry['predicted']
        assert int(made.radius) == entry['certified']


def test_a_tie_of_means_promises_nothing():
    p = torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
    assert int(certified_mean(p).radius) == -1


def test_sets_of_shards_are_all_tried(shared, monkeypatch):
    entries = read(shared, 'shards')
    for entry in [entries] if isinstance(entries, dict) else entries:
        votes = torch.tensor(entry['votes'])
        single = certified_votes(votes, 5)
        assert single.radius.tolist() == entry['certified_shards']
        for k, want in entry['collective_robust'].items():
            k = int(k)
            made = collective_votes(votes, 5, k)
            assert made.exact
            assert made.lower == made.upper == want
            with monkeypatch.context() as few:
                few.setattr('pyg_trust.certificates.voting._SETS', 1)
                loose = collective_votes(votes, 5, k)
            assert loose.lower <= want <= loose.upper


def test_survivors_are_those_of_every_replacement():
    generator = torch.Generator().manual_seed(2)
    votes = torch.randint(3, (5, 40), generator=generator)
    for which in ([0], [1, 3], []):
        views = torch.tensor(which, dtype=torch.int64)
        made = survives_votes(votes, 3, views)
        for v in range(40):
            before = certified_votes(votes[:, v : v + 1], 3)
            stays = True
            for new in itertools.product(range(3), repeat=len(which)):
                other = votes[:, v : v + 1].clone()
                other[views, 0] = torch.tensor(new).long()
                counts = certified_votes(other, 3).counts[0]
                best = int(counts[int(before.predicted)])
                counts[int(before.predicted)] = -1
                stays &= bool(best > counts.max())
            assert stays == bool(made[v])
