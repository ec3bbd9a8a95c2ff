"""What is told of an error has no value of a record, and still says what is wrong."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamjoin.api.failure import failure_of
from streamjoin.io.base import SourceError
from streamjoin.io.telling import told

SECRET = "hush-4711"


FAILURES: dict[str, Callable[[], object]] = {
    "Arrow casts": lambda: pc.cast(pa.array([SECRET]), pa.int64()),
    "Arrow converts": lambda: pa.array([SECRET], pa.int64()),
    "Arrow narrows": lambda: pc.cast(pa.array([4711]), pa.int8()),
    "Python reads": lambda: int(SECRET),
    "Python looks up": lambda: {}[SECRET],
    "Python decodes": lambda: SECRET.encode().decode("utf-16", "strict"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_what_a_library_could_not_take_is_not_told(failure: str, tmp_path: Path) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of any kind
        FAILURES[failure]()
    texts = [told(raised.value), failure_of(raised.value, "the trace", tmp_path).sentence]
    for text in texts:
        assert "hush" not in text
        assert "4711" not in text
    assert type(raised.value).__name__ in texts[1]


def test_what_this_program_and_the_system_say_is_told_whole() -> None:
    ours = SourceError("streams[0].source.files.path: '/data/2024' has 17 files of another schema;\n name one")
    assert told(ours) == "streams[0].source.files.path: '/data/2024' has 17 files of another schema; name one"
    system = OSError(errno.ENOSPC, "No space left on device", "/data/2024")
    assert told(system) == "[Errno 28] No space left on device: '/data/2024'"
