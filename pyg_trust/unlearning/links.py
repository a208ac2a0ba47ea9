r"""Link classifiers with certified removal.

Features are propagated, :math:`z = \sum_i w_i P^i x`, and a regularised
logistic head is trained on pairs, :math:`\phi = [c\, z_u \odot z_w, 1]`: every
edge against pairs of names that never look at edges. All of
:mod:`pyg_trust.unlearning.certified` holds with a pair for a training row. An
edge that leaves takes its message and its example along; a node takes all
pairs it is in.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    Count,
    Natural,
    Positive,
    check_integer,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._checks.graphs import check_examples, plain_index
from pyg_trust._moved import renamed
from pyg_trust.agp.measures import Measure
from pyg_trust.files.commit import editing, synchronized
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import NodeIds
from pyg_trust.unlearning.node import NodeClassifier
from pyg_trust.unlearning.node_data import read_features
from pyg_trust.unlearning.node_parts import Pairs
from pyg_trust.unlearning.pair_state import PairState
from pyg_trust.unlearning.reports import LinkUnlearnReport
from pyg_trust.unlearning.sums import BOUND

# Squares of larger products do not add up in float64.
_MOST = 1e100


class LinkClassifier(NodeClassifier):
    r"""Link predictor that forgets nodes and edges, with a certificate.

    .. code-block:: python

        split = RandomLinkSplit(
            is_undirected=True, add_negative_train_samples=False
        )
        train, val, test = split(data)
        model = LinkClassifier('sgc', levels=2).fit(train)
        logits = model.decision_function(test.edge_label_index)
        report = model.remove(RemovalRequest(nodes=[12], edges=[(3, 7)]))
        assert model.verify().ok

    Requests, updates, releases, files and the desk are those of
    :class:`NodeClassifier`, with pairs for training nodes, and so is **the
    promise** (:mod:`pyg_trust.unlearning.certified`).
    :meth:`~.NodeClassifier.verify` checks it by a second solve; the
    kernel proves nothing about pairs.

    **What it is fitted to.** Every edge is a message and a positive example.
    Every name has some negative pairs, with names that a hash chooses, edges
    or not: they do not move if something else leaves.

    **What to keep secret:** as of a node classifier, and scores of pairs:
    they read the present features of both ends, without noise.

    Runs on the CPU, in float64. Memory: :math:`P (d + 1)` numbers for
    :math:`P` pairs. Divide features by their size, and reduce wide ones by a
    public encoder: an SVD of these features would remember what leaves.

    Args:
        measure (str or Measure): as of :class:`NodeClassifier`.
            (default: :obj:`'sgc'`)
        alpha (float, optional): as of :class:`NodeClassifier`.
            (default: :obj:`None`)
        t (float, optional): as of :class:`NodeClassifier`.
            (default: :obj:`None`)
        levels (int, optional): as of :class:`NodeClassifier`.
            (default: :obj:`None`)
        bound (float): the largest magnitude that a feature may ever have.
            (default: :obj:`16.0`)
        scale (float): the factor :math:`c` of products: about one over the
            square of the size of a row, not chosen by looking at the data.
            (default: :obj:`30.0`)
        partners (int): the number of negative pairs of each name.
            (default: :obj:`4`)
        pair_seed (int): the public seed of negative pairs. (default: :obj:`0`)
        lam (float): the regularisation :math:`\lambda`, for each pair.
            (default: :obj:`1e-4`)
        release_std (float): as of :class:`NodeClassifier`.
            (default: :obj:`1e-4`)
        epsilon (float): as of :class:`NodeClassifier`. (default: :obj:`1.0`)
        delta (float): as of :class:`NodeClassifier`. (default: :obj:`1e-4`)
        on_exceed (str): as of :class:`NodeClassifier`.
            (default: :obj:`'refine'`)
        encoder (callable, optional): as of :class:`NodeClassifier`.
            (default: :obj:`None`)
        start_is_public (bool): as of :class:`NodeClassifier`.
            (default: :obj:`False`)
        tol (float): the residual of exact solves. (default: :obj:`1e-8`)
        max_pending (int): as of :class:`NodeClassifier`.
            (default: :obj:`1_000`)
        seed (int, optional): the seed of the noise. It makes the noise
            repeatable, and the release not private. (default: :obj:`None`)

    Raises:
        TypeError, ValueError: if an argument is out of range.

    Example:
        >>> from pyg_trust.removal import RemovalRequest
        >>> ring = torch.arange(12)
        >>> edge_index = torch.stack([ring, (ring + 1) % 12])
        >>> edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
        >>> data = Data(x=torch.eye(12), edge_index=edge_index)
        >>> model = LinkClassifier(levels=1, lam=0.1, seed=0).fit(data)
        >>> report = model.remove(RemovalRequest(nodes=[3], edges=[(7, 8)]))
        >>> report.bound <= report.budget, model.verify().ok
        (True, True)
    """

    _state = PairState

    @renamed(encoder_is_public='start_is_public')
    @validated
    def __init__(
        self,
        measure: str | Measure = 'sgc',
        *,
        alpha: float | None = None,
        t: float | None = None,
        levels: int | None = None,
        bound: float = BOUND,
        scale: Positive = 30.0,
        partners: Count = 4,
        pair_seed: Natural = 0,
        lam: float = 1e-4,
        release_std: float = 1e-4,
        epsilon: float = 1.0,
        delta: float = 1e-4,
        on_exceed: str = 'refine',
        encoder: Callable[..., Any] | None = None,
        start_is_public: bool = False,
        tol: float = 1e-8,
        max_pending: Natural = 1_000,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            measure,
            alpha=alpha,
            t=t,
            levels=levels,
            bound=bound,
            lam=lam,
            release_std=release_std,
            epsilon=epsilon,
            delta=delta,
            on_exceed=on_exceed,
            encoder=encoder,
            start_is_public=start_is_public,
            tol=tol,
            max_pending=max_pending,
            seed=seed,
        )
        if not scale * self.bound**2 <= _MOST:
            raise ValueError(
                f"'scale' needs to be at most {_MOST:g} over the square of "
                f"'bound', {self.bound:g}, or products of rows overflow (got "
                f'{scale:g})'
            )
        pairs = Pairs(0, partners, pair_seed, float(scale))
        self._settings = self._settings._replace(pairs=pairs)

    @editing
    def fit(  # type: ignore[override]
        self, data: Data, *, num_names: int | None = None
    ) -> 'LinkClassifier':
        """Propagate, train and release.

        Nodes are named by ``data.n_id`` in requests and updates if it is
        there, else by their positions. A second call starts over, with a new
        ledger, as of :class:`NodeClassifier`.

        Args:
            data (Data): the graph, with ``x`` and an undirected
                ``edge_index``, such as the training data of
                ``RandomLinkSplit``.
            num_names (int, optional): the most nodes that there may ever be,
                removed ones included; by default those of :obj:`data`, and
                none can be added. (default: :obj:`None`)

        Raises:
            TypeError, ValueError: on a graph that is weighted, directed, has
                duplicate edges or no edge; features that are missing or not
                finite; labels of pairs that are no edges; or fewer names than
                nodes.
        """
        graph = CSRGraph.from_data(data).to('cpu')
        if graph.is_weighted or not graph.is_undirected:
            raise ValueError(
                "'data' needs to be undirected and unweighted (got others; "
                'torch_geometric.utils.to_undirected makes it so)'
            )
        if not bool((graph.row != graph.col).any()):
            raise ValueError("'data' needs to have an edge (got none)")
        check_examples(data, graph.row, graph.col, graph.num_nodes)
        n = graph.num_nodes
        count = n if num_names is None else num_names
        count = check_integer('num_names', count, n)
        x = self._encoded(read_features(data))
        assert self._settings.pairs is not None
        pairs = self._settings.pairs._replace(names=count)
        if count * (count + pairs.partners) >= 2**63:
            raise ValueError(
                "'num_names' needs to be smaller, or 'partners': their pairs "
                f'need numbers below 2**63 (got {count} and {pairs.partners})'
            )
        settings = self._settings._replace(pairs=pairs)
        none = torch.full((n,), -1)
        ids = NodeIds.of_data(data)
        return self._begun(
            PairState(settings, (0, 1), graph, x, none, ids=ids)
        )

    @synchronized
    def decision_function(self, edge_label_index: Tensor) -> Tensor:  # type: ignore[override]
        """Compute the logits of pairs: ``[num_pairs]``.

        Larger for likelier links, and NaN for pairs with a removed node.

        Args:
            edge_label_index (Tensor): int64, ``[2, num_pairs]``: rows of
                nodes, as of PyG's ``edge_label_index``: positions at the fit,
                and then as they came.

        Raises:
            ValueError: on a row that never was.
        """
        model = self._fitted
        pairs = plain_index('edge_label_index', edge_label_index).cpu()
        check_tensor('edge_label_index', pairs, torch.int64, (2, 'num_pairs'))
        alive = model.data.graph.alive
        check_range('edge_label_index', pairs, alive.numel(), 'the nodes')
        there = alive[pairs].all(0)
        found = model.weight.new_full((pairs.size(1),), torch.nan)
        margin = model.data.margins(model.weight, pairs[:, there])
        found[there] = margin.view(-1)
        return found

    def score(self, edge_label_index: Tensor, edge_label: Tensor) -> float:  # type: ignore[override]
        """Return the share of pairs that are predicted as their label.

        Pairs with a removed node are left out; :meth:`decision_function` gives
        logits for rankings.

        Args:
            edge_label_index (Tensor): as in :meth:`decision_function`.
            edge_label (Tensor): ``[num_pairs]``: 1 for links, else 0.

        Raises:
            ValueError: if no pair has both nodes.
        """
        found = self.predict(edge_label_index)
        dtypes = torch.int64, torch.float32, torch.float64
        check_tensor('edge_label', edge_label, dtypes, (found.numel(),))
        there = found >= 0
        if not bool(there.any()):
            raise ValueError(
                "'edge_label_index' needs to have a pair that is there"
            )
        right = found[there] == edge_label.cpu()[there]
        return float(right.double().mean())

    def predict_on(self, data: Data) -> Tensor:
        """Raise an error: pairs of another graph need a model of it."""
        raise TypeError(
            "'predict_on' is for classifiers of nodes: fit a LinkClassifier "
            'to the other graph'
        )

    def predict(self, edge_label_index: Tensor) -> Tensor:  # type: ignore[override]
        """Predict whether pairs are linked: int64, 0 or 1; -1 if removed.

        Takes the argument of :meth:`decision_function`.
        """
        return self._labels(self.decision_function(edge_label_index))

    def predict_proba(self, edge_label_index: Tensor) -> Tensor:  # type: ignore[override]
        """Predict the probabilities of no link and of a link: ``[k, 2]``.

        Of the balance of edges and negative pairs that it was fitted to; NaN
        for pairs with a removed node.
        """
        return self._probabilities(self.decision_function(edge_label_index))

    def _report(self, **values: Any) -> LinkUnlearnReport:
        return LinkUnlearnReport(**values)

    def _config(self) -> dict[str, Any]:
        assert self._settings.pairs is not None
        pairs = self._settings.pairs._asdict()
        del pairs['names']
        return {**super()._config(), 'pairs': pairs}
