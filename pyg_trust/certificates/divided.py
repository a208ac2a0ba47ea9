"""Division and voting: certificates with certainty, for any classifier."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data, HeteroData

from pyg_trust._checks import (
    Count,
    Natural,
    OneOf,
    Share,
    check_instance,
    check_tensor,
    validated,
)
from pyg_trust._checks.graphs import list_graphs
from pyg_trust._checks.identity import SpeaksOf, check_process, identity
from pyg_trust._checks.starts import takes_data
from pyg_trust.certificates.sampling import (
    check_uncached,
    evaluating,
    same_bits,
)
from pyg_trust.certificates.votes import is_right
from pyg_trust.certificates.voting import (
    APART,
    certified_mean,
    certified_votes,
    differ,
    tallies,
)
from pyg_trust.report import (
    DATA_FIELDS,
    Guarantee,
    Report,
    fingerprint,
    fingerprint_data,
    fingerprint_model,
    provenance,
)
from pyg_trust.report.base import stated
from pyg_trust.report.charts import Chart
from pyg_trust.transforms.division import (
    DIVISIONS,
    Division,
    check_apart,
)
from pyg_trust.unit import PrivacyUnit

__all__ = ['Divided', 'VoteCertificate']

VOTES = ('majority', 'mean')
_TOGETHER = 256
_SHOWN = (1, 2, 5, 10)
_RANDOM_MODEL = (
    "'model' needs to be the same function at every call (got two outputs "
    'for one view in evaluation mode)'
)
_STATEFUL = (
    "'model' needs to be the same function at every call (its tensors or "
    'attributes differ after a call: keep no state in forward)'
)


@dataclass(frozen=True)
class VoteCertificate(SpeaksOf, Report):
    """Voted classes, and the number of changes that each survives.

    :meth:`Divided.certify` makes it. A model classifies each of several views
    of the input, and the views vote. One changed element (an edge, a node, a
    person, ..., by :obj:`by`) can change the vote of one view alone; with
    ``'grid'``, of the :obj:`num_groups` views that show it.

    Args:
        targets (Tensor): the nodes, or graphs: int64, ``[num_targets]``.
        predicted (Tensor): the voted classes: int64, ``[num_targets]``.
        radius (Tensor): how many views may change their vote without changing
            the class, -1 for a tie: int64, ``[num_targets]``. Except with
            ``'grid'`` it is also the number of changes that a class survives.
        votes (Tensor): the classes that views vote for: int64, ``[num_views,
            num_targets]``.
        num_classes (int): the number of classes that a view can vote for.
        by (str): the elements that are divided, such as ``'nodes'``.
        vote (str): ``'majority'``, or ``'mean'`` of probabilities.
        num_groups (int): the number of groups of elements.
        seed (int): the key of the hash that assigns elements to groups.
        task (str): ``'nodes'`` or ``'graphs'``.
        baseline (float, optional): the argument of :meth:`Divided.certify`.
        run_sha256, model_sha256, weights_sha256, data_sha256 (str): SHA-256
            of model and data, of the model, of its weights, and of the data.
        checked, provenance: the checks of the model, and the settings.
        persons (dict): who owns what, with ``by='owners'``; else empty.
    """

    targets: Tensor
    predicted: Tensor
    radius: Tensor
    votes: Tensor
    num_classes: int
    by: str
    vote: str
    num_groups: int
    seed: int
    task: str
    baseline: float | None
    run_sha256: str
    model_sha256: str
    provenance: dict[str, Any]
    weights_sha256: str = ''
    data_sha256: str = ''
    checked: tuple[str, ...] = ()
    persons: dict[str, Any] = field(default_factory=dict)

    @validated
    def certified(self, changes: Natural, rows: Natural = 0) -> Tensor:
        """Return which targets keep their class: bool, ``[num_targets]``.

        Args:
            changes (int): the number of elements that an attacker changes;
                with ``by='grid'``, the number of edges.
            rows (int): the number of rows of the features that it changes as
                well; above 0 only with ``by='grid'``. (default: :obj:`0`)
        """
        if self.by != 'grid':
            if rows:
                raise ValueError(
                    f"'rows' needs a division by 'grid' (got by={self.by!r})"
                )
            return self.radius >= changes
        side = self.num_groups
        left = max(side - changes, 0) * max(side - rows, 0)
        return self.radius >= side * side - left

    def certified_ratio(self, changes: int, rows: int = 0) -> float:
        """Return the share of targets that :meth:`certified` marks.

        Args:
            changes (int): the number of elements that an attacker changes.
            rows (int): with ``by='grid'``, the changed rows of the features.
        """
        return float(self.certified(changes, rows).double().mean())

    def certified_accuracy(
        self, labels: Tensor, changes: int, rows: int = 0
    ) -> float:
        """Return the share of targets that keep their class and are correct.

        Args:
            labels (Tensor): the true classes of all nodes, or graphs: int64.
            changes (int): the number of elements that an attacker changes.
            rows (int): with ``by='grid'``, the changed rows of the features.
        """
        right = is_right(labels, self.targets, self.predicted, self.task)
        return float((self.certified(changes, rows) & right).double().mean())

    def chart(self) -> Chart:
        """Chart the share of certified predictions by number of changes."""
        most = max(int(self.radius.max()), 0) + 1
        shares = [self.certified_ratio(k) for k in range(most + 1)]
        return Chart(
            f'{shares[1]:.0%} of {self.targets.numel()} predictions stay '
            f'after 1 change of {self.by}, {shares[-2]:.0%} after '
            f'{most - 1}',
            lines={'certified': (range(most + 1), shares)},
            xlabel=f'changes of {self.by}',
            ylabel='share that is certified',
            steps=True,
        )

    def _tallies(self) -> list[list[int]]:
        # How many targets, then the votes for the class, the most for one
        # before it and for one after it (-1 where there is none), and the
        # other votes.
        classes = torch.arange(self.num_classes)
        one_hot = torch.nn.functional.one_hot(self.votes, self.num_classes)
        counts, voted = one_hot.sum(0), self.predicted[:, None]
        top = counts.gather(1, voted)[:, 0]
        earlier = counts.where(classes < voted, -1).amax(1)
        later = counts.where(classes > voted, -1).amax(1)
        taken = top + earlier.clamp(min=0) + later.clamp(min=0)
        return tallies(top, earlier, later, self.votes.size(0) - taken)

    def guarantee(self) -> Guarantee:
        """Return the guarantee: how many classes survive k changed views."""
        return stated(
            'certificate by division and voting',
            {
                **self.numbers(),
                'targets': self.targets.numel(),
                'views': self.votes.size(0),
                'certified': {
                    str(k): int((self.radius >= k).sum()) for k in _SHOWN
                },
                'tallies': self._tallies()
                if self.vote == 'majority'
                else None,
                'data_fields': list(DATA_FIELDS),
            },
            data_sha256=self.data_sha256 or self.run_sha256,
            origin=self.provenance,
            checked=self.checked,
            weights_sha256=self.weights_sha256,
        )


@validated
class Divided(Module):
    """Classifier by vote over views of its input, certified with certainty.

    A hash of its id puts each element of the input (an edge, a node, ...) into
    one of :math:`T` groups. View :math:`i` shows only the elements of group
    :math:`i` (:class:`~pyg_trust.transforms.Division`). The model classifies
    every view, and the views vote. So a changed element changes one vote.
    After `"GNNCert" <https://openreview.net/forum?id=IGzaH538fz>`_ (Xia et al.
    2024) and `"AGNNCert" <https://arxiv.org/abs/2502.00765>`_ (Li and Wang
    2025), with errors corrected.

    With ``by='owners'``, an element is a person with all rows and edges that
    it owns. The targets are then public rows, which every view shows.

    More groups survive more changes, but each view shows less.

    Args:
        model (Module): returns logits from ``model(x, edge_index)``; for
            graphs from ``model(x, edge_index, batch)``; or ``model(data)``
            of these alone; for owners, also as a dict by node type, from
            ``model(x_dict, edge_index_dict)``.
        num_groups (int): the number :math:`T` of groups. (default: :obj:`30`)
        by (str): the elements: :obj:`'edges'`; :obj:`'nodes'`, to classify
            nodes; :obj:`'subgraphs'`, to classify graphs; :obj:`'features'`
            (rows of ``x``); :obj:`'entries'` of ``x``; :obj:`'grid'` (edges
            and rows); or :obj:`'owners'`. (default: :obj:`'nodes'`)
        vote (str): :obj:`'majority'`, where the first class wins a tie, or
            :obj:`'mean'` of probabilities. (default: :obj:`'majority'`)
        transform (Callable, optional): applied to every view.
        seed (int, optional): the key of the hash; None draws one from the
            operating system. (default: :obj:`None`)
        unit (PrivacyUnit, optional): who owns what; for ``'owners'`` alone.
        target (str, optional): the node type to classify, for ``'owners'``.
    """

    def __init__(
        self,
        model: Module,
        num_groups: Count = 30,
        by: Annotated[str, OneOf(DIVISIONS)] = 'nodes',
        *,
        vote: Annotated[str, OneOf(VOTES)] = 'majority',
        transform: Callable[[Data], Data] | None = None,
        seed: int | None = None,
        unit: PrivacyUnit | None = None,
        target: str | None = None,
    ) -> None:
        check_uncached(model)
        division = Division(num_groups, by, seed, unit)
        if (unit is not None or target is not None) and target not in (
            () if unit is None else unit.public
        ):
            raise ValueError(
                "'target' needs to be a public node type for by='owners': "
                f'rows of a person are in one view alone (got {target!r})'
            )
        super().__init__()
        self.model, self.division, self.target = model, division, target
        self.vote, self.transform = vote, transform

    def forward(self, data: Data | HeteroData | Sequence[Data]) -> Tensor:
        """Return the voted classes, int64, of a graph's nodes or of graphs."""
        return self.certify(data).predicted

    @validated
    def certify(
        self,
        data: Data | HeteroData | Sequence[Data],
        *,
        baseline: Share | None = None,
        since: tuple[VoteCertificate, Data] | None = None,
    ) -> VoteCertificate:
        """Classify by vote, and certify how many changes each class survives.

        Args:
            data (Data, HeteroData or list[Data]): a graph whose nodes are
                classified (with ``by='owners'``, the typed graph of the
                :obj:`unit`); or a list of graphs, or a
                :class:`~torch_geometric.data.Batch`, that are classified.
            baseline (float, optional): the accuracy of a model that sees
                nothing that can be attacked, for plots. (default: :obj:`None`)
            since (tuple[VoteCertificate, Data], optional): an earlier
                certificate of nodes by ``vote='majority'``, and its graph. The
                model is then run only on views that have changed. By default
                it is run on all views. (default: :obj:`None`)

        Returns:
            VoteCertificate: classes, votes, and how many changes they survive.

        Raises:
            ValueError: if :obj:`by` does not fit the task; if a layer has
                ``cached=True``; if in evaluation mode the model is random,
                keeps state, or mixes nodes or graphs that have to stay apart;
                or if :obj:`since` has another model, division or graph.
        """
        check_process()
        # A layer may keep its graph since then.
        check_uncached(self.model)
        graphs: list[Any] = [data]
        if self.target is None:
            graphs = list_graphs('data', data)
        task = 'nodes' if graphs[0] is data else 'graphs'
        for graph in graphs:
            self.division.check(graph)
            if self.target is None:
                check_tensor(
                    'x',
                    graph.x,
                    None,
                    (int(graph.num_nodes or 0), 'num_features'),
                )
        by = self.division.by
        wrong = {'nodes': 'graphs', 'subgraphs': 'nodes'}
        if wrong.get(by) == task:
            raise ValueError(
                f"'by' can't be {by!r} for the classification of {task}"
            )
        digest = identity(self.model, self.transform)
        alone = False
        kept = self._kept(since, graphs, task, digest)
        with evaluating(self.model):
            if task == 'nodes':
                logits = self._nodes(graphs[0], kept)
            else:
                logits, alone = self._graphs(graphs)
            if identity(self.model, self.transform) != digest:
                raise ValueError(_STATEFUL)
        # An output that is not finite votes for the first class.
        logits = torch.where(
            logits.isfinite().all(2, keepdim=True), logits, 0.0
        )
        votes = logits.argmax(2).cpu()
        classes = logits.size(2)
        if self.vote == 'majority':
            result = certified_votes(votes, classes, ties='first')
        else:
            result = certified_mean(logits.double().softmax(2).cpu())
        settings = {
            'num_groups': self.division.num_groups,
            'by': by,
            'vote': self.vote,
            'seed': self.division.seed,
        }
        parts: list[Any] = [digest]
        unit = self.division.unit
        persons = {} if unit is None else unit.summary()
        for graph in graphs:
            if unit is not None:
                parts += [unit.digest, *graph.x_dict.values()]
            else:
                parts += [graph.x, graph.edge_index, graph.get('n_id')]
        return VoteCertificate(
            targets=torch.arange(votes.size(1)),
            predicted=result.predicted,
            radius=result.radius,
            votes=votes,
            num_classes=classes,
            task=task,
            baseline=baseline,
            run_sha256=fingerprint(*parts),
            model_sha256=digest,
            weights_sha256=fingerprint_model(self.model.state_dict()),
            data_sha256='' if persons else fingerprint_data(graphs),
            checked=self._checks(task, alone),
            provenance=provenance(
                **settings, **({'persons': persons} if persons else {})
            ),
            **settings,  # type: ignore[arg-type]
            persons=persons,
        )

    def _checks(self, task: str, alone: bool) -> tuple[str, ...]:
        # Checks that stop a vote where it does not hold.
        lines = ['the model gave the same output for the same view twice']
        if alone:
            lines.append(
                'views went through the model one at a time, as their outputs '
                'among others were different'
            )
        elif task == 'graphs':
            lines.append(
                'views gave the same outputs alone as among others (within '
                f'{APART:g} of how far apart they are): the first, the last '
                'and the largest'
            )
        elif self.division.by == 'nodes':
            lines.append(
                'nodes of other groups were changed, in halves: the outputs '
                'of those who hear one group stayed as they were, to the bit'
            )
        return tuple(lines)

    def _call(self, graph: Any, *batch: Tensor) -> Tensor:
        if self.target is None:
            given = (graph.x, graph.edge_index, *batch)
            if takes_data(self.model):
                # Of what is divided, and of nothing else in the data.
                fields = zip(('x', 'edge_index', 'batch'), given, strict=False)
                given = (Data.from_dict(dict(fields)),)
            out = self.model(*given)
        else:
            out = self.model(graph.x_dict, graph.edge_index_dict)
            out = out.get(self.target) if isinstance(out, dict) else out
            graph = graph[self.target]
        rows = int(graph.num_graphs if batch else graph.num_nodes or 0)
        if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != rows:
            raise ValueError(
                "'model' needs to return logits of the shape "
                f'[{rows}, num_classes] '
                f'(got {list(getattr(out, "shape", []))})'
            )
        return out

    def _shown(self, view: Any) -> Tensor:
        # Clone the view: a model or transform may write to its tensors.
        shown = view.clone()
        shown = shown if self.transform is None else self.transform(shown)
        if shown.num_nodes != view.num_nodes:
            raise ValueError(
                "'transform' needs to keep all nodes of a view, as each gets "
                f'a vote (got {shown.num_nodes} of {view.num_nodes})'
            )
        return self._call(shown)

    def _view(self, data: Data, number: int) -> Data:
        view = self.division.part(data, number).clone()
        return view if self.transform is None else self.transform(view)

    def _kept(
        self,
        since: tuple[VoteCertificate, Data] | None,
        graphs: list[Any],
        task: str,
        digest: str,
    ) -> dict[int, Tensor]:
        # The votes, as one-hot rows, of views that an update left as they
        # were. The first one is run in any case, and tells a random model.
        if since is None:
            return {}
        if not isinstance(since, tuple) or len(since) != 2:
            raise TypeError(
                "'since' needs to be a certificate and its graph "
                f'(got {type(since).__name__})'
            )
        held, before = since
        check_instance('since', held, VoteCertificate)
        check_instance('since', before, Data)
        of = held.task, held.by, held.num_groups, held.seed, held.vote
        division = self.division
        here = division.by, division.num_groups, division.seed, 'majority'
        if of != ('nodes', *here) or task != 'nodes' or self.vote != of[-1]:
            raise ValueError(
                "'since' needs a certificate of nodes by vote='majority', of "
                'the same division'
            )
        if held.model_sha256 != digest:
            raise ValueError("'since' needs a certificate of the same model")
        if held.data_sha256 != fingerprint_data([before]):
            raise ValueError("'since' needs the graph of its certificate")
        votes = torch.nn.functional.one_hot(held.votes, held.num_classes)
        return {
            i: votes[i]
            for i in range(1, division.num_views)
            if _alike(division.part(before, i), division.part(graphs[0], i))
        }

    def _nodes(self, data: Any, kept: dict[int, Tensor]) -> Tensor:
        if self.division.by == 'nodes':
            group = self.division.node_groups(data)
            check_apart(self._shown, data, group)
        outputs: list[Tensor] = []
        for i in range(self.division.num_views):
            if i in kept:
                outputs.append(kept[i].to(outputs[0]))
            else:
                outputs.append(self._shown(self.division.part(data, i)))
        if not same_bits(outputs[0], self._shown(self.division.part(data, 0))):
            raise ValueError(_RANDOM_MODEL)
        return torch.stack(outputs)

    def _graphs(self, graphs: list[Data]) -> tuple[Tensor, bool]:
        views = range(self.division.num_views)
        every = [self._view(graph, i) for i in views for graph in graphs]
        full = [i for i, view in enumerate(every) if view.num_nodes]
        if not full:
            raise ValueError(
                "'data' needs at least one node (got none in any view)"
            )
        out = self._batches([every[i] for i in full], _TOGETHER)
        some = _asked_alone([every[i] for i in full])
        alone = torch.cat([self._together([every[full[i]]]) for i in some])
        if not same_bits(self._together([every[full[some[0]]]]), alone[:1]):
            raise ValueError(_RANDOM_MODEL)
        differs = differ(alone, out[some])
        if differs:
            out = self._batches([every[i] for i in full], 1)
        # A view without a node votes, too: for the first class.
        logits = torch.zeros(len(every), out.size(1))
        logits[full] = out.cpu().to(logits.dtype)
        return logits.view(len(views), len(graphs), -1), differs

    def _batches(self, views: list[Data], step: int) -> Tensor:
        parts = [
            self._together(views[start : start + step])
            for start in range(0, len(views), step)
        ]
        return torch.cat(parts)

    def _together(self, views: list[Data]) -> Tensor:
        batch = Batch.from_data_list(views)
        return self._call(batch, batch.batch)


def _alike(one: Data, two: Data) -> bool:
    if {*one.keys()} != {*two.keys()} or one.num_nodes != two.num_nodes:
        return False
    pairs = [(value, two[name]) for name, value in one]
    return all(
        a.dtype == b.dtype and same_bits(a, b)
        if isinstance(a, Tensor) and isinstance(b, Tensor)
        else type(a) is type(b) and a == b
        for a, b in pairs
    )


def _asked_alone(views: list[Data]) -> list[int]:
    # Views that are run alone as well as among others.
    sizes = [view.num_nodes or 0 for view in views]
    return sorted({0, sizes.index(max(sizes)), len(views) - 1})
