"""``kubectl streamjoin``: what a person asks of a StreamJoin, as tables.

kubectl finds the program by its name, ``kubectl-streamjoin``. It calls kubectl for every request, so that it logs in as kubectl does, and
passes kubectl's own options on.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from streamjoin.elastic.explain import explain as explanation
from streamjoin.elastic.ledger import Ledger
from streamjoin_operator import plugin_snapshots
from streamjoin_operator.children import LEDGER_KEY
from streamjoin_operator.cost import known
from streamjoin_operator.following import Ended, Unreachable, begin_with, follow, print_now, tell_now
from streamjoin_operator.kubectl import RESOURCE, Kubectl, Object, Refused, read_one
from streamjoin_operator.names import DRIVER, QUERIES, RESTART, base_name, ledger_name, queries_name
from streamjoin_operator.opening import forward_with, keep_open
from streamjoin_operator.pod_templates import PORT, TOKEN_PATH
from streamjoin_operator.reasons import Reason

ACTIONS = "status|explain|plan|query|open|suspend|resume|snapshot|clone|rollback"
PAGE_VOLUME = "page-token"
"""With the token of the page, in the operator's pods."""
OPERATOR_SELECTOR = "app.kubernetes.io/component=operator,app.kubernetes.io/part-of=streamjoin"
"""The operator's own pods, as its chart labels them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code."""
    options = _parser().parse_args(arguments)
    passed = [f"--{name}={value}" for name in ("namespace", "context", "kubeconfig") if (value := getattr(options, name))]

    def kubectl(words: Sequence[str]) -> str:
        try:
            done = subprocess.run(["kubectl", *passed, *words], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise Refused("kubectl is not on the path; install it, or call this as kubectl streamjoin") from None
        if done.returncode:
            raise Refused(done.stderr.strip() or f"kubectl ended with {done.returncode}")
        sys.stderr.write(done.stderr)
        return done.stdout

    try:
        if options.action == "query" and options.follow:
            _follow(kubectl, options, ["kubectl", *passed])
        elif options.action == "open":
            _open(kubectl, options, ["kubectl", *passed])
        else:
            print(_ACTIONS[options.action](kubectl, options))
    except (Refused, Ended) as refused:
        print(f"kubectl streamjoin: {refused}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if not (options.action == "open" or (options.action == "query" and options.follow)):  # which have no other end
            raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains that it cannot flush as it exits
    return 0


def _parser() -> argparse.ArgumentParser:
    description = "Look at StreamJoins, ask what they hold, stop them and let them go on; keep what they are, and go back to that."
    parser = argparse.ArgumentParser(prog="kubectl streamjoin", description=description)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-n", "--namespace", help="The namespace; kubectl's own by default.")
    common.add_argument("--context", help="As for kubectl.")
    common.add_argument("--kubeconfig", help="As for kubectl.")
    actions = parser.add_subparsers(dest="action", required=True, metavar=ACTIONS)
    status = actions.add_parser("status", parents=[common], help="Show one line for each StreamJoin, or everything about one.")
    status.add_argument("name", nargs="?", help="The StreamJoin; without it, all of the namespace.")
    status.add_argument("-A", "--all-namespaces", action="store_true", help="Show the StreamJoins of all namespaces.")
    for action, text in (
        ("explain", "Explain its state: conditions, the last change, events, scaling decisions."),
        ("plan", "Show the plan that runs, and what the last switch moved."),
        ("suspend", "Stop it; its state is kept."),
        ("resume", "Let it go on from its checkpoint."),
    ):
        actions.add_parser(action, parents=[common], help=text).add_argument("name", help="The StreamJoin.")
    query = actions.add_parser("query", parents=[common], help="Query what it holds: one SELECT, answered by a query server or the driver.")
    query.add_argument("name", help="The StreamJoin.")
    query.add_argument("sql", help="The SELECT.")
    query.add_argument("--json", action="store_true", help="One JSON object per row, instead of a table.")
    ends = query.add_mutually_exclusive_group()
    ends.add_argument("--limit", type=int, help="The most rows; more are cut, and the answer says so.")
    ends.add_argument("--follow", action="store_true", help="Go on with the results that come, until Ctrl-C.")
    query.add_argument("--after", help="With --follow: begin after this snapshot, or after the last position shown; -1: with the first.")
    open_ = actions.add_parser("open", parents=[common], help="Open its page in the browser, which shows live what it does.")
    open_.add_argument("name", nargs="?", help="The StreamJoin; without it, the page of all of them.")
    open_.add_argument("--port", type=int, default=0, help="The port on this machine; any free one by default.")
    open_.add_argument("--no-browser", action="store_true", help="Only print the link.")
    plugin_snapshots.add_to(actions, common)
    actions.choices["explain"].add_argument("--limit", type=int, default=12, help="The number of scaling decisions to show.")
    return parser


def _status(kubectl: Kubectl, options: argparse.Namespace) -> str:
    if options.name:
        return described(_one(kubectl, options.name), datetime.now(UTC))
    scope = ["--all-namespaces"] if options.all_namespaces else []
    return overview(json.loads(kubectl(["get", RESOURCE, *scope, "-o", "json"]))["items"], namespaces=options.all_namespaces)


def _explain(kubectl: Kubectl, options: argparse.Namespace) -> str:
    return explain(kubectl, options.name, datetime.now(UTC), options.limit)


def explain(kubectl: Kubectl, name: str, now: datetime, limit: int = 12) -> str:
    """Why it is as it is, and the last ``limit`` records of the autoscaler's ledger."""
    body = _one(kubectl, name)
    chosen = f"involvedObject.uid={body['metadata']['uid']}"
    events = json.loads(kubectl(["get", "events", "--field-selector", chosen, "-o", "json"]))["items"]
    return "\n".join([explained(body, events, now), "", _decided(kubectl, name, now, limit)]).rstrip()


def _decided(kubectl: Kubectl, name: str, now: datetime, limit: int) -> str:
    try:
        stored = json.loads(kubectl(["get", "configmap", ledger_name(name), "-o", "json"]))
        ledger = Ledger.from_json(json.loads(stored["data"][LEDGER_KEY])["ledger"])
    except Refused as refused:
        return f"no scaling decisions: {refused}"
    except (KeyError, TypeError, ValueError) as error:
        return f"the scaling decisions cannot be read: {error}"
    return explanation(ledger, limit=limit, now=now.timestamp())


def _plan(kubectl: Kubectl, options: argparse.Namespace) -> str:
    return planned(_one(kubectl, options.name))


def _query(kubectl: Kubectl, options: argparse.Namespace) -> str:
    """In a pod that answers, where the token is, and its port can be reached whatever NetworkPolicies there are: a query server's where one
    is ready, so that the driver is left alone and need not run."""
    if options.after is not None:
        raise Refused("--after: is for --follow; give that, too, or ask WHERE _snapshot > ...")
    limit = [] if options.limit is None else [f"--limit={options.limit}"]
    pod, inside = _inside(kubectl, options)
    return kubectl(["exec", *pod, "--", *inside, *limit, *_form(options)]).rstrip("\n")


def _follow(kubectl: Kubectl, options: argparse.Namespace, command: Sequence[str]) -> None:
    """In a pod likewise, each time as it is found then. ``command``: kubectl with its own options. Raises Ended."""

    def begin(added: Sequence[str]) -> subprocess.Popen[str]:
        try:
            pod, inside = _inside(kubectl, options)
        except Refused as refused:
            raise Unreachable(str(refused)) from refused
        return begin_with([*command, "exec", "--stdin", *pod, "--", *inside, *_form(options), "--follow", "--relayed"])(added)

    follow(begin, options.after, write=print_now, tell=tell_now)


def _open(kubectl: Kubectl, options: argparse.Namespace, command: Sequence[str]) -> None:
    """The driver's page, or the operator's. Raises Ended."""
    if options.name is not None:
        _one(kubectl, options.name)
    driver = "" if options.name is None else f"deployment/{base_name(options.name)}"
    operator: ActiveOperator | None = None

    def begin(port: int) -> subprocess.Popen[str]:
        if driver:
            return forward_with(command, driver, port, PORT)
        nonlocal operator
        try:
            operator = active_operator(kubectl)
        except Refused as refused:
            raise Unreachable(str(refused)) from refused
        return forward_with([*command, f"--namespace={operator.namespace}"], f"pod/{operator.pod}", port, operator.port)

    def token() -> str | None:
        try:
            if not driver:
                return None if operator is None else page_token(kubectl, operator)
            return kubectl(["exec", driver, f"--container={DRIVER}", "--", "cat", f"{TOKEN_PATH}/token"]).strip()
        except Refused as refused:
            what = "the page will ask for it" if driver else "the page only shows until it is given (Token)"
            tell_now(f"the token cannot be read, and {what}: {refused}")
            return None

    def show(link: str) -> None:
        print(f"page: {link}", flush=True)
        if not options.no_browser:
            webbrowser.open(link)

    keep_open(begin, options.port, token=token, show=show, tell=tell_now)


class ActiveOperator(NamedTuple):
    """The operator that is at work."""

    namespace: str
    pod: str
    port: int
    """Of its page."""
    secret: tuple[str, str] | None = None
    """The Secret and its key with the token by which the page lets people suspend StreamJoins; None: it lets nobody."""


def page_token(kubectl: Kubectl, operator: ActiveOperator) -> str | None:
    """The token of the operator's page, where there is one. Raises Refused."""
    if operator.secret is None:
        return None
    name, key = operator.secret
    data = json.loads(kubectl(["get", "secret", name, f"--namespace={operator.namespace}", "-o", "json"])).get("data") or {}
    if key not in data:
        raise Refused(f"Secret {operator.namespace}/{name} has no {key}")
    return base64.b64decode(data[key]).decode().strip()


def active_operator(kubectl: Kubectl) -> ActiveOperator:
    """Raises Refused."""
    found = json.loads(kubectl(["get", "pods", "--all-namespaces", f"--selector={OPERATOR_SELECTOR}", "-o", "json"]))["items"]
    pods = [pod for pod in found if (pod.get("status") or {}).get("phase") == "Running"]
    if not pods:
        raise Refused(f"no pod with the labels {OPERATOR_SELECTOR} runs in this cluster; is the operator installed?")
    held = {}
    for namespace in sorted({pod["metadata"]["namespace"] for pod in pods}):
        leases = json.loads(kubectl(["get", "leases", f"--namespace={namespace}", "-o", "json"]))["items"]
        held[namespace] = [str((lease.get("spec") or {}).get("holderIdentity") or "") for lease in leases]
    active = [pod for pod in pods if any(holder.startswith(f"{pod['metadata']['name']}_") for holder in held[pod["metadata"]["namespace"]])]
    pod = (active or pods)[0]
    environment = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0].get("env") or []}
    port = int(environment.get("STREAMJOIN_PAGE_PORT") or 0)
    if not port:
        raise Refused("the operator serves no page: set operator.pagePort of its chart, or STREAMJOIN_PAGE_PORT, to a port")
    volumes = (volume["secret"] for volume in pod["spec"].get("volumes") or [] if volume["name"] == PAGE_VOLUME)
    secret = next(((volume["secretName"], volume["items"][0]["key"]) for volume in volumes), None)
    return ActiveOperator(pod["metadata"]["namespace"], pod["metadata"]["name"], port, secret)


