"""Coverage areas of a scheme, for people: key bounds are shown as the values that they encode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from streamjoin.api.key_spaces import KeySpace, is_empty
from streamjoin.language.predicate import Bound, Encoding, KeyExpression
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.types import TypeName
from streamjoin.scheme.statistics import Statistics, loads
from streamjoin.scheme.tiling import Area, KeyRange, Scheme

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CoverageArea:
    """A coverage area of a plan."""

    key_space: int
    """The key space that it is on, if there are several."""
    number: int
    """The scheme's own."""
    tasks: tuple[int, ...]
    left_keys: str
    """Which keys of the left side it covers, in words: ``from 10 to 20``, ``all``, ``none``."""
    right_keys: str
    left_tuples: float
    """How many tuples of the left side are expected there."""
    right_tuples: float
    fullest: float
    """What the fullest of its tasks would hold, as the plan's capacity is measured: in tuples, or in bytes."""


def areas_of(scheme: Scheme, statistics: Statistics, key_spaces: Sequence[KeySpace]) -> Iterator[CoverageArea]:
    """All coverage areas, key space by key space, in order. O(areas)."""
    held = loads(scheme, statistics)
    for at, key_space in enumerate(key_spaces):
        counted, main = key_space.statistics.counted, key_space.main
        for number, parts in coverage_areas(key_space.of(scheme)).items():
            tasks = tuple(sorted({area.task for area in parts}))
            left, right = parts[0].keys
            yield CoverageArea(
                at,
                number,
                tasks,
                range_text(left, main.key(LEFT)),
                range_text(right, main.key(RIGHT)),
                counted.sides[LEFT].volume(left),
                counted.sides[RIGHT].volume(right),
                float(max(held[task] for task in tasks)),
            )


def coverage_areas(scheme: Scheme) -> Mapping[int, Sequence[Area]]:
    """The areas by coverage area, in order."""
    found: dict[int, list[Area]] = {}
    for area in scheme.areas:
        found.setdefault(area.coverage, []).append(area)
    return dict(sorted(found.items()))


def key_text(bound: Bound, key: KeyExpression | None) -> str:
    """A key bound as people read it: the value that it encodes, or, of hashed keys, where it lies in the hash range."""
    if bound is None or key is None:
        return ""
    if key.encoding is Encoding.HASH:
        return f"hash {(int(bound) + 2**63) / 2**64:.1%}"
    if key.encoding is Encoding.PREFIX:
        return repr((int(bound) + 2**63).to_bytes(8, "big").rstrip(b"\0").decode(errors="replace"))
    if key.encoding is Encoding.FLOAT:
        return f"{bound:.6g}"
    type_ = key.types[0]
    try:
        if type_.name is TypeName.DATE:
            return str((_EPOCH + timedelta(days=int(bound))).date())
        if type_.name in (TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ):
            text = (_EPOCH + timedelta(microseconds=int(bound))).isoformat(sep=" ").replace("+00:00", "")
            return text + ("Z" if type_.name is TypeName.TIMESTAMP else "")
    except OverflowError:
        return str(bound)
    if type_.name is TypeName.DECIMAL:
        return f"{Decimal(int(bound)).scaleb(-type_.scale):f}"
    return f"{bound:,}"


def range_text(keys: KeyRange, key: KeyExpression | None) -> str:
    if keys.low is None and keys.high is None:
        return "all"
    if is_empty(keys):
        return "none"
    if isinstance(keys.low, int) and keys.high == keys.low + 1:
        return f"only {key_text(keys.low, key)}"
    if keys.low is None:
        return f"below {key_text(keys.high, key)}"
    return f"from {key_text(keys.low, key)}" + ("" if keys.high is None else f" to {key_text(keys.high, key)}")
