"""What is allowed but perhaps not meant."""

from __future__ import annotations

from collections.abc import Mapping

from streamjoin.language.graph import join_graph
from streamjoin.language.join_type import JoinType
from streamjoin.language.predicate import MainKind
from streamjoin.language.schema import Schema
from streamjoin.manifest import holding, model, outer_joins, resolve
from streamjoin.manifest.checks import Check
from streamjoin.manifest.connector import given
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.part import Part
from streamjoin.manifest.problem import Problem, listed
from streamjoin.scheme.models import HANDSHAKE


def remarks(manifest: Manifest) -> list[Problem]:
    """What is allowed but perhaps not meant, of a manifest without problems."""
    found: list[Problem] = []
    spec = manifest.spec
    if spec.checkpoint.location is None:
        found.append(Problem("spec.checkpoint", None, "has no location, which a run outside Kubernetes needs"))
    if spec.security.tls is not None:
        message = "is for pods; streamjoin run keeps all connections on this machine, with a secret of its own and without TLS"
        found.append(Problem("spec.security.tls", None, message))
    mode, rules = spec.scaling.mode, spec.scaling.rules
    if (rules.deallocate or mode) == "Enforce" and (rules.allocate or mode) != "Enforce":
        message = "adds no workers, while deallocate removes them for good; give both the same mode"
        found.append(Problem("spec.scaling.rules.allocate", rules.allocate or mode, message))
    found += _policy_remarks(spec.scaling)
    whole = outer_joins.expanded(spec)
    schemas = resolve.schemas_of(whole)
    for index, join in enumerate(whole.joins):
        is_own = index < len(spec.joins)
        own = resolve.over(whole, index, schemas)
        found += _index_remarks(f"spec.joins[{index if is_own else join.name}].condition", join.condition, own)
        found += _join_remarks(f"spec.joins[{index}]", join, spec) if is_own else ()
    if spec.spark != model.Spec.model_fields["spark"].default and not resolve.has_spark(spec):
        found.append(Problem("spec.spark", None, "has no use, as no source and no sink is spark; remove it"))
    is_chain = spec.scheme.model == HANDSHAKE
    if len(spec.joins) > 1 and not is_chain and holding.layouts_of(whole, schemas)[0].main.kind is MainKind.ALL:
        message = (
            "have no pair of keys that all of their conditions limit, so every tuple meets every other one on some worker, or is held once"
            " for each pair of keys, whichever is expected to hold less; to send fewer tuples, move joins of other keys into a manifest of"
            " their own"
        )
        found.append(Problem("spec.joins", None, message))
    for index, stream in enumerate(spec.streams):
        found += _connector_remarks(f"spec.streams[{index}].source", stream.source)
    return found


def _policy_remarks(scaling: model.Scaling) -> Check:
    """An API server writes the defaults into every resource, so only what differs from them was meant."""
    if scaling.policy == "predictive" and scaling.tau0 != model.Scaling.model_fields["tau0"].default:
        message = "is not used by the policy predictive; leave it out, or set spec.scaling.policy: thresholds"
        yield Problem("spec.scaling.tau0", scaling.tau0, message)


def _index_remarks(field: str, text: str, schemas: Mapping[str, Schema]) -> Check:
    if len(schemas) > 2:
        graph = join_graph(text, dict(schemas))
        for edge in graph.edges:
            if edge.main.kind is MainKind.ALL:
                pair = listed([graph.streams[stream] for stream in sorted(graph.ends(edge))], "and")
                message = f"has no predicate of {pair} that an index serves; every pair of tuples of {pair} will be compared"
                yield Problem(field, None, message)
        return
    condition = resolve.condition(text, schemas)
    if all(candidate.main.kind is MainKind.ALL for candidate in condition.candidates):
        reasons = "".join(f" ({unmatched.reason})" for unmatched in condition.unmatched[:1])
        yield Problem(field, None, f"has no predicate that an index serves{reasons}; every pair of tuples will be compared")


def _join_remarks(field: str, join: model.Join, spec: model.Spec) -> Check:
    kind = JoinType(join.type)
    if kind.gives_unmatched and spec.shedding.model != "off":
        message = f"sheds tuples, and by {field}.type: {kind} the matches of a shed tuple then come as tuples without a match"
        yield Problem("spec.shedding.model", spec.shedding.model, message)
    if kind.gives_unmatched and join.window.unbounded:
        message = "never ends, so tuples without a match come only when the input has ended (streamjoin run --until-idle)"
        yield Problem(f"{field}.window.unbounded", None, message)
    yield from _connector_remarks(f"{field}.output.sink", join.output.sink)
    if join.output.snapshots is not None:
        yield from _connector_remarks(f"{field}.output.snapshots.store", join.output.snapshots.store)


def _connector_remarks(field: str, part: Part | None) -> Check:
    for kind, connector in given(part):
        yield from connector.remarks(f"{field}.{kind}")
