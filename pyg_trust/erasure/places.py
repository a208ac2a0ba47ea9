"""Models registered at a desk: removal from them, and their files."""

import contextlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from pyg_trust._checks import check_instance
from pyg_trust.files import commit
from pyg_trust.files.commit import StaleStateError
from pyg_trust.ledger import BudgetExceededError, RemovalLedger
from pyg_trust.privacy.coverage import Coverage
from pyg_trust.removal import NotThere, RemovalRequest

__all__ = ['Place', 'read']

Names = Callable[[RemovalRequest], RemovalRequest | None]
Store = Callable[[str], object]


class Place:
    """Model registered at a desk, with its file.

    The arguments are those of :meth:`ErasureDesk.register
    <pyg_trust.erasure.ErasureDesk.register>`, and the largest epsilon at which
    noise counts as removal.
    """

    def __init__(
        self,
        model: Any,
        save: Path | None,
        names: Names | None,
        data: Callable[[], Data] | None,
        most: float,
    ) -> None:
        remove = getattr(model, 'remove', None)
        takes = inspect.signature(remove).parameters if remove else {}
        has_folder = getattr(model, 'folder', None) is not None
        needs = ('reference', 'on_report')[: 1 + has_folder]
        if not takes.keys() >= {*needs}:
            raise TypeError(
                f"'model' needs a method remove(request, {'=, '.join(needs)}="
                '). Register another model as a recipient(): its owner fits '
                f'it again and calls done() (got {type(model).__name__})'
            )
        self.model, self.save, self.names = model, save, names
        self.covers, self.data = isinstance(model, Coverage), data
        self.most = most
        if self.covers != (data is not None):
            raise ValueError(
                "'data' needs to return the graph of a private release, and "
                'is for private models alone'
            )
        if self.covers and most > model.forget_epsilon:
            raise ValueError(
                f"'coverage_epsilon' of the policy is {most:g}, and the model "
                f"covers 'forget_epsilon' = {model.forget_epsilon:g}"
            )
        if self.ledger.last is None:
            raise ValueError("'model' needs to be fitted first")
        if (save is not None) == has_folder:
            raise ValueError(
                "'save' needs to be the file of the model, or to be left out "
                'if the model has a folder: it is kept in one place'
            )

    @property
    def ledger(self) -> RemovalLedger:
        """The ledger of the model's removals."""
        model = self.model
        return model.removals if self.covers else model.ledger

    def _given(self) -> tuple[Any, ...]:
        return () if self.data is None else (self.data(),)

    def named(self, request: RemovalRequest) -> RemovalRequest | None:
        """Translate a request; :obj:`None` if the model holds none of it."""
        found = request if self.names is None else self.names(request)
        check_instance('names', found, RemovalRequest, type(None))
        return found

    def catch_up(self, whole: bool = False) -> None:
        """Load the saved state, if another object has continued this one.

        A model with a folder is loaded only with :obj:`whole`, as its next
        removal loads the folder anyway.
        """
        if self.save is None:
            if whole:
                self.model.load()
            return
        found = commit.peek(self.save)
        if found is not None:
            names, (name, count) = commit.heads(found), self.ledger.tip
            is_newer = [*names.items()][-1] != (name, count)
            if is_newer and names.get(name, -1) >= count:
                self.model.load(self.save)

    def forget(
        self, requests: list[RemovalRequest], reference: str, promised: Store
    ) -> list[int]:
        """Remove requests from the newest state; :meth:`keep` saves it.

        ``promised`` stores the guarantee, as JSON without ids, before any file
        has the removal. Returns how many items of each request are there; if
        one has none, nothing was removed.
        """
        left = [{*each.items()} for each in requests]
        while all(left):
            asked = RemovalRequest.of_items(set().union(*left))
            try:
                self._remove(asked, reference, promised)
                break
            except NotThere as error:
                # Not of a batch: edges of a node that goes are no part of it.
                missing = {*error.missing.items()}
                if all(missing.isdisjoint(each) for each in left):
                    raise
                left = [each - missing for each in left]
        return [len(each) for each in left]

    def _remove(self, request: Any, reference: str, promised: Store) -> None:
        given = self._given()
        more: dict[str, Any] = {'reference': reference}
        if self.save is None:
            # Its folder has the removal as soon as the call returns.
            more['on_report'] = lambda report: promised(self._promise(report))
        try:
            if self.covers:
                # The policy limits epsilon of all requests together.
                found = self.model.plan(request, *given).epsilon
                if found > self.most:
                    raise BudgetExceededError(
                        f'noise covers them at epsilon {found:.4g}, and '
                        f"'coverage_epsilon' is {self.most:g}: fit again "
                        'without them, then say so by done()'
                    )
            report = self.model.remove(request, *given, **more)
        except BudgetExceededError as error:
            if self.covers:
                # Skip it: others may fit, or go first.
                raise ValueError(str(error)) from None
            raise
        except StaleStateError:
            # A model with a folder compares before it changes.
            self.model.load()
            report = self.model.remove(request, **more)
        if self.save is not None:
            promised(self._promise(report))

    def _promise(self, report: Any) -> str:
        made = report.guarantee()
        names = ('procedure', 'promise', 'assumptions', 'not_covered')
        held = {name: getattr(made, name) for name in names}
        held['model'] = made.weights_sha256
        if self.covers:
            held |= {k: getattr(report, k) for k in ('mu', 'epsilon', 'delta')}
        return json.dumps(held)

    def keep(self) -> None:
        """Save the state of the model."""
        if self.save is not None:
            self.model.save(self.save)

    def seconds(self, request: RemovalRequest) -> float | None:
        """Estimate the seconds of a removal; :obj:`None` if unknown."""
        if hasattr(self.model, 'shard_state'):
            # An impossible one is refused when it is done.
            with contextlib.suppress(ValueError):
                return sum(self.model.plan(request).seconds.values()) or None
        return None

    def share(self, request: RemovalRequest) -> float:
        """Compute the share of the model's nodes or edges in a request."""
        model, nodes, edges = self.model, 0, 0
        graphs = getattr(model, 'graphs', {})
        if whole := [*graphs.values()] or self._given():
            held = sum(each.num_nodes for each in whole)
            arcs = sum(each.num_edges for each in whole)
        elif hasattr(model, 'graph'):
            held, arcs = model.nodes.numel(), model.graph.num_edges
        else:
            held, arcs = model.n_id.numel(), model.data.num_edges
        for graph, part in request.parts.items():
            if part.whole and graph in graphs:
                nodes += graphs[graph].num_nodes
            nodes += len({*part.nodes, *part.features, *part.labels})
            edges += len(part.arcs)
        # Ids that are not there, or no longer, count as well.
        return min(1.0, max(nodes / max(1, held), edges / max(1, arcs)))

    def has_removed(self, request: RemovalRequest) -> bool:
        """Return whether the ledger lists an item of a request."""
        gone = self.ledger.removed

        def is_gone(graph: int, kind: str, item: Any) -> bool:
            if gone.of('whole', graph) or kind == 'whole':
                return bool(gone.of('whole', graph))
            nodes = gone.of('nodes', graph)
            if kind not in ('edges', 'directed_edges'):
                return item in nodes or item in gone.of(kind, graph)
            arcs = gone.of('directed_edges', graph)
            return bool({item, item[::-1]} & arcs or nodes & {*item})

        return any(is_gone(*each) for each in request.items())


def read(names: str) -> RemovalRequest:
    """Parse a request from its ids in JSON."""
    return RemovalRequest.from_dict(json.loads(names))
