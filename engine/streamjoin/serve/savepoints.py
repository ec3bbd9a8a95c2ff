"""Savepoints over HTTP: ``GET /v1/savepoints``, and ``GET``, ``PUT`` and ``DELETE`` of one of them.

What is put or deleted is done with the next commit, which the join makes at once if it has nothing else to do. Until then the answer has
the status 202, and who asked asks again.
"""

from __future__ import annotations

from urllib.parse import unquote

from streamjoin.controlplane.savepoints import SavepointMissing, SavepointRefused, Savepoints, missing
from streamjoin.serve.admission import Answer, Refused, Request
from streamjoin.serve.messages import SavepointAnswer, SavepointsAnswer

PATH = "/v1/savepoints"


def answered(savepoints: Savepoints, request: Request) -> Answer:
    """Raises Refused."""
    name = unquote(request.path.removeprefix(PATH).removeprefix("/"))
    try:
        if request.method == "PUT":
            savepoints.keep(name)
        elif request.method == "DELETE":
            savepoints.delete(name)
    except SavepointRefused as error:
        raise Refused(422, str(error)) from error
    except SavepointMissing as error:
        raise Refused(404, str(error)) from error
    wishes, kept = savepoints.wishes, savepoints.kept
    found = {each: SavepointAnswer.of(each, kept.get(each), wishes.get(each)) for each in sorted({*kept, *wishes})}
    if request.path == PATH:
        return Answer(200, SavepointsAnswer(savepoints=list(found.values())))
    if name not in found:
        raise Refused(404, missing(name, kept))
    return Answer(202 if name in wishes else 200, found[name])
