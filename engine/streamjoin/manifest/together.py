"""What a manifest's fields must be together: names that exist, SQL that resolves, numbers in order, one of many forms.

A check is a generator of problems over parts that may lack refused fields (``fields.partial``). Reading a refused field
ends that check, and only that one: the field has its own problem already.

Always holds: a manifest whose fields are right by themselves and for which :func:`problems` finds nothing can be
compiled.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamjoin.language.ddl import parse_schema
from streamjoin.language.errors import SqlError
from streamjoin.language.graph import MOST_STREAMS, join_graph
from streamjoin.language.join_type import JoinType
from streamjoin.language.predicate import MainKind
from streamjoin.language.schema import Schema
from streamjoin.language.sql import Expression, parse_boolean, parse_projection
from streamjoin.language.types import TypeName
from streamjoin.location import place, within
from streamjoin.manifest import model, resolve, sources
from streamjoin.manifest.fields import until_refused
from streamjoin.manifest.generated import generator_problems
from streamjoin.manifest.kafka import kafka_client_problems, kafka_client_remarks, metadata_problems, raw_problems, registry_problems
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.part import Part, UnparsedError
from streamjoin.manifest.problem import Problem, closest, listed
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.sinks import PostgresSink, Sink
from streamjoin.manifest.stores import postgres_sink_problems, postgres_sink_remarks, store_problems, store_remarks
from streamjoin.manifest.tables import TABLES, catalog_problems, catalog_remarks, table_problems
from streamjoin.manifest.text import field_name
from streamjoin.manifest.topics import loop_problems
from streamjoin.scheme.models import HANDSHAKE, KEYED

_RESOURCE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

Check = Iterator[Problem]


def problems(manifest: Manifest) -> list[Problem]:
    """Everything that is wrong with the fields together."""
    checks = [_name(manifest), _counts(manifest), _stream_names(manifest), _workers(manifest), _taus(manifest), _budget(manifest)]
    streams: tuple[model.Stream, ...] = _given(manifest, "spec", "streams") or ()
    joins: tuple[model.Join, ...] = _given(manifest, "spec", "joins") or ()
    of_pairs = len(streams) > 2 and (len(joins) > 1 or any(_given(stream, "source", "join") for stream in streams))
    schemas, wrong = _schemas(manifest, streams, joins)
    checks += [iter(wrong), _read(streams, joins)]
    for index, (stream, schema) in enumerate(zip(streams, schemas, strict=True)):
        field = f"spec.streams[{index}]"
        kafka = _given(stream, "source", "kafka")
        checks += [_source(f"{field}.source", stream), kafka_client_problems(f"{field}.source.kafka", kafka)]
        checks.append(registry_problems(f"{field}.source.kafka", kafka))
        checks.append(catalog_problems(f"{field}.source.iceberg", _given(stream, "source", "iceberg")))
        if schema is not None:
            checks += [_event_time(field, stream, schema), _stream_where(field, stream, schema), _punctuation(field, stream, schema)]
            checks += [_select(field, stream, schema), _generator(f"{field}.source", stream, schema)]
            checks += [raw_problems(field, kafka, schema), metadata_problems(field, kafka, schema)]
        checks += [_watermark(field, stream), _max_ahead(field, stream)]
    by_name = _schemas_by_name(streams, schemas)
    for index, join in enumerate(joins):
        field = f"spec.joins[{index}]"
        window = f"{field}.window"
        kafka = _given(join, "output", "sink", "kafka")
        is_read = any(_given(stream, "source", "join") == _given(join, "name") for stream in streams)
        checks += [_sink(f"{field}.output.sink", join, is_read), kafka_client_problems(f"{field}.output.sink.kafka", kafka)]
        checks.append(catalog_problems(f"{field}.output.sink.iceberg", _given(join, "output", "sink", "iceberg")))
        checks.append(registry_problems(f"{field}.output.sink.kafka", kafka))
        checks += [_shedding(field, join, manifest), _snapshots_end(f"{field}.output.snapshots", join)]
        numbers = _over(manifest, index, streams) if of_pairs else range(len(streams))
        if numbers is None:
            checks.append(_pair(field, manifest, index))
            continue
        own = [streams[number] for number in numbers]
        checks += [_type(field, join, len(own)), _window(window, join, len(own), of_pairs=of_pairs)]
        checks += [_each(window, join, own), _event_times(window, join, streams, numbers)]
        if by_name is not None:
            known = {stream.name: by_name[stream.name] for stream in own}
            checks += [_condition(field, join, known), _output_where(field, join, known)]
            checks += [_output_select(field, join, known), _columns(field, join, manifest, known)]
            checks.append(_record_key(f"{field}.output.sink.kafka.key", join, manifest, known))
            checks.append(_table_columns(f"{field}.output.sink", join, manifest, known))
            checks.append(_avro_names(f"{field}.output.select", join, manifest, known))
            checks.append(_snapshots(f"{field}.output", join, manifest, known))
    if of_pairs:
        checks.append(_in_no_join(manifest, streams, joins))
    if by_name is not None and joins:
        checks += [_model(manifest, by_name), _held(manifest, by_name)]
    checks += [_join_names(joins), _window_kinds(joins), _scheme(manifest), _checkpoint(manifest), _places(manifest)]
    checks += [_punctuations(manifest), _topics(streams, joins)]
    return [problem for check in checks for problem in until_refused(check)]


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
    schemas = resolve.schemas_of(spec)
    for index, join in enumerate(spec.joins):
        own = resolve.over(spec, index, schemas)
        found += _index_remarks(f"spec.joins[{index}].condition", join.condition, own)
        found += _join_remarks(f"spec.joins[{index}]", join, spec)
    if len(spec.joins) > 1 and resolve.layouts_of(spec, schemas)[0].main.kind is MainKind.ALL:
        message = (
            "have no pair of keys that all of their conditions limit, so every tuple meets every other one on some worker, or is held once"
            " for each pair of keys, whichever is expected to hold less; to send fewer tuples, move joins of other keys into a manifest of"
            " their own"
        )
        found.append(Problem("spec.joins", None, message))
    for index, stream in enumerate(spec.streams):
        found += kafka_client_remarks(f"spec.streams[{index}].source.kafka", stream.source.kafka)
        found += catalog_remarks(f"spec.streams[{index}].source.iceberg", stream.source.iceberg)
    return found


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
    yield from kafka_client_remarks(f"{field}.output.sink.kafka", _given(join, "output", "sink", "kafka"))
    yield from postgres_sink_remarks(f"{field}.output.sink.postgres", _given(join, "output", "sink", "postgres"))
    yield from catalog_remarks(f"{field}.output.sink.iceberg", _given(join, "output", "sink", "iceberg"))
    if join.output.snapshots is not None:
        yield from store_remarks(f"{field}.output.snapshots.store", join.output.snapshots.store)


def _given(part: Part, *names: str) -> Any:
    """The value at a path of attributes, or None where one of them was refused or not given."""
    value: Any = part
    for name in names:
        value = getattr(value, name, None)
    return value


def _name(manifest: Manifest) -> Check:
    name = manifest.metadata.name
    if not _RESOURCE_NAME.fullmatch(name):
        message = "is not a name for a resource; use lower-case letters, digits and, inside, -; at most 63 characters"
        yield Problem("metadata.name", name, message)


def _counts(manifest: Manifest) -> Check:
    spec = manifest.spec
    streams = len(spec.streams)
    if streams > MOST_STREAMS:
        remedy = "join some of them in a manifest of their own, and read its results here"
        yield Problem("spec.streams", None, f"has {streams} streams, and there may be 2 to {MOST_STREAMS}; {remedy}")
    elif streams < 2:
        message = f"has {streams} stream{'s' * (streams == 0)}; give two (one source may be read by both)"
        yield Problem("spec.streams", None, message)
    joins = len(spec.joins)
    if not 1 <= joins <= model.MOST_JOINS:
        remedy = "move the others into a manifest of their own" if joins else "give one"
        yield Problem("spec.joins", None, f"has {joins} joins, and there may be 1 to {model.MOST_JOINS}; {remedy}")


def _stream_names(manifest: Manifest) -> Check:
    first: dict[str, int] = {}
    for index, stream in enumerate(manifest.spec.streams):
        name = _given(stream, "name")
        if not isinstance(name, str):
            continue
        field = f"spec.streams[{index}].name"
        if not resolve.IDENTIFIER.fullmatch(name):
            message = "cannot stand in SQL; use letters, digits and _, beginning with a letter"
            yield Problem(field, name, message)
        elif not resolve.is_stream_name(name):
            yield Problem(field, name, f"is a word of SQL; choose another name, such as {name}_stream")
        if name.casefold() in first:
            message = f"is the name of spec.streams[{first[name.casefold()]}] too (case does not count); choose another"
            yield Problem(field, name, message)
        first.setdefault(name.casefold(), index)


def _schemas(
    manifest: Manifest, streams: Sequence[model.Stream], joins: Sequence[model.Join]
) -> tuple[list[Schema | None], list[Problem]]:
    """The streams' schemas, None where one is refused here or for what it is made of; and what is wrong with them."""
    found: dict[int, Schema] = {}
    problems: list[Problem] = []
    reading = [index for index, stream in enumerate(streams) if isinstance(_given(stream, "source", "join"), str)]
    for index, stream in enumerate(streams):
        field, ddl = f"spec.streams[{index}]", getattr(stream, "ddl", "refused")
        if index in reading and ddl is not None:
            problems.append(Problem(f"{field}.schema", None, "follows from the output of the join that is the source; remove it"))
        elif index not in reading and ddl is None:
            problems.append(Problem(f"{field}.schema", None, "is missing; declare columns as Spark DDL, such as id BIGINT, at TIMESTAMP"))
        elif index not in reading and isinstance(_given(stream, "ddl"), str):
            try:
                found[index] = parse_schema(str(ddl))
            except SqlError as error:
                problems.append(_sql_problem(f"{field}.schema", str(ddl), error))
    names = [_given(stream, "name") for stream in streams]
    for _ in reading:
        for index in reading:
            if index not in found and isinstance(names[index], str):
                known = {names[other]: schema for other, schema in found.items() if isinstance(names[other], str)}
                with contextlib.suppress(SqlError, UnparsedError):  # the join has a problem of its own
                    schema = resolve.schema_of_results(manifest.spec, names[index], known)
                    if schema is not None:
                        found[index] = schema
    return [found.get(index) for index in range(len(streams))], problems


