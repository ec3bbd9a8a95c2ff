"""The version of what the commit log says: which releases can go on from which checkpoints.

An entry says ``format``, ``minor`` and ``needs``. Releases of another ``format`` refuse it. Within one, a release with a later minor
version only adds fields to a checkpoint. So, on purpose:

- *Backward:* a field that an entry lacks has its default, which means what its absence meant.
- *Forward:* fields that a release does not know are left out, if the entry ``needs`` none of them: as long as a field that a later minor
  version has brought holds its default, the state means the same without it. Where it does not, ``needs`` is that minor version, and
  earlier releases refuse the entry and say which release wrote it, rather than go on from a part of the state. All but *advice*: a field
  that says how the next epoch is best done, and nothing of its results. A release that does not know it goes on without.

``tests/test_checkpoint_format.py`` goes on from kept checkpoints of earlier releases, and from ones of a later minor version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from streamjoin import __version__
from streamjoin.state.storage import StorageError

FORMAT = 3
MINOR = 3
SINCE: Mapping[str, int] = {"meetings": 1, "graphs": 1, "heard": 2, "claims": 3, "outputs": 3}
"""Fields of a checkpoint that minor versions after 0 have brought, by name: since which. To add one is a new MINOR."""
ADVICE = frozenset({"meetings", "heard", "claims", "outputs"})
"""Those of them that results do not depend on."""


def head(checkpoint: Any) -> dict[str, Any]:
    """The fields by which an entry with this checkpoint says its version. O(fields of later minor versions)."""
    default = type(checkpoint)()
    needed = [minor for name, minor in SINCE.items() if name not in ADVICE and getattr(checkpoint, name) != getattr(default, name)]
    needs = max(needed, default=0)
    return {"format": FORMAT, "minor": MINOR, "needs": needs, "version": __version__}


def checked(values: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """An entry's values without what it says of its version and what this release does not know. Raises StorageError where that must be
    known."""
    if values.get("format") != FORMAT:
        raise other_format(values.get("format"))
    needs = values.get("needs", 0)
    if needs > MINOR:
        raise StorageError(
            f"the log was written by streamjoin {values.get('version', '')}, and uses what is new in it (format {FORMAT}.{needs}; this"
            f" version, {__version__}, reads up to {FORMAT}.{MINOR}); go on with that version, and take what is new in it out of the"
            " manifest"
        )
    return {name: values[name] for name in known if name in values}


def other_format(found: object) -> StorageError:
    """The error for a log of another format."""
    return StorageError(f"the log's format is {found!r}, this version reads {FORMAT}; use the version that wrote it")
