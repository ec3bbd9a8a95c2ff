"""What Kafka's source and sink share: how to reach the brokers, and what their errors mean to somebody who can mend them.

Always holds: secrets are read where a client is made, so they are in no checkpoint, no log and no message between driver and tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from streamjoin.io.base import UnavailableError

RECONNECT_MILLIS = 1000
"""A broker that is back is noticed within this time; librdkafka's own ten seconds would cost as many epochs."""
SECRET = "file:"  # noqa: S105 - how one is referred to
log = logging.getLogger("streamjoin.kafka")

_MENDABLE = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "allow the client to use the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "allow the client to use the group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "allow the client to write idempotently",
    KafkaError.SASL_AUTHENTICATION_FAILED: "correct the sasl options",
    KafkaError._AUTHENTICATION: "correct the sasl options",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "create the topic, or correct its name",
    KafkaError._UNKNOWN_TOPIC: "create the topic, or correct its name",
    KafkaError._UNKNOWN_PARTITION: "create the topic anew with as many partitions as before, or choose a new checkpoint.location",
    KafkaError.TOPIC_EXCEPTION: "correct the topic's name",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise message.max.bytes of the options, the topic and the brokers, or select less in output.select",
    KafkaError.POLICY_VIOLATION: "change what is written, or the topic's policy",
    KafkaError.INVALID_RECORD: "change what is written (a compacted topic needs a key), or the topic's settings",
    KafkaError._INVALID_ARG: "correct the options",
}
"""Errors that waiting does not mend, and what does."""


@dataclass(frozen=True)
class KafkaClient:
    """How to reach one topic."""

    servers: str
    topic: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of librdkafka; values that begin with ``file:`` name files with the values."""
    timeout_seconds: float = 30.0

    def settings(self, own: Mapping[str, Any], errors: type[Exception]) -> dict[str, Any]:
        """The options of a client; ``own`` win over the user's. Raises ``errors`` where a secret cannot be read."""
        given = {name: self._read(name, value, errors) for name, value in self.options}
        defaults = {"log_level": 4, "reconnect.backoff.max.ms": RECONNECT_MILLIS}
        return {**defaults, "logger": log, "bootstrap.servers": self.servers, **given, **own}

    def make(self, kind: Callable[[dict[str, Any]], Any], own: Mapping[str, Any], errors: type[Exception]) -> Any:
        """A Consumer, Producer or AdminClient. Raises ``errors`` where librdkafka refuses an option."""
        try:
            return kind(self.settings(own, errors))
        except (KafkaException, ValueError, TypeError) as error:
            raise errors(f"{self}: the options are refused ({reason_of(error)}); correct kafka.options") from None

    def _read(self, name: str, value: str, errors: type[Exception]) -> str:
        if not value.startswith(SECRET):
            return value
        path = value.removeprefix(SECRET)
        try:
            return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
            where = f"kafka.options[{name}]: {path}"
            raise errors(f"{where} cannot be read ({reason}); mount it where the driver and the workers run") from None

    def unavailable(self, what: str, reason: str) -> UnavailableError:
        """No answer in time; ``what`` was asked for."""
        because = f" ({reason})" if reason else ""
        return UnavailableError(
            f"{self}: {what} within {self.timeout_seconds:g} s{because}; see whether the brokers are up, and whether kafka.options fit them"
        )

    def failure(self, error: KafkaError, errors: type[Exception], what: str) -> Exception:
        """``errors`` for what waiting does not mend, UnavailableError for the rest."""
        remedy = _MENDABLE.get(error.code())
        if remedy is None:
            return self.unavailable(what, error.str())
        return errors(f"{self}: {error.str()}; {remedy}")

    def __str__(self) -> str:
        return f"Kafka topic {self.topic} on {self.servers}"


class LastError:
    """What a client has complained about last; librdkafka goes on trying by itself, so this is only for messages."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, error: KafkaError) -> None:
        # The consequence of others, which say more.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.text:
            self.text = error.str()


def error_of(error: Exception) -> KafkaError | None:
    """The KafkaError that an exception carries."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return None


def reason_of(error: Exception) -> str:
    """An exception as half a sentence."""
    found = error_of(error)
    return found.str() if found is not None else str(error)
