"""``POST /v1/query``, beside the plan API or by itself (``streamjoin serve``)."""

from __future__ import annotations

from collections.abc import Callable

from streamjoin.query.errors import QueryError, Why
from streamjoin.query.messages import Form
from streamjoin.query.pool import Pool
from streamjoin.serve.admission import Admission, Answer, Content, Refused
from streamjoin.serve.messages import BodyError, QueryWish, read_query
from streamjoin.serve.token import TokenFile

QUERY = "/v1/query"
METHODS = {QUERY: ("POST",)}
_STATUS = {Why.WRONG: 400, Why.ABSENT: 410, Why.LARGE: 422, Why.BUSY: 503, Why.STORAGE: 503, Why.SLOW: 504}


class QueryApi:
    """Any thread may call it."""

    def __init__(self, pool: Pool, token: TokenFile | None = None) -> None:
        self._pool = pool
        self._admission = Admission(METHODS, token)

    def admit(self, method: str, path: str, authorization: str | None, *, address: str, host: str) -> None:
        """As :meth:`streamjoin.serve.admission.Admission.admit`."""
        self._admission.admit(method, path, authorization, address=address, host=host)

    def answer(
        self, method: str, path: str, body: bytes, *, accept: str = "", is_gone: Callable[[], bool] = lambda: False
    ) -> Answer | Content:
        """The answer to a request that was admitted. ``accept``: its header; ``is_gone``: whether the client has closed its connection."""
        try:
            wish = read_query(body)
            return self._told(wish, _form(accept), is_gone)
        except BodyError as error:
            return Refused(400, str(error)).answer
        except QueryError as error:
            headers = {"Retry_After": "1"} if error.why is Why.BUSY else {}
            return Refused(_STATUS[error.why], str(error), **headers).answer

    def _told(self, wish: QueryWish, form: Form, is_gone: Callable[[], bool]) -> Content:
        told = self._pool.ask(wish.sql, form, rows=wish.limit, seconds=wish.timeout_seconds, is_gone=is_gone)
        headers = {
            "StreamJoin-Epoch": str(told.epoch),
            "StreamJoin-Committed-At": told.committed,
            "StreamJoin-Rows": str(told.rows),
            "StreamJoin-Truncated": "true" if told.is_cut else "false",
            "StreamJoin-Read-Bytes": f"{told.read_bytes}/{told.held_bytes}",
        }
        return Content((form.value, told.body), headers)


def _form(accept: str) -> Form:
    """Arrow for those who name it, else JSON lines."""
    return Form.ARROW if Form.ARROW.value in accept.lower() else Form.JSON
