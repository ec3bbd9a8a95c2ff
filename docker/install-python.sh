#!/bin/sh
# Installs Python packages into /opt/streamjoin, for any processor: install-python.sh engine|operator ARCHITECTURE
# or this project, without what it needs, into /code:                install-python.sh --code engine|operator
#
# Only wheels are installed, and PySpark, which has none: it is built, and has no machine code.
set -eu
uv=/opt/uv/bin/uv
if [ -n "${PIP_CERT:-}" ]; then export SSL_CERT_FILE="$PIP_CERT"; else unset PIP_CERT; fi
# Compiled to bytecode that nobody compares with its source: with a read-only root file system every start would compile anew. By one process, in one
# order: what is shared among constants, and so the bytes, depends on what was compiled before.
compile() { python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash "$1"; }

if [ "$1" = --code ]; then
    $uv build -q --wheel --out-dir /wheel --build-constraints locks/build.txt --require-hashes .
    $uv pip install -q --python /opt/streamjoin/bin/python --prefix /code --no-deps --no-index /wheel/*.whl
    if [ "$2" = operator ]; then # the domain alone: pyproject.toml forbids the operator the rest
        for package in api cli epoch io kernel papers query results runner serve simulation spark state; do
            rm -rf /code/lib/python3*/site-packages/streamjoin/"$package"
        done
        rm -f /code/bin/streamjoin
    fi
    # Where and when the wheel lay.
    sed -i '/direct_url\.json,\|uv_cache\.json,/d' /code/lib/python3*/site-packages/*.dist-info/RECORD
    rm -f /code/.lock /code/lib/python3*/site-packages/*.dist-info/direct_url.json /code/lib/python3*/site-packages/*.dist-info/uv_cache.json
    compile /code/lib
    find /code -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    exit
fi

case $2 in
    amd64) platform=x86_64-manylinux_2_36 other=aarch_64 strip=x86_64-linux-gnu-strip ;;
    arm64) platform=aarch64-manylinux_2_36 other=x86_64 strip=aarch64-linux-gnu-strip ;;
    *) echo "install-python: $2: is no processor that images are made for; take amd64 or arm64" >&2; exit 1 ;;
esac
/usr/bin/python3.11 -m venv --without-pip /opt/streamjoin
$uv pip install -q --python /opt/streamjoin/bin/python --python-platform "$platform" --require-hashes --build-constraints locks/build.txt \
    --only-binary :all: --no-binary pyspark -r "locks/$1.txt"

cd /opt/streamjoin/lib/python3.11/site-packages
# Lines: IMAGE|both PATTERN
grep -v '^#' /build/docker/unused-python.txt | while read -r image pattern; do
    if [ "$image" = both ] || [ "$image" = "$1" ]; then
        # shellcheck disable=SC2086 -- a pattern
        rm -rf $pattern
    fi
done
if [ -d pyspark ]; then
    grep -v '^#' /build/docker/unused-jars.txt | while read -r pattern; do rm -f pyspark/jars/$pattern; done
    rm -f pyspark/jars/*-linux-"$other".jar
    rm -rf pyspark/jars/connect-repl pyspark/examples pyspark/data pyspark/sbin pyspark/yarn pyspark/kubernetes pyspark/R
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
find . -type f \( -name '*.h' -o -name '*.hpp' -o -name '*.a' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.c' -o -name '*.cpp' \) -delete
# Symbols for debuggers, of wheels that have many. Not of all wheels: libraries that auditwheel has moved may be broken by strip.
for package in aiohttp frozenlist llvmlite multidict propcache yaml yarl; do
    [ ! -d "$package" ] || find "$package" -name '*.so' -exec "$strip" --strip-unneeded {} +
done
rm -f /opt/streamjoin/.lock /opt/streamjoin/bin/[Aa]ctivate* /opt/streamjoin/.gitignore
rm -rf /opt/streamjoin/share/man
compile /opt/streamjoin/lib
find /opt/streamjoin -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
