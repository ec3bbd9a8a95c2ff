"""Writes the tables of TPC-H that the joins of this folder read, each as Parquet files in a directory of ``out/tpch/data``.

The data follow from the scale factor alone, whatever the machine and the number of files. Run from the repository's
root: ``.venv/bin/python examples/tpch/generate.py``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

DATA = Path("out/tpch/data")
TABLES = ("customer", "orders", "lineitem", "supplier", "nation", "region")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=0.1, help="TPC-H's scale factor; 1 is about 1 GB (default: 0.1)")
    parser.add_argument("--files", type=int, default=8, help="how many files a table is cut into, but nation and region (default: 8)")
    parser.add_argument("--data", type=Path, default=DATA, help=f"where to write (default: {DATA})")
    arguments = parser.parse_args()

    program = Path(sys.executable).with_name("tpchgen-cli")
    if not program.exists():
        print(f"{program} is missing; install it: make setup-examples, or pip install 'tpchgen-cli>=4,<5'", file=sys.stderr)
        return 1
    for table in TABLES:
        shutil.rmtree(arguments.data / table, ignore_errors=True)
    size = ["--scale-factor", str(arguments.scale), "--parts", str(arguments.files)]
    what = ["--tables", ",".join(TABLES), "--output-dir", str(arguments.data)]
    subprocess.run([program, "parquet", "--quiet", *size, *what], check=True)
    for table in TABLES:
        files = sorted((arguments.data / table).glob("*.parquet"))
        megabytes = sum(file.stat().st_size for file in files) / 1e6
        print(f"{arguments.data / table}: {len(files)} file{'s' * (len(files) > 1)}, {megabytes:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
