"""Which checkpoints a release goes on from: those that earlier ones have left, and those of the next minor version where it may."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import SECOND, driver_for, oracle, output_of
from kept_checkpoints import CONDITION, KINDS, ROOT, WITHIN_SECONDS, Kept, found
from streamjoin import __version__
from streamjoin.elastic.meetings import Meeting
from streamjoin.elastic.sequences import Flowing, Way, meetings_of
from streamjoin.runner.inline import InlineRunner
from streamjoin.state import version
from streamjoin.state.log import END, Checkpoint, read_latest
from streamjoin.state.storage import ObjectStorage, StorageError

KEPT = found()


def ended(kept: Kept, root: Path) -> None:
    """The rest of its input is joined, and all results are those of an oracle."""
    storage = ObjectStorage(str(root / "state"))
    before = read_latest(storage)
    assert before is not None
    assert before.checkpoint.epoch == kept.options["epochs"] - 1
    assert before.checkpoint.blocks, "it holds something to go on with"
    inputs = kept.inputs
    driver = driver_for(kept.job(root), inputs, storage, InlineRunner())
    driver.start()
    for _ in range(100):
        if driver.step(final=True) is None:
            break
    inside = f"abs(l.at - r.at) <= {WITHIN_SECONDS * SECOND}"
    kind = kept.options.get("join_type", "inner")
    assert output_of(root) == oracle(inputs, (pa.int64(), pa.int64()), CONDITION, inside, SECOND, kind=kind)


def test_checkpoints_of_this_release_are_kept() -> None:
    """python tests/kept_checkpoints.py NAME makes them, with each release."""
    assert {kept.directory.name for kept in KEPT if kept.directory.parent.name == __version__} == set(KINDS)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: str(kept.directory.relative_to(ROOT)))
def test_a_checkpoint_of_an_earlier_release_is_gone_on_with(kept: Kept, tmp_path: Path) -> None:
    kept.copy(tmp_path)
    ended(kept, tmp_path)


def rewritten(root: Path, change: Any) -> None:
    """The newest entry of a log, its JSON changed, as another release would have written it."""
    path = max((root / "state" / "log").glob("*.entry"))
    data = path.read_bytes()
    length, _ = END.unpack(data[-END.size :])
    segment, values = data[: -END.size - length], json.loads(data[-END.size - length : -END.size])
    change(values)
    text = json.dumps(values).encode()
    path.write_bytes(segment + text + END.pack(len(text), zlib.crc32(text, zlib.crc32(segment))))


def newer(values: dict[str, Any], needs: int) -> None:
    """What the next minor version might write."""
    values |= {"minor": version.MINOR + 1, "needs": needs, "version": "0.9.0", "later": 1}
    values["checkpoint"]["invented"] = {"later": [1, 2]}


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: str(kept.directory.relative_to(ROOT)))
def test_one_of_the_next_minor_version_is_gone_on_with_where_nothing_new_is_needed(kept: Kept, tmp_path: Path) -> None:
    kept.copy(tmp_path)
    rewritten(tmp_path, lambda values: newer(values, version.MINOR))
    ended(kept, tmp_path)


def test_one_that_needs_what_is_not_known_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    kept = KEPT[0]
    kept.copy(tmp_path)
    rewritten(tmp_path, lambda values: newer(values, version.MINOR + 1))
    before = {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}
    driver = driver_for(kept.job(tmp_path), kept.inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    with pytest.raises(StorageError, match=r"written by streamjoin 0\.9\.0, and uses what is new in it .*; go on with that version"):
        driver.start()
    assert {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()} == before


def test_another_format_is_refused(tmp_path: Path) -> None:
    kept = KEPT[0]
    kept.copy(tmp_path)
    rewritten(tmp_path, lambda values: values.update(format=4))
    with pytest.raises(StorageError, match=f"the log's format is 4, this version reads {version.FORMAT}; use the version that wrote it"):
        read_latest(ObjectStorage(str(tmp_path / "state")))


def test_an_entry_needs_a_field_of_a_later_minor_version_only_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "SINCE", {"fed": 2, "main": 1})
    assert version.head(Checkpoint())["needs"] == 0
    assert version.head(Checkpoint(main="l.k = r.k"))["needs"] == 1
    assert version.head(Checkpoint(main="l.k = r.k", fed=(1,)))["needs"] == 2  # type: ignore[arg-type]


WAYS = (Way((1, 2), fetches=True), Way((0, 2), meetings=(Meeting.ASK,)), Way((1, 0), meetings=(Meeting.KEYS_FIRST,)))


def test_how_streams_meet_is_read_as_it_was_written_and_needs_no_release_that_knows_it() -> None:
    """Results do not depend on it. A release that does not know it has partial results shipped, as before."""
    made = Checkpoint(ways=WAYS, meetings=meetings_of(WAYS))
    head, text = version.head(made), json.loads(json.dumps(made.to_json()))
    assert head["minor"] == version.MINOR
    assert head["needs"] == 0
    assert Checkpoint.from_json(text).ways == WAYS
    assert text["ways"] == [[[1, 2], True], [[0, 2], False], [[1, 0], False]], "as earlier releases read it"
    del text["meetings"]
    assert Checkpoint.from_json(text).ways == tuple(replace(way, meetings=()) for way in WAYS)
    assert meetings_of(tuple(replace(way, meetings=()) for way in WAYS)) == Checkpoint().meetings


def test_what_earlier_releases_have_measured_is_read() -> None:
    known = Flowing([1.0], [2.0], [3.0], [4.0], [], [])
    assert Flowing.from_json(json.loads(json.dumps(known.to_json()))) == known
    before = {name: value for name, value in known.to_json().items() if name not in {"admitted", "window", "exchange"}}
    assert Flowing.from_json(before | {"invented": [1.0]}) == replace(known, admitted=())


def test_every_field_of_a_checkpoint_is_of_the_first_minor_version_or_has_one() -> None:
    """A field that is new is listed in ``version.SINCE``, with a new MINOR; then it is added here."""
    first = set(json.loads((ROOT / "fields.json").read_text()))
    assert set(Checkpoint.__slots__) - first == set(version.SINCE)
    assert max(version.SINCE.values(), default=0) == version.MINOR
