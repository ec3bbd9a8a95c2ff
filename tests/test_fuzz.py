"""Damaged input ends no process, hangs no join and loses no record without a word (``fuzz``)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cases import how_many
from fuzz import FORMS, run
from fuzz_inputs import mutated, sure_of


@pytest.mark.parametrize("form", FORMS)
def test_damaged_input_is_read_or_rejected_record_by_record(form: str, tmp_path: Path) -> None:
    found = run(form, 0, how_many(200, of=100), tmp_path)
    assert not found, "\n".join(found)


def test_the_reference_is_sure_of_what_is_plain_and_of_what_is_no_record() -> None:
    plain = b'{"id": 1, "k": 2, "v": "x", "d": "1.50", "f": 1.5, "b": true}\n'
    sure = sure_of(plain + b"null\n\n{\n" + plain.replace(b"1.5,", b'"1.5",') + plain, "json", b"", [])
    assert (sure.rows, sure.letters, sure.records) == ({(1, 2, "x"): 2}, 2, 5)


def test_mutations_change_most_inputs() -> None:
    assert sum(mutated(b"some text", random.Random(seed)) != b"some text" for seed in range(100)) > 90
