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
        "An epoch happens once or not at all. It happens at the moment when its log entry is created.",
        ("state.log:CommitLog.commit",),
        (
            "test_crashes:test_any_one_storage_call_may_fail_or_kill_the_driver",
            "test_power:test_the_power_may_be_lost_at_any_call",
        ),
    ),
    Invariant(
        "At most one driver of a checkpoint can commit. The older of two drivers stops at its next commit.",
        ("state.log:CommitLog.claim", "state.log:CommitLog.commit"),
        ("test_crashes:test_a_second_driver_takes_over_at_any_step_and_the_first_says_so",),
    ),
    Invariant(
        "A standby claims the checkpoint only from the driver that it has watched: of several standbys one takes over, and none takes over"
        " from another.",
        ("state.log:CommitLog.claim", "controlplane.standby:Standby.handle"),
        (
            "test_standby:test_of_two_standbys_one_takes_over_and_the_other_watches_it",
            "test_simulated:test_whatever_drivers_meet_is_as_if_there_had_been_one",
        ),
    ),
    Invariant(
        "Everything that a commit names is durable before the commit. Nobody reads a file that no commit names.",
        ("dataplane.joined:Joined.report", "dataplane.writes:Writes.wait"),
        ("test_power:test_the_power_may_be_lost_at_any_call", "test_crashes:test_a_task_may_die_after_it_staged_its_runs"),
    ),
    Invariant(
        "Each pair of tuples meets once: in the one area that has both, when the later tuple comes.",
        ("scheme.tiling:Scheme.check",),
        (
            "test_random_joins:test_joins_give_what_duckdb_finds_in_all_of_their_input",
            "test_scheme:test_every_plan_is_a_tiling_whatever_the_statistics",
        ),
    ),
    Invariant(
        "A task continues from the runs of the attempt that the last commit names, or reads its blocks back. So results do not depend on"
        " where or how often it runs.",
        ("state.store:RunStore.get", "controlplane.next_checkpoint:require_predecessor"),
        ("test_crashes:test_workers_may_lose_their_runs_at_any_epoch", "test_crashes:test_a_task_that_is_run_twice_counts_once"),
    ),
    Invariant(
        "An epoch may start before the previous one is committed. It is committed only if it continued from the runs that the previous one"
        " committed.",
        ("controlplane.next_checkpoint:require_predecessor",),
        ("test_crashes:test_an_epoch_that_was_begun_too_early_is_begun_again",),
    ),
    Invariant(
        "An accepted tuple never misses an accepted partner: the checks for late and for expired tuples use the same committed watermarks.",
        ("controlplane.planning:make_spec", "language.window:Window.expired_before"),
        ("test_random_joins:test_joins_give_what_duckdb_finds_in_all_of_their_input",),
    ),
    Invariant(
        "All results that a commit staged become visible once, before the next commit.",
        ("controlplane.commits:Commits.publish",),
        ("test_crashes:test_the_driver_may_die_at_any_step_of_any_epoch",),
    ),
    Invariant(
        "No file is removed that one of the last commits names, or that an epoch in flight may read.",
        ("controlplane.garbage:GarbageCollector.clean", "controlplane.garbage:GarbageCollector.sweep"),
        (
            "test_simulated:test_whatever_drivers_meet_is_as_if_there_had_been_one",
            "test_crashes:test_staged_files_of_another_join_are_left_alone",
        ),
    ),
    Invariant(
        "What a savepoint keeps is whole from the commit that makes it until the commit that deletes it.",
        ("controlplane.savepoints:Savepoints.taken", "controlplane.garbage:GarbageCollector.keep"),
        (
            "test_savepoints:test_whatever_drivers_meet_what_is_kept_is_whole",
            "test_savepoints:test_any_one_storage_call_may_fail_or_kill_the_driver",
        ),
    ),
    Invariant(
        "A clone begins with all that the savepoint keeps, or with nothing. It reads nothing of the other storage after that, and changes"
        " nothing there.",
        ("controlplane.cloning:clone",),
        (
            "test_clones:test_any_one_storage_call_of_a_clone_may_fail_or_kill_the_driver",
            "test_clones:test_any_join_goes_on_from_a_savepoint_as_from_its_last_commit",
        ),
    ),
    Invariant(
        "A join that goes back to a savepoint goes on counting epochs, so that no sink takes what it publishes for something that it has.",
        ("controlplane.rollback:roll_back",),
        (
            "test_rollback:test_results_after_the_savepoint_are_found_again_in_epochs_of_their_own",
            "test_rollback:test_any_one_storage_call_may_fail_or_kill_who_goes_back",
        ),
    ),
    Invariant(
        "An index of snapshots is created once, by whichever driver is first, and names no file that an older or a newer driver removes.",
        ("results.archive:Archive.sweep",),
        (
            "test_snapshots:test_an_older_driver_that_ends_a_merge_during_the_newer_ones_names_no_file_that_is_gone",
            "test_simulated:test_whatever_drivers_meet_is_as_if_there_had_been_one",
        ),
    ),
    Invariant(
        "A micro-batch of Spark's is joined once, with the rows of the first attempt that staged it, whatever rows it has when Spark does"
        " it again.",
        ("io.staged:commit", "io.staged:claim", "io.staged_source:StagedBatches.changes"),
        (
            "test_staged:test_the_first_attempt_at_a_micro_batch_counts_whatever_rows_a_later_one_has",
            "test_staged:test_what_a_commit_has_passed_is_removed_and_not_read_if_it_comes_again",
            "test_spark_stream_join:test_whatever_dies_between_any_two_steps_each_result_comes_once",
        ),
    ),
    Invariant(
        "An attempt at an epoch ends: each process that has a part in it answers, is gone, or is replaced.",
        ("runner.roster:Roster.validate",),
        ("test_roster:test_whatever_dies_hangs_or_comes_late_every_attempt_ends_and_succeeds_only_with_all_reports",),
    ),
    Invariant(
        "In a chain (handshake), an epoch is committed when no message is in transit. At each commit one worker holds each tuple, and each"
        " stream lies along the chain in the order of arrival.",
        ("chain.quiescence:Watch.handle", "chain.worker:Worker.validate"),
        (
            "test_random_joins:test_joins_give_what_duckdb_finds_in_all_of_their_input",
            "test_chain_rest:test_a_chain_is_said_to_be_at_rest_when_it_is_and_not_before",
        ),
    ),
)

