import json
import math
from statistics import NormalDist

import pytest
import torch
from shops import BY, declared, shop
from sklearn.metrics import roc_auc_score

from pyg_trust import rng
from pyg_trust.audit import membership_inference
from pyg_trust.audit.statistics import auc_interval


def test_auc_is_the_share_of_ordered_pairs():
    gen = rng.generator(0)
    for decimals in (0, 1, 8):
        x = torch.randn(37, generator=gen).round(decimals=decimals) + 0.5
        y = torch.randn(53, generator=gen).round(decimals=decimals) + 0.5
        found = auc_interval(x, y).value
        above = (x[:, None] > y).double() + (x[:, None] == y).double() / 2
        assert found == pytest.approx(float(above.mean()))
        label = [1] * 37 + [0] * 53
        score = torch.cat([x, y]).tolist()
        assert found == pytest.approx(roc_auc_score(label, score))


def test_interval_is_that_of_delong():
    x = torch.tensor([0.1, 0.4, 0.4, 0.9])
    y = torch.tensor([0.0, 0.2, 0.4])
    # Placements by hand: v = 1/3, 5/6, 5/6, 1 and w = 1, 3/4, 1/2.
    mean = 3 / 4
    first = sum((v - mean) ** 2 for v in (1 / 3, 5 / 6, 5 / 6, 1)) / 3
    second = sum((w - mean) ** 2 for w in (1, 3 / 4, 1 / 2)) / 2
    half = NormalDist().inv_cdf(0.95) * math.sqrt(first / 4 + second / 3)
    found = auc_interval(x, y, level=0.9)
    assert found.value == pytest.approx(mean)
    assert found.low == pytest.approx(mean - half)
    assert found.high == 1  # cut


@pytest.mark.parametrize('shift', [0.0, 0.7, 1.5])
def test_interval_covers(shift):
    truth = NormalDist().cdf(shift / math.sqrt(2))
    gen = rng.generator(1)
    covered = 0
    for _ in range(400):
        x = torch.randn(60, generator=gen) + shift
        y = torch.randn(80, generator=gen)
        _, low, high = auc_interval(x, y)
        covered += low <= truth <= high
    # Five standard deviations of a binomial around 0.95.
    assert abs(covered / 400 - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 400)


def test_interval_of_samples_that_say_nothing_of_their_spread():
    half = math.sqrt(math.log(2 / 0.05) / (2 * 30))
    apart = auc_interval(torch.arange(30) + 100.0, torch.arange(50.0))
    assert apart == pytest.approx((1, 1 - half, 1))
    apart = auc_interval(torch.arange(50.0), torch.arange(30) + 100.0)
    assert apart == pytest.approx((0, 0, half))
    equal = auc_interval(torch.ones(50), torch.ones(30))
    assert equal == pytest.approx((0.5, 0.5 - half, 0.5 + half))


@pytest.mark.parametrize('attack', ['loss', 'confidence'])
def test_attack_on_what_is_known(attack):
    # Members are fitted, others are not.
    y = torch.arange(200) % 3
    probability = torch.full((200, 3), 0.3)
    probability[torch.arange(200), y] = 0.4
    members = torch.arange(200) < 80
    probability[members] = 0.01
    probability[members, y[members]] = 0.98
    found = membership_inference(
        probability, y, members, ~members, attack=attack
    )
    assert (found.auc, found.high) == (1, 1)
    assert 0.8 < found.low < 1
    assert (found.num_members, found.num_others) == (80, 120)
    # A model that does not know who is who.
    same = torch.rand(200, 3, generator=rng.generator(0)).softmax(1)
    found = membership_inference(
        same, y, members, ~members, attack=attack, level=1 - 1e-6
    )
    assert found.low < 0.5 < found.high
    assert 'smoke test' in str(found)
    assert json.loads(found.to_json())['attack'] == attack


def test_loss_reads_the_label_and_confidence_does_not():
    y = torch.zeros(40, dtype=torch.int64)
    members, others = torch.arange(20), torch.arange(20, 40)
    probability = torch.tensor([[0.2, 0.8]]).repeat(40, 1)
    probability[others] = torch.tensor([0.6, 0.4])
    args = probability, y, members, others
    assert membership_inference(*args).auc == 0
    assert membership_inference(*args, attack='confidence').auc == 1
    # Labels of nodes that are not named are not read.
    y = torch.cat([y, torch.tensor([-1])])
    wider = torch.cat([probability, probability[:1]])
    assert membership_inference(wider, y, members, others).auc == 0


def test_a_person_in_training_is_no_member_of_the_others() -> None:
    data = shop(2, 30)
    unit = declared(data)
    owner = data[BY].edge_index[1]
    size = owner.numel()
    probability = torch.full((size, 2), 0.5)
    y = torch.zeros(size).long()
    # By rows, as if one had never seen those of the same person.
    rows = torch.arange(size) % 2 == 0
    given = probability, y, rows, ~rows
    assert membership_inference(*given).num_others == int((~rows).sum())
    with pytest.raises(ValueError, match='of different persons') as caught:
        membership_inference(*given, unit=unit, node_type='order')
    assert 'unit.split(ratio, seed=...)' in str(caught.value)
    one, two = (part['order'] for part in unit.split([0.5, 0.5], seed=0))
    membership_inference(
        probability, y, one, two, unit=unit, node_type='order'
    )
    # Rows of orders are no users, though there are as many numbers.
    named = [rows.nonzero().view(-1)[:4] for rows in (rows, ~rows)]
    with pytest.raises(ValueError, match="'probability' needs a row for each"):
        membership_inference(
            probability, y, *named, unit=unit, node_type='user'
        )
