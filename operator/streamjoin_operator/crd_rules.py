"""Rules of the CustomResourceDefinition that ``manifest.model_rules`` has not, in CEL for the API server, by the manifest's models.

They are about changes (``oldSelf``), or say approximately what ``manifest.cross_field`` checks exactly: which streams a join is over is
more than CEL can find out. tests/test_crd.py holds the two together. SQL, places and what depends on the types of columns are beyond CEL:
these the operator checks, and reports in the status.

Always holds: nothing that a rule refuses would pass ``manifest.validate``, but for changes of what may not change (``oldSelf``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamjoin.language.graph import MOST_STREAMS
from streamjoin.manifest import model, sources
from streamjoin.manifest.cel import Rule, has_one, quoted
from streamjoin.manifest.field_types import RESOURCE_NAME
from streamjoin.manifest.model import KIND
from streamjoin.manifest.model_rules import ROWS
from streamjoin.manifest.part import Part
from streamjoin.manifest.problem import listed
from streamjoin.manifest.rules import names_of


def same(field: str) -> str:
    """Whether an optional field of ``s`` is what it is in ``o``."""
    return f"(has(s.{field}) == has(o.{field}) && (!has(s.{field}) || s.{field} == o.{field}))"


_TYPE = "(has({0}.type) ? {0}.type : 'inner')"
_OF_TWO = ("before", "after")
"""Fields of windows of two streams."""
_QUALIFIER = r"'\\b[a-z_][a-z0-9_]*\\.'"
_WITHOUT_STREAMS = "j.condition.lowerAscii()" + "".join(
    f".replace(self.streams[{number if number < 2 else f'self.streams.size() > {number} ? {number} : 0'}].name.lowerAscii() + '.', '')"
    for number in range(MOST_STREAMS)
)
"""A condition less the names of streams. To look each name up would cost more, of 16 joins, than an API server takes; so a name that ends
in a stream's is let through, and the operator refuses it."""
_PLAIN = "j.condition.matches('[\\'\"`]|--|/[*]')"


_OF_NAMED = "(self.streams.size() > 2 && (self.joins.size() > 1 || self.streams.exists(s, has(s.source.join))))"
"""Whether each join is over the streams that its condition names (``manifest.resolve``), which are more than a rule can find out."""


def _same_sources(*, optional: bool) -> Iterator[str]:
    """Whether ``s`` and ``o`` read the same, by kind: of the fields that make a source's identity, those that may be left out, or the
    others. One that was left out may give way to another field (a topic to a pattern), and the operator compares the two."""
    for kind, part in sources.SOURCES.items():
        mine, other = f"s.source.{kind}", f"o.source.{kind}"
        fixed = ((info.alias or name, info) for name, info in part.model_fields.items())
        names = [name for name, info in fixed if name in part.fixed and (info.default is None) == optional]
        values = [[_value(of, name, part) for of in (mine, other)] for name in names]
        equal = [f"{one} == {another}" for one, another in values]
        if optional:
            equal = [f"!has({mine}.{name}) || (has({other}.{name}) && {each})" for name, each in zip(names, equal, strict=True)]
            yield from (f"(!has({mine}) || !has({other}) || {each})" for each in equal)
        elif equal:
            yield f"(!has({mine}) || !has({other}) || ({' && '.join(equal)}))"


def _value(of: str, name: str, part: type[Part]) -> str:
    """A field of a source, which may be left out where it has a default: lists' items are stored without."""
    default = next(info for key, info in part.model_fields.items() if (info.alias or key) == name).default
    if not isinstance(default, str | bool):
        return f"{of}.{name}"
    return f"(has({of}.{name}) ? {of}.{name} : {quoted(default) if isinstance(default, str) else str(default).lower()})"


def _fixed(what: str, of: str, unchanged: str) -> Rule:
    """What may not change under an existing checkpoint (``controlplane.fingerprint``), for lists of streams or joins, by name."""
    kept = " && ".join(
        f"has(self.checkpoint.{name}) == has(oldSelf.checkpoint.{name})"
        f" && (!has(self.checkpoint.{name}) || self.checkpoint.{name} == oldSelf.checkpoint.{name})"
        for name in ("location", "persistentVolumeClaim")
    )
    rule = f"!({kept}) || self.{of}.all(s, oldSelf.{of}.all(o, s.name != o.name || {unchanged}))"
    return Rule(rule, f"{what} may not change under the same checkpoint; give another checkpoint, or make another {KIND}")


RULES: Mapping[type[Part], tuple[Rule, ...]] = {
    model.Spec: (
        Rule(
            f"self.streams.size() == 2 || {_OF_NAMED} || self.joins.all(j, !has(j.type) || j.type in ['inner', 'semi', 'anti']"
            f" || !({has_one('j.window', *ROWS)}))",
            "joins of type left, right and full of three and more streams cannot have windows of rows; give a window of time",
            field="joins",
        ),
        Rule(
            f"self.streams.size() == 2 || {_OF_NAMED} || !self.joins.exists(j, {has_one('j.window', *_OF_TWO)})",
            f"{listed(_OF_TWO, 'and')} of a window are for two streams; give within, or each, or rows, or eachRows, or unbounded: true",
            field="joins",
        ),
        *(
            Rule(
                f"{_OF_NAMED} || self.joins.all(j, !has(j.window.{form})"
                f" || (j.window.{form}.size() == self.streams.size() && self.streams.all(s, s.name in j.window.{form})))",
                f"{form} of a window must name every stream and no other; say {what}",
                field="joins",
            )
            for form, what in (
                ("each", "how long before the newest tuple of a result the stream's may be"),
                ("eachRows", "among how many of its last records the stream's tuple is"),
            )
        ),
        # Where the text has quotes or comments, a dot in it may be anything.
        Rule(
            f"self.joins.all(j, {_PLAIN} || !{_WITHOUT_STREAMS}.matches({_QUALIFIER}))",
            "condition refers to a stream that is not there; write stream.column with the names of streams",
            field="joins",
        ),
        Rule(
            "self.streams.map(s, s.name) == oldSelf.streams.map(s, s.name)",
            f"the streams' names and order may not change; make another {KIND}",
            field="streams",
        ),
        Rule(
            f"self.streams.size() == 2 || {_OF_NAMED} || self.joins[0].name == oldSelf.joins[0].name",
            f"the name of a join of three and more streams may not change; make another {KIND}",
            field="joins",
        ),
        _fixed(
            "a stream's source (its kind, directory or topic, and format)",
            "streams",
            " && ".join(
                [
                    *(f"has(s.source.{kind}) == has(o.source.{kind})" for kind in names_of(sources.Source)),
                    *_same_sources(optional=True),
                    *_same_sources(optional=False),
                ]
            ),
        ),
        _fixed("a stream's schema", "streams", same("schema")),
        _fixed("a stream's select", "streams", f"{same('select')} || self.joins.map(j, j.name) != oldSelf.joins.map(j, j.name)"),
        _fixed("a join's condition", "joins", "s.condition == o.condition"),
        _fixed("a join's type", "joins", f"{_TYPE.format('s')} == {_TYPE.format('o')}"),
        _fixed("a join's window", "joins", " && ".join(same("window." + name) for name in names_of(model.Window))),
    ),
}
"""By model: the rules of each of its objects."""

NAME = Rule(f"self.metadata.name.matches('^{RESOURCE_NAME.pattern}$')", f"metadata.name {RESOURCE_NAME.message}")
"""Of the resource as a whole."""
