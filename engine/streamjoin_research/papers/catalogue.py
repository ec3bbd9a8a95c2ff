"""All rows, in the order of the papers, and where each algorithm of theirs is."""

from __future__ import annotations

from streamjoin_research.papers import adsp_plans, adsp_runs, adsp_schemes, adsp_shifts, duplication, esj, semijoins, semijoins_simulated
from streamjoin_research.papers.rows import Row

ALGORITHMS: tuple[tuple[str, str, str], ...] = (
    (
        "000",
        "MP-2PF: messages, the worker as a state machine, channels",
        "chain/messages.py, chain/worker.py, research/chain/network.py, dataplane/handshake.py",
    ),
    ("000", "Theorem 1, the size of tuple blocks; ST, IF, J", "chain/blocksize.py"),
    ("000", "workload difference, messages a tuple, counted", "research/chain/measure.py"),
    ("000", "several joins over one pair of streams", "controlplane/joins.py, dataplane/route.py"),
    ("001", "Eq. 1, the four thresholds", "elastic/settings.py"),
    ("001", "Eq. 2, the first number of workers", "elastic/deployment.py"),
    ("001", "Eq. 3, the shed factor", "elastic/shedding.py"),
    ("001", "scaling up and down", "elastic/esj.py, elastic/rules/"),
    (
        "002",
        "Defs. 1 to 4: tuple matrix, coverage areas, task areas, and the proof that they are a tiling",
        "scheme/matrix.py, scheme/tiling.py",
    ),
    ("002", "Eqs. 9 to 13, Alg. 1: Square and the varietal matrix", "scheme/varietal.py"),
    ("002", "Defs. 5, 6, Alg. 2: the area dichotomy", "scheme/dichotomy.py"),
    ("002", "Algs. 1 and 2, Theorem 4's bound and Readj as printed", "research/scheme/printed.py"),
    ("002", "Alg. 3: routing", "scheme/routing.py, dataplane/route.py"),
    ("002", "Alg. 4: the map of tasks, greedy and exact", "elastic/mapping.py"),
    ("002", "Fig. 8: start-point alignment", "elastic/alignment.py"),
    ("002", "Alg. 5, Eqs. 15 to 17: the migration plan", "elastic/migration.py"),
    ("002", "1-DSP (with R_J), Readj, Dynamic, Bi and Bi_g", "scheme/keyed.py, scheme/readj.py, scheme/dynamic.py, scheme/biclique.py"),
    ("002", "sampling of keys", "scheme/sketch.py, scheme/statistics.py"),
    ("002", "Fig. 7: monitor, scheme, mapping, plan, change", "elastic/autoscaler.py, elastic/planner.py, controlplane/replan.py"),
    (
        "003",
        "join processing in the engine: sorted runs, one main predicate and a residual",
        "kernel/run.py, kernel/probe.py, language/condition.py",
    ),
    ("003", "SR, TC, IF, J and their block size", "chain/blocksize.py"),
    ("003", "input adapter: pre-selection, pre-projection", "dataplane/route.py, io/"),
    ("003", "snapshots: epochs, punctuations, immediate and delayed commits", "snapshots/timeline.py, snapshots/punctuation.py"),
    ("003", "their stores: Cassandra, sorted files, PostgreSQL", "results/cassandra.py, results/archive.py, results/postgres.py"),
    ("003", "one-time and continuous queries", "query/, serve/queries.py"),
    (
        "004",
        "Algs. 1 to 6: the one-way joins",
        "research/semijoin/algorithms/simple.py, research/semijoin/algorithms/at_source.py, research/semijoin/algorithms/at_destination.py",
    ),
    (
        "004",
        "Algs. 7 to 9: non-redundant semijoin, partial windows",
        "research/semijoin/algorithms/at_source.py, research/semijoin/algorithms/distinct.py",
    ),
    (
        "004",
        "appendix B, the cost formulas; Table 4",
        "research/semijoin/cost.py, research/semijoin/estimates.py, research/semijoin/statistics.py",
    ),
    ("004", "Alg. 10, greedy; exhaustive; tree ordering", "research/semijoin/order.py"),
    ("004", "Definition 1, join sequences over a network", "research/semijoin/multiway.py, research/semijoin/network.py"),
    ("004", "orders of three and more streams in the engine", "elastic/path_plans.py, dataplane/delta_join.py"),
    ("004", "SP-S, SP-D, SM-S1, SM-D2 as stages in the engine, with their costs", "elastic/distribution.py, dataplane/lookup.py"),
)
"""Paper, algorithm, modules."""

NOT_COMPARED: tuple[tuple[str, str, str], ...] = (
    ("002", "Fig. 1, Fig. 7, Table 2", "pictures and notation, without numbers"),
    ("003", "architecture, query processing", "pictures, without numbers"),
    ("004", "Figs. 1 to 6, Tables 1 and 4", "pictures and notation; Example 4 (Fig. 5) is a test, `tests/test_semijoin_algorithms.py`"),
)
"""Paper, figure, why there is no row of it."""

ROWS: tuple[Row, ...] = tuple(
    sorted(
        (
            *esj.ROWS,
            *duplication.ROWS,
            *adsp_schemes.ROWS,
            *adsp_plans.ROWS,
            *adsp_runs.ROWS,
            *adsp_shifts.ROWS,
            *semijoins.ROWS,
            *semijoins_simulated.ROWS,
        ),
        key=lambda row: row.paper,
    )
)