def _read(streams: Sequence[model.Stream], joins: Sequence[model.Join]) -> Check:
    """Whether streams of results read joins that are there, and not what comes of themselves."""
    names = [name for join in joins if isinstance(name := _given(join, "name"), str)]
    for index, stream in enumerate(streams):
        read, field = _given(stream, "source", "join"), f"spec.streams[{index}].source.join"
        if isinstance(read, str) and read not in names:
            close = closest(read, names)
            named = f"the joins are {listed(names, 'and')}" if names else "name one of spec.joins"
            remedy = f"did you mean {close}?" if close else named
            yield Problem(field, read, f"is not a join of this resource; {remedy}")
        elif isinstance(read, str) and len(streams) == 2:
            yield Problem(field, read, "needs the two streams of that join beside it, and one to join its results with; give them")
        elif isinstance(read, str) and _comes_of_itself(stream, streams, joins):
            yield Problem(field, read, f"is made of {stream.name} itself; read another join, or another stream in its condition")


def _comes_of_itself(stream: model.Stream, streams: Sequence[model.Stream], joins: Sequence[model.Join]) -> bool:
    left, seen = [stream], set[str]()
    while left:
        read = _given(left.pop(), "source", "join")
        for join in joins:
            if _given(join, "name") == read and isinstance(read, str) and read not in seen:
                seen.add(read)
                with contextlib.suppress(SqlError, UnparsedError):
                    by_name = {name: each for each in streams if isinstance(name := _given(each, "name"), str)}
                    over = [by_name[name] for name in resolve.named_by(join, by_name)]
                    if stream in over:
                        return True
                    left += over
    return False


