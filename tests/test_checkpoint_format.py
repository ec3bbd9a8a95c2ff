"""A checkpoint has the number of its format: one that is written now is gone on with, and one of another number is refused."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import SECOND, driver_for, make_job, oracle, output_of
from streamjoin import __version__
from streamjoin.elastic.distribution import Distribution
from streamjoin.elastic.path_plans import Flowing, PathPlan
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.checkpoint import Checkpoint, PlanState
from streamjoin.state.log import END, FORMAT, read_latest
from streamjoin.state.storage import ObjectStorage, StorageError
from test_crashes import OPTIONS, WITHIN, make_inputs

EPOCHS = 3


def stopped(root: Path, **options: Any) -> ObjectStorage:
    """The checkpoint of a join that was stopped after some epochs."""
    storage, inputs = ObjectStorage(str(root / "state")), make_inputs()
    driver = driver_for(make_job(root, **OPTIONS, **options), inputs, storage, InlineRunner())
    driver.start()
    for _ in range(EPOCHS):
        driver.step()
    return storage


@pytest.mark.parametrize("kind", ["inner", "left", "full"])
def test_one_that_is_written_now_is_gone_on_with(kind: str, tmp_path: Path) -> None:
    storage, inputs = stopped(tmp_path, join_type=kind), make_inputs()
    before = read_latest(storage)
    assert before is not None
    assert before.checkpoint.epoch == EPOCHS - 1
    assert before.checkpoint.state.blocks, "it holds something to go on with"
    assert Checkpoint.decode(before.checkpoint.encode()) == before.checkpoint
    driver = driver_for(make_job(tmp_path, **OPTIONS, join_type=kind), inputs, storage, InlineRunner())
    driver.start()
    for _ in range(100):
        if driver.step(final=True) is None:
            break
    inside = f"abs(l.at - r.at) <= {WITHIN * SECOND}"
    assert output_of(tmp_path) == oracle(inputs, (pa.int64(), pa.int64()), OPTIONS["on"], inside, SECOND, kind=kind)


def without_tokens(values: dict[str, Any]) -> None:
    del values["checkpoint"]["state"]["tokens"]


def with_another(values: dict[str, Any]) -> None:
    values["checkpoint"]["input"]["speeds"] = []


@pytest.mark.parametrize(
    ("changed", "found", "wanted"),
    [
        (lambda values: values.update(format=FORMAT + 1), f"format {FORMAT + 1}", f"reads format {FORMAT}"),
        (lambda values: values.update(format=0), "format 0", f"reads format {FORMAT}"),
        (lambda values: values.pop("format"), "format None", f"reads format {FORMAT}"),
        (lambda values: values.pop("writer"), f"format {FORMAT} with other fields (Entry: writer)", "cannot read them"),
        (without_tokens, f"format {FORMAT} with other fields (HeldState: tokens)", "cannot read them"),
        (with_another, f"format {FORMAT} with other fields (InputState: speeds)", "cannot read them"),
    ],
)
def test_another_format_is_refused_and_the_checkpoint_stays_as_it_is(
    changed: Callable[[dict[str, Any]], Any], found: str, wanted: str, tmp_path: Path
) -> None:
    storage = stopped(tmp_path)
    path = max((tmp_path / "state" / "log").glob("*.entry"))
    data = path.read_bytes()
    length, _ = END.unpack(data[-END.size :])
    segment, values = data[: -END.size - length], json.loads(data[-END.size - length : -END.size])
    assert values["format"] == FORMAT
    values["version"] = "0.9.0"
    changed(values)
    text = json.dumps(values).encode()
    path.write_bytes(segment + text + END.pack(len(text), zlib.crc32(text, zlib.crc32(segment))))
    before = {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}
    driver = driver_for(make_job(tmp_path, **OPTIONS), make_inputs(), storage, InlineRunner())
    with pytest.raises(StorageError) as refused:
        driver.start()
    assert str(refused.value) == (
        f"the checkpoint has {found}, written by streamjoin 0.9.0, and this version ({__version__}) {wanted};"
        " go on with streamjoin 0.9.0, or choose a new checkpoint.location"
    )
    assert {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()} == before


def test_how_streams_meet_is_read_as_it_was_written() -> None:
    lookup, semi = (Distribution.LOOKUP,), (Distribution.SEMI_JOIN,)
    ways = (PathPlan((1, 2), fetches=True), PathPlan((0, 2), distributions=lookup), PathPlan((1, 0), distributions=semi))
    assert Checkpoint.decode(Checkpoint(plan=PlanState(path_plans=ways)).encode()).plan.path_plans == ways
    known = Flowing([1.0], [2.0], [3.0], [4.0], [], [])
    assert Flowing.from_json(json.loads(json.dumps(known.to_json()))) == known
