"""Forgetting by private models: what noise covers, and what has to go."""

import io
import math
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import files
from pyg_trust._checks import check_instance, validated
from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust.files import commit
from pyg_trust.files.commit import editing, synchronized
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import BudgetExceededError, RemovalLedger
from pyg_trust.privacy.fitted import Fitted, Seal
from pyg_trust.privacy.gaussian import gaussian_epsilon, gaussian_mu_for
from pyg_trust.removal import NodeIds, NotThere, RemovalRequest, requested
from pyg_trust.report import Guarantee, provenance
from pyg_trust.report.claimed import ClaimedReport, claimed
from pyg_trust.verify.chain import LISTED
from pyg_trust.verify.removal import covered, node_shift

__all__ = ['Coverage', 'CoverageReport']

# By relation: the items that a request may name, and the reason for the limit.
_TAKES = {
    'edge': (('edges', 'directed_edges'), 'rows train without noise there'),
    'node': (('nodes',), 'a node goes with its features, label and edges'),
    'node_incident': (('nodes',), 'a node goes with all that it has'),
    'feature': (('features', 'labels'), 'edges are public there'),
}
_UP = 1 + 1e-12

Model = TypeVar('Model', bound='Coverage')


@claimed(
    'removal covered by privacy',
    deleted='a tuple of sentences: which data of removed items was deleted',
    data_sha256='a salted hash of the remaining edges',
    provenance='versions of packages and arguments',
)
class CoverageReport(ClaimedReport):
    """Report of a removal that noise hides, so that the weights stay.

    What was released is (epsilon, delta)-indistinguishable from a release
    without the removed items. It includes noisy sums of the messages that
    nodes receive: the "released sums" below.
    """

    def guarantee(self) -> Guarantee:
        """Return the guarantee that noise hides the removed items.

        Raises:
            ValueError: if this is the report of ``plan()``, which removes
                nothing.
        """
        if self.history[-1] != self.mu:
            raise ValueError(
                'a plan guarantees nothing: the report of remove() does'
            )
        return super().guarantee()

    def _says(self) -> dict[str, Any]:
        return {'data_sha256': self.data_sha256, 'origin': self.provenance}


class _Change(NamedTuple):
    # The graph that remains, who goes, all units since the release, and from
    # what they follow; the shift in quarters, and the total that it rounds.
    graph: CSRGraph
    nodes: Tensor
    units: int
    shift: float
    total: float
    mu: float
    arrays: dict[str, np.ndarray]