def _over(manifest: Manifest, index: int, streams: Sequence[model.Stream]) -> list[int] | None:
    """The numbers of the two streams that a join of pairs is over; None where its condition does not say so."""
    try:
        names = resolve.names_over(manifest.spec, index)
    except (SqlError, UnparsedError, AttributeError):
        return None
    return [number for number, stream in enumerate(streams) if _given(stream, "name") in names]


def _pair(field: str, manifest: Manifest, index: int) -> Check:
    join = manifest.spec.joins[index]
    try:
        resolve.names_over(manifest.spec, index)
    except SqlError as error:
        yield _sql_problem(f"{field}.condition", join.condition, error)


def _in_no_join(manifest: Manifest, streams: Sequence[model.Stream], joins: Sequence[model.Join]) -> Check:
    over = [_over(manifest, index, streams) for index in range(len(joins))]
    if None in over:
        return
    for number, stream in enumerate(streams):
        if not any(number in (numbers or ()) for numbers in over):
            message = "is in no join's condition, and each is over the two streams that its own names; name it in one, or remove it"
            yield Problem(f"spec.streams[{number}].name", stream.name, message)


def _schemas_by_name(streams: Sequence[model.Stream], schemas: Sequence[Schema | None]) -> dict[str, Schema] | None:
    """The streams' schemas, or None where a problem told elsewhere keeps SQL from being resolved against them."""
    found: dict[str, Schema] = {}
    for stream, schema in zip(streams, schemas, strict=True):
        name = _given(stream, "name")
        if not isinstance(name, str) or schema is None or not resolve.IDENTIFIER.fullmatch(name):
            return None
        if not resolve.is_stream_name(name):
            return None
        found[name] = schema
    are_known = 2 <= len(streams) <= MOST_STREAMS and len({name.casefold() for name in found}) == len(streams)
    return found if are_known else None


def _sql_problem(field: str, sql: str, error: SqlError) -> Problem:
    return Problem(field, sql, f"is refused: {error.problem}; {error.remedy}")


def _event_time(field: str, stream: model.Stream, schema: Schema) -> Check:
    name = stream.event_time
    if name is None:
        return
    times = [column.name for column in schema.columns if column.type.name in _TIMES]
    column = schema.get(name)
    remedy = f"name one of these: {listed(times)}" if times else "add a TIMESTAMP column to the schema"
    if column is None:
        yield Problem(f"{field}.eventTime", name, f"is not a column of the schema; {remedy}")
    elif column.type.name not in _TIMES:
        yield Problem(f"{field}.eventTime", name, f"is {column.type}, not TIMESTAMP or TIMESTAMP_NTZ; {remedy}")


