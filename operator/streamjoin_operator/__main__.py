"""``python -m streamjoin_operator``."""

from streamjoin_operator.main import main

raise SystemExit(main())
