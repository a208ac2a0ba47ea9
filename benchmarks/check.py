"""What it costs to prove again what a report says: CPU seconds and bytes.

local       all local certificates of a graph (strength 6, all nodes, all
            pairs of classes) from their witness, by the kernel alone.
global      the same with a global budget of 5.
epsilon     100 private steps without replacement, in integers.
report      the command on a report of the first, with the witness.
quickstart  the command on the report that examples/quickstart.py writes.

    python benchmarks/check.py --data ../shared/data
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from certificates import load, train
from common import result

from pyg_trust.certificates import ThreatModel, Witness, certify
from pyg_trust.check import check_report
from pyg_trust.privacy import create_accountant
from pyg_trust.report import TrustReport
from pyg_trust.verify import proofs
from pyg_trust.verify.accounting import judge

PARTS = ('local', 'global', 'epsilon', 'report', 'quickstart')
QUICKSTART = Path(__file__).parents[1] / 'examples' / 'quickstart.py'
REPEATS = 3


def seconds(call: Callable[[], Any]) -> float:
    """Median CPU seconds of a call."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return median(times)


def run_certificate(
    name: str, logits: torch.Tensor, graph: Any, budget: int | None
) -> Any:
    """Prove a certificate of all nodes again."""
    threat = ThreatModel(graph, strength=6, global_budget=budget)
    start = time.process_time()
    made = certify(logits, threat, sign_only=True)
    taken = time.process_time() - start
    kind = 'local' if budget is None else f'B={budget}'
    print(
        f'{name} {kind}: {made.num_robust} robust, {made.num_broken} broken, '
        f'{made.num_unknown} unknown, certified in {taken:.2f} CPU s'
    )
    if made.proof is None:
        print(f'{name} {kind}: {made.witness_digest}')
        return made
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'w.npz'
        made.proof.save(path)
        size = path.stat().st_size / 1e6
        witness = Witness.load(path)
    proof = seconds(lambda: made.verify(witness))
    print(f'{name} {kind}: {made.verify(witness)}, file {size:.2f} MB')
    if budget is None:
        result(f'{name} {kind}: proved again, CPU s', proof, 3, at_most=True)
        result(f'{name} {kind}: witness file, MB', size, 1, at_most=True)
        lost = most_lost(made, witness)
        result(f'{name} {kind}: margin lost', lost, 1e-9, at_most=True)
    else:
        print(f'{name} {kind}: proved again in {proof:.2f} CPU s')
    return made


def most_lost(made: Any, witness: Witness) -> float:
    """By how much a proved margin is below the one that was found."""
    arrays = witness.arrays
    proved = proofs.lower(arrays, *proofs.read(arrays))
    return max(
        float(made.class_margins[k, c]) - float(margin)
        for k, margins in enumerate(proved)
        for c, margin in margins.items()
    )


def run_epsilon() -> None:
    """Prove an epsilon of private steps again."""
    account = create_accountant('pld_wor')
    for _ in range(100):
        account.step(noise_multiplier=4.0, sample_rate=0.05)
    claimed = account.get_epsilon(delta=1e-5)
    start = time.process_time()
    said = judge('wor', [(4.0, 0.05, 100)], claimed, 1e-5)
    taken = time.process_time() - start
    print(f'epsilon {claimed:.6g} of 100 steps without replacement: {said}')
    result('epsilon: proved again, CPU s', taken, 30, at_most=True)


def run_report(made: Any) -> None:
    """Check a saved report with its witness, as the command does."""
    with tempfile.TemporaryDirectory() as folder:
        path, witness = Path(folder) / 'trust.json', Path(folder) / 'w.npz'
        TrustReport.of(made).save(path)
        made.proof.save(witness)
        taken = seconds(lambda: check_report(path, witness=witness))
        print(f'report with a witness: checked in {taken:.2f} CPU s')


def run_quickstart() -> None:
    """Check what the quickstart has promised, as it does itself."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, QUICKSTART, '--out', folder, '--epochs', '20'],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        path = Path(folder) / 'trust.json'
        # Once: a second time finds what the first one has proved.
        start = time.process_time()
        found = check_report(path)
        taken = time.process_time() - start
    held = sum(each.status == 'holds' for each in found)
    print(f'quickstart: {held} of {len(found)} lines hold, {taken:.2f} CPU s')
    result('quickstart: its report checked, CPU s', taken, 30, at_most=True)


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument('parts', nargs='*', default=PARTS)
    parser.add_argument('--data', help='folder that holds CitationFull')
    parser.add_argument('--graph', default='Cora_ML')
    args = parser.parse_args()
    if not set(args.parts) <= set(PARTS):
        parser.error(f'parts are {PARTS}')
    torch.set_num_threads(1)
    if 'epsilon' in args.parts:
        run_epsilon()
    if 'quickstart' in args.parts:
        run_quickstart()
    if not {'local', 'global', 'report'} & set(args.parts):
        return
    name = args.graph if args.data else 'generated'
    logits, graph, _ = train(load(args.data, name))
    if {'local', 'report'} & set(args.parts):
        made = run_certificate(name, logits, graph, None)
        if 'report' in args.parts:
            run_report(made)
    if 'global' in args.parts:
        run_certificate(name, logits, graph, 5)


if __name__ == '__main__':
    main()
