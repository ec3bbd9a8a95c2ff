"""``python -m streamjoin``, the same as the command ``streamjoin``."""

from streamjoin.cli import main

main(prog_name="streamjoin")