_TIMES = (TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ)


def _watermark(field: str, stream: model.Stream) -> Check:
    if stream.event_time is None and stream.watermark.micros:
        message = f"needs {field}.eventTime; name the column of event times there, or remove watermark"
        yield Problem(f"{field}.watermark", str(stream.watermark), message)


def _max_ahead(field: str, stream: model.Stream) -> Check:
    if stream.event_time is None and stream.max_ahead is not None:
        message = f"needs {field}.eventTime; name the column of event times there, or remove maxAhead"
        yield Problem(f"{field}.maxAhead", str(stream.max_ahead), message)


def _stream_where(field: str, stream: model.Stream, schema: Schema) -> Check:
    if stream.where is not None:
        try:
            parse_boolean(stream.where, {stream.name: schema})
        except SqlError as error:
            yield _sql_problem(f"{field}.where", stream.where, error)


def _punctuation(field: str, stream: model.Stream, schema: Schema) -> Check:
    given = stream.punctuation
    if given is None:
        return
    for name, text, parse in (("when", given.when, parse_boolean), ("id", given.id, resolve.punctuation_id)):
        try:
            parse(text, {stream.name: schema})
        except SqlError as error:
            yield _sql_problem(f"{field}.punctuation.{name}", text, error)


def _punctuations(manifest: Manifest) -> Check:
    """Whether all streams have them where snapshots end by them."""
    wanting = [
        index for index, join in enumerate(manifest.spec.joins) if join.output.snapshots is not None and join.output.snapshots.punctuation
    ]
    for index, stream in enumerate(manifest.spec.streams):
        if wanting and stream.punctuation is None:
            message = f"is missing, and spec.joins[{wanting[0]}].output.snapshots.punctuation needs it of every stream; give when and id"
            yield Problem(f"spec.streams[{index}].punctuation", None, message)


def _select(field: str, stream: model.Stream, schema: Schema) -> Check:
    seen: set[str] = set()
    for index, name in enumerate(stream.select or ()):
        here = f"{field}.select[{index}]"
        if schema.get(name) is None:
            close = closest(name, schema.names)
            remedy = f"did you mean {close}?" if close else f"the columns are {listed(schema.names, 'and')}"
            yield Problem(here, name, f"is not a column of the schema; {remedy}")
        elif name.casefold() in seen:
            yield Problem(here, name, "is listed twice; remove one")
        seen.add(name.casefold())


def _one_of(field: str, part: Part, names: Sequence[str]) -> Check:
    """``names`` are the model's; users are told the manifest's."""
    aliases = {name: type(part).model_fields[name].alias or name for name in names}
    given = [alias for name, alias in aliases.items() if name in part.model_fields_set]
    if not given:
        yield Problem(field, None, f"is empty; give one of {listed(list(aliases.values()))}")
    elif len(given) > 1:
        yield Problem(field, None, f"has {listed(given, 'and')}; keep one")


def _source(field: str, stream: model.Stream) -> Check:
    source = stream.source
    yield from _one_of(field, source, tuple(sources.Source.model_fields))
    files = _given(source, "files")
    if isinstance(files, sources.FilesSource):
        yield from _files_source(f"{field}.files", files)
    rate = _given(source, "generator", "rate")
    if isinstance(rate, sources.Rate):
        yield from _one_of(f"{field}.generator.rate", rate, ("constant", "ramp", "diurnal", "spike"))
        spike = rate.spike
        if spike is not None and spike.every is not None and spike.length > spike.every:
            message = f"must be at most every ({spike.every}); shorten it"
            yield Problem(f"{field}.generator.rate.spike.for", str(spike.length), message)


def _topics(streams: Sequence[model.Stream], joins: Sequence[model.Join]) -> Check:
    read = [(f"spec.streams[{index}].source.kafka", _given(stream, "source", "kafka")) for index, stream in enumerate(streams)]
    written = [(f"spec.joins[{index}].output.sink.kafka", _given(join, "output", "sink", "kafka")) for index, join in enumerate(joins)]
    return loop_problems(read, written)


def _files_source(field: str, files: sources.FilesSource) -> Check:
    if "pattern" in files.model_fields_set and "/" in files.pattern:
        message = "has a /, and is compared with file names alone; put the directory into path"
        yield Problem(f"{field}.pattern", files.pattern, message)
    if "delimiter" in files.model_fields_set and files.delimiter in '"\n\r':
        yield Problem(f"{field}.delimiter", files.delimiter, "cannot separate values; use another character, such as ;")
    uses = {"header": ("csv",), "delimiter": ("csv",), "settle": ("json", "csv")}
    for name, formats in uses.items():
        # Kubernetes fills in defaults, so only what differs from them was meant.
        if files.format not in formats and getattr(files, name) != type(files).model_fields[name].default:
            message = f"has no meaning with format {files.format}; remove it (it belongs to {listed(formats, 'and')})"
            yield Problem(f"{field}.{name}", _text(getattr(files, name)), message)


