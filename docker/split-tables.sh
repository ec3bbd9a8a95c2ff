#!/bin/sh
# Moves what tables alone need out of the engine's virtual environment, to the same places below another directory: split-tables.sh FROM TO
# docker/unused-python.txt says what it is. Packages are there as bytecode.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
site=lib/python3.11/site-packages
mkdir -p "$2/bin" "$2/$site/pyarrow"
cd "$1/$site"
sed -n 's/^tables //p' "$here/unused-python.txt" | while read -r pattern; do
    for path in $pattern; do
        [ -e "$path" ] || { echo "split-tables: $pattern: nothing has this name; correct docker/unused-python.txt" >&2; exit 1; }
        mv "$path" "$2/$site/$path"
    done
done
# Their commands.
cd "$1/bin"
grep -lI '^from [a-z0-9_.]* import' ./* | while read -r command; do
    package=$(sed -n 's/^from \([a-zA-Z0-9_]*\).* import.*/\1/p' "$command" | head -n 1)
    if [ -e "$2/$site/$package" ] && [ ! -e "$1/$site/$package" ]; then mv "$command" "$2/bin/"; fi
done
"$here/check-libraries.sh" "$1/$site"
