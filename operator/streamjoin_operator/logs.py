"""Logs as JSON, one object a line on standard error: time, level, logger, message, and the StreamJoin it is about."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """See the module."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        about = getattr(record, "streamjoin", None)
        if about is None:
            reference = getattr(record, "k8s_ref", None)  # kopf's own lines
            about = f"{reference.get('namespace')}/{reference.get('name')}" if isinstance(reference, dict) else None
        if about is not None:
            line["streamjoin"] = about
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str) -> None:
    """All loggers to standard error. kopf's own tell nothing below warnings: they log every event."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