def _text(value: object) -> object:
    return str(value) if isinstance(value, Duration) else value


def _generator(field: str, stream: model.Stream, schema: Schema) -> Check:
    generator = stream.source.generator
    if generator is not None:
        yield from generator_problems(f"{field}.generator", generator, schema, stream.event_time)


def _window_forms(window: model.Window) -> list[str]:
    """The forms of window that are given; before and after are one form, and unbounded: false is none."""
    given = window.model_fields_set
    forms = {
        "within": "within" in given,
        "each": "each" in given,
        "before and after": "before" in given or "after" in given,
        "rows": "rows" in given,
        "unbounded": "unbounded" in given and getattr(window, "unbounded", True),
    }
    return [form for form, is_given in forms.items() if is_given]


def _type(field: str, join: model.Join, streams: int) -> Check:
    if streams > 2 and join.type != "inner":
        yield Problem(f"{field}.type", join.type, f"is for two streams, and there are {streams}; remove it, for inner")


def _window(field: str, join: model.Join, streams: int, *, of_pairs: bool = False) -> Check:
    window = join.window
    if of_pairs and window.rows is not None:
        message = "counts the records of two streams, and there are more; give within, or before and after, or unbounded: true"
        yield Problem(f"{field}.rows", window.rows, message)
    forms = _window_forms(window)
    if not forms:
        others = "or each, or rows, or unbounded: true" if streams > 2 else "or before and after, or each, or rows, or unbounded: true"
        yield Problem(field, None, f"is empty; give within, {others}")
    elif len(forms) > 1:
        yield Problem(field, None, f"has {listed([f'({f})' if ' ' in f else f for f in forms], 'and')}; keep one")
    if streams > 2:
        for name in ("before", "after", "slide"):
            value = getattr(window, name)
            if value is not None:
                remedy = "remove it" if name == "slide" else "give within, or each, or rows, or unbounded: true"
                yield Problem(f"{field}.{name}", _text(value), f"is for two streams, and there are {streams}; {remedy}")
        return
    slide = window.slide
    if slide is None or len(forms) != 1:
        return
    if forms[0] in ("each", "rows", "unbounded"):
        message = f"has no meaning with {forms[0]}; remove it, or give within, or before and after"
        yield Problem(f"{field}.slide", str(slide), message)
        return
    for name in ("within", "before", "after"):
        length = getattr(window, name)
        if length is not None and length.micros and length < slide:
            message = f"must be at most {name} ({length}), or tuples would lie between two windows; shorten it"
            yield Problem(f"{field}.slide", str(slide), message)
            return


def _each(field: str, join: model.Join, streams: Sequence[model.Stream]) -> Check:
    """Whether it names all streams and no other."""
    each = join.window.each
    names = [stream.name for stream in streams]
    if each is None or not names or len(set(names)) < len(names):
        return
    missing = [name for name in names if name not in each]
    for name, span in each.items():
        if name not in names:
            close = closest(name, missing)
            if close is not None:
                missing.remove(close)
            remedy = f"did you mean {close}?" if close else f"the streams are {listed(names, 'and')}"
            yield Problem(f"{field}.{field_name(('each', name))}", str(span), f"is given to a stream that does not exist; {remedy}")
    if missing:
        message = f"lacks {listed(missing, 'and')}; give for every stream how long before the newest tuple of a result its tuple may be"
        yield Problem(f"{field}.each", None, message)


def _event_times(field: str, join: model.Join, streams: Sequence[model.Stream], over: Sequence[int]) -> Check:
    forms = _window_forms(join.window)
    if {"within", "each", "before and after"} & set(forms):
        for index in over:
            if getattr(streams[index], "event_time", "refused") is None:
                message = f"is missing, and {field} is one of time; name a TIMESTAMP column, or use rows or unbounded"
                yield Problem(f"spec.streams[{index}].eventTime", None, message)


def _sink(field: str, join: model.Join, is_read: bool) -> Check:
    sink = join.output.sink
    if sink is None:
        if not is_read:
            message = "is missing, and no stream reads the results; give files, delta, iceberg, postgres, kafka or console"
            yield Problem(field, None, message)
        return
    yield from _one_of(field, sink, tuple(Sink.model_fields))
    files = sink.files
    if files is not None and files.format == "json" and files.compression not in (None, "none"):
        message = "is only for format parquet; remove it, or write parquet"
        yield Problem(f"{field}.files.compression", files.compression, message)


