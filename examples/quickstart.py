"""All of pyg_trust on one small social network, and the guarantees.

1,797 people, each with the image of a digit as features (scikit-learn's
digits) and with friends, most of whom wrote the same digit. Five things are
done with them: features are propagated along friendships; a model is trained
privately; its predictions are certified against lost friendships; people are
forgotten by a sharded model; images, and parts of them, by a classifier of
graphs of pixels.

Prints ten lines. Writes the guarantees, for people (``trust.html``) and for
programs (``trust.json``, which it checks), and figures (``quickstart.png``).
"""

import argparse
import time
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
import torch_geometric
from matplotlib.axes import Axes
from torch.nn import Linear
from torch_geometric.data import Data
from torch_geometric.nn import GCN
from torch_geometric.utils import grid
from tutorials.network import accuracy, social_network

from pyg_trust.certificates import Certificate, ThreatModel, certify
from pyg_trust.check import check_report
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.nn import PPNP
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import Report, TrustReport
from pyg_trust.transforms import AGP, GraphScattering
from pyg_trust.unlearning import ScatteringClassifier, ShardedUnlearner

DELTA = 1e-4
Bars = dict[str, float]


def propagate(data: Data, epochs: int) -> tuple[Bars, Report]:
    """Features over the graph, in one line; then any model of single rows."""
    transform = AGP('appnp', alpha=0.15, eps=1e-8)
    bars = {}
    for name, x in (('raw', data.x), ('propagated', transform(data).x)):
        model = Linear(data.num_features, 10)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(epochs):
            optimizer.zero_grad()
            out = model(x)[data.train_mask]
            F.cross_entropy(out, data.y[data.train_mask]).backward()
            optimizer.step()
        bars[name] = accuracy(model(x), data)
    return bars, transform.guarantee(data)


def train_privately(
    data: Data, epsilon: float, steps: int, seed: int
) -> tuple[PPNP, dict[float, float], Report]:
    """Any PyG model, any optimizer, the usual loop."""
    model = PPNP(Linear(data.num_features, 10), alpha=0.15, K=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = DisjointWalkLoader(
        data.subgraph(data.train_mask),
        batch_size=100,
        walk_length=1,
        num_steps=10,
        seed=seed,
    )
    engine = PrivacyEngine()  # noise and batches of the operating system
    private, private_optimizer, batches = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=epsilon,
        target_delta=DELTA,
        steps=steps,
        max_grad_norm=1.0,
    )
    curve = {}
    while not engine.exhausted:
        private.train()
        for batch in batches:
            private_optimizer.zero_grad()
            out = private(batch.x, batch.edge_index)[: batch.batch_size]
            F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            private_optimizer.step()
        private.eval()
        with torch.no_grad():
            out = model(data.x, data.edge_index)
        curve[engine.get_epsilon(DELTA)] = accuracy(out, data)
    return model, curve, engine.report()


def train_openly(data: Data, epochs: int) -> float:
    """The same model without privacy, for comparison: its accuracy."""
    model = PPNP(Linear(data.num_features, 10), alpha=0.15, K=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(epochs):
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)[data.train_mask]
        F.cross_entropy(out, data.y[data.train_mask]).backward()
        optimizer.step()
    with torch.no_grad():
        return accuracy(model(data.x, data.edge_index), data)


def forget_people(data: Data, epochs: int) -> tuple[Bars, Bars, Report]:
    """A sharded model forgets two people, exactly."""
    # Without a seed: who is in which shard is a secret.
    unlearner = ShardedUnlearner(
        lambda: GCN(data.num_features, 32, 2, 10), num_shards=8, epochs=epochs
    )
    start = time.perf_counter()
    unlearner.fit(data)
    middle = time.perf_counter()
    before = accuracy(unlearner.predict_proba(), data)
    people = data.train_mask.nonzero().view(-1)[:2]
    report = unlearner.remove(RemovalRequest(nodes=people))
    seconds = {'fit': middle - start, 'remove': time.perf_counter() - middle}
    report = report.verified(unlearner.verify(shards=report.shards))
    left = unlearner.data
    there = unlearner.predict_proba(nodes=unlearner.n_id)
    after = accuracy(there, left)
    return {'before': before, 'after': after}, seconds, report


