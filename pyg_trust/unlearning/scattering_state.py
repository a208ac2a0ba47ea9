"""The state of a classifier of graphs: saved, restored, searched."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import check_integer, check_tensor
from pyg_trust.commit import Lineage
from pyg_trust.functional.heads import LOSSES, Objective, Residual
from pyg_trust.functional.newton import minimize
from pyg_trust.functional.shifts import grid_shift, largest_weights
from pyg_trust.ledger import RemovalLedger, coarse
from pyg_trust.noise import LEAST_P_VALUE
from pyg_trust.seals import Seals, content, sealed
from pyg_trust.transforms import GraphEmbedding
from pyg_trust.unlearning.leftovers import named_leftovers, views
from pyg_trust.unlearning.node_release import noise_p_value
from pyg_trust.unlearning.training_graphs import GraphKeeper, TrainingGraphs


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


class Settings(NamedTuple):
    """Settings of a classifier of graphs, and the formulas that use them."""

    transform: GraphEmbedding
    lam: float
    noise: str
    release_std: float
    noise_std: float
    epsilon: float
    delta: float
    loss: str
    mode: str
    accounting: str
    on_exceed: str
    num_classes: int | None
    tol: float
    budget: float

    def config(self) -> dict[str, Any]:
        """Return the settings that a saved state has to agree with."""
        transform = {
            key: str(value) if isinstance(value, torch.dtype) else value
            for key, value in vars(self.transform).items()
        }
        return {
            'transform': [type(self.transform).__name__, transform],
            'lam': self.lam,
            'noise': self.noise,
            'release_std': self.release_std,
            'noise_std': self.noise_std,
            'epsilon': self.epsilon,
            'delta': self.delta,
            'loss': self.loss,
            'mode': self.mode,
            'num_classes': self.num_classes,
            'tol': self.tol,
        }

    def solved(
        self,
        model: Model,
        start: Tensor | None,
        tol: float | None = None,
        progress_bar: bool = False,
    ) -> tuple[Model, int]:
        """Solve to a residual below tol; return the model and the steps.

        Args:
            model (Model): with its graphs.
            start (Tensor, optional): the weights to start at; zero if
                :obj:`None`.
            tol (float, optional): of the residual. (default: the
                classifier's)
            progress_bar (bool): whether to show one. (default: ``False``)
        """
        train = model.train
        solution = minimize(
            train.Z,
            train.Y,
            model.B,
            self.lam,
            self.loss,
            W=start,
            K=train.K,
            # Rounding included, it is then below tol.
            tol=(self.tol if tol is None else tol) / 2,
            progress_bar=progress_bar,
        )
        return model._replace(W=solution.W), solution.iterations

    def residual(self, model: Model) -> Residual:
        """Measure the residual of a model, with a bound of its rounding."""
        train = model.train
        mu = self.lam * train.Z.size(0)
        objective = Objective(train.Z, train.Y, mu, LOSSES[self.loss], model.B)
        return objective.gradient(model.W).norm

    def shift(
        self, model: Model, upper: float, tol: float | None = None
    ) -> float:
        """Return the shift that a solved model spends.

        It is tol, or a power of two times that if rounding hides more: no
        function of the data by which a guess of the removed part is tested.
        """
        tol = self.tol if tol is None else tol
        beta = tol * max(1.0, coarse(upper / tol))
        if self.noise == 'objective':
            return beta
        count, size = model.W.numel(), self.largest(model)
        grid = grid_shift(count, size, self.release_std)
        mu = self.lam * len(model.train.graphs)
        return beta / (mu * self.release_std) + grid

    def largest(self, model: Model) -> float:
        """Bound the weights of any solution that stays within the budget.

        The first term bounds exact training; others are at most the second
        away from it.
        """
        size = largest_weights(model.W.size(1), self.lam, self.loss)
        return size + self.budget * self.release_std

    def noise_p_value(self, model: Model) -> float:
        """Return the p value of the release's distance to the solution."""
        if self.noise == 'objective':
            return 1.0
        return noise_p_value(model.released, model.W, self.release_std)


def unpacked(
    settings: Settings,
    keeper: GraphKeeper,
    state: dict[str, Any],
    present: Model | None,
    bar: bool,
) -> Model:
    """The model of a saved state, which continues the present one."""
    if state['config'] != settings.config():
        raise ValueError(
            'the state was saved with other arguments (got '
            f'{state["config"]}, need {settings.config()})'
        )
    lineage = Lineage.of(state, None if present is None else present.lineage)
    ledger = RemovalLedger(settings.budget)
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
    train = keeper.design(graphs, classes, seals, bar)
    shape = (train.Z.size(1), train.Y.size(1))
    W = state['W']
    B = state['B'] if settings.noise == 'objective' else torch.zeros_like(W)
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
    if settings.noise == 'output':
        # From zero: of the graphs, a function of what remains.
        model, _ = settings.solved(model, None, progress_bar=bar)
        if settings.noise_p_value(model) < LEAST_P_VALUE:
            raise ValueError(
                'the weights of the state are not those of its ledger: '
                'they are not that far from the solution as their noise '
                'makes them'
            )
        return model
    if ledger.entries:
        measured, upper = settings.residual(model)
        # The embeddings are computed anew, and round differently.
        if not measured <= ledger.spent + 2 * (upper - measured):
            raise ValueError(
                'the weights of the state are not those of its ledger: '
                f'their residual is {measured:.6g}, not at most '
                f'{ledger.spent:.6g}'
            )
    return model


def leftovers(model: Model) -> tuple[str, ...]:
    """Traces of what the ledger lists as removed."""
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
