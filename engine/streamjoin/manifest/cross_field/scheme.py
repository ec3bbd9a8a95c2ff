"""What ``spec.scheme`` must be: a model for these joins and their keys."""

from __future__ import annotations

from collections.abc import Mapping

from streamjoin.language.errors import SqlError
from streamjoin.language.predicate import MainKind
from streamjoin.language.schema import Schema
from streamjoin.manifest import holding
from streamjoin.manifest.checks import Check
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.problem import Problem, listed
from streamjoin.scheme.models import HANDSHAKE, KEYED


def scheme_problems(manifest: Manifest) -> Check:
    """Joins that the model cannot have."""
    scheme, streams = manifest.spec.scheme, manifest.spec.streams
    if scheme.model == HANDSHAKE and len(streams) > 2:
        yield Problem("spec.scheme.model", scheme.model, f"is for two streams, and there are {len(streams)}; choose broadcast or adsp")


def key_problems(manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    """Whether there are keys for a model that cuts along them."""
    chosen, joins = manifest.spec.scheme.model, manifest.spec.joins
    if chosen not in KEYED:
        return
    try:
        found = holding.layouts_of(manifest.spec, schemas)
    except SqlError:
        return
    where = "spec.joins[0].condition" if len(joins) == 1 else "the condition of every join, of the same keys"
    apart = []
    for graph in (placed.graph for placed in found[0].multiway):
        ends = [sorted(graph.ends(edge)) for edge in graph.edges if edge.main.kind is not MainKind.RANGE]
        apart += [listed([graph.streams[stream] for stream in pair], "and") for pair in ends]
    if not apart and not any(layout.cuts_keys for layout in found):
        apart = ["the two streams"]
    for pair in apart:
        message = f"needs an equality, an order or a band between {pair} in {where}; use adsp or square"
        yield Problem("spec.scheme.model", chosen, message)
