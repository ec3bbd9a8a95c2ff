"""The ledger for people: a table of what was decided and what came true, then the last decision in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from streamjoin.elastic.arbitration import Bill
from streamjoin.elastic.decision import Decision, Kind, Reason, Reordering
from streamjoin.elastic.ledger import Ledger, Record
from streamjoin.elastic.path_plans import Flowing, bytes_text, counted
from streamjoin.elastic.rules.sentences import duration
from streamjoin.elastic.settings import Mode, field_of
from streamjoin.manifest.quantity import Memory

_MOST_CANDIDATES = 12


def explain(ledger: Ledger, *, limit: int = 20, now: float) -> str:
    """The last ``limit`` records, newest last, and the newest in full. Ends with a newline.

    ``now``: seconds, by the clock of the decisions; times are told as how long ago they were.
    """
    if limit < 1:
        raise ValueError(f"limit: {limit} must be at least 1")
    records = list(ledger)[-limit:]
    if not records:
        return "Nothing has been decided yet.\n"
    lines = [*_table(records, now), ""]
    older = len(ledger) - len(records)
    if older or ledger.forgotten:
        parts = [f"{older} older ones"] * bool(older) + [f"{ledger.forgotten} that were forgotten"] * bool(ledger.forgotten)
        lines += [f"Not shown: {' and '.join(parts)}.", ""]
    reordered = [record for record in records[:-1] if record.decision.kind is Kind.REORDER]
    if reordered:
        lines += ["How streams meet was changed:"]
        lines += [*(f"  {_ago(now - record.last_at)}: {record.decision.sentence}." for record in reordered), ""]
    orders = [record for record in ledger if record.decision.reason is Reason.ORDERED][-limit:]
    if orders:
        lines += ["What was ordered, and by whom:"]
        lines += [*(f"  {_ago(now - record.last_at)}: {record.decision.sentence}." for record in orders), ""]
    return "\n".join([*lines, *_sentences(records[-1], now)]) + "\n"


def _table(records: Sequence[Record], now: float) -> list[str]:
    rows = [("when", "times", "decision", "workers", "why", "tau", "expected", "came true", "moved", "pause")]
    for record in records:
        decision, realised = record.decision, record.realised
        inputs, expected = decision.inputs, decision.prediction
        acts = decision.kind is not Kind.HOLD
        rows.append(
            (
                _ago(now - record.last_at),
                f"{record.count:,}",
                decision.kind.value.lower() + (" (recommended)" if acts and decision.mode is Mode.RECOMMEND else ""),
                f"{decision.workers} -> {decision.target}" if decision.target != decision.workers else f"{decision.workers}",
                decision.reason.value,
                _tau(None if inputs is None else inputs.tau_max),
                _tau(expected.tau_max) if acts and expected is not None else "",
                "" if realised is None else _tau(realised.tau_max),
                "" if realised is None else _tuples(realised.moved_tuples),
                "" if realised is None else f"{realised.pause_seconds:.1f} s",
            )
        )
    return _aligned(rows, left=(2, 3, 4))


def _sentences(record: Record, now: float) -> list[str]:
    decision = record.decision
    since = f", the same since {_ago(now - record.first_at)}" if record.count > 1 else ""
    lines = [f"{_headline(decision)} ({_ago(now - record.last_at)}{since})."]
    inputs = decision.inputs
    if inputs is not None:
        known = "" if inputs.complete else f" of {inputs.known} of {inputs.workers} workers"
        text = f"It was decided by a sample {_span(decision.age_seconds or 0.0)} old of plan {inputs.generation}: "
        text += f"tau {_tau(inputs.tau_max)} at most{known}, {_tau(inputs.tau_mean)} on average"
        if inputs.rate is not None:
            text += f", {inputs.rate:,.0f} tuples/s"
        if inputs.shed_fraction:
            text += f", {inputs.shed_fraction:.1%} shed"
        if inputs.budget_seconds is not None:
            text += f"; the budget lasts {inputs.budget_seconds:.0f} s"
        lines.append(text + ".")
        lines += [f"What could not be believed of it: {'; '.join(inputs.problems)}."] * bool(inputs.problems)
        lines += [f"Nobody confirms it: {inputs.unconfirmed}."] * bool(inputs.unconfirmed)
    if decision.reordering is not None:
        lines += ["", *_path_plans(decision.reordering)]
    if decision.thresholds:
        lines.append(f"Thresholds: {', '.join(_threshold(name, value) for name, value in decision.thresholds.items())}.")
    if decision.verdicts:
        lines += ["", "What each rule said:"]
        for verdict in decision.verdicts:
            acts = "" if verdict.kind is Kind.HOLD else f" {verdict.kind.value.lower()} to {verdict.target}"
            lines.append(f"  {verdict.rule.value}:{acts} {verdict.reason.value}: {verdict.sentence}.")
    if decision.candidates:
        lines += ["", "What was considered (worker-hours over the horizon where a bill was made):"]
        lines += [f"  {line}" for line in _candidates(decision)]
    if record.realised is not None and decision.prediction is not None:
        expected, realised = decision.prediction, record.realised
        lines.append(
            f"Plan {realised.generation}: tau was expected to be {_tau(expected.tau_max)} and is {_tau(realised.tau_max)}; "
            f"{_tuples(realised.moved_tuples)} tuples moved, {_tuples(expected.moved_tuples)} were expected, "
            f"at least {_tuples(expected.lower_bound_tuples)} had to; the pause was {realised.pause_seconds:.1f} s."
        )
    return lines


def _headline(decision: Decision) -> str:
    what = {
        Kind.HOLD: f"Hold at {_workers(decision.workers)}",
        Kind.ALLOCATE: f"Go from {decision.workers} to {_workers(decision.target)}",
        Kind.DEALLOCATE: f"Go from {decision.workers} to {_workers(decision.target)}",
        Kind.REPLAN: f"Cut the join anew among {_workers(decision.workers)}",
        Kind.ENLARGE: f"Give {_workers(decision.workers)} more memory",
        Kind.REORDER: "Streams meet in another way",
    }[decision.kind]
    only = ", only a recommendation" if decision.kind is not Kind.HOLD and decision.mode is Mode.RECOMMEND else ""
    return f"{what}{only}: {decision.sentence}"


def _path_plans(reordering: Reordering) -> list[str]:
    rows = [("new tuples of", "met", "sent", "meet", "send")]
    for change in reordering.changes:
        rows.append((change.stream, change.before, bytes_text(change.bytes_before), change.after, bytes_text(change.bytes_after)))
    known = Flowing.from_json(reordering.measured)
    rates = ", ".join(f"{rate:,.0f}" for rate in known.rates)
    held = ", ".join(f"{tuples:,.0f}" for tuples in known.held)
    shares = ", ".join(f"{share:.2g}" for share in known.selectivities)
    exchange = known.exchange
    text = (
        f"It was decided by {rates} tuples/s, {held} held tuples, and edges that {shares} of all pairs match by; a round of the exchange "
        f"took {exchange.round_seconds * 1e3:.3g} ms, and each of {counted(exchange.tasks, 'task')} sent "
        f"{bytes_text(exchange.bytes_per_second)}; a pair took {exchange.pair_seconds * 1e9:.3g} ns."
    )
    return [*_aligned(rows, left=(0, 1, 3)), "", text]


def _candidates(decision: Decision) -> list[str]:
    costs = ("workers", "moving", "pause", "shed", "change", "in all")
    rows: list[tuple[str, ...]] = [("n", "tau at most", "on average", "moved", "at least", "naively", *costs)]
    if decision.stay is not None:
        rows.append(("as now", "", "", "", "", "", *_costs(decision.stay)))
    # Those around the one that was chosen say most.
    nearest = sorted(decision.candidates, key=lambda candidate: (candidate.bill is None, abs(candidate.workers - decision.target)))
    for candidate in sorted(nearest[:_MOST_CANDIDATES], key=lambda candidate: candidate.workers):
        prospect = candidate.prospect
        moved = tuple(_tuples(n) for n in (prospect.moved_tuples, prospect.lower_bound_tuples, prospect.naive_tuples))
        rows.append((f"{candidate.workers}", _tau(prospect.tau_max), _tau(prospect.tau_mean), *moved, *_costs(candidate.bill)))
    if (larger := decision.enlargement) is not None:
        taus = _tau(larger.prospect.tau_max), _tau(larger.prospect.tau_mean)
        rows.append((f"{decision.workers} with {Memory(larger.memory)}", *taus, "0", "0", "0", *_costs(larger.bill)))
    return _aligned(rows, left=())


def _costs(bill: Bill | None) -> tuple[str, ...]:
    if bill is None:
        return ("",) * 6
    return tuple(f"{cost:.3g}" for cost in (bill.workers, bill.moving, bill.pause, bill.shed, bill.change, bill.total))


def _aligned(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if at in left else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def _tau(tau: float | None) -> str:
    return "?" if tau is None else f"{tau:.2f}"


def _tuples(number: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size * 0.9995:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number:,} workers"


def _ago(seconds: float) -> str:
    return "now" if seconds < 0.5 else f"{_span(seconds)} ago"


def _threshold(name: str, value: float) -> str:
    """By its name in the manifest."""
    return f"{field_of(name).rpartition('.')[2]} {duration(value)}" if name.endswith("_after") else f"{name} {value:g}"


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
