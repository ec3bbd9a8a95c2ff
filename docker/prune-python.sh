#!/bin/sh
# Leaves out of installed Python packages what an image does not need: prune-python.sh engine|operator ARCHITECTURE SITE-PACKAGES
# All of Spark's jars are in /spark then, for the image that has them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
case $2 in
    amd64) other=aarch_64 strip=x86_64-linux-gnu-strip ;;
    arm64) other=x86_64 strip=aarch64-linux-gnu-strip ;;
    *) echo "prune-python: $2: is no processor that images are made for; take amd64 or arm64" >&2; exit 1 ;;
esac
cd "$3"
# Lines: IMAGE|both PATTERN. What is for tables alone goes later (split-tables.sh).
grep -v '^#' "$here/unused-python.txt" | while read -r image pattern; do
    if [ "$image" = both ] || [ "$image" = "$1" ]; then
        # shellcheck disable=SC2086 -- a pattern
        rm -rf $pattern
    fi
done
if [ -d pyspark ]; then
    rm -f pyspark/jars/*-linux-"$other".jar
    python3 "$here/trim_jars.py" "$here/used-jars.txt" pyspark/jars pyspark/kept
    mkdir -p /spark/opt/spark
    mv pyspark/jars /spark/opt/spark/
    mv pyspark/kept pyspark/jars
    # What is in pyspark.zip lies beside it, compiled.
    rm -rf pyspark/examples pyspark/data pyspark/sbin pyspark/yarn pyspark/kubernetes pyspark/R pyspark/python/lib/pyspark.zip
fi
# A wheel cannot hold links, so it holds the same library three times.
for versioned in pyarrow/libarrow_python*.so.*.*.*; do
    [ -e "$versioned" ] || continue
    plain=${versioned%%.so.*}.so
    major=${versioned#"$plain".}
    ln -sf "$(basename "$versioned")" "$plain.${major%%.*}"
    ln -sf "$(basename "$versioned")" "$plain"
done
find . -type d \( -name tests -o -name test \) -not -path './pyspark/*' -prune -exec rm -rf {} +
find . -type f \( -name '*.h' -o -name '*.hpp' -o -name '*.a' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.pyi' -o -name '*.c' \
    -o -name '*.cpp' \) -delete
# Of SciPy, planning takes three functions, whose packages load LAPACK for what else they have: docker/scipy has packages with these alone.
if [ -d scipy ]; then cp -r "$here/scipy/." scipy/; fi
# Symbols for debuggers and linkers. Not of libraries that auditwheel has moved (*.libs), which strip may break.
find . -type f -name '*.so*' -not -path './*.libs/*' -exec "$strip" --strip-unneeded {} +
"$here/check-libraries.sh" .
