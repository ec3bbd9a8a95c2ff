"""Logs on standard output, one line for each record: as JSON (time, level, logger, message, and the namespace and the name of the
StreamJoin that it is about), or as text with the same fields.

Always holds: a record is one line, also with a traceback, which is in the field ``error``.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


def fields_of(record: logging.LogRecord, error: str = "") -> dict[str, str]:
    """Of one record, in their order; ``error``: the traceback, if there is one."""
    fields = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    about = getattr(record, "streamjoin", None)
    reference = getattr(record, "k8s_ref", None)  # kopf's own lines
    if about is not None:
        fields["namespace"], _, fields["name"] = str(about).partition("/")
    elif isinstance(reference, dict):
        fields |= {key: str(reference[key]) for key in ("namespace", "name") if reference.get(key)}
    return {**fields, "error": error} if error else fields


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


def configure(level: str, form: str = "json") -> None:
    """All loggers to standard output. kopf's own tell nothing below warnings: they log every event."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(FORMATS[form]())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