def _join_names(joins: Sequence[model.Join]) -> Check:
    first: dict[str, int] = {}
    for index, join in enumerate(joins):
        name = _given(join, "name")
        if not isinstance(name, str):
            continue
        if name.casefold() in first:
            message = f"is the name of spec.joins[{first[name.casefold()]}] too (case does not count); choose another"
            yield Problem(f"spec.joins[{index}].name", name, message)
        first.setdefault(name.casefold(), index)


def _window_kinds(joins: Sequence[model.Join]) -> Check:
    """Whether all windows are of one kind: they say together for how long tuples are held."""
    forms = [_window_forms(join.window) for join in joins]
    if any(len(each) != 1 for each in forms):
        return
    kinds = [form if form in ("rows", "unbounded") else "time" for (form,) in forms]
    for index, kind in enumerate(kinds):
        if kind != kinds[0]:
            message = "is of another kind than spec.joins[0].window (time, rows or unbounded), and joins over the same streams hold them"
            yield Problem(f"spec.joins[{index}].window", None, f"{message} together; move this one into a manifest of its own")


def _condition(field: str, join: model.Join, schemas: Mapping[str, Schema]) -> Check:
    try:
        if len(schemas) > 2:
            join_graph(join.condition, dict(schemas))
        else:
            resolve.condition(join.condition, schemas)
    except SqlError as error:
        yield _sql_problem(f"{field}.condition", join.condition, error)