class Coverage(Fitted):
    """Base of models whose noise covers removals: weights stay as they are.

    What was released is nearly as likely without the few people who ask
    (:doc:`/theory/forgetting`). Their rows are deleted, and a ledger
    counts how many were covered.
    """

    def _set_coverage(self, forget_epsilon: float, max_units: float) -> None:
        self.forget_epsilon, self.max_units = forget_epsilon, max_units
        self._lines: RemovalLedger | None = None
        self._edges_seal: Seal | None = None
        self._held: tuple[int, float] = 0, 0.0

    @property
    def removals(self) -> RemovalLedger:
        r"""The ledger of removals: of each, :math:`\mu` of all so far."""
        if self._lines is None:
            raise RuntimeError('fit data first: there is nothing to forget')
        return self._lines

    def _mu_of(self) -> tuple[float, float]:
        # The mu of a unit in what was trained, and of a shift of 1 in sums.
        raise NotImplementedError

    def _receiving(self) -> tuple[Tensor | None, float]:
        # The rows that hold sums, and what rounding a message may move.
        return None, 0.0

    def _erase(self, nodes: Tensor, graph: CSRGraph) -> tuple[str, ...]:
        # Deletes the rows of nodes; says what it was.
        return ()

    def _gone(self) -> tuple[set[int], set[tuple[int, int]]]:
        # Nodes and arcs that the ledger names.
        if self._lines is None:
            return set(), set()
        gone = self._lines.removed
        kinds = ('nodes', 'features', 'labels')
        nodes = set[int]().union(*map(gone.of, kinds))
        return nodes, {*gone.of('directed_edges')}

    def _start(self, graph: CSRGraph) -> None:
        # A release was made: nobody of it has asked.
        self._held = 0, 0.0
        self._edges_seal = Seal.of(_text(graph, self._held))
        action = 'retrain'
        if self._lines is None:
            most = gaussian_mu_for(self.forget_epsilon, self.delta)
            self._lines, action = RemovalLedger(most), 'fit'
        self._lines.record(action, 0.0, data=self._edges_seal.digest)

    def _check_blank(self, task: Any) -> None:
        # Removed items may not be in the next release.
        nodes, arcs = self._gone()
        gone = torch.zeros(task.graph.num_nodes, dtype=torch.bool)
        gone[list(nodes)] = True
        (source, target), _ = task.graph.to_edge_index()
        name = self.relation.adjacency
        there = set(zip(source.tolist(), target.tolist(), strict=True)) & arcs
        is_there = bool(there) if arcs else False
        if name != 'feature':
            is_there |= bool((gone[source] | gone[target]).any())
        elif nodes:
            rows = task.x.to_dense() if task.x.is_sparse else task.x
            rows = rows.to_dense() if rows.layout != torch.strided else rows
            is_there |= bool(rows[gone].any())
        train = getattr(task, 'train', None)
        if is_there or (train is not None and bool((train & gone).any())):
            raise ValueError(
                "'data' needs to be without what was removed: their ids stay, "
                'with no edges, no features and outside of the train mask'
            )

    @synchronized
    @validated
    def plan(
        self, request: Any = None, data: Any = None, **items: Any
    ) -> CoverageReport:
        """Report what ``remove()`` would do, without doing it.

        Args:
            request (RemovalRequest or list, optional): as in ``remove()``.
            data (Data): as in ``remove()``.
            **items (list or Tensor): ``nodes``, ``edges``, ``features`` or
                ``labels``, as in ``remove()``.

        Raises:
            TypeError, ValueError, BudgetExceededError: as ``remove()``.
        """
        request = requested(request, **items)
        check_instance('data', data, Data)
        return self._reported_of(request, self._change(request, data))

    @editing
    @validated
    def remove(
        self,
        request: Any = None,
        data: Any = None,
        *,
        nodes: Any = None,
        edges: Any = None,
        features: Any = None,
        labels: Any = None,
        reference: str = '',
        proof: str | Path | None = None,
    ) -> CoverageReport:
        r"""Forget what the noise covers: delete rows, and leave the weights.

        Nodes under ``'node'`` and ``'node_incident'``, features and labels
        under ``'feature'``, edges under ``'edge'``. Predictions for nodes that
        were removed are -1, and their logits not a number. If anything fails,
        everything is as before.

        Args:
            request (RemovalRequest or list, optional): a request, or ids of
                nodes, chosen without looking at the release.
            data (Data): the graph of the release, with or without what was
                removed since; only its edges are read.
            nodes (list or Tensor, optional): ids in place of a request, as
                ``remove(nodes=[12], data=data)``.
            edges (list or Tensor, optional): the same, of edges.
            features (list or Tensor, optional): the same, of features.
            labels (list or Tensor, optional): the same, of labels.
            reference (str): ids of the requests for the ledger, 32 hexadecimal
                digits each, joined without a separator. (default: :obj:`''`)
            proof (str or Path, optional): a file (``.npz``) from which
                ``python -m pyg_trust check --data`` recomputes how far the
                removal moves the sums. It has all edges of the release: give
                it to an auditor, and delete it. (default: :obj:`None`)

        Raises:
            ValueError: if the release does not cover this, the noise came
                from a seed, a node counts as more than ``max_units`` records,
                or the edges are not those of the release.
            BudgetExceededError: if :math:`\epsilon` of all who were removed
                would be more than ``forget_epsilon``.
        """
        self.removals.check_reference(reference)
        request = requested(
            request, nodes=nodes, edges=edges, features=features, labels=labels
        )
        check_instance('data', data, Data)
        change = self._change(request, data)
        named, held = request.to_dict(), (change.units, change.total)
        seal = Seal.of(_text(change.graph, held))
        lines = self.removals.copy()
        lines.record('step', change.mu, named, seal.digest, reference)
        before = self.__dict__.copy()
        try:
            salts = [each.salt for each in (self._edges_seal, seal) if each]
            self._lines, self._edges_seal = lines, seal
            self._held, self._task_seal = held, None
            deleted = self._erase(change.nodes, change.graph)
            report = self._reported_of(request, change, deleted)
            if proof is not None:
                rows = np.frombuffer(b''.join(salts), np.uint8).reshape(2, 32)
                stream = io.BytesIO()
                arrays = {**change.arrays, 'salts': rows}
                np.savez(stream, **arrays)  # type: ignore[arg-type]
                files.write(proof, stream.getvalue())
            return report
        except BaseException:
            self.__dict__.update(before)
            raise

    def update(self, *update: Any, **others: Any) -> None:
        """Raise a ``TypeError``: additions need a new release."""
        raise TypeError(
            f'a {type(self).__name__} takes no updates: what is added needs a '
            'new release, which costs everybody. fit(data) would spend mu = '
            f'{self.limit:.4g}, if the account allows it'
        )

    @synchronized
    def save(self, path: str | Path) -> None:
        """Write the model with its ledger of removals, which is secret.

        The file names who was removed, and can confirm a guess of all edges:
        publish ``state_dict()``, which does neither.

        Args:
            path (str or Path): the file, which is replaced.

        Raises:
            StaleStateError: if another object has changed the file since this
                one read or wrote it.
            ValueError: if it holds another fit, or anything else.
        """
        check_instance('path', path, str, Path)
        seal = self._edges_seal
        if seal is None:
            raise RuntimeError('fit data first: a state_dict() has no ledger')
        more = {
            'removals': self.removals.state_dict(),
            'seal': [seal.salt.hex(), seal.digest],
            'held': list(self._held),
        }
        commit.save(path, {**self.state_dict(), **more})

    def load(self: Model, path: str | Path) -> Model:
        """Take over the state that ``save()`` has written; return the model.

        Args:
            path (str or Path): the file.

        Raises:
            ValueError: if it is of other arguments, was changed, or does not
                continue the present state.
        """
        check_instance('path', path, str, Path)
        self.load_state_dict(files.load(path))
        return self

    def _read_coverage(self, state: dict[str, Any]) -> dict[str, Any]:
        # The attributes of a saved state, to be set when all else is well.
        if 'removals' not in state:
            if self._lines is not None and self._lines.has_removals:
                raise ValueError(
                    "'state' needs to continue the present removals, and has "
                    'none: load() what save() wrote'
                )
            return {'_lines': None, '_edges_seal': None, '_held': (0, 0.0)}
        lines = RemovalLedger(gaussian_mu_for(self.forget_epsilon, self.delta))
        if self._lines is not None and self._lines.has_removals:
            lines = self._lines.copy()
        lines.load_state_dict(state['removals'])
        for name in ('seal', 'held'):
            if not isinstance(state[name], list) or len(state[name]) != 2:
                raise ValueError(f"'state' needs two values as its {name!r}")
        (salt, digest), (units, shift) = state['seal'], state['held']
        last = lines.entries[-1] if lines.entries else None
        if last is None or last.data != digest:
            raise ValueError("'state' needs the 'seal' of its last removal")
        return {
            '_lines': lines,
            '_edges_seal': Seal(bytes.fromhex(salt), str(digest)),
            '_held': (int(units), float(shift)),
        }

    # Inside ##################################################################

    def _change(self, request: RemovalRequest, data: Data) -> _Change:
        if self.seed is not None:
            raise ValueError(
                'the noise comes from an explicit seed: the model is not '
                'private, so it covers nothing'
            )
        if request._units and NodeIds.of_data(data).n_id is not None:
            raise ValueError(
                "'persons' need 'data.n_id' to be positions, by which nodes "
                'are named here (got others): request their positions as nodes'
            )
        seal, fit = self._edges_seal, f'mu = {self.limit:.4g}'
        if seal is None:
            raise ValueError(
                'the model knows no edges of its release: load() what save() '
                f'wrote, or fit it again without them (which spends {fit})'
            )
        part = self._asked(request, fit)
        graph = self._present(data, seal)
        nodes = torch.tensor(
            sorted({*part.nodes, *part.features, *part.labels})
        )
        nodes = nodes.to(torch.int64)
        n, (gone, _) = graph.num_nodes, self._gone()
        missing: list[Any] = [
            (0, kind, v)
            for kind in ('nodes', 'features', 'labels')
            for v in getattr(part, kind)
            if v >= n or v in gone
        ]
        missing += self._lacking(part, graph)
        if absent := RemovalRequest.of_items(missing):
            raise NotThere(absent)
        rows, grid = self._receiving()
        if rows is None:
            rows = torch.ones(n, dtype=torch.bool)
        arrays = {
            'rowptr': graph.rowptr.numpy(),
            'col': graph.col.numpy(),
            'receivers': rows.numpy(),
            'units': np.array(self._held[0]),
            'shift': np.array(self._held[1]),
            'grid': np.array(float(grid)),
        }
        about = {**self._about(), 'request': request.to_dict()}
        units, moved, lists = covered(arrays, about)
        left = CSRGraph(*map(torch.from_numpy, lists))
        # Added first and rounded once: one by one costs as much as at once.
        shift = total = (self._held[1] + float(moved)) * _UP
        arrays['after'] = np.array(total)
        if self.relation.adjacency in ('node', 'node_incident'):
            self._check_few(nodes, graph, rows, fit)
            shift = math.ceil(4 * shift) / 4
        units += self._held[0]
        each, moves = self._mu_of()
        mu = math.hypot(units * each, shift * moves) * _UP
        if mu > self.removals.budget:
            raise BudgetExceededError(
                f'with these {units} units epsilon would be '
                f'{gaussian_epsilon(mu, self.delta):.4g}, and '
                f"'forget_epsilon' is {self.forget_epsilon:g}: fit again "
                f'without them (which spends {fit} of the account), or make '
                "the model with such a 'forget_epsilon'"
            )
        return _Change(left, nodes, units, shift, total, mu, arrays)

    def _asked(self, request: RemovalRequest, fit: str) -> Any:
        takes, why = _TAKES[self.relation.adjacency]
        if self.relation.adjacency == 'edge' and not self.relation.directed:
            takes = ('edges',)
        parts = request.parts
        if set(parts) == {0} and set(parts[0].to_dict()) <= set(takes):
            return parts[0]
        raise ValueError(
            f"'request' needs to name {' or '.join(takes)} of graph 0 alone: "
            f'a release under {self.relation.adjacency!r} covers nothing else '
            f'({why}). Fit again without them, which spends {fit}, or use a '
            'ShardedUnlearner'
        )

    def _present(self, data: Data, seal: Seal) -> CSRGraph:
        # The graph of the release, less what was removed.
        graph = CSRGraph.from_data(data).to('cpu')
        nodes, arcs = self._gone()
        if self.relation.adjacency != 'feature':
            inside = [v for v in nodes if v < graph.num_nodes]
            graph = _without(graph, torch.tensor(inside, dtype=torch.int64))
        if arcs:
            edges, n = graph.to_edge_index()[0], graph.num_nodes
            keys = torch.tensor([u * n + v for u, v in arcs])
            kept = ~torch.isin(edges[0] * n + edges[1], keys)
            graph = CSRGraph.from_edge_index(edges[:, kept], n)
        if not seal.fits(_text(graph, self._held)):
            raise ValueError(
                "'data' needs to have the edges of the release, with or "
                'without what was removed since'
            )
        return graph

    def _about(self) -> dict[str, Any]:
        # The fields of a report that say what a shift is of.
        relation = self.relation
        return {
            'adjacency': relation.adjacency,
            'directed': relation.directed,
            'max_degree': relation.max_degree,
        }

    def _check_few(
        self, nodes: Tensor, graph: CSRGraph, rows: Tensor, fit: str
    ) -> None:
        most = self.relation.max_degree or 1
        if self.relation.adjacency == 'node_incident':
            alone = (graph.degree[nodes] / most).sqrt().clamp(min=1).tolist()
        else:
            ends, ids = graph.to_edge_index()[0].numpy(), np.arange(len(rows))
            ends = ends[:, rows.numpy()[ends[1]]]
            alone = [
                float(node_shift(ends, ids == node, most)) / math.sqrt(most)
                for node in nodes.tolist()
            ]
        if max(alone) > self.max_units:
            raise ValueError(
                "'request' names somebody whom more lists name than "
                f"'max_units' = {self.max_units:g} units cover: fit again "
                f'without them (which spends {fit})'
            )

    def _lacking(self, part: Any, graph: CSRGraph) -> list[Any]:
        pairs = zip(*graph.to_edge_index()[0].tolist(), strict=True)
        named = {*part.arcs} & {*pairs} if part.arcs else {*()}
        return [
            (0, kind, edge)
            for kind in ('edges', 'directed_edges')
            for edge in getattr(part, kind)
            if named.isdisjoint((edge, edge[::-1]))
        ]

    def _reported_of(
        self,
        request: RemovalRequest,
        change: _Change,
        deleted: tuple[str, ...] = (),
    ) -> CoverageReport:
        lines = self.removals
        before, last = (*lines.newest(1), *lines.newest(2))[-2:]
        # The first line is the release, which spends nothing.
        steps = lines.newest(LISTED)[1:]
        each, moves = self._mu_of()
        return CoverageReport.of(
            **self._about(),
            request=request.to_dict(),
            neighboring=self.relation.neighboring,
            units=change.units,
            shift=change.shift,
            mu=change.mu,
            mu_units=each,
            mu_shift=moves,
            budget=lines.budget,
            epsilon=gaussian_epsilon(change.mu, self.delta),
            delta=self.delta,
            target_epsilon=self.forget_epsilon,
            seeded=False,
            history=(0.0, *(line.spent for line in steps)),
            deleted=deleted,
            data_sha256=last.data,
            before=before.data,
            ledger_head=lines.head,
            provenance=provenance(
                forget_epsilon=self.forget_epsilon, delta=self.delta
            ),
        )


def _text(graph: CSRGraph, held: tuple[int, float]) -> str:
    # Units that a file says otherwise fit no seal.
    return fingerprint(graph.rowptr, graph.col, *held)


def _without(graph: CSRGraph, nodes: Tensor) -> CSRGraph:
    edges, _ = graph.to_edge_index()
    gone = torch.isin(edges, nodes.to(edges)).any(0)
    return CSRGraph.from_edge_index(edges[:, ~gone], graph.num_nodes)
