"""Logs on standard output, one line for each record: as JSON (time, level, logger, message, the namespace and the name of the StreamJoin
that it is about, and what else the record has), or as text with the same first fields.

Always holds: a record is one line, also with a traceback, which is in the field ``error``.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

LEVEL, FORMAT, ABOUT = "STREAMJOIN_LOG_LEVEL", "STREAMJOIN_LOG_FORMAT", "STREAMJOIN_LOG_ABOUT"
"""Variables that say how a process of a pod logs, and about which StreamJoin: NAMESPACE/NAME."""
SENTENCE = "streamjoin: "
"""Before the sentence with which a program ends that has failed."""
_TEXT = re.compile(r"\S+Z [A-Z]+ \S+ (?:\[[^]]*/[^]]*\] )?(.*)")


def trace_path(log_directory: Path) -> Path:
    """The file with the trace of what failed; its directory is made. Raises OSError."""
    log_directory.mkdir(parents=True, exist_ok=True)
    return log_directory / "failure.txt"


def fields_of(record: logging.LogRecord, error: str = "") -> dict[str, Any]:
    """Of one record, in their order; ``error``: the traceback, if there is one."""
    fields: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    about = getattr(record, "streamjoin", None)
    reference = getattr(record, "k8s_ref", None)  # kopf's own lines
    if about:
        fields["namespace"], _, fields["name"] = str(about).partition("/")
    elif isinstance(reference, dict):
        fields |= {key: str(reference[key]) for key in ("namespace", "name") if reference.get(key)}
    return {**fields, **getattr(record, "fields", {}), **({"error": error} if error else {})}


class JsonFormatter(logging.Formatter):
    """See the module."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(fields_of(record, self.formatException(record.exc_info) if record.exc_info else ""), ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """The same for people: ``TIME LEVEL LOGGER [NAMESPACE/NAME] MESSAGE``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record, self.formatException(record.exc_info) if record.exc_info else "")
        about = f" [{fields.get('namespace', '')}/{fields['name']}]" if "name" in fields else ""
        line = f"{fields['time']} {fields['level'].upper()} {fields['logger']}{about} {fields['message']}"
        return "\\n".join((f"{line}: {fields['error']}" if "error" in fields else line).splitlines())


FORMATS: dict[str, type[logging.Formatter]] = {"json": JsonFormatter, "text": TextFormatter}


def message_of(line: str) -> str:
    """The message of a record's line; of any other line, that."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(line)["message"])
    found = _TEXT.fullmatch(line)
    return found[1] if found else line


def configure(level: str, form: str = "json", stream: IO[str] | None = None, about: str = "") -> None:
    """All loggers to a stream: standard output. kopf's own tell nothing below warnings: they log every event. ``about``: the StreamJoin of
    records that do not say."""
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(FORMATS[form]())

    def say(record: logging.LogRecord) -> bool:
        record.streamjoin = getattr(record, "streamjoin", about)
        return True

    handler.addFilter(say)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("kopf", "aiohttp", "py4j"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Style:
    """How a process of a pod logs."""

    level: str
    form: str
    about: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Style | None:
        """None: nobody says, as outside of pods."""
        level, form = environment.get(LEVEL), environment.get(FORMAT)
        return None if level is None or form not in FORMATS else cls(level, form, environment.get(ABOUT, ""))

    def configure(self, stream: IO[str] | None = None) -> None:
        """All loggers of this process (:func:`configure`)."""
        configure(self.level, self.form, stream, self.about)

    @property
    def java_level(self) -> str:
        """Of Spark's own records: more is of use to those alone who look for its faults."""
        return {"debug": "info", "error": "error"}.get(self.level, "warn")

    @property
    def log4j(self) -> str:
        """The properties with which Java writes the same lines."""
        return _LOG4J.format(level=self.java_level, layout=_JSON if self.form == "json" else _TEXT_LAYOUT)


_LEVELS = "%p{FATAL=critical, ERROR=error, WARN=warning, INFO=info, DEBUG=debug, TRACE=debug}"
_EVENT = {
    "time": {"$resolver": "timestamp", "pattern": {"format": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "timeZone": "UTC"}},
    "level": {"$resolver": "pattern", "pattern": _LEVELS, "stackTraceEnabled": False},
    "logger": {"$resolver": "logger", "field": "name"},
    "message": {"$resolver": "message", "stringified": True},
    "error": {"$resolver": "exception", "field": "stackTrace", "stackTrace": {"stringified": True}},
}
_JSON = f"type = JsonTemplateLayout\nappender.console.layout.eventTemplate = {json.dumps(_EVENT)}"
_TEXT_LAYOUT = (
    "type = PatternLayout\nappender.console.layout.pattern = "
    "%d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p{WARN=WARNING, FATAL=CRITICAL} %c %m%ex{full}{separator(\\\\\\\\n)}%n"
)
_LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_OUT
appender.console.layout.{layout}
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
"""


class Lines(io.TextIOBase):
    """A file whose lines become records, each with the level that its first word says."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._mine = threading.local()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if getattr(self._mine, "is_writing", False):
            return len(text)  # logging itself has failed, and says so here
        *lines, self._mine.rest = (getattr(self._mine, "rest", "") + text).split("\n")
        self._mine.is_writing = True
        try:
            for line in filter(str.strip, lines):
                level = logging.ERROR if line.startswith(SENTENCE) else logging.WARNING if line.startswith("warning: ") else logging.INFO
                self._logger.log(level, "%s", line.removeprefix("warning: "))
        finally:
            self._mine.is_writing = False
        return len(text)


@contextlib.contextmanager
def in_pod(environment: Mapping[str, str]) -> Iterator[None]:
    """As long as this lasts, all that the process says is records on standard output, if its environment says how."""
    style = Style.of(environment)
    if style is None:
        yield
        return
    style.configure()
    with contextlib.redirect_stderr(Lines(logging.getLogger("streamjoin"))):
        yield
