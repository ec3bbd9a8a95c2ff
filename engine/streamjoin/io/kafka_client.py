"""Code that Kafka's source and sink share: how to reach the brokers, and what their errors mean to somebody who can mend them.

Always holds: a secret given as ``file:`` or ``env:`` is read where a client is made, so it is in no checkpoint, no log and no message
between driver and tasks; and no text made here has an option's value in it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from streamjoin.io.base import UnavailableError
from streamjoin.io.references import resolved, settings
from streamjoin.io.schema_registry import RegistryConfig

if TYPE_CHECKING:
    from streamjoin.manifest.connectors.kafka import KafkaSink, KafkaSource

RECONNECT_MILLIS = 1000
"""A broker that is back is noticed within this time; librdkafka's own ten seconds would cost as many epochs."""
log = logging.getLogger("streamjoin.kafka")

CREDENTIALS = (
    "correct kafka.options[sasl.username] and kafka.options[sasl.password], and set kafka.options[sasl.mechanism] to one that the brokers"
    " take"
)
CERTIFICATES = (
    "let kafka.options[ssl.ca.location] name the certificate of the authority that signed the brokers' certificates, and use the host names"
    " of these in bootstrapServers"
)
KEYLESS = "change the topic's settings (a compacted topic needs keys), and start again; or let onBad of the output be deadLetter"
_MENDABLE = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "allow the client to use the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "allow the client to use the group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "allow the client to write idempotently",
    KafkaError.SASL_AUTHENTICATION_FAILED: CREDENTIALS,
    KafkaError._AUTHENTICATION: CREDENTIALS,
    KafkaError.UNKNOWN_TOPIC_OR_PART: "create the topic, or correct its name",
    KafkaError._UNKNOWN_TOPIC: "create the topic, or correct its name",
    KafkaError._UNKNOWN_PARTITION: "create the topic anew with as many partitions as before, or choose a new checkpoint.location",
    KafkaError.TOPIC_EXCEPTION: "correct the topic's name",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise message.max.bytes of kafka.options and the brokers, and max.message.bytes of the topic, and"
    " start again; or let onBad of the output be deadLetter",
    KafkaError.POLICY_VIOLATION: "change what is written, or the topic's policy",
    KafkaError.INVALID_RECORD: KEYLESS,
    KafkaError._INVALID_DIFFERENT_RECORD: KEYLESS,
    KafkaError._INVALID_ARG: "correct the options",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "allow the client to use the transactional ids that begin with streamjoin-",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "lower kafka.timeout, or raise the brokers' transaction.max.timeout.ms",
}
"""Errors that waiting does not mend, and what does."""