def forget_images(data: Data, seed: int) -> tuple[Bars, Bars, Report]:
    """A certified classifier of graphs forgets images, and parts of them."""
    edge_index, position = grid(8, 8)
    center = position / 3.5 - 1
    graphs = [
        Data(
            x=torch.cat([x.view(64, 1), x.view(64, 1) * center], dim=1),
            edge_index=edge_index[:, edge_index[0] != edge_index[1]],
            y=digit.view(1),
        )
        for x, digit in zip(data.x, data.y, strict=True)
        if digit in (3, 8)
    ]
    train, test = graphs[:250], graphs[250:]
    # Without a seed: the noise on its weights is a secret.
    classifier = ScatteringClassifier(GraphScattering(J=3, Q=2, L=3))
    start = time.perf_counter()
    classifier.fit(train)
    middle = time.perf_counter()
    before = classifier.score(test)
    report = classifier.remove(
        RemovalRequest(graphs=[1, 2], nodes={5: [0, 1, 8, 9]})
    )
    seconds = {'fit': middle - start, 'remove': time.perf_counter() - middle}
    report = report.verified(classifier.verify())
    return {'before': before, 'after': classifier.score(test)}, seconds, report


CHANCE = 0.1  # ten digits
BLUE, GREY, RED = '#1f6feb', '#8c959f', '#cf222e'


def line_at(axis: Axes, height: float, text: str, place: float = 0.5) -> None:
    """A dashed line across, with its name."""
    axis.axhline(height, color=GREY, linestyle='--', linewidth=1)
    axis.annotate(
        text,
        (place, height + 0.01),
        xycoords=axis.get_yaxis_transform(),
        ha='center',
        va='bottom',
        fontsize='small',
        color='#57606a',
    )


def bars(axis: Axes, heights: Bars) -> None:
    """Bars with their heights above them, over chance."""
    colors = [GREY] * (len(heights) - 1) + [BLUE]
    axis.bar(list(heights), list(heights.values()), 0.6, color=colors)
    for at, height in enumerate(heights.values()):
        axis.text(at, height + 0.01, f'{height:.0%}', ha='center')


