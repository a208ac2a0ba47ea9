"""Runs of an unlearner that the attacks of one audit share."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import check_choice, check_instance
from pyg_trust.audit.releases import Released, differing, opened
from pyg_trust.audit.subjects import Subject
from pyg_trust.removal import RemovalRequest, remove_from_data

__all__ = ['NEEDS', 'Run', 'Runs', 'numbers']

#: Conditions of an attack: training nodes are removed; at least two of them,
#: beside candidates; features are removed; releases are without noise.
NEEDS = ('members', 'candidates', 'features', 'exact')

# Parts of the seed: the runs, and what is changed or drawn.
_RUN, _CHANGE, _TWIN = 0, 2, 4
_CONFIRM = 3


class Run(NamedTuple):
    """A run of a subject.

    Args:
        before (dict): its releases before the removal, opened.
        after (dict): its releases after the removal, opened.
        first (Tensor): the probabilities of all nodes before the removal.
        answers (Tensor): those after the removal.
        subject (Subject, optional): the subject, after the removal.
    """

    before: Released
    after: Released
    first: Tensor
    answers: Tensor
    subject: Subject | None


class Runs:
    """Trains and keeps the models that the attacks of one audit compare.

    Attacks read ``removed`` (int64 rows of the removed nodes), ``members``
    (those in the train mask), ``featureless`` (rows whose features are
    removed), ``others`` (rows of the candidates, or None), and ``left``, the
    graph without the removed items.

    Args:
        make (Callable): ``make()`` returns a new, unfitted ``Subject``.
        data (Data): the graph; a copy of it is kept as ``data``.
        request (RemovalRequest): the items to remove.
        candidates (Tensor, optional): int64 ids of nodes outside of the train
            mask, at least two; some attacks need them.
        worlds (int): the number of runs in each of two compared samples.
        level (float): the confidence of intervals and verdicts, in (0, 1).
    """

    def __init__(
        self,
        make: Callable[[], Subject],
        data: Data,
        request: RemovalRequest,
        candidates: Tensor | None,
        worlds: int,
        level: float,
    ) -> None:
        if request.graphs != [0] or request.parts[0].whole:
            raise ValueError(
                "'request' needs to name nodes, features or edges of graph 0 "
                f'(got graphs {request.graphs})'
            )
        for name in ('x', 'y', 'edge_index', 'train_mask'):
            if not isinstance(data.get(name), Tensor):
                raise ValueError(f"'data' needs to have a tensor '{name}'")
        self.make, self.data, self.request = make, data.clone(), request
        if data.get('n_id') is None:
            self.data.n_id = torch.arange(int(data.num_nodes))
        part = request.parts[0]
        self.left = remove_from_data(self.data, part)
        self.removed = self._rows(part.nodes)
        self.members = self.removed[self.data.train_mask[self.removed]]
        self.featureless = self._rows((*part.nodes, *part.features))
        self.others = self._checked(candidates)
        self.worlds, self.level, self.seed = worlds, level, 0
        self.noisy = bool(getattr(self.new_subject(), 'noisy', False))
        #: What differs between runs with the same data and seed.
        self.random: set[str] = set()
        # Results that attacks share.
        self._kept: dict[str, Any] = {}

    def _rows(self, names: Sequence[int]) -> Tensor:
        place = {name: i for i, name in enumerate(self.data.n_id.tolist())}
        return torch.tensor([place[name] for name in names], dtype=torch.int64)

    def _checked(self, candidates: Tensor | None) -> Tensor | None:
        if candidates is None:
            return None
        check_instance('candidates', candidates, Tensor)
        if candidates.dtype != torch.int64 or candidates.dim() != 1:
            raise TypeError(
                "'candidates' needs to hold ids, int64 "
                f'(got {candidates.dtype}, {list(candidates.shape)})'
            )
        known = torch.isin(candidates, self.data.n_id)
        if not bool(known.all()) or candidates.numel() < 2:
            raise ValueError(
                "'candidates' needs to name at least two nodes of 'data'"
            )
        rows = self._rows(candidates.tolist())
        if bool(self.data.train_mask[rows].any()):
            raise ValueError(
                "'candidates' needs to name nodes that were never members "
                '(got one of the training nodes)'
            )
        return rows

    def lacks(self, need: str) -> str | None:
        """Return why an attack can't run, or None if it can.

        ``need`` is what the attack needs: ``'members'`` (a removed training
        node), ``'candidates'`` (two of these, and :obj:`candidates`),
        ``'features'`` (removed ones) or ``'exact'`` (releases without noise).
        """
        check_choice('needs', need, NEEDS)
        if need == 'members' and self.members.numel() == 0:
            return 'needs training nodes to be removed'
        if need == 'candidates' and self.members.numel() < 2:
            return 'needs at least two training nodes to be removed'
        if need == 'candidates' and self.others is None:
            return "needs 'candidates' that were drawn alike"
        if need == 'features' and self.featureless.numel() == 0:
            return 'needs nodes or their features to be removed'
        if need == 'exact' and self.noisy:
            return 'needs releases without noise'
        return None

    def new_subject(self) -> Subject:
        """Make a subject without fitting it."""
        made = self.make()
        if not isinstance(made, Subject):
            raise TypeError(
                "'make' needs to make an object with fit, remove, "
                f'predict_proba and released (got {type(made).__name__})'
            )
        return made

    def subject(self, data: Data, *path: int) -> Subject:
        """Make a subject and fit it to a copy of ``data``.

        Its seed is derived from the integers in ``path``; without integers it
        is the seed that all compared runs share.
        """
        made = self.new_subject()
        made.fit(data.clone(), rng.derive(self.seed, *(path or (_RUN,))))
        return made

    def run(self, what: str = 'data', again: bool = False) -> Run:
        """Fit a subject, collect its releases, remove, and collect again.

        Args:
            what (str): ``'data'``, or one of :meth:`kinds`: what of the
                removed items is changed beforehand. (default: :obj:`'data'`)
            again (bool): whether to make a new run instead of returning the
                one that is kept. (default: :obj:`False`)

        Returns:
            Run: the releases by name ``before`` and ``after`` the removal, the
            class probabilities of all nodes before it (``first``) and after it
            (``answers``), and the ``subject``.
        """
        if again or what not in self._kept:
            made = self._made(self.changed(what))
            if again:
                return made
            self._kept[what] = made
        found: Run = self._kept[what]
        return found

    def compared(self, kind: str) -> tuple[set[str], set[str]]:
        """Compare the releases of :meth:`run` on data and on changed data.

        Args:
            kind (str): what :meth:`changed` changes, one of :meth:`kinds`.

        Returns:
            tuple[set[str], set[str]]: the names of the values that differ in a
            bit before the removal and are released after it, where they could
            show a trace; and of those that differ after it, which is a trace.
            Random values are left out.
        """
        one, two = self.run(), self.run(kind)
        if 'control' not in self._kept:
            self._kept['control'] = control = self.run(again=True)
            self.random |= differing(one.before, control.before)
            self.random |= differing(one.after, control.after)
        if differing(one.after, two.after) - self.random:
            # A clock in whole seconds, or a random bit, may have agreed in
            # the control and differ in a twin: a trace is there in every run.
            for name in ('data', kind):
                if f'confirmed {name}' not in self._kept:
                    for _ in range(_CONFIRM):
                        after = self.run(name, again=True).after
                        self.random |= differing(self.run(name).after, after)
                    self._kept[f'confirmed {name}'] = True
        # A value that is random or missing after the removal shows nothing.
        power = differing(one.before, two.before) & one.after.keys()
        found = differing(one.after, two.after)
        return power - self.random, found - self.random

    def changed(self, what: str) -> Data:
        """Return a copy of the data in which the removed items are changed.

        Args:
            what (str): ``'features'``, ``'labels'`` or ``'edges'`` (which then
                lead to other nodes); ``'data'`` to change nothing.
        """
        data = self.data.clone()
        generator = rng.generator(rng.derive(self.seed, _CHANGE))
        if what == 'features':
            rows = self.featureless
            dim = int(rows.numel() < 2)
            data.x[rows] = data.x[rows].roll(1, dim)
        elif what == 'labels':
            classes = int(data.y.max()) + 1
            data.y[self.removed] = (data.y[self.removed] + 1) % classes
        elif what == 'edges':
            gone = torch.zeros(int(data.num_nodes), dtype=torch.bool)
            gone[self.removed] = True
            stay = (~gone).nonzero().view(-1)
            order = torch.randperm(stay.numel(), generator=generator)
            other = torch.arange(int(data.num_nodes))
            other[stay] = stay[order]
            # The other ends of the edges of removed nodes.
            ends = data.edge_index
            data.edge_index = torch.where(
                gone[ends.flip(0)], other[ends], ends
            )
        return data

    def kinds(self) -> list[str]:
        """List the values of ``what`` that :meth:`changed` can take.

        They are ``'features'`` and, if the request removes nodes, ``'labels'``
        and ``'edges'``.
        """
        return ['features'] + ['labels', 'edges'] * bool(self.removed.numel())

    def noisy_runs(self, what: str = 'data') -> list[Run]:
        """Return ``worlds`` runs on ``changed(what)``, with a seed each."""
        if f'noisy {what}' not in self._kept:
            data = self.changed(what)
            number = ('data', *self.kinds()).index(what)
            self._kept[f'noisy {what}'] = [
                self._made(data, _TWIN, number, i)._replace(subject=None)
                for i in range(self.worlds)
            ]
        found: list[Run] = self._kept[f'noisy {what}']
        return found

    def _made(self, data: Data, *path: int) -> Run:
        subject = self.subject(data, *path)
        before = opened(subject.released())
        first = subject.predict_proba(self.data.clone())
        subject.remove(self.request)
        after = opened(subject.released())
        answers = subject.predict_proba(self.data.clone())
        return Run(before, after, first, answers, subject)

    def score(self, p: Tensor) -> float:
        """Return the mean logit of the removed members' true classes.

        Args:
            p (Tensor): class probabilities of all nodes, ``[num_nodes,
                num_classes]``; the logit of one is ``log(p / (1 - p))``.
        """
        rows = self.members
        own = p[rows].double().gather(1, self.data.y[rows, None])
        return float(own.clamp(1e-12, 1 - 1e-12).logit().mean())


def numbers(released: Released) -> Tensor:
    """Return all numbers of a release: float64."""
    flat = [
        value.detach().cpu().double().flatten()
        for value in released.values()
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    if not flat:
        raise ValueError(
            'a subject that is noisy needs to release tensors of floats (got '
            f'{list(released)})'
        )
    return torch.cat(flat)
