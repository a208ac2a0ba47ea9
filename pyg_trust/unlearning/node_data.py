"""State of a fitted node classifier, and readers of data and updates."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import check_instance, check_integer, check_tensor
from pyg_trust.agp.measures import Measure, make_measure, needs_graph
from pyg_trust.files.commit import Lineage
from pyg_trust.files.seals import Seals, sealed
from pyg_trust.ledger import RemovalLedger
from pyg_trust.removal import NodeIds, Nodes, Part, RemovalRequest
from pyg_trust.unlearning.certified import recorded
from pyg_trust.unlearning.heads import Factor, Gradient
from pyg_trust.unlearning.lines import Arc, arcs_of, line_of
from pyg_trust.unlearning.node_rows import Edit, NodeState
from pyg_trust.unlearning.sums import edges_of
from pyg_trust.update import Update

__all__ = [
    'Model',
    'edits_of',
    'encode',
    'fixed_measure',
    'read_classes',
    'read_features',
    'waiting',
]

Encoded = Callable[[Tensor], Tensor]
_NONE = torch.empty((2, 0), dtype=torch.int64)


class Model(NamedTuple):
    """State of a fitted node classifier, with its removal ledger.

    Replaced as a whole, at the end of an operation that may fail. The data
    are edited in place, with undo.
    """

    data: NodeState
    ledger: RemovalLedger
    seals: Seals
    lineage: Lineage
    W: Tensor
    weight: Tensor
    gradient: Gradient
    factor: Factor
    frozen: bool
    releases: int
    # Whether all noise so far came from the operating system.
    secure: bool
    release_std: float
    # Steps since the factor was made, beyond FEW_STEPS for each removal.
    excess: int = 0

    @property
    def classes(self) -> tuple[int, ...]:
        """The class labels, in ascending order."""
        return self.data.classes

    @property
    def num_items(self) -> int:
        """The number of training rows that remain."""
        return self.data.num_train

    @property
    def sealed(self) -> str:
        """Digest of the saved state, recorded in the ledger."""
        data, held = self.data, [self.weight]
        if data.ids.n_id is not None:
            held.append(data.ids.n_id)
        return sealed(
            self.seals.root,
            str(data.classes),
            not data.graph.undirected,
            self.releases,
            self.secure,
            data.settings.digest(self.release_std),
            *held,
        )

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger's last line records this state."""
        # Lines of version 0.1 stand for the data alone.
        return recorded(self.ledger, self.sealed, self.seals.root)

    def evidence(self) -> dict[str, np.ndarray] | None:
        """Return the arrays from which the checker proves a release.

        Returns None for infinite series, for pairs and for states of version
        0.1, about which the checker proves nothing.
        """
        data, settings = self.data, self.data.settings
        seal = self.seals.state_dict()
        if (settings.theta, settings.pairs) != (None, None):
            return None
        if 'salt' not in seal:
            return None
        ids, (degree, col) = data.ids.n_id, data.graph.entries()
        held = {
            'col': col,
            'alive': data.graph.alive,
            'own_loop': data.graph.own_loop,
            'featureless': data.featureless,
            'x': data.levels.x,
            'labels': data.labels(),
            'salt': seal['salt'],
            'W': self.W,
            'released': self.weight,
        }
        return {
            **{name: np.ascontiguousarray(t) for name, t in held.items()},
            **settings.arrays(self.release_std),
            **({} if ids is None else {'ids': ids.numpy()}),
            'rowptr': np.concatenate([[0], degree.cumsum(0)]),
            'classes': np.array(data.classes),
            'directed': np.array(not data.graph.undirected),
            'secure': np.array(self.secure),
            'releases': np.array(self.releases),
        }

    def line(self, edits: Sequence[Edit]) -> dict[str, Any]:
        """List what edits removed, for the ledger, after they were played."""
        data, graph = self.data, self.data.graph
        kinds = 'nodes', 'edges', 'directed_edges', 'features', 'labels'
        part: dict[str, Any] = {
            kind: tuple({v for e in edits for v in getattr(e.part, kind)})
            for kind in kinds
        }
        changed = {
            kind: {
                v
                for e in edits
                if (pair := getattr(e, kind)) is not None
                for v in pair[0].tolist()
            }
            for kind in ('features', 'labels')
        }
        # Those that left the training are removed, the others have labels.
        off = {v for v in changed['labels'] if not data.trains(v)}
        part['labels'] = (*{*part['labels'], *off},)

        def present(arcs: Any) -> set[Arc]:
            listed = sorted(arcs)
            there = graph.has_edges(edges_of(listed)).tolist()
            return {arc for arc, has in zip(listed, there, strict=True) if has}

        added = torch.cat([_NONE, *data.pending.edges], 1)
        return line_of(
            Part(**part),
            changed,
            {
                'features': lambda v: bool(data.featureless[v]),
                'labels': lambda v: not data.trains(v),
            },
            present,
            arcs_of(added, graph.undirected),
            self.ledger.removed,
            ids=data.ids,
        )


