"""A manifest with other values in some of its fields, as ``--set FIELD=VALUE,VALUE`` asks for; and many simulations at once.

Always holds: what is not set stays as the file's text has it; each variant is a whole manifest, checked as one.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import yaml

from streamjoin.cli.exits import Exit, Failure
from streamjoin.compilation import compile_job, with_checkpoint
from streamjoin.job import Job
from streamjoin.manifest.model import KIND
from streamjoin.manifest.validate import ManifestError, load
from streamjoin.simulation.rivals import StreamJoin
from streamjoin.simulation.run import Outcome, SimulatedJoin, simulate
from streamjoin.simulation.traffic import Traffic

MOST_VARIANTS = 2000
WORTH_PROCESSES = 4
"""Fewer simulations are quicker done than processes are started."""


@dataclass(frozen=True, slots=True)
class Varied:
    """One field, by its path below ``spec``, and the values to try."""

    path: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def field(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Variant:
    """One manifest of them."""

    values: tuple[str, ...]
    """In the order of the fields that are varied."""
    job: Job


def read_sets(texts: Sequence[str]) -> list[Varied]:
    """The fields and values that ``--set`` asks for. Raises Failure."""
    found: list[Varied] = []
    for text in texts:
        field, equals, values = text.partition("=")
        path = tuple(field.strip().removeprefix("spec.").split("."))
        parts = tuple(dict.fromkeys(value.strip() for value in values.split(",")))
        if not equals or not all(path) or not all(parts):
            raise Failure(Exit.USAGE, f"--set: {text!r} must be a field and its values, such as scaling.tau3=0.8,0.85,0.9")
        if path in (one.path for one in found):
            raise Failure(Exit.USAGE, f"--set: {field} is given twice; give all of its values in one")
        found.append(Varied(path, parts))
    number = math.prod(len(one.values) for one in found)
    if number > MOST_VARIANTS:
        raise Failure(Exit.USAGE, f"--set: these are {number:,} settings, which must be at most {MOST_VARIANTS:,}; give fewer values")
    return found


def variants(text: str, varied: Sequence[Varied]) -> tuple[list[Variant], list[tuple[tuple[str, ...], str]]]:
    """All combinations that are valid manifests, and those that are not, with why. Raises Failure where none is."""
    found: list[Variant] = []
    refused: list[tuple[tuple[str, ...], str]] = []
    for values in itertools.product(*(one.values for one in varied)):
        try:
            job = compile_job(with_checkpoint(load(_with(text, dict(zip((one.path for one in varied), values, strict=True))))))
        except ManifestError as error:
            refused.append((values, "; ".join(str(problem) for problem in error.problems[:2])))
        else:
            found.append(Variant(values, job))
    if not found:
        raise Failure(Exit.USAGE, f"--set: no setting is valid, {told(varied, refused[0][0])} for one: {refused[0][1]}")
    return found, refused


def told(varied: Sequence[Varied], values: Sequence[str]) -> str:
    """``scaling.tau3=0.8 scaling.policy=predictive``."""
    return " ".join(f"{one.field}={value}" for one, value in zip(varied, values, strict=True))


def _with(text: str, values: dict[tuple[str, ...], str]) -> str:
    """The text with these fields' values. Raises Failure."""
    documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    for document in documents:
        if isinstance(document, yaml.MappingNode) and _scalar(_member(document, "kind")) == KIND:
            for path, value in values.items():
                _set(document, ("spec", *path), value)
    return str(yaml.serialize_all(documents, Dumper=yaml.SafeDumper))


def _set(document: yaml.MappingNode, path: tuple[str, ...], value: str) -> None:
    here: yaml.Node = document
    for at, name in enumerate(path):
        last = at == len(path) - 1
        if isinstance(here, yaml.SequenceNode) and name.isdecimal() and int(name) < len(here.value):
            if last:
                here.value[int(name)] = _node(value)
            else:
                here = here.value[int(name)]
            continue
        if not isinstance(here, yaml.MappingNode):
            is_list = isinstance(here, yaml.SequenceNode)
            hint = f"has {len(here.value)} elements; name one by its number, from 0" if is_list else "has no fields; name a field that has"
            raise Failure(Exit.USAGE, f"--set: {'.'.join(path[1:])}: {'.'.join(path[:at])} {hint}")
        there = _member(here, name)
        if last or there is None:
            there = _node(value) if last else yaml.MappingNode("tag:yaml.org,2002:map", [])
            here.value = [pair for pair in here.value if _scalar(pair[0]) != name]
            here.value.append((yaml.ScalarNode("tag:yaml.org,2002:str", name), there))
        here = there


def _node(value: str) -> yaml.Node:
    try:
        node = yaml.compose(value, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise Failure(Exit.USAGE, f"--set: {value!r} is no YAML; write it as in a manifest") from error
    assert node is not None
    return node


def _member(node: yaml.MappingNode, name: str) -> yaml.Node | None:
    return next((value for key, value in node.value if _scalar(key) == name), None)


def _scalar(node: yaml.Node | None) -> str | None:
    return node.value if isinstance(node, yaml.ScalarNode) else None


# Many simulations.


def _own(join: SimulatedJoin, traffic: Traffic) -> Outcome:
    """A run under the rules of the join's own settings, without what only a picture needs."""
    return simulate(join, traffic, StreamJoin(join))


_traffics: Sequence[Traffic] = ()
"""In a process of a pool: sent once, not with each join."""


def _begin(traffics: Sequence[Traffic]) -> None:
    global _traffics  # noqa: PLW0603 - what a pool's process begins with has no other place
    _traffics = traffics


def _of_pool(join: SimulatedJoin, index: int) -> Outcome:
    return _own(join, _traffics[index])


class Simulations:
    """Runs joins under their own rules, on as many processors as there are. The outcomes are the same on one."""

    def __init__(self, traffics: Sequence[Traffic], pool: ProcessPoolExecutor | None) -> None:
        self._traffics, self._pool = traffics, pool

    def run(self, joins: Sequence[SimulatedJoin], traffic: int = 0) -> list[Outcome]:
        """One outcome for each join, in their order; ``traffic``: which of them it meets."""
        if self._pool is None or len(joins) < 2:
            return [_own(join, self._traffics[traffic]) for join in joins]
        return list(self._pool.map(_of_pool, joins, itertools.repeat(traffic)))


@contextmanager
def simulations(traffics: Sequence[Traffic], expected: int) -> Iterator[Simulations]:
    """``expected``: about how many there will be."""
    processes = min(os.cpu_count() or 1, expected)
    if processes < 2 or expected < WORTH_PROCESSES:
        yield Simulations(traffics, None)
        return
    # Not forked: libraries of this process may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(traffics,)) as pool:
        yield Simulations(traffics, pool)
