import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from pyg_trust import noise
from pyg_trust.audit import audit_training, empirical_epsilon
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy import training as steps
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.mechanisms import gaussian_profile

CANARIES = 1600


def attach(lam=1.0, break_it=None, **arguments):
    def make(module, optimizer, loader):
        engine = PrivacyEngine(**{'insecure_seed': 0, **arguments})
        training = engine.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=2 * lam,
            max_grad_norm=0.01,
            loss_reduction='sum',
        )
        if break_it is not None:
            break_it(engine, loader)
        return engine, training

    return make


def audit(break_it=None, **arguments):
    asked = {'num_canaries': CANARIES, 'delta': 0.1, 'seed': 3}
    for name in ('steps', 'batch_size', 'num_canaries', 'size'):
        if name in arguments:
            asked[name] = arguments.pop(name)
    return audit_training(attach(break_it=break_it, **arguments), **asked)


def test_steps_of_earlier_runs_are_not_what_an_audit_saw(tmp_path):
    # The claim was of all steps on the ledger, the audit of the last.
    asked = {'ledger': tmp_path / 'a.ledger', 'insecure_seed': None}
    engines = []

    def keep(engine, loader):
        engines.append(engine)

    audit(keep, num_canaries=32, **asked)
    engines[0].close()
    with (
        pytest.warns(UserWarning, match='earlier runs'),
        pytest.raises(ValueError, match='1 steps, after 1'),
    ):
        audit(num_canaries=32, **asked)

    def stop(engine, loader):
        loader.batch_sampler.num_steps = 1

    with pytest.raises(ValueError, match='takes 3 steps'):
        audit(stop, steps=3, num_canaries=32)


@pytest.mark.parametrize(
    'arguments',
    [
        {},
        {'lam': 2.0},
        {'insecure_seed': None},
        {'accountant': 'rdp_wor'},
        {'steps': 4, 'lam': 2.0},
        {'batch_size': 500},
        {'steps': 3, 'batch_size': 800},
    ],
)
def test_claims_hold(arguments):
    report = audit(**arguments)
    assert not report.violated
    assert report.epsilon_lower <= report.epsilon_claimed
    if not arguments:
        # Not for want of power: it sees a good part of what there is.
        assert report.epsilon_lower > 0.25 * report.epsilon_claimed


def unchecked(monkeypatch):
    # No unit is run alone as well: an audit has to find the fault by itself.
    monkeypatch.setattr(steps, 'agrees', lambda *_: None)


def half_the_noise(monkeypatch):
    # T2: lam given where 2 lam belongs.
    for source in (noise.SeededNoise, noise.SecureNoise):
        monkeypatch.setattr(
            source,
            'cells',
            lambda *args, cells=source.cells: cells(*args) // 2,
        )


def no_clipping(monkeypatch):
    factors = clip.factors
    monkeypatch.setattr(clip, 'factors', lambda *args: 100 * factors(*args))


def larger_clipping(monkeypatch):
    factors = clip.factors
    monkeypatch.setattr(clip, 'factors', lambda *args: 3 * factors(*args))


@pytest.mark.parametrize(
    'break_it', [half_the_noise, no_clipping, larger_clipping]
)
def test_broken_engines_are_found(break_it, monkeypatch):
    unchecked(monkeypatch)
    report = audit(lambda *_: break_it(monkeypatch))
    assert report.violated
    assert report.epsilon_lower > report.epsilon_claimed


def test_clipping_per_node_is_found(monkeypatch):
    # What Opacus does on PyG's layers: each row of a Linear is clipped.
    def per_node(found, max_grad_norm, *_):
        ((cluster,),) = (base.clusters for base in found.bases)
        scale = found.scale[cluster.owners[0]].view(-1, 1)
        rows = cluster.grads[0] * cluster.inputs[0] * scale
        size = rows.norm(dim=1, keepdim=True)
        rows = rows * (max_grad_norm / size).clamp(max=1)
        total = torch.nan_to_num(rows).sum(0, keepdim=True).double()
        integers = (total / clip.grid(max_grad_norm)).round().long()
        return type('Sum', (), {'integers': {'nn.weight': integers}})

    unchecked(monkeypatch)

    def make(module, optimizer, loader):
        made = attach()(module, optimizer, loader)
        monkeypatch.setattr(steps, 'clipped_sum', per_node)
        return made

    report = audit_training(make, num_canaries=CANARIES, seed=3)
    assert report.violated


def test_node_in_several_subgraphs_is_found(monkeypatch):
    # Each star is in the batch three times, as three subgraphs.
    def make(module, optimizer, loader):
        engine, training = attach()(module, optimizer, loader)
        clipped = steps.clipped_sum

        def thrice(*args):
            found = clipped(*args)
            for value in found.integers.values():
                value *= 3
            return found

        monkeypatch.setattr(steps, 'clipped_sum', thrice)
        return engine, training

    report = audit_training(make, num_canaries=CANARIES, seed=3)
    assert report.violated


def test_bound_of_a_known_mechanism():
    # Scores of a Gaussian mechanism: the bound is below the truth in all of
    # many runs but few, and comes near it with many trials.
    generator = np.random.default_rng(0)
    delta, mu = 0.05, 1.0
    truth = next(
        eps
        for eps in np.arange(0, 5, 0.01)
        if gaussian_profile(eps, noise_multiplier=2 / mu) <= delta
    )
    above = 0
    for run in range(60):
        report = empirical_epsilon(
            generator.normal(size=300),
            mu + generator.normal(size=300),
            delta,
            confidence=0.8,
            seed=run,
        )
        above += report.epsilon_lower > truth
    assert above <= 60 * 0.2
    report = empirical_epsilon(
        generator.normal(size=200_000),
        mu + generator.normal(size=200_000),
        delta,
    )
    assert 0.93 * truth < report.epsilon_lower <= truth


def test_both_rates_share_the_level():
    # Nothing overlaps, so 500 trials of each are counted without an error:
    # by hand each rate is that of level**(1/500).
    sure = 0.05 ** (1 / 500)
    report = empirical_epsilon(
        np.zeros(1000), np.ones(1000), 0.01, confidence=0.9
    )
    expected = math.log((sure - 0.01) / (1 - sure))
    assert report.epsilon_lower == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize('sign', [1, -1])
def test_direction_is_found(sign):
    generator = np.random.default_rng(1)
    report = empirical_epsilon(
        generator.normal(size=1000),
        sign * 4 + generator.normal(size=1000),
        0.01,
        claim=1.0,
    )
    assert report.violated
    assert report.delta_lower > 0.5
    assert report.true_positive_rate == pytest.approx(
        norm.sf(norm.isf(report.false_positive_rate + 1e-4) - 4), abs=0.2
    )