def waiting(root: str, held: dict[str, Any]) -> str:
    """Hash the additions, which no line of the ledger covers."""
    came = held.get('came')
    return '' if came is None else sealed(root, *map(came.get, sorted(came)))


def read_features(data: Data) -> Tensor:
    """Read the features of a graph, to the CPU: ``[num_nodes, d]``."""
    x = data.get('x')
    if x is None:
        raise ValueError("'data' needs to have features 'x'")
    check_tensor('data.x', x, None, (data.num_nodes, 'd'), finite=True)
    if x.size(1) == 0:
        raise ValueError("'data.x' needs to have at least one column (got 0)")
    return x.detach().cpu()


def read_classes(
    data: Data, train_nodes: Nodes | None, classes: Sequence[int] | None = None
) -> tuple[tuple[int, ...], Tensor]:
    """Read the classes, and the position of each training node's class."""
    n = int(data.num_nodes)
    y = data.get('y')
    if not isinstance(y, Tensor):
        raise ValueError("'data' needs to have labels 'y'")
    if y.dim() == 2 and y.size(1) == 1:
        # As OGB has them.
        y = y.view(-1)
    check_tensor('data.y', y, torch.int64, (n,))
    name = 'train_nodes'
    if train_nodes is None:
        train_nodes, name = data.get('train_mask'), 'data.train_mask'
        if train_nodes is None:
            raise ValueError(
                "'train_nodes' is needed where 'data' has no 'train_mask' "
                '(bool, true where the label is known)'
            )
        mask = _one_mask(name, train_nodes)
        check_tensor(name, mask, torch.bool, (n,))
    # They come with the data, and name their rows.
    nodes = NodeIds().rows_of(name, _one_mask(name, train_nodes), n)
    if nodes.numel() == 0:
        raise ValueError(f"'{name}' needs to have a node (got none)")
    if nodes.unique().numel() != nodes.numel():
        raise ValueError(f"'{name}' needs to have each node once")
    train = torch.zeros(n, dtype=torch.bool)
    train[nodes] = True
    for other in ('val_mask', 'test_mask'):
        mask = data.get(other)
        if isinstance(mask, Tensor) and mask.shape == (n, 1):
            mask = mask.view(-1)
        if isinstance(mask, Tensor) and mask.shape == train.shape:
            both = (train & mask.cpu()).nonzero().view(-1)
            if both.numel():
                raise ValueError(
                    f"'{name}' and 'data.{other}' need to be disjoint (got "
                    f'node {int(both[0])} in both)'
                )
    found = y.cpu()[train]
    if bool((found < 0).any()):
        raise ValueError(
            "'data.y' needs to be non-negative for training nodes "
            f'(got {int(found.min())})'
        )
    known = found.unique()
    if classes is not None:
        check_instance('classes', classes, Sequence)
        listed = sorted({check_integer('classes', c, 0) for c in classes})
        other = known[~torch.isin(known, torch.tensor(listed).long())]
        if len(listed) != len(classes) or other.numel():
            raise ValueError(
                "'classes' needs every label of the training nodes, once "
                f'(got {list(classes)})'
            )
        known = torch.tensor(listed)
    if known.numel() < 2:
        raise ValueError(
            "'data.y' needs to have at least two classes among the training "
            f'nodes (got {known.tolist()})'
        )
    position = torch.full((n,), -1)
    position[train] = torch.searchsorted(known, found)
    return tuple(known.tolist()), position


def _one_mask(name: str, mask: Any) -> Any:
    # Data sets with several splits have a column for each.
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return mask
    if mask.size(1) == 1:
        return mask.view(-1)
    raise ValueError(
        f"'{name}' has {mask.size(1)} splits: choose one, as "
        'fit(data, data.train_mask[:, 0])'
    )


