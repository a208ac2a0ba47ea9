"""Account of releases of private data, and checks before a release."""

import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import noise, rng
from pyg_trust._checks import (
    REAL,
    check_ledger,
    check_tensor,
    validated,
)
from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust._checks.graphs import warn_of_features
from pyg_trust.account import NoCopies, ReleaseAccount, register_release
from pyg_trust.distributed import rank_and_size
from pyg_trust.graph import CSRGraph
from pyg_trust.graph._marks import check_rows, marked
from pyg_trust.noise import SecureNoise, SeededNoise
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.transforms.aggregation_report import Relation
from pyg_trust.verify.claims import outwards


class Releasing(NoCopies):
    """Base of objects that release private data on one account.

    The account is opened with the first data, whose number of nodes is part of
    it.
    """

    relation: Relation
    epsilon: float | None
    delta: float | None
    limit: float | None

    def _set_account(
        self,
        ledger: str | Path | None,
        ledger_head: str | None,
        seed: int | None,
    ) -> None:
        check_ledger(ledger, ledger_head)
        self.ledger = None if ledger is None else Path(ledger).absolute()
        self.ledger_head = ledger_head
        self.seed = None if seed is None else rng.resolve(seed)
        self._owner = os.getpid()
        self._account: ReleaseAccount | None = None

    @property
    def account(self) -> ReleaseAccount | None:
        """Account of the releases; None before the first release."""
        return self._account

    @property
    def seeded(self) -> bool:
        """Whether a seed makes the noise repeatable."""
        return self.seed is not None

    def close(self) -> None:
        """Close the ledger's file."""
        if self._account is not None:
            self._account.close()

    def _source(self, number: int) -> SecureNoise | SeededNoise:
        # A seed gives other noise to every release, also after a restart.
        if self.seed is None:
            return noise.source()
        return noise.source(rng.derive(self.seed, number))

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError(
                f'the {type(self).__name__} belongs to another process: '
                'release before workers are started'
            )

    def _open(self, num_nodes: int) -> ReleaseAccount:
        self._check_owner()
        if self._account is None:
            self._account = ReleaseAccount(
                {
                    **self.relation.header(),
                    'delta': self.delta,
                    'num_nodes': num_nodes,
                    'seeded': self.seeded,
                },
                limit=self.limit,
                ledger=self.ledger,
                ledger_head=self.ledger_head,
            )
        elif self._account.about['num_nodes'] != num_nodes:
            raise ValueError(
                f"'data' needs to have {self._account.about['num_nodes']} "
                f'nodes, as the first (got {num_nodes})'
            )
        return self._account

    def _spent(self, delta: float) -> dict[str, Any]:
        # The fields of a report that say what the account holds.
        account = self._account
        assert account is not None
        return {
            'epsilon': gaussian_epsilon(account.mu, delta),
            'delta': delta,
            'target_epsilon': self.epsilon,
            'mu': account.mu,
            'releases': len(account.lines),
            'num_nodes': int(account.about['num_nodes']),
            'seeded': self.seeded,
            'ledger_head': account.head,
        }


@validated
def release_graph(data: Data, relation: Relation) -> CSRGraph:
    """Convert private data to a graph, or refuse one without a guarantee."""
    try:
        graph = CSRGraph.from_data(data)
    except ValueError as error:
        # Remove numbers from the message, which name private edges and nodes.
        raise ValueError(
            re.sub(r' \([^()]*\d[^()]*\)', '', str(error))
        ) from None
    if graph.is_weighted:
        raise ValueError(
            "'data' needs edges without weights: set data.edge_weight to None"
        )
    if relation.adjacency == 'feature':
        return graph
    if graph.has_self_loops:
        raise ValueError(
            "'data' can't have self-loops: take them away by "
            'torch_geometric.utils.remove_self_loops'
        )
    if graph.num_edges and graph.is_undirected == relation.directed:
        raise ValueError(
            "'directed' needs to be False where 'data' has every edge in both "
            'directions, and True where it has not (or make edges undirected '
            'by torch_geometric.utils.to_undirected)'
        )
    return graph


def check_alone() -> None:
    """Refuse a release by several processes, each with noise of its own."""
    rank, size = rank_and_size()
    if size > 1:
        raise RuntimeError(
            f'a release is made once, by one process (got rank {rank} of '
            f'{size}): release before torch.distributed is started, save the '
            'result, and load it in all processes'
        )


def warn_of_other_releases(
    relation: Relation,
    graph: CSRGraph,
    features: str,
    account: ReleaseAccount,
    delta: float,
    stacklevel: int,
) -> None:
    r"""Warn if the same data were already released on another account."""
    secret = []
    if relation.adjacency != 'feature':
        secret.append(f'edges {fingerprint(graph.rowptr, graph.col)}')
    if relation.adjacency != 'edge':
        secret.append(f'features {features}')
    unit = f'{relation.adjacency} {relation.neighboring}'
    mu = register_release(secret, unit, account.name, account.mu)
    if mu > account.mu * (1 + 1e-9):
        both = gaussian_epsilon(mu, delta)
        alone = gaussian_epsilon(account.mu, delta)
        warnings.warn(
            'these data were released before in this process, on another '
            f'account: together that is epsilon {outwards(both)}, and this '
            f'account knows of {outwards(alone)}. Keep what '
            "was released first, or give all of them the same 'ledger'",
            stacklevel=stacklevel,
        )


@validated
def check_own(data: Data, attr: str, relation: Relation) -> Tensor:
    """Return features; refuse those that are known to come from the graph."""
    x = data.get(attr)
    if not isinstance(x, Tensor):
        raise ValueError(
            f"'data' needs to have a tensor '{attr}' (got {type(x).__name__})"
        )
    shape = (int(data.num_nodes or 0), 'num_columns')
    if x.layout not in (torch.strided, torch.sparse_csr, torch.sparse_coo):
        raise ValueError(f"'{attr}' can't have the layout {x.layout}")
    check_tensor(attr, x, REAL, shape)
    if attr in marked(data):
        raise ValueError(
            f"'data' needs rows of '{attr}' that are a node's own (got "
            'propagated ones)'
        )
    if relation.adjacency != 'edge':
        check_rows(data)
    warn_of_features(attr, x)
    return x
