"""The snippets of CONTRIBUTING.md are run, and do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / 'CONTRIBUTING.md'

# What has to hold after the snippet under each heading, in the same process;
# all of it from other sources than what the snippet goes through.
CHECKS = {
    'A measure': """
        from torch_geometric.data import Data
        from pyg_trust.transforms import AGP
        adj = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 0, 0.0]])
        data = Data(x=torch.eye(3), edge_index=adj.nonzero().t())
        z = AGP('two_ends', alpha=0.25, K=3)(data).x
        walk = adj / adj.sum(0)
        dense = 0.25 * torch.eye(3) + 0.75 * torch.linalg.matrix_power(walk, 3)
        torch.testing.assert_close(z, dense)
    """,
    'A partition': """
        from torch_geometric.data import Data
        from pyg_trust.transforms import Shards
        data = Data(
            x=torch.eye(6),
            y=torch.tensor([1, 0, 1, 0, 1, 0]),
            edge_index=torch.empty(2, 0, dtype=torch.int64),
            train_mask=torch.ones(6, dtype=torch.bool),
        )
        made = Shards(3, 'by_class', offset=1)
        shard = made(data).shard
        for number in range(3):
            assert data.y[shard == number].sort().values.tolist() == [0, 1]
        assert not made.exact
        assert 'registered by the user' in made.seen
    """,
    'An aggregator': """
        from pyg_trust.nn import make_aggregator
        outputs = torch.tensor([[[9.0, 0]], [[0, 9.0]], [[9.0, 0]]])
        made = make_aggregator('median')(outputs)
        first = torch.tensor([9.0, 0]).softmax(0)
        torch.testing.assert_close(made, first[None])
    """,
    'An accountant': """
        from scipy.stats import norm
        from pyg_trust.privacy import create_accountant
        account = create_accountant('no_amplification')
        for _ in range(4):
            account.step(noise_multiplier=8.0, sample_rate=0.1)
        epsilon, mu = account.get_epsilon(1e-5), (4 * (2 / 8.0) ** 2) ** 0.5
        # Balle and Wang 2018, theorem 8.
        delta = norm.cdf(mu / 2 - epsilon / mu)
        delta -= np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert abs(delta / 1e-5 - 1) < 1e-3
        left = account.remaining_steps(
            epsilon, 1e-5, noise_multiplier=8.0, sample_rate=0.1
        )
        assert left == 0
    """,
    'A noise': """
        from pyg_trust.noise import source
        drawn = source(kind='device').normal((2000, 1))
        assert abs(drawn.mean()) < 5 / 2000**0.5
        assert 0.8 < drawn.std() < 1.2
    """,
    'A certificate': """
        from torch_geometric.data import Data
        from pyg_trust.certificates import certify
        model = torch.nn.Linear(1, 2, bias=False)
        model.weight.data = torch.tensor([[1.0], [0.0]])
        data = Data(x=torch.tensor([[0.5], [2.0], [-3.0]]))
        report = certify(model, data, NewFeatures(1.0))
        assert report.num_robust == 2
        assert 'not checked by this package' in report.guarantee().promise
    """,
    'An attack': """
        from torch_geometric.data import Data
        from pyg_trust.audit import audit_removal
        from pyg_trust.removal import RemovalRequest, remove_from_data
        class Means:
            forgets = True
            def fit(self, data, seed):
                self.data = data
            def remove(self, request):
                if self.forgets:
                    self.data = remove_from_data(self.data, request.parts[0])
            def predict_proba(self, data):
                x = self.data.x.mean(0) + 0 * data.x
                return x.softmax(1)
            def released(self):
                return {'mean': self.data.x.mean(0)}
        class Keeps(Means):
            forgets = False
        data = Data(
            x=torch.rand(8, 2),
            y=torch.tensor([0, 1] * 4),
            edge_index=torch.tensor([[0, 1], [1, 0]]),
            train_mask=torch.ones(8, dtype=torch.bool),
        )
        for make, verdict in ((Means, 'not rejected'), (Keeps, 'failed')):
            found = audit_removal(
                make, data, RemovalRequest(nodes=[3]), tests=['again']
            )
            assert found.rows[0].verdict == verdict
            assert 'not checked by this package' in found.rows[0].note
    """,
}


def snippets():
    """The code under each heading of the last section."""
    text = PAGE.read_text().split('## Add one of your own')[1]
    return dict(re.findall(r'### (.*?)\n.*?```python\n(.*?)```', text, re.S))


def test_there_is_a_short_snippet_of_every_kind():
    found = snippets()
    assert list(found) == list(CHECKS)
    for heading, code in found.items():
        assert len(code.splitlines()) < 40, heading


def test_a_stranger_can_add_one_of_each():
    pytest.importorskip('opacus')
    lines = ['import textwrap, numpy as np, torch', 'torch.manual_seed(0)']
    for heading, code in snippets().items():
        # Each in a space of names of its own, as in a file of its own.
        both = code + '\n' + 'import numpy as np, torch\n'
        check = '\n'.join(s[8:] for s in CHECKS[heading].splitlines())
        lines.append(f'print({heading!r}, flush=True)')
        lines.append(f'exec({both + check!r}, {{"__name__": "mine"}})')
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', '\n'.join(lines)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split('\n') == [*CHECKS, '']