def _model(manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    """Whether there are keys for a model that cuts along them."""
    chosen, joins = manifest.spec.scheme.model, manifest.spec.joins
    if chosen not in KEYED:
        return
    try:
        found = resolve.layouts_of(manifest.spec, schemas)
    except SqlError:
        return
    where = "spec.joins[0].condition" if len(joins) == 1 else "the condition of every join, of the same keys"
    apart = []
    if (graph := found[0].graph) is not None:
        ends = [sorted(graph.ends(edge)) for edge in graph.edges if edge.main.kind is not MainKind.RANGE]
        apart = [listed([graph.streams[stream] for stream in pair], "and") for pair in ends]
    elif not any(layout.cuts_keys for layout in found):
        apart = ["the two streams"]
    for pair in apart:
        message = f"needs an equality, an order or a band between {pair} in {where}; use adsp or square"
        yield Problem("spec.scheme.model", chosen, message)


def _output_where(field: str, join: model.Join, schemas: Mapping[str, Schema]) -> Check:
    where = join.output.where
    if where is not None:
        try:
            yield from _of_results(f"{field}.output.where", where, parse_boolean(where, schemas), join, schemas)
        except SqlError as error:
            yield _sql_problem(f"{field}.output.where", where, error)


def _output_select(field: str, join: model.Join, schemas: Mapping[str, Schema]) -> Check:
    first: dict[str, int] = {}
    for index, text in enumerate(join.output.select or ()):
        here = f"{field}.output.select[{index}]"
        try:
            name, expression = parse_projection(text, schemas)
        except SqlError as error:
            yield _sql_problem(here, text, error)
            continue
        yield from _of_results(here, text, expression, join, schemas)
        if name.casefold() in first:
            other = f"{field}.output.select[{first[name.casefold()]}]"
            yield Problem(here, text, f"makes a second column {name} (the first is {other}); name it with AS")
        first.setdefault(name.casefold(), index)


def _of_results(field: str, text: str, expression: Expression, join: model.Join, schemas: Mapping[str, Schema]) -> Check:
    """Whether an expression reads nothing but what results have."""
    streams = resolve.streams_of_results(JoinType(join.type), schemas)
    others = sorted(f"{stream}.{column}" for stream, column in expression.columns if stream not in streams)
    if others:
        message = f"reads {listed(others, 'and')}, and the results of type {join.type} are tuples of {streams[0]} alone; remove that"
        yield Problem(field, text, message)


def _shedding(field: str, join: model.Join, manifest: Manifest) -> Check:
    shedding = manifest.spec.shedding.model
    if join.type == "anti" and shedding != "off":
        message = f"would make the results of {field}.type anti wrong: a tuple whose match was shed would be given as one that has no match"
        yield Problem("spec.shedding.model", shedding, f'{message}; set "off"')


def _output(join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> resolve.Output | None:
    """The output's columns; None where they do not resolve, which others say."""
    try:
        return resolve.output(join, manifest.spec, schemas)
    except (SqlError, KeyError):
        return None


def _record_key(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    kafka = _given(join, "output", "sink", "kafka")
    if kafka is None or kafka.key is None:
        return
    columns = _output(join, manifest, schemas)
    if columns is None:
        return
    names = [name for name, _ in columns]
    if names and kafka.key.casefold() not in {name.casefold() for name in names}:
        close = closest(kafka.key, names)
        remedy = f"did you mean {close}?" if close else f"the columns are {listed(names, 'and')}"
        yield Problem(field, kafka.key, f"is not a column of the output; {remedy}")


def _table_columns(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    postgres: PostgresSink | None = _given(join, "output", "sink", "postgres")
    tables = [name for name in TABLES if _given(join, "output", "sink", name) is not None]
    if not tables and postgres is None:
        return
    columns = _output(join, manifest, schemas)
    if columns is None:
        return
    yield from postgres_sink_problems(f"{field}.postgres", postgres, [name for name, _ in columns])
    for name in tables:
        types = {column: expression.type for column, expression in columns}
        yield from table_problems(f"{field}.{name}", _given(join, "output", "sink", name), types)


def _avro_names(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    kafka = _given(join, "output", "sink", "kafka")
    if kafka is None or kafka.format != "avro":
        return
    columns = _output(join, manifest, schemas)
    if columns is None:
        return
    for name, _ in columns:
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            message = "is not a name that Avro allows, and the sink writes Avro; give another name (AS), of letters, digits and _"
            yield Problem(field, name, message)


def _snapshots_end(field: str, join: model.Join) -> Check:
    snapshots = join.output.snapshots
    if snapshots is None:
        return
    if snapshots.store is not None:
        yield from _one_of(f"{field}.store", snapshots.store, ("embedded", "postgres", "cassandra"))
        yield from store_problems(f"{field}.store", snapshots.store)
    if snapshots.punctuation:
        for name, value in (("every", snapshots.every), ("size", snapshots.size)):
            if value is not None:
                yield Problem(f"{field}.{name}", _text(value), "excludes punctuation, which says when a snapshot ends; keep one")
    elif snapshots.every is None and snapshots.size is None:
        yield Problem(field, None, "does not say when a snapshot ends; give every, or size, or both, or punctuation: true")
    if snapshots.max_delay and (snapshots.every is None or snapshots.size is None):
        lacking = "every" if snapshots.every is None else "size"
        yield Problem(f"{field}.maxDelay", snapshots.max_delay, f"needs {lacking} too; give it, or remove maxDelay")


def _snapshots(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    snapshots = join.output.snapshots
    if snapshots is None:
        return
    columns = _output(join, manifest, schemas)
    if columns is None:
        return
    for name, _ in columns:
        if name.casefold() in ("_key", "_snapshot", "_row"):
            message = "is a column of snapshots themselves; name the output's column otherwise, with AS in output.select"
            yield Problem(f"{field}.select", name, message)
    if columns:
        try:
            resolve.snapshot_key(snapshots.key, columns)
        except SqlError as error:
            yield _sql_problem(f"{field}.snapshots.key", snapshots.key or columns[0][0], error)


def _columns(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    if join.output.select is not None:
        return
    columns = _output(join, manifest, schemas)
    if columns is None:
        return
    yield from _default_names(f"{field}.output.select", [name for name, _ in columns])


def _held(manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    """Whether streams hold what is read once a pair was found. Looked at when all that reads it resolves."""
    try:
        needs = resolve.all_needs(manifest.spec, schemas)
    except (SqlError, KeyError):
        return
    for index, stream in enumerate(manifest.spec.streams):
        if stream.select is None:
            continue
        held = {name.casefold() for name in stream.select}
        lacking: dict[str, str] = {}
        for need in needs:
            if need.stream == stream.name and need.column.casefold() not in held:
                lacking.setdefault(need.column, need.field)
        for column, field in lacking.items():
            yield Problem(f"spec.streams[{index}].select", list(stream.select), f"lacks {column}, which {field} needs; add it")


def _default_names(field: str, names: Sequence[str]) -> Check:
    if not names:
        yield Problem(field, None, "is missing, and the streams hold no columns; name the columns to write")
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            message = f"is missing, and by default two columns would be named {name}; name the columns"
            yield Problem(field, None, message)
        seen.add(name.casefold())


def _workers(manifest: Manifest) -> Check:
    workers = manifest.spec.workers
    if workers.min > workers.max:
        if "min" in workers.model_fields_set:
            by_default = "" if "max" in workers.model_fields_set else ", the default"
            yield Problem("spec.workers.min", workers.min, f"must be at most max ({workers.max}{by_default})")
        else:
            yield Problem("spec.workers.max", workers.max, f"must be at least min ({workers.min}, the default)")
    if workers.floor > 1 and not workers.min <= workers.floor <= workers.max:
        message = f"must be at least min ({workers.min}) and at most max ({workers.max}), or 1 for none"
        yield Problem("spec.workers.floor", workers.floor, message)
    if _given(workers, "capacity") is not None and _given(workers, "capacity_tuples") is not None:
        message = "excludes capacityTuples; keep one: capacity weighs tuples by their bytes, capacityTuples counts them"
        yield Problem("spec.workers.capacity", str(workers.capacity), message)
    if workers.per_executor > workers.max:
        by_default = "" if "max" in workers.model_fields_set else ", the default"
        message = f"must be at most max ({workers.max}{by_default}), or each pod would have room for workers that never come"
        yield Problem("spec.workers.perExecutor", workers.per_executor, message)


def _taus(manifest: Manifest) -> Check:
    scaling = manifest.spec.scaling
    given = scaling.model_fields_set
    taus = {"tau0": scaling.tau0, "tau1": scaling.target, "tau2": scaling.tau2, "tau3": scaling.tau3}
    ordered = list(taus.items())
    for (low, lower), (high, higher) in itertools.pairwise(ordered):
        if lower < higher:
            continue
        if low in given:
            yield Problem(f"spec.scaling.{low}", lower, f"must be below {high} ({_tau(high, higher, given)})")
        else:
            yield Problem(f"spec.scaling.{high}", higher, f"must be above {low} ({_tau(low, lower, given)})")


def _budget(manifest: Manifest) -> Check:
    budget, joins = manifest.spec.scaling.budget, _given(manifest, "spec", "joins") or ()
    if budget is None:
        return
    if manifest.spec.shedding.model == "off":
        message = 'has nothing to spend, as nothing is shed; set spec.shedding.model to "linear" or "quadratic", or remove it'
        yield Problem("spec.scaling.budget", budget.completeness, message)
    if joins and not any(join.type == "inner" for join in joins):
        message = "counts results of inner joins, and there are none; remove it"
        yield Problem("spec.scaling.budget", budget.completeness, message)


def _tau(name: str, value: float, given: set[str]) -> str:
    if name in given:
        return f"{value:g}"
    return f"{value:g}, by default half of tau2" if name == "tau1" else f"{value:g}, the default"


def _scheme(manifest: Manifest) -> Check:
    scheme = manifest.spec.scheme
    for name, owner in (("sigma", "readj"), ("groups", "biclique"), ("alpha", "handshake")):
        value = getattr(scheme, name)
        if value is not None and scheme.model != owner:
            yield Problem(f"spec.scheme.{name}", value, f"is only for model {owner}, and the model is {scheme.model}; remove one of them")
    if scheme.model == HANDSHAKE:
        joins, streams = manifest.spec.joins, manifest.spec.streams
        kind = joins[0].type if joins else None
        if len(streams) > 2 or len(joins) > 1:
            yield Problem("spec.scheme.model", scheme.model, "is for one join over two streams; choose broadcast or adsp")
        elif kind is not None and kind != "inner":
            message = f"is for joins of type inner, and spec.joins[0].type is {kind}; choose broadcast or adsp"
            yield Problem("spec.scheme.model", scheme.model, message)


def _checkpoint(manifest: Manifest) -> Check:
    yield from _one_of("spec.checkpoint", manifest.spec.checkpoint, ("location", "persistent_volume_claim"))
    checkpoint = manifest.spec.checkpoint
    if checkpoint.persistent_volume_claim is None:
        for name, value in (("size", checkpoint.size), ("storageClassName", checkpoint.storage_class_name)):
            if value is not None:
                message = "says how to make a claim, and there is none; name one in spec.checkpoint.persistentVolumeClaim, or remove this"
                yield Problem(f"spec.checkpoint.{name}", str(value), message)
    elif checkpoint.storage_class_name is not None and checkpoint.size is None:
        message = "is for a claim that the operator makes; give spec.checkpoint.size too"
        yield Problem("spec.checkpoint.storageClassName", checkpoint.storage_class_name, message)


def _places(manifest: Manifest) -> Check:
    """Directories that would take each other's files for their own. Two streams may read the same directory."""
    places: list[tuple[str, str]] = []
    streams: tuple[model.Stream, ...] = _given(manifest, "spec", "streams") or ()
    joins: tuple[model.Join, ...] = _given(manifest, "spec", "joins") or ()
    for index, stream in enumerate(streams):
        for kind in ("files", "delta"):
            places.append((f"spec.streams[{index}].source.{kind}.path", _given(stream, "source", kind, "path")))
    for index, join in enumerate(joins):
        for kind in ("files", "delta"):
            places.append((f"spec.joins[{index}].output.sink.{kind}.path", _given(join, "output", "sink", kind, "path")))
    places.append(("spec.checkpoint.location", _given(manifest, "spec", "checkpoint", "location")))
    places.append(("spec.deadLetter.location", _given(manifest, "spec", "dead_letter", "location")))
    known = [(field, given, place(given)) for field, given in places if isinstance(given, str)]
    for position, (field, given, path) in enumerate(known):
        for other_field, other_given, other in known[:position]:
            both_read = field.startswith("spec.streams") and other_field.startswith("spec.streams")
            kept_inside = field == "spec.deadLetter.location" and other_field == "spec.checkpoint.location"
            if both_read or (kept_inside and path != other and within(path, other)):
                continue
            if within(path, other) or within(other, path):
                inside = "lies in" if within(path, other) else "holds"
                relation = "is the same directory as" if path == other else inside
                message = f"{relation} {other_field} ({other_given}); give each a directory of its own"
                yield Problem(field, given, message)