OF_A_PLAN = (
    Invariant(
        "A plan's scheme is a tiling: no two areas find the same pair, some area finds every pair that the predicate admits, and one area"
        " stores each tuple.",
        ("scheme.tiling:Scheme.check", "controlplane.refusals:require_fit"),
        ("test_scheme:test_every_plan_is_a_tiling_whatever_the_statistics",),
    ),
    Invariant(
        "An accepted plan waits, is being applied, or has ended: switched to, dropped or withdrawn with a reason, or replaced by a later"
        " one.",
        ("controlplane.replan:Replanner.validate",),
        ("test_replanner:test_whatever_happens_every_plan_that_was_accepted_is_accounted_for",),
    ),
    Invariant(
        "Generations ascend from the running plan to the one that is being applied and the one that waits.",
        ("controlplane.replan:Replanner.put", "controlplane.replan:Replanner.validate"),
        ("test_replanner:test_only_a_plan_after_the_newest_is_accepted",),
    ),
    Invariant(
        "The commit of a plan's first epoch is the switch: before it the join runs under the old plan, after it under the new one.",
        ("controlplane.next_checkpoint:checkpoint_after",),
        ("test_replan:test_any_sequence_of_plans_leaves_the_result_as_it_is",),
    ),
    Invariant(
        "A worker holds exactly the tuples of its areas, whichever plan, process and blocks they come from.",
        ("state.store:read_back",),
        ("test_replan:test_any_sequence_of_plans_leaves_the_result_as_it_is",),
    ),
    Invariant(
        "A number means the same worker as long as its driver lives. Only a worker that continues occurs in two plans.",
        ("controlplane.replan:Replanner.validate",),
        ("test_replanner:test_workers_that_go_on_keep_their_numbers_and_new_ones_get_numbers_that_nobody_had",),
    ),
    Invariant(
        "No worker is released before all its tuples are durable and the switch is committed.",
        ("controlplane.replan:Replanner.handle",),
        ("test_replanner:test_a_plan_waits_for_its_workers_prepares_them_and_is_switched_to",),
    ),
    Invariant(
        "A plan for which some workers do not come is cut for those that are there. It needs no other workers, and fills none more than the"
        " plan that runs does, or, where workers are lost, than it may.",
        ("controlplane.cutting:plan_for", "controlplane.arrivals:Arrivals.cut_for"),
        (
            "test_arrivals:test_whatever_comes_goes_or_fails_the_join_is_never_cut_worse_and_ends_on_all_that_are_there",
            "test_arrivals:test_a_driver_may_die_at_each_step_while_workers_are_missing",
        ),
    ),
    Invariant(
        "Joins, their key spaces and their plan change in one commit.",
        ("controlplane.driver:Driver._change_joins",),
        ("test_random_joins:test_joins_give_what_duckdb_finds_in_all_of_their_input",),
    ),
)

