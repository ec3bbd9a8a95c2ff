#!/bin/sh
# Bytecode instead of the sources of Python modules: sourceless.sh DIRECTORY [OPTION OF compileall...]
#
# Nobody edits them in an image, and with both they take twice the room. Lines of code are missing in traces then, not their numbers.
# Bytecode that nobody compares with its source: with a read-only root file system every start would compile anew. By one process, in one order: what
# is shared among constants, and so the bytes, depends on what was compiled before.
set -eu
directory=$1
shift
find "$directory" -depth -type d -name __pycache__ -exec rm -rf {} +
python3 -m compileall -q -b -j 1 --invalidation-mode unchecked-hash "$@" "$directory"
find "$directory" -name '*.py' | while read -r source; do [ ! -f "${source}c" ] || rm "$source"; done