def _inside(kubectl: Kubectl, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Which pod is asked, and by which command there."""
    queries = (_one(kubectl, options.name).get("status") or {}).get("queries") or {}
    deployment, container = (queries_name(options.name), QUERIES) if queries.get("ready") else (base_name(options.name), DRIVER)
    command = ["streamjoin", "query", f"http://localhost:{PORT}", options.sql, f"--token-file={TOKEN_PATH}/token"]
    return [f"deployment/{deployment}", f"--container={container}"], command


def _form(options: argparse.Namespace) -> list[str]:
    return ["--json"] if options.json else []


def _switch(suspend: bool) -> Callable[[Kubectl, argparse.Namespace], str]:
    def act(kubectl: Kubectl, options: argparse.Namespace) -> str:
        patch: Object = {"spec": {"suspend": suspend}}
        sleep = (_one(kubectl, options.name).get("status") or {}).get("sleep") or {}
        if not suspend and sleep and "wokenAt" not in sleep:
            if sleep["reason"] == Reason.SuspendedBySchedule.name:
                raise Refused(f"{sleep['message']}; change spec.suspendDuring to have it go on before")
            patch["metadata"] = {"annotations": {RESTART: datetime.now(UTC).isoformat()}}
        kubectl(["patch", RESOURCE, options.name, "--type=merge", "-p", json.dumps(patch)])
        return f"{options.name}: " + ("suspended; its state is kept" if suspend else "goes on from its checkpoint")

    return act


_ACTIONS: dict[str, Callable[[Kubectl, argparse.Namespace], str]] = {
    "status": _status,
    "explain": _explain,
    "plan": _plan,
    "query": _query,
    "suspend": _switch(True),
    "resume": _switch(False),
    "snapshot": plugin_snapshots.snapshot,
    "clone": plugin_snapshots.clone,
    "rollback": plugin_snapshots.rollback,
}


def _one(kubectl: Kubectl, name: str) -> Object:
    return read_one(kubectl, RESOURCE, name)


def overview(bodies: Sequence[Object], *, namespaces: bool = False) -> str:
    """A line for each StreamJoin."""
    if not bodies:
        return "no StreamJoins"
    rows = [["NAMESPACE"] * namespaces + ["NAME", "PHASE", "READY", "WORKERS", "DESIRED", "TAU", "FROM", "SHED", "MODEL", "PROBLEM"]]
    for body in bodies:
        status = body.get("status") or {}
        conditions = _conditions(status)
        degraded = conditions.get("Degraded", {})
        rows.append(
            [body["metadata"]["namespace"]] * namespaces
            + [
                body["metadata"]["name"],
                status.get("phase", "-"),
                conditions.get("Ready", {}).get("status", "-"),
                str(status.get("workers", "-")),
                str(status.get("desiredWorkers", "-")),
                (status.get("utilization") or {}).get("max", "-"),
                (status.get("utilization") or {}).get("source", "-"),
                _shed(status),
                (status.get("plan") or {}).get("model", "-"),
                degraded.get("reason", "") if degraded.get("status") == "True" else "",
            ]
        )
    return table(rows)


def described(body: Object, now: datetime) -> str:
    """All about one StreamJoin."""
    status, metadata = body.get("status") or {}, body["metadata"]
    lines = [
        ["name", f"{metadata['namespace']}/{metadata['name']}"],
        ["phase", status.get("phase") or _unseen(body)],
        ["workers", f"{status.get('workers', '-')} (desired {status.get('desiredWorkers', '-')})"],
        ["tau", _tau(status, now)],
        ["shed", _shed(status)],
        ["completeness", _completeness(status)],
        ["dead letters", ", ".join(f"{stream} {count:,}" for stream, count in (status.get("deadLetters") or {}).items()) or "-"],
        ["cost", _cost(status, now)],
        ["image", status.get("image", "-")],
        ["queries", _queries(status)],
        *([["standby", _standby(status["standby"])]] if "standby" in status else []),
        *([["slept" if "wokenAt" in status["sleep"] else "sleeps", _sleep(status["sleep"])]] if "sleep" in status else []),
        ["memory of a worker", status.get("memory", "-")],
        ["manifest", _seen(body)],
    ]
    return "\n".join([table(lines), "", _condition_table(status)])


def _standby(standby: Object) -> str:
    took_over = f", took over at {standby['tookOverAt']}" if "tookOverAt" in standby else ""
    return f"{standby.get('state', '-')}{took_over}"


def explained(body: Object, events: Sequence[Object], now: datetime) -> str:
    """Why it is as it is."""
    status = body.get("status") or {}
    change = status.get("change")
    lines = [_condition_table(status), "", f"tau: {_tau(status, now)}"]
    if "memory" in status:
        lines += [f"memory of a worker: {status['memory']}"]
    lines.append("")
    if change:
        lines += [f"last change (generation {change['generation']}): {change['class']}: {change['message']}", ""]
    rows = [["AGE", "TYPE", "REASON", "MESSAGE"]]
    for event in sorted(events, key=lambda found: found.get("lastTimestamp") or "", reverse=True)[:20]:
        rows.append([_age(event.get("lastTimestamp"), now), event.get("type", ""), event.get("reason", ""), event.get("message", "")])
    return "\n".join([*lines, table(rows) if len(rows) > 1 else "no events"])


def planned(body: Object) -> str:
    """The plan that runs; before there is one, what the first one promises."""
    status = body.get("status") or {}
    plan, first = status.get("plan"), status.get("firstPlan")
    if not plan:
        promised = f"; {first['message']}" if first else ""
        return f"{body['metadata']['name']}: no plan yet ({status.get('phase') or _unseen(body)}){promised}"
    rows = [
        ["generation", str(plan["generation"])],
        ["model", plan.get("model", "-")],
        ["tasks", str(plan.get("tasks", "-"))],
        ["cut", plan.get("summary", "-")],
        ["desired workers", str(status.get("desiredWorkers", "-"))],
    ]
    if "movedTuples" in plan:
        rows.append(["moved by the last switch", f"{plan['movedTuples']:,} tuples"])
    rows += [["did not run", f"{ended['fate']}: {ended['reason']}"] for ended in plan.get("givenUp", [])]
    rescaling = _conditions(status).get("Rescaling", {})
    if rescaling.get("status") == "True":
        rows.append(["under way", rescaling.get("message", "")])
    return table(rows)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, two spaces between them."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _condition_table(status: Object) -> str:
    rows = [["CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"]]
    for condition in status.get("conditions") or []:
        since = condition.get("lastTransitionTime", "-")
        rows.append([condition["type"], condition["status"], condition["reason"], since, condition.get("message", "")])
    return table(rows) if len(rows) > 1 else "no conditions: no operator has looked at it yet"


def _queries(status: Object) -> str:
    queries = status.get("queries")
    return "at the driver" if not queries else f"{queries['ready']} of {queries['replicas']} servers are ready: {queries['url']}"


def _sleep(sleep: Object) -> str:
    woken = f", woken at {sleep['wokenAt']}: {sleep['wokenBy']}" if "wokenAt" in sleep else f": {sleep['message']}"
    return f"since {sleep['since']}{woken}"


def _unseen(body: Object) -> str:
    """Of one without a status: which operator should look at it."""
    wanted = (body.get("spec") or {}).get("operatorClass")
    return "not looked at yet: does an operator " + (f"of the class {wanted} run?" if wanted else "without a class run?")


def _conditions(status: Object) -> dict[str, Object]:
    return {condition["type"]: condition for condition in status.get("conditions") or []}


def _cost(status: Object, now: datetime) -> str:
    found = known(status.get("cost"))
    if found is None:
        return "-"
    found = found.until(now.timestamp())
    hours = f"{found.hours:.1f} executor-hours; {found.avoided_hours:.1f} more would be those of {found.most} executors all the time"
    return hours + (f" (spent {found.spent:.2f}, avoided {found.avoided:.2f})" if found.price or found.spent else "")


def _tau(status: Object, now: datetime) -> str:
    found = status.get("utilization")
    if not found:
        return "not measured"
    source = f", by {found['source']}, the same for {_age(found.get('at'), now)}" if "source" in found else ""
    return f"max {found['max']}, mean {found['mean']}{source}"


def _shed(status: Object) -> str:
    ratios = {stream: ratio for stream, ratio in (status.get("shedRatio") or {}).items() if float(ratio) > 0}
    return ", ".join(f"{stream} {float(ratio):.1%}" for stream, ratio in sorted(ratios.items())) or "0"


def _completeness(status: Object) -> str:
    found = [
        f"{join} {float(share['estimate']):.2%} ({float(share['low']):.2%} to {float(share['high']):.2%})"
        for join, share in sorted((status.get("completeness") or {}).items())
        if {"estimate", "low", "high"} <= share.keys()
    ]
    return ", ".join(found) + " of the last hour's results" if found else "-"


def _seen(body: Object) -> str:
    generation, applied = body["metadata"].get("generation"), (body.get("status") or {}).get("appliedGeneration")
    return f"generation {generation}" + ("" if applied == generation else f", and what runs is of generation {applied or '-'}")


def _age(at: str | None, now: datetime) -> str:
    if not at:
        return "-"
    seconds = int((now - datetime.fromisoformat(at)).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(0, seconds)}s"


if __name__ == "__main__":
    raise SystemExit(main())
