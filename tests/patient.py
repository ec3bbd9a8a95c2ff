"""``streamjoin``, as a command of a test whose queries may take their time: see ``conftest.queries_take_their_time``."""

from __future__ import annotations

import sys
from pathlib import Path

from waiting import PATIENCE_SECONDS

QUERIES = {"NICE": 1, "START_SECONDS": PATIENCE_SECONDS, "STEP_SECONDS": PATIENCE_SECONDS, "GRACE_SECONDS": PATIENCE_SECONDS}
"""Of ``streamjoin.query.pool``."""
STREAMJOIN = (sys.executable, str(Path(__file__).resolve()))

if __name__ == "__main__":
    from streamjoin.cli import main
    from streamjoin.query import pool

    for name, value in QUERIES.items():
        setattr(pool, name, value)
    main(prog_name="streamjoin")