def draw(
    path: Path,
    features: Bars,
    private: dict[float, float],
    open_accuracy: float,
    budget: float,
    certified: dict[int, Certificate],
    forgotten: dict[str, list[Bars]],
) -> None:
    """The summary: what each part gives, beside doing without it."""
    figure, axes = plt.subplots(1, 5, figsize=(20, 4.2), layout='constrained')
    bars(axes[0], features)
    gain = features['propagated'] - features['raw']
    axes[0].set_title(f'Friends add {100 * gain:.0f} points\nof accuracy')
    line_at(axes[0], CHANCE, 'chance')

    last = list(private.values())[-1]
    axes[1].plot(list(private), list(private.values()), 'o-', color=BLUE)
    line_at(axes[1], open_accuracy, 'without privacy', 0.2)
    line_at(axes[1], CHANCE, 'chance')
    axes[1].axvline(budget, color=RED, linestyle='--', linewidth=1)
    axes[1].text(budget, 0.5, 'budget', color=RED, rotation=90, ha='right')
    axes[1].set(xlabel='epsilon spent (lower is more private)')
    axes[1].set_title(
        f'Privacy costs {100 * (open_accuracy - last):.0f} points '
        f'of accuracy\nat epsilon {budget:g}'
    )

    ratios = {k: report.certified_ratio() for k, report in certified.items()}
    axes[2].plot([0, *ratios], [1, *ratios.values()], 'o-', color=BLUE)
    for friends, ratio in ratios.items():
        axes[2].text(friends + 0.08, ratio + 0.04, f'{ratio:.0%}')
    axes[2].set(
        xlabel='friends that anyone may lose',
        xticks=[0, *ratios],
        ylabel='share of predictions proven to stay',
    )
    first = next(iter(ratios))
    axes[2].set_title(
        f'{ratios[first]:.0%} of predictions are proven\n'
        f'to survive {first} lost friend'
    )
    for axis, (name, (scores, seconds)) in zip(
        axes[3:], forgotten.items(), strict=True
    ):
        bars(axis, scores)
        share = seconds['remove'] / seconds['fit']
        axis.set_title(
            f'{name}: {share:.0%} of the time\nof the first training'
        )
        line_at(axis, 0.5 if 'image' in name else CHANCE, 'chance')
    for axis in axes:
        axis.set_ylim(0, 1.1)
        axis.set_ylabel(axis.get_ylabel() or 'accuracy on other people')
        for side in ('top', 'right'):
            axis.spines[side].set_visible(False)
    axes[4].set_ylabel('accuracy on other images')
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', type=Path, default=Path('.'))
    parser.add_argument('--epsilon', type=float, default=4.0)
    parser.add_argument('--steps', type=int, default=100)
    parser.add_argument('--epochs', type=int, default=100)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch_geometric.seed_everything(args.seed)
    data = social_network(args.seed)
    show('data', f'{data.num_nodes} people, {data.num_edges // 2} friendships')
    features, propagated = propagate(data, args.epochs)
    show(
        'propagate',
        f'{features["propagated"]:.1%} accuracy of a linear layer on '
        f"friends' features, {features['raw']:.1%} without friends",
    )
    model, curve, private = train_privately(
        data, args.epsilon, args.steps, args.seed
    )
    openly = train_openly(data, args.epochs)
    spent, reached = list(curve.items())[-1]
    show(
        'train privately',
        f'{reached:.1%} accuracy at epsilon {spent:.2f} (delta {DELTA:g}), '
        f'{openly:.1%} without privacy',
    )
    model.eval()
    certified = {
        budget: certify(model, data, ThreatModel(data, local_budget=budget))
        for budget in (1, 2, 3)
    }
    ratios = {k: c.certified_ratio() for k, c in certified.items()}
    show(
        'certify',
        f'{ratios[1]:.1%} of predictions are proven to survive 1 lost '
        f'friendship of every person, {ratios[3]:.1%} survive 3',
    )
    *people, exact = forget_people(data, args.epochs)
    *images, removal = forget_images(data, args.seed)
    forgotten = {'Forgetting 2 people': people, 'Forgetting images': images}
    for name, (scores, seconds) in forgotten.items():
        show(
            name.lower().replace('forgetting', 'forget'),
            f'{seconds["remove"]:.2f} s, the first training took '
            f'{seconds["fit"]:.2f} s; accuracy {scores["before"]:.1%} before, '
            f'{scores["after"]:.1%} after',
        )
    report = TrustReport.of(
        *(propagated, private, certified[1], exact, removal),
        title='Trust report of the quickstart',
        owner='whoever runs the quickstart',
        data_set="scikit-learn's digits, with friendships that are drawn",
        people=f'{data.num_nodes} people, who are made up',
        utility=f'{reached:.1%} accuracy of the private model',
    )
    report.save(args.out / 'trust.json')
    report.save(args.out / 'trust.html')
    answers = Counter(
        each.status.replace('holds', 'hold')
        for each in check_report(args.out / 'trust.json')
    )
    show('check', ', '.join(f'{n} {kind}' for kind, n in answers.items()))
    draw(
        args.out / 'quickstart.png',
        features,
        curve,
        openly,
        args.epsilon,
        certified,
        forgotten,
    )
    show(
        'report', f'{args.out / "trust.html"}: guarantees and their conditions'
    )
    show(
        'figure',
        f'{args.out / "quickstart.png"}: benefit and cost of each part',
    )
    show('next', f'python -m pyg_trust check {args.out / "trust.json"}')


def show(what: str, text: str) -> None:
    """Print one labelled line."""
    print(f'{what:<17}{text}', flush=True)


if __name__ == '__main__':
    main()
