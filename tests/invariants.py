"""What always holds of an epoch, and of a plan on its way into a running join: where that is checked, and which tests try to break it.

``docs/invariants.md`` has it as a page, which ``python tests/invariants.py`` writes. The driver's steps are read from its code; one that is
missing here, a name that is nowhere, and a page that is not up to date fail ``tests/test_invariants.py``, which kills drivers at each step.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "invariants.md"


@dataclass(frozen=True)
class Invariant:
    """Something that always holds."""

    text: str
    checked: tuple[str, ...]
    """Functions of the engine that prove it or refuse what breaks it: ``module:name``."""
    tests: tuple[str, ...]
    """``file:function``."""


OF_AN_EPOCH = (
    Invariant(
        "An epoch happens once, or not at all: creating its entry of the log is the one moment at which it does.",
        ("state.log:CommitLog.commit",),
        (
            "test_crashes:test_any_one_storage_call_may_fail_or_kill_the_driver",
            "test_power:test_the_power_may_be_lost_at_any_call",
        ),
    ),
    Invariant(
        "At most one driver of a checkpoint can commit; the older of two stops at its next commit.",
        ("state.log:CommitLog.claim", "state.log:CommitLog.commit"),
        ("test_crashes:test_a_second_driver_takes_over_at_any_step_and_the_first_says_so",),
    ),
    Invariant(
        "Whatever a commit names is durable before it, and nobody reads what no commit names.",
        ("epoch.join:Joined.report", "epoch.writes:Writes.wait"),
        ("test_power:test_the_power_may_be_lost_at_any_call", "test_crashes:test_a_task_may_die_after_it_staged_its_runs"),
    ),
    Invariant(
        "Each pair of tuples meets once: when the later one comes, in the one area that has both.",
        ("scheme.tiling:Scheme.check",),
        (
            "test_join_property:test_output_equals_the_oracle_for_random_joins",
            "test_scheme:test_every_plan_is_a_tiling_whatever_the_statistics",
        ),
    ),
    Invariant(
        "A task goes on from the runs of just that attempt which the last commit names, or reads its blocks back; so results do not depend"
        " on where it runs, or how often.",
        ("state.store:RunStore.get", "epoch.outcome:require_predecessor"),
        ("test_crashes:test_workers_may_lose_their_runs_at_any_epoch", "test_crashes:test_a_task_that_is_run_twice_counts_once"),
    ),
    Invariant(
        "An epoch that was begun before the one before it was committed is committed only if it went on from what that has committed.",
        ("epoch.outcome:require_predecessor",),
        ("test_crashes:test_an_epoch_that_was_begun_too_early_is_begun_again",),
    ),
    Invariant(
        "A tuple that is accepted never misses a partner that is accepted: what is late and what has expired goes by the same committed"
        " watermarks.",
        ("epoch.planning:make_spec", "language.window:Window.expired_before"),
        ("test_join_property:test_output_equals_the_oracle_for_random_joins",),
    ),
    Invariant(
        "All that a commit staged becomes visible, once, before the next commit.",
        ("epoch.driver:Driver._publish",),
        ("test_crashes:test_the_driver_may_die_at_any_step_of_any_epoch",),
    ),
    Invariant(
        "Nothing is removed that one of the last commits names, or an epoch in flight may read.",
        ("epoch.janitor:Janitor.clean", "epoch.janitor:Janitor.sweep"),
        ("test_crashes:test_random_faults_in_long_sequences", "test_crashes:test_staged_files_of_another_join_are_left_alone"),
    ),
    Invariant(
        "Of a chain (handshake), an epoch is committed when no message is on its way; at each commit every tuple is held by one worker, and"
        " each stream lies along the chain in the order in which it came.",
        ("chain.quiescence:Watch.handle", "chain.worker:Worker.validate"),
        (
            "test_handshake:test_output_equals_the_oracle_at_the_end_of_the_input",
            "test_chain_rest:test_a_chain_is_said_to_be_at_rest_when_it_is_and_not_before",
        ),
    ),
)

OF_A_PLAN = (
    Invariant(
        "A plan's scheme is a tiling: no two areas find the same pair, every pair that the predicate admits is found, every tuple is stored"
        " by one area.",
        ("scheme.tiling:Scheme.check", "epoch.replan:require_fit"),
        ("test_scheme:test_every_plan_is_a_tiling_whatever_the_statistics",),
    ),
    Invariant(
        "A plan that was accepted waits, is being applied, or has ended: switched to, dropped with a reason, or replaced by a later one.",
        ("epoch.replan:Replanner.validate",),
        ("test_replanner:test_whatever_happens_every_plan_that_was_accepted_is_accounted_for",),
    ),
    Invariant(
        "Generations ascend: that of the plan that runs, of the one that is being applied, of the one that waits.",
        ("epoch.replan:Replanner.put", "epoch.replan:Replanner.validate"),
        ("test_replanner:test_only_a_plan_after_the_newest_is_accepted",),
    ),
    Invariant(
        "The commit of a plan's first epoch is the switch: before it all goes on under the old plan, after it under the new one.",
        ("epoch.outcome:checkpoint_after",),
        ("test_replan:test_any_sequence_of_plans_leaves_the_result_as_it_is",),
    ),
    Invariant(
        "A worker holds just the tuples of its areas, whichever plan, process and blocks they come from.",
        ("state.store:read_back",),
        ("test_replan:test_any_sequence_of_plans_leaves_the_result_as_it_is",),
    ),
    Invariant(
        "A number means one worker for as long as its driver lives; only a worker that goes on occurs in two plans.",
        ("epoch.replan:Replanner.validate",),
        ("test_replanner:test_workers_that_go_on_keep_their_numbers_and_new_ones_get_numbers_that_nobody_had",),
    ),
    Invariant(
        "No worker is let go before all that it held is durable and the switch is committed.",
        ("epoch.replan:Replanner.handle",),
        ("test_replanner:test_a_plan_waits_for_its_workers_prepares_them_and_is_switched_to",),
    ),
    Invariant(
        "Joins, their floors and the plan that goes with them change in one commit.",
        ("epoch.driver:Driver._change_joins",),
        ("test_other_joins:test_each_join_gives_what_it_would_give_alone_while_it_is_there",),
    ),
)

STEPS = {
    "claim": ("takes the log over", "nothing, or an entry by which an older driver stops"),
    "republish": ("makes visible again what the last commit staged", "some of it is visible, and is made so again, which changes nothing"),
    "sweep": ("removes what no commit names", "some of it is gone"),
    "plan": ("asks the sources what is new", "nothing"),
    "deploy": ("chooses the first plan, and brings workers", "nothing: a plan is durable with its first epoch"),
    "joins": ("goes on with other joins than the checkpoint's", "nothing, or a commit that says so"),
    "request": ("asks for the workers of a plan that was put", "nothing: the join goes on as it was; whoever put the plan asks"),
    "tasks": ("hands an epoch to the workers", "blocks and staged results that no commit names: swept"),
    "switch": ("hands a plan's first epoch to the workers", "the same; the join goes on under the plan before"),
    "gather": ("makes one file of small results that wait", "a staged file that no commit names: swept"),
    "commit": ("creates the entry", "nothing, or the epoch has happened"),
    "publish": ("makes visible what the commit staged", "the next driver does it again"),
    "clean": ("removes what commits have made obsolete", "files that the next driver sweeps"),
    "release": ("lets workers go that have no task any more", "the switch is committed; the next driver brings the workers it needs"),
}
"""By step, in their order: what the driver does, and what it leaves if it dies there."""
KILLED_BY = "test_invariants:test_a_driver_may_die_at_each_step"


def steps_of_the_driver() -> set[str]:
    """The names that the driver's code gives to its steps."""
    tree = ast.parse((ROOT / "engine/streamjoin/epoch/driver.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    entered = [call.args[0] for call in calls if call.func.attr == "_enter"]  # type: ignore[attr-defined]
    return {part.value for name in entered for part in ast.walk(name) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def page() -> str:
    """docs/invariants.md."""
    lines = [
        "# What always holds",
        "",
        "Of an epoch, and of a plan on its way into a running join: each line names where the engine proves it or"
        " refuses what would break it,",
        "and the tests that try to. The page is written by `python tests/invariants.py`, and"
        " `tests/test_invariants.py` fails where a name in it is",
        "nowhere, or a step of the driver is not in the last table.",
        "",
        *_section("An epoch", OF_AN_EPOCH),
        *_section("A plan", OF_A_PLAN),
        "## When a driver dies",
        "",
        f"`{_test(KILLED_BY)}` kills a driver at each of these steps, each time that it comes to it,",
        "while plans are put and joins come and go; another one goes on, and results equal DuckDB's. The steps are"
        " those that the driver's code",
        "names.",
        "",
        "| step | what it does | what is left if it dies there |",
        "|---|---|---|",
        *(f"| {step} | {does} | {left} |" for step, (does, left) in STEPS.items()),
        "",
        "What dies beside the driver, and when: [how it works](architecture.md#two-epochs-in-flight).",
        "",
    ]
    return "\n".join(lines)


def _section(title: str, invariants: Sequence[Invariant]) -> list[str]:
    rows = [
        f"| {each.text} | {', '.join(f'`{name}`' for name in each.checked)} | {', '.join(f'`{_test(name)}`' for name in each.tests)} |"
        for each in invariants
    ]
    return [f"## {title}", "", "| always | checked | tried by |", "|---|---|---|", *rows, ""]


def _test(name: str) -> str:
    file, function = name.split(":")
    return f"{file}.py::{function}"


if __name__ == "__main__":
    PAGE.write_text(page())
