"""One trace through ``streamjoin simulate``'s join and through the engine, inline and on Spark: whether the simulation is true.

    python tests/bench/bench_truth.py [--policies thresholds,predictive] [--runners inline,spark] [--hours 1.2] [--quick]

Time is compressed: an epoch is a step of 15 s of the trace (``tests/truth.py``), and stands still while workers start that are due by it.
Needs Spark for the runner of that name, and takes minutes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.engine import spark_runner
from bench.report import options
from truth import Played, job_of, run, simulated, wave

FULL = 48
"""The step from which the engine's window is full."""


def row(policy: str, who: str, played: Played) -> str:
    targets = ", ".join(str(record.decision.target) for record in played.ledger if record.realised is not None)
    held, tau = np.mean(played.held[FULL:]), np.array(played.tau[FULL:])
    cells = (
        f"`{policy}`",
        who,
        f"{played.worker_hours:.2f}",
        targets,
        f"{played.moved:,.0f}",
        f"{played.shed / played.came:.2%}",
        f"{tau.max():.2f}",
        f"{tau.mean():.2f}",
        f"{held:,.0f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--policies", default="thresholds,predictive")
    parser.add_argument("--runners", default="inline,spark")
    parser.add_argument("--hours", type=float, default=1.2)
    given = parser.parse_args()
    if given.quick:
        given.policies, given.hours = "predictive", 0.3
    print("| policy | | worker-hours | workers, in turn | moved tuples | shed | most tau | mean tau | held, on average |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    traffic = wave(given.hours, 3.0, 14.0)
    for policy in given.policies.split(","):
        for name in given.runners.split(","):
            with tempfile.TemporaryDirectory() as directory:
                root = Path(directory)
                job = job_of(root, policy)
                runner = spark_runner(root) if name == "spark" else None
                try:
                    real = run(root, job, traffic, runner=runner)
                finally:
                    if runner is not None:
                        runner.stop()
            print(row(policy, f"run, {name}", real), flush=True)
        print(row(policy, "simulated", simulated(job, traffic)), flush=True)


if __name__ == "__main__":
    main()
