"""Queries over HTTP, beside the plan API or by themselves (``streamjoin serve``): one answer for one query (``POST /v1/query``), and a
join's results as they are found (``GET /v1/queries/{join}``)."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

from streamjoin.bearer import Token
from streamjoin.query.catalog import Catalog
from streamjoin.query.continuous import Continuous, Position
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.messages import Form, Told
from streamjoin.query.pool import Pool
from streamjoin.serve.admission import Admission, Answer, Content, Refused, Request, Stream
from streamjoin.serve.event_stream import CONTENT_TYPE, stream
from streamjoin.serve.followers import Follower, Followers
from streamjoin.serve.messages import BodyError, QueryWish, read_following, read_query
from streamjoin.serve.query_metrics import QueryMetrics

QUERY = "/v1/query"
QUERIES = "/v1/queries/"
PRIVATE = (f"{QUERIES}{{join}}",)
"""What these show is for nobody but this machine where there is no token."""
METHODS = {QUERY: ("POST",), PRIVATE[0]: ("GET",)}
_STATUS = {
    Why.WRONG: 400,
    Why.UNKNOWN: 404,
    Why.ABSENT: 410,
    Why.LARGE: 422,
    Why.BUSY: 503,
    Why.STORAGE: 503,
    Why.SLOW: 504,
    Why.GONE: 504,
}


class QueryApi:
    """Any thread may call it."""

    def __init__(
        self,
        pool: Pool,
        token: Token | None = None,
        *,
        metrics: QueryMetrics | None = None,
        followers: Followers | None = None,
    ) -> None:
        """``metrics``: whose page tells of the queries; without ``followers`` they are those of the pool's join, as many as usual."""
        self._pool = pool
        self.admission = Admission(METHODS, token, private=PRIVATE)
        self.metrics = metrics or QueryMetrics(pool.catalog.name)
        self.followers = followers or Followers(pool, self.metrics)

    def adopt(self, catalog: Catalog) -> None:
        """The manifest has other joins now; connections stay."""
        self._pool.adopt(catalog)
        self.followers.adopt()

    def answers(self, path: str) -> bool:
        """Whether a request for this is one for queries."""
        return path == QUERY or path.startswith(QUERIES)

    def answer(self, request: Request) -> Answer | Content | Stream:
        """The answer to a request that was admitted."""
        try:
            if request.path == QUERY:
                return self._told(request)
            return self._followed(request)
        except BodyError as error:
            self.metrics.failed(Why.WRONG)
            return Refused(400, str(error)).answer
        except QueryError as error:
            headers = {"Retry-After": "1"} if error.why is Why.BUSY else {}
            return Refused(_STATUS[error.why], str(error), **headers).answer

    def ask(self, wish: QueryWish, form: Form, is_gone: Callable[[], bool]) -> Told:
        """One answer, counted. Raises QueryError."""
        with self.metrics.query():
            told = self._pool.ask(wish.sql, form, rows=wish.limit, seconds=wish.timeout_seconds, is_gone=is_gone)
        self.metrics.read(told.read_bytes)
        return told

    def follow(self, query: Continuous, after: str | None, form: Form, is_gone: Callable[[], bool], *, field: str = "after") -> Follower:
        """A follower, to be closed; a refusal is counted. ``field``: where ``after`` was given. Raises QueryError."""
        try:
            return self.followers.open(query, None if after is None else Position.parse(after, field), form, is_gone)
        except QueryError as error:
            self.metrics.failed(error.why)
            raise

    def _told(self, request: Request) -> Content:
        form = _form(request.accept)
        told = self.ask(read_query(request.body), form, request.is_gone)
        headers = {
            "StreamJoin-Epoch": str(told.epoch),
            "StreamJoin-Committed-At": told.committed,
            "StreamJoin-Rows": str(told.rows),
            "StreamJoin-Truncated": "true" if told.is_cut else "false",
            "StreamJoin-Read-Bytes": f"{told.read_bytes}/{told.held_bytes}",
        }
        return Content((form.value, told.body), headers)

    def _followed(self, request: Request) -> Stream:
        wish = read_following(request.parameters)
        join = unquote(request.path.removeprefix(QUERIES))
        # The header is a client's that has come again, with the address that it came with first.
        given = wish.after if request.last_event_id is None else request.last_event_id
        field = "after" if request.last_event_id is None else "Last-Event-ID"
        follower = self.follow(wish.query(join), given, Form.JSON, request.is_gone, field=field)
        return Stream(
            CONTENT_TYPE,
            lambda outlet: stream(follower, outlet, request.is_gone, follower.patience_seconds),
            {"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )


def _form(accept: str) -> Form:
    """Arrow for those who name it, else JSON lines."""
    return Form.ARROW if Form.ARROW.value in accept.lower() else Form.JSON