@torch.no_grad()
def encode(encoder: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Encode features; refuse an encoder that mixes rows."""
    if getattr(encoder, 'training', False):
        raise ValueError("'encoder' needs to be in evaluation mode: .eval()")
    made = encoder(x)
    check_tensor('encoder', made, None, (x.size(0), 'd'), finite=True)
    step = max(1, x.size(0) // 8)
    for i in range(0, x.size(0), step):
        alone = encoder(x[i : i + 1])
        if alone.shape != made[i : i + 1].shape or not torch.allclose(
            alone, made[i : i + 1], rtol=1e-4, atol=1e-5
        ):
            raise ValueError(
                f"'encoder' needs to treat every row by itself (row {i} alone "
                'gives another result): a removal would have to change all '
                'rows that depend on the removed one'
            )
    return made


def fixed_measure(
    measure: str | Measure, alpha: float | None, t: float | None, K: int | None
) -> Measure:
    """Return a measure whose weights do not depend on the graph."""
    if needs_graph(measure) or (
        isinstance(measure, Measure)
        and (measure.spectral_radius is not None or measure.shrink != 1)
    ):
        named = measure if isinstance(measure, str) else 'katz'
        raise ValueError(
            f"'measure' can't be {named}: its "
            'weights depend on the graph (as those of katz on its spectral '
            'radius), which a removal changes'
        )
    if measure == 'sgc' and K is None:
        K = 2
    if K is not None:
        check_integer('K', K, low=0)
    return make_measure(measure, None, alpha=alpha, t=t, levels=K)


def edits_of(data: NodeState, update: Any, encoded: Encoded) -> list[Edit]:
    """Read updates of a graph, in rows.

    Removals that follow one another become one: an edge of a node that is
    removed may be named beside it.
    """
    edits: list[Edit] = []
    removals: list[RemovalRequest] = []
    given = Update.of(update)
    ids, count = data.ids, data.graph.num_nodes
    if not given:
        raise ValueError("'update' needs to hold an update (got none)")
    for each in (*given, None):
        if each is not None and each.remove and ids.n_id is None:
            each.remove._check_positions()
        asked = None if each is None else each.remove
        if each is not None and each.missing == 'skip':
            asked = None
        if each is not None and asked and each.only_removes:
            removals.append(asked)
            continue
        if removals:
            every = Update(remove=RemovalRequest.batch(removals))
            edits.append(Edit(ids.part(every.part)))
            removals = []
        if each is not None:
            edit = _edit(data, each, count, encoded)
            count += 0 if edit.x is None else edit.x.size(0)
            edits.append(edit)
    return edits


def _edit(
    data: NodeState, update: Update, count: int, encoded: Encoded
) -> Edit:
    # Of a graph that has had so many nodes.
    ids, columns = data.ids, data.levels.x.size(1)
    if update.graphs or update.graph:
        raise ValueError("'graphs' and 'graph' need a classifier of graphs")

    def features(name: str, x: Tensor) -> Tensor:
        x = encoded(x.cpu())
        check_tensor(name, x, None, (x.size(0), columns), finite=True)
        return x

    def positions(name: str, y: Tensor) -> Tensor:
        known = torch.tensor(data.classes)
        other = y[(y >= 0) & ~torch.isin(y, known)]
        if other.numel():
            raise ValueError(
                f"'{name}' needs labels of 'classes', {data.classes} (got "
                f'{int(other[0])}): give those that may come to fit()'
            )
        return torch.where(y < 0, -1, torch.searchsorted(known, y))

    edges = ids.rows(update.arcs(data.graph.undirected))
    edit = Edit(ids.part(update.part), edges=edges, update=update)
    new, changed, given = update.nodes, update.features, update.labels
    if new is not None and new.x.size(0):
        new.check_next(ids.next(count))
        y = positions('nodes', torch.where(new.train, new.y, -1))
        edit = edit._replace(x=features('nodes', new.x), y=y)
    if changed is not None and changed[0].numel():
        x = features('features', changed[1])
        edit = edit._replace(features=(ids.rows(changed[0]), x))
    if given is not None and given[0].numel():
        y = positions('labels', given[1])
        edit = edit._replace(labels=(ids.rows(given[0]), y))
    return edit