LAY = "lay"
"""The step to which only a join of three and more streams comes."""
STEPS = {
    "claim": ("takes the log over", "nothing, or an entry that stops an older driver"),
    "clone": ("copies the savepoint that a join begins with", "files that no commit names, or the commit of the copy"),
    "republish": ("publishes the results of the last commit again", "some are visible; publishing them again changes nothing"),
    "sweep": ("removes files that no commit names", "some of them are gone"),
    "snapshots": ("waits until the store of snapshots has room", "nothing"),
    "plan": ("asks the sources for new input", "nothing"),
    "deploy": ("chooses the first plan, and starts workers", "nothing: a plan is durable with its first epoch"),
    "joins": ("adds and removes joins", "nothing, or a commit with the new joins"),
    LAY: ("lays a join of three and more streams by another tree", "blocks that no commit names: swept; or the commit with the new ones"),
    "cut": ("makes a plan for the workers that are there", "nothing: the join continues as before"),
    "request": ("asks for the workers of a plan that was put", "nothing: the join continues as before; the client must put the plan again"),
    "tasks": ("hands an epoch to the workers", "blocks and staged results that no commit names: swept"),
    "switch": ("hands a plan's first epoch to the workers", "the same; the join continues under the previous plan"),
    "gather": ("writes small results that wait into one file", "a staged file that no commit names: swept"),
    "commit": ("creates the log entry", "nothing, or the epoch has happened"),
    "publish": ("publishes the results of the commit", "the next driver publishes them again"),
    "clean": ("removes obsolete files", "files that the next driver sweeps"),
    "release": ("releases workers without a task", "the switch is committed; the next driver starts the workers that it needs"),
    "stop": ("gives up what is in flight, and publishes results that wait", "blocks and staged results that no commit names: swept"),
}
"""By step, in their order: what the driver does, and what it leaves if it dies there."""
KILLED_BY = "test_invariants:test_a_driver_may_die_at_each_step"


def steps_of_the_driver() -> set[str]:
    """The names that the driver's code gives to its steps."""
    trees = [ast.parse((ROOT / f"engine/streamjoin/controlplane/{name}.py").read_text()) for name in ("driver", "pipeline", "commits")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    entered = [call.args[0] for call in calls if call.func.attr == "_phase"]  # type: ignore[attr-defined]
    return {part.value for name in entered for part in ast.walk(name) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def page() -> str:
    """docs/invariants.md."""
    lines = [
        "# What always holds",
        "",
        "This page lists the invariants of an epoch, and of a plan that is being applied to a running join. It is for everyone who",
        "changes the engine. Each line names the code that proves the invariant or refuses to break it, and the tests that try to.",
        "`python tests/invariants.py` writes the page. `tests/test_invariants.py` fails if a name here does not exist, or if a step of the",
        "driver is not in the last table.",
        "",
        *_section("An epoch", OF_AN_EPOCH),
        *_section("A plan", OF_A_PLAN),
        "## When a driver dies",
        "",
        f"`{_test(KILLED_BY)}` kills a driver at each of these steps, each time it gets there,",
        "while plans are put and joins are added and removed. Another driver continues, and the results equal DuckDB's. The names of the",
        "steps are those in the driver's code.",
        "",
        "| step | what it does | what is left if it dies there |",
        "|---|---|---|",
        *(f"| {step} | {does} | {left} |" for step, (does, left) in STEPS.items()),
        "",
        "[Recovery](recovery.md#what-dies-and-what-happens) says what happens when other parts die.",
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
