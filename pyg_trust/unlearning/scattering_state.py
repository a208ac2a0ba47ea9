"""The state of a classifier of graphs: saved, restored, searched."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    check_integer,
    check_tensor,
)
from pyg_trust.commit import Lineage
from pyg_trust.ledger import (
    RemovalLedger,
)
from pyg_trust.noise import LEAST_P_VALUE
from pyg_trust.seals import (
    Seals,
    content,
    sealed,
)
from pyg_trust.unlearning.leftovers import named_leftovers, views
from pyg_trust.unlearning.training_graphs import (
    TrainingGraphs,
)

if TYPE_CHECKING:
    from pyg_trust.unlearning.scattering import ScatteringClassifier


class Model(NamedTuple):
    """All that training leaves behind, and its account.

    It is replaced as a whole, by one assignment at the end of whatever may
    fail or be interrupted, so that a failure changes nothing.
    """

    seed: int | None
    train: TrainingGraphs
    # Of objective perturbation, else zero.
    B: Tensor
    # The solution, and what is released of it.
    W: Tensor
    released: Tensor
    draws: int
    lineage: Lineage
    ledger: RemovalLedger

    @property
    def sealed(self) -> str:
        """A digest, for a line of the ledger, of all that a file has."""
        return sealed(
            self.train.seals.root,
            str(self.train.classes),
            str(self.seed),
            self.draws,
            self.B,
            self.released,
        )

    @property
    def is_sealed(self) -> bool:
        """Whether the last line of the ledger stands for all that there is."""
        lines = self.ledger.entries
        # Lines of version 0.1 stand for the graphs alone.
        known = (self.sealed, self.train.seals.root)
        return not lines or lines[-1].data in known


def config(classifier: 'ScatteringClassifier') -> dict[str, Any]:
    """The settings that have to be equal where a saved state is restored."""
    transform = {
        key: str(value) if isinstance(value, torch.dtype) else value
        for key, value in vars(classifier.transform).items()
    }
    return {
        'transform': [type(classifier.transform).__name__, transform],
        'lam': classifier.lam,
        'noise': classifier.noise,
        'release_std': classifier.release_std,
        'noise_std': classifier.noise_std,
        'epsilon': classifier.epsilon,
        'delta': classifier.delta,
        'loss': classifier.loss,
        'mode': classifier.mode,
        'num_classes': classifier.num_classes,
        'tol': classifier.tol,
    }


def unpacked(
    classifier: 'ScatteringClassifier',
    state: dict[str, Any],
    bar: bool,
) -> Model:
    """The model of a saved state, which continues the present one."""
    if state['config'] != config(classifier):
        raise ValueError(
            'the state was saved with other arguments (got '
            f'{state["config"]}, need {config(classifier)})'
        )
    present = classifier._model
    lineage = Lineage.of(state, None if present is None else present.lineage)
    ledger = RemovalLedger(classifier.budget)
    ledger.load_state_dict(state['ledger'])
    graphs = {
        i: Data.from_dict(dict(data)).clone()
        for i, data in state['graphs'].items()
    }
    seed = state['seed']
    if seed is not None:
        check_integer('seed', seed, 0)
    if state['seeded'] is not (seed is not None):
        raise ValueError(
            "'seeded' of the state needs to say whether it has a seed "
            f'(got {state["seeded"]!r})'
        )
    contents = {i: content(data) for i, data in graphs.items()}
    seals = Seals.of(state['salts'], contents)
    classes = tuple(state['classes'])
    train = classifier._keeper.design(graphs, classes, seals, bar)
    shape = (train.Z.size(1), train.Y.size(1))
    W = state['W']
    B = state['B'] if classifier.noise == 'objective' else torch.zeros_like(W)
    for name, value in (('W', W), ('B', B)):
        what = f'{name} of the state'
        check_tensor(what, value, torch.float64, shape, finite=True)
    draws = check_integer('draws', state['draws'], 0)
    model = Model(
        seed,
        train,
        B.clone(),
        W.clone(),
        W.clone(),
        draws,
        lineage,
        ledger,
    )
    if not model.is_sealed:
        raise ValueError(
            'the graphs, weights of the state or its account are not those of '
            'its ledger: something was changed, or put there from another'
        )
    if classifier.noise == 'output':
        # From zero: of the graphs, a function of what remains.
        model, _ = classifier._solved(model, None, bar)
        if classifier._noise_p_value(model) < LEAST_P_VALUE:
            raise ValueError(
                'the weights of the state are not those of its ledger: '
                'they are not that far from the solution as their noise '
                'makes them'
            )
        return model
    if ledger.entries:
        measured, upper = classifier._residual(model)
        # The embeddings are computed anew, and round differently.
        if not measured <= ledger.spent + 2 * (upper - measured):
            raise ValueError(
                'the weights of the state are not those of its ledger: '
                f'their residual is {measured:.6g}, not at most '
                f'{ledger.spent:.6g}'
            )
    return model


def leftovers(classifier: 'ScatteringClassifier') -> tuple[str, ...]:
    """Traces of what the ledger lists as removed."""
    model = classifier._fitted
    train, found = model.train, []
    for entry in model.ledger.entries:
        for name, part in entry.request.items():
            data = train.graphs.get(int(name))
            if data is None:
                continue
            if part.get('whole'):
                found.append(f'graph {name}')
            else:
                found += named_leftovers(data, part, f' of graph {name}')
    tensors: list[tuple[str, Tensor]] = [
        ('Y', train.Y),
        ('B', model.B),
        ('W', model.W),
        ('the released weights', model.released),
        ('embeddings', train.Z),
    ]
    if train.K is not None:
        tensors.append(('inner products', train.K))
    for i, data in train.graphs.items():
        for key, value in data.to_dict().items():
            if isinstance(value, Tensor):
                tensors.append((f'{key} of graph {i}', value))
    return (*found, *views(tensors))