@dataclass(frozen=True)
class KafkaClient:
    """How to reach a topic, or all whose names match a pattern."""

    servers: str
    topic: str
    """Its name, or the pattern."""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of librdkafka; a value ``file:/path`` is that file's content, ``env:NAME`` that environment variable's."""
    timeout_seconds: float = 30.0
    is_pattern: bool = False

    def one(self, topic: str) -> KafkaClient:
        """The same for one of the topics."""
        return replace(self, topic=topic, is_pattern=False) if self.is_pattern else self

    def settings(self, own: Mapping[str, Any], errors: type[Exception]) -> dict[str, Any]:
        """The options of a client; ``own`` win over the user's. Raises ``errors`` where a secret cannot be read."""
        given = resolved(self.options, "kafka.options", "the driver and the workers run", errors)
        defaults = {"log_level": 4, "reconnect.backoff.max.ms": RECONNECT_MILLIS}
        return {**defaults, "logger": log, "bootstrap.servers": self.servers, **given, **own}

    def make(self, kind: Callable[[dict[str, Any]], Any], own: Mapping[str, Any], errors: type[Exception]) -> Any:
        """A Consumer, Producer or AdminClient. Raises ``errors`` where librdkafka refuses an option."""
        try:
            return kind(self.settings(own, errors))
        except (KafkaException, ValueError, TypeError) as error:
            raise errors(f"{self}: the options are refused ({reason_of(error)}); correct kafka.options") from None

    def make_first(self, kinds: Sequence[Callable[[dict[str, Any]], Any]], own: Mapping[str, Any], errors: type[Exception]) -> Any:
        """A client of the first kind that takes the options. Raises ``errors`` if the last kind refuses them, too."""
        for kind in kinds[:-1]:
            with contextlib.suppress(KafkaException):
                return kind(self.settings(own, errors))
        return self.make(kinds[-1], own, errors)

    def unavailable(self, what: str, reason: str) -> UnavailableError:
        """No answer in time; ``what`` was asked for."""
        because = f" ({reason})" if reason else ""
        return UnavailableError(
            f"{self}: {what} within {self.timeout_seconds:g} s{because}; see whether the brokers are up, and whether kafka.options fit them"
        )

    def cluster(self, errors: type[Exception]) -> str | None:
        """The id of the brokers' cluster; None where they know none. Raises UnavailableError, and ``errors``."""
        admin = self.make(AdminClient, {}, errors)
        try:
            found: str | None = admin.list_topics(self.topic, timeout=self.timeout_seconds).cluster_id
        except KafkaException as unanswered:
            raise self.unavailable("no answer", reason_of(unanswered)) from unanswered
        return found

    def failure(self, error: KafkaError, errors: type[Exception], what: str) -> Exception:
        """``errors`` for what waiting does not mend, UnavailableError for the rest."""
        remedy = _remedy(error)
        if remedy is None:
            return self.unavailable(what, error.str())
        return errors(f"{self}: {error.str()}; {remedy}")

    def __str__(self) -> str:
        return f"Kafka {'topics that match' if self.is_pattern else 'topic'} {self.topic} on {self.servers}"


class Complaints:
    """What a client says that went wrong. It goes on trying by itself, so this is for messages and counts, but for :meth:`refusal`.

    Callbacks come only while the client is polled, in the thread that polls it.
    """

    def __init__(self) -> None:
        self.text = ""
        """The last one."""
        self.count = 0
        """All that there ever were."""
        self._refused: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # the consequence of others, which say more
            self.text = self.text or error.str()
            return
        self.count += 1
        self.text = error.str()
        if error.code() in _REFUSALS and _remedy(error) is not None:
            self._refused = error

    def forget(self) -> None:
        """What was said before has nothing to do with what is asked for next."""
        self.text, self._refused = "", None

    def refusal(self, client: KafkaClient, errors: type[Exception]) -> Exception | None:
        """``errors`` where the brokers would not have this client, or it would not trust them: there is no point in waiting then."""
        return None if self._refused is None else client.failure(self._refused, errors, "no answer")


_REFUSALS = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL)


def _remedy(error: KafkaError) -> str | None:
    """What mends an error that waiting does not; None for the others."""
    if error.code() == KafkaError._SSL:  # also says that a connection broke while it was made
        return CERTIFICATES if "certificate" in error.str() else None
    return _MENDABLE.get(error.code())


def error_of(error: Exception) -> KafkaError | None:
    """The KafkaError that an exception carries."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return None


def reason_of(error: Exception) -> str:
    """An exception as half a sentence."""
    found = error_of(error)
    return found.str() if found is not None else str(error)


def client_of(model: KafkaSource | KafkaSink, pattern: str | None = None) -> KafkaClient:
    """The client that a manifest describes. ``pattern``: of topics' names, instead of one."""
    topic = pattern or model.topic
    assert topic is not None, "the manifest demands one"
    options, timeout_seconds = settings(model.options), model.timeout.micros / 1e6
    return KafkaClient(model.bootstrap_servers, topic, options, timeout_seconds, is_pattern=pattern is not None)


def registry_config(model: KafkaSource | KafkaSink) -> RegistryConfig | None:
    """The schema registry that a manifest describes."""
    given = model.schema_registry
    return None if given is None else RegistryConfig(given.url, settings(given.options), model.timeout.micros / 1e6)
