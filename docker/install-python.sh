#!/bin/sh
# Installs Python packages into /opt/streamjoin, for any processor: install-python.sh engine|operator ARCHITECTURE
# (of the engine's, those for tables alone go to /tables/opt/streamjoin, and all of Spark's jars to /spark/opt/spark)
# or this project, without what it needs, into /code:                install-python.sh --code engine|operator
# or the machine code of its native functions, into /kernels:        install-python.sh --kernels ARCHITECTURE
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
        for package in api cli controlplane dataplane epoch io kernel native query results runner serve simulation spark state; do
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

if [ "$1" = --kernels ]; then
    case $2 in
        amd64) machine=x86_64 ;;
        arm64) machine=aarch64 ;;
        *) echo "install-python: $2: is no processor that images are made for; take amd64 or arm64" >&2; exit 1 ;;
    esac
    # Of what is locked for the engine, what the compiler loads, for the machine that builds.
    awk '/^[^ #]/ { wanted = /^(numba|llvmlite|numpy|pyarrow|sqlglot|pyyaml)==/ } wanted' locks/engine.txt > /compiler.txt
    /usr/bin/python3.11 -m venv --without-pip /compiler
    $uv pip install -q --python /compiler/bin/python --require-hashes --no-deps --only-binary :all: -r /compiler.txt
    PYTHONPATH=$(echo /code/lib/python3*/site-packages) /compiler/bin/python -m streamjoin.native.build \
        /kernels/share/streamjoin/kernels "$machine" "$machine-linux-gnu-ld"
    find /kernels -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    exit
fi

case $2 in
    amd64) platform=x86_64-manylinux_2_36 ;;
    arm64) platform=aarch64-manylinux_2_36 ;;
    *) echo "install-python: $2: is no processor that images are made for; take amd64 or arm64" >&2; exit 1 ;;
esac
/usr/bin/python3.11 -m venv --without-pip /opt/streamjoin
$uv pip install -q --python /opt/streamjoin/bin/python --python-platform "$platform" --require-hashes --build-constraints locks/build.txt \
    --only-binary :all: --no-binary pyspark -r "locks/$1.txt"

docker/prune-python.sh "$1" "$2" /opt/streamjoin/lib/python3.11/site-packages
rm -f /opt/streamjoin/.lock /opt/streamjoin/bin/[Aa]ctivate* /opt/streamjoin/.gitignore
rm -rf /opt/streamjoin/share/man
docker/sourceless.sh /opt/streamjoin/lib
if [ "$1" = engine ]; then
    docker/split-tables.sh /opt/streamjoin /tables/opt/streamjoin
    ln -s /opt/streamjoin/lib/python3.11/site-packages/pyspark/bin /spark/opt/spark/bin
fi
find /opt/streamjoin -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
for apart in /tables /spark; do
    if [ -d $apart ]; then find $apart -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; fi
done
