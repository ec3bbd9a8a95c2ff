"""Which topics of Kafka a source reads: one by its name, or all whose names match a pattern (``language.topics``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from streamjoin.language.topics import INTERNAL, matches, why_no_pattern
from streamjoin.manifest.part import has_unknown
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.sinks import KafkaSink
from streamjoin.manifest.sources import KafkaSource


def topic_problem(field: str, topic: str) -> Iterator[Problem]:
    """The name of one topic."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", topic) or topic in (".", ".."):
        yield Problem(field, topic, "is not the name of a topic; use letters, digits, ., _ and -")


def source_topic_problems(field: str, kafka: KafkaSource) -> Iterator[Problem]:
    """One of topic and topicPattern, and what belongs to the latter."""
    given = [name for name in ("topic", "topic_pattern") if name in kafka.model_fields_set]
    if not given and not has_unknown(kafka):
        yield Problem(field, None, "has no topic; give topic, or topicPattern for several")
    elif len(given) == 2:
        yield Problem(field, None, "has topic and topicPattern; keep one")
    if "topic" in given and kafka.topic is not None:
        yield from topic_problem(f"{field}.topic", kafka.topic)
    if "topic_pattern" in given and kafka.topic_pattern is not None:
        yield from _pattern_problem(f"{field}.topicPattern", kafka.topic_pattern)
    elif kafka.discovery_interval is not None:
        message = "is for topicPattern, and there is none; remove it, or give topicPattern"
        yield Problem(f"{field}.discoveryInterval", str(kafka.discovery_interval), message)


def _pattern_problem(field: str, pattern: str) -> Iterator[Problem]:
    reason = why_no_pattern(pattern)
    if reason is not None:
        yield Problem(field, pattern, f"is not a regular expression ({reason}); write one as orders-.* or orders-(eu|us)")
    elif pattern.lstrip("^(").startswith(INTERNAL):
        message = f"means Kafka's own topics, which begin with {INTERNAL} and which no pattern matches; correct it, or name one by topic"
        yield Problem(field, pattern, message)


def loop_problems(sources: Sequence[tuple[str, KafkaSource | None]], sinks: Sequence[tuple[str, KafkaSink | None]]) -> Iterator[Problem]:
    """Patterns that match a topic of results, each with its field: the join would read these as if they were input."""
    for field, source in sources:
        if source is None or source.topic_pattern is None or why_no_pattern(source.topic_pattern) is not None:
            continue
        for sink_field, sink in sinks:
            if sink is None or sink.bootstrap_servers != source.bootstrap_servers or not matches(source.topic_pattern, sink.topic):
                continue
            message = f"matches {sink.topic}, to which {sink_field} writes; narrow it, or give the results another topic"
            yield Problem(f"{field}.topicPattern", source.topic_pattern, message)
