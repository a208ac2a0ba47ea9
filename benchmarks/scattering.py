"""Embedding whole datasets: GraphScattering against per-power messages.

The peer is what the paper's code does, written again: one PyG ``propagate``
per power of the walk and node of the scattering tree over batches of 128
graphs, all coefficients of all nodes kept until the mean is taken. Both sides
start from collated batches on one thread, run in turns in one process, and
the ratio of their median times is printed.

    python benchmarks/scattering.py --root DATA/TU

Also written to ``--csv``. ``--tune`` measures the constants of the cost model.
"""

import argparse
import csv
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import result
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.nn import MessagePassing, global_mean_pool
from torch_geometric.utils import degree, one_hot

from pyg_trust.transforms import GraphScattering

CASES = {
    'PROTEINS': ((5, 4, 3, None),),
    'IMDB-BINARY': ((4, 3, 3, 135), (5, 4, 3, 135)),
}


class PerPower(MessagePassing):
    """Scattering as in the paper's code, with the row walk."""

    def __init__(self, J: int, Q: int, L: int) -> None:
        super().__init__(aggr='add')
        self.J, self.Q, self.L = J, Q, L

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        """A neighbour's share."""
        return weight.view(-1, 1) * x_j

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """The coefficients, graph by graph."""
        n = x.size(0)
        inverse = degree(edge_index[1], n, dtype=x.dtype).pow(-1)
        inverse[inverse.isinf()] = 0
        loops = torch.arange(n)
        weight = torch.cat([inverse[edge_index[1]], torch.ones(n).to(x)]) / 2
        edges = torch.cat([edge_index, torch.stack([loops, loops])], 1)
        moments = [torch.stack([x**q for q in range(1, self.Q + 1)], -1)]
        layer = [x]
        for _ in range(1, self.L):
            children = []
            for parent in layer:
                last = parent
                for j in range(self.J):
                    power = last
                    for _ in range(1 if j == 0 else 2 ** (j - 1)):
                        power = self.propagate(edges, x=power, weight=weight)
                    children.append((last - power).abs())
                    last = power
            for child in children:
                powers = [child**q for q in range(1, self.Q + 1)]
                moments.append(torch.stack(powers, -1))
            layer = children
        every = torch.stack(moments, 1)
        return global_mean_pool(every.flatten(1), batch)


def load(root: str, name: str) -> list:
    """The graphs of a dataset, opened in a copy: PyG writes beside it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(Path(root) / name, Path(folder) / name)
        return list(TUDataset(folder, name))


def seconds(call: Callable[..., Any]) -> float:
    """The time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def write_csv(path: Path, rows: list[dict]) -> None:
    """Writes measurements, one row each."""
    with path.open('w', newline='') as file:
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def compare(
    graphs: list, case: tuple, dtype: torch.dtype, rounds: int
) -> dict:
    """Prints the ratio of one case, and returns it with its parts."""
    J, Q, L, max_degree = case

    def features(data: Data) -> Data:
        data = data.clone()
        if max_degree is None:
            data.x = data.x.to(dtype)
        else:
            count = degree(data.edge_index[1], data.num_nodes).long()
            data.x = one_hot(count, max_degree + 1, dtype=dtype)
        return data

    peer = PerPower(J, Q, L)
    dense = [features(data) for data in graphs]
    batches = [
        Batch.from_data_list(dense[i : i + 128])
        for i in range(0, len(dense), 128)
    ]
    transform = GraphScattering(J, Q, L, max_degree=max_degree)
    whole = Batch.from_data_list(graphs)
    sparse = max_degree is not None

    def theirs() -> Tensor:
        return torch.cat([peer(b.x, b.edge_index, b.batch) for b in batches])

    def ours() -> Tensor:
        return transform.embed(whole, dtype, sparse)

    z = ours()
    z = z.to_dense() if sparse else z
    error = float((z - theirs()).abs().max())
    times: tuple[list, list] = ([], [])
    for _ in range(rounds):
        times[0].append(seconds(ours))
        times[1].append(seconds(theirs))
    mine, other = map(statistics.median, times)
    print(
        f'J{J}Q{Q}L{L} {str(dtype)[6:]:8} ours {mine:7.3f} s  '
        f'per power {other:7.3f} s  ratio {other / mine:6.1f}  '
        f'largest difference {error:.1e}'
    )
    target = 4 if max_degree is None else 15 if dtype == torch.float64 else 30
    result(
        f'embedding J{J}Q{Q}L{L} {str(dtype)[6:]}, message passing per power '
        'over ours',
        other / mine,
        target,
    )
    return {
        'case': f'J{J}Q{Q}L{L}',
        'dtype': str(dtype)[6:],
        'ours_s': mine,
        'per_power_s': other,
        'ratio': other / mine,
        'difference': error,
    }


def tune() -> None:
    """Prints what the cost model of ``scattering/transform.py`` assumes."""
    for g, degrees in ((32, 4), (128, 8), (512, 8)):
        adj = (torch.rand(g, g) < degrees / g).double()
        csr = adj.to_sparse_csr()
        nnz = int(csr.values().numel())
        count = max(1, 4096 // g)
        for width in (16, 64):
            x = torch.rand(g, width, dtype=torch.float64)
            stack = torch.rand(count, width, g, dtype=torch.float64)
            filters = torch.rand(count, g, 4 * g, dtype=torch.float64)
            runs: tuple[list, list] = ([], [])
            for _ in range(30):
                runs[0].append(
                    seconds(lambda x=x, a=csr: torch.addmm(x, a, x, beta=0.5))
                )
                runs[1].append(
                    seconds(lambda s=stack, f=filters: torch.bmm(s, f))
                )
            one, two = map(statistics.median, runs)
            print(
                f'g {g} columns {width}: sparse '
                f'{1e9 * one / (nnz * width):.2f} ns, dense '
                f'{1e9 * two / (count * width * 4 * g * g):.3f} ns'
            )


def main() -> None:
    """Runs all cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--root', default='../shared/data/TU')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--tune', action='store_true')
    parser.add_argument(
        '--csv', type=Path, default=Path(__file__).with_suffix('.csv')
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.tune:
        tune()
        return
    rows = []
    for name, cases in CASES.items():
        graphs = load(args.root, name)
        print(f'{name}: {len(graphs)} graphs')
        for case in cases:
            for dtype in (torch.float32, torch.float64):
                row = compare(graphs, case, dtype, args.rounds)
                rows.append({'dataset': name, **row})
    write_csv(args.csv, rows)


if __name__ == '__main__':
    main()
