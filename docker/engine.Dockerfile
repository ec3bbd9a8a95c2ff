# The engine: driver and executors of a StreamJoin. Needs only this repository and Debian's and Python's package indices:
#
#     docker build -f docker/engine.Dockerfile -t streamjoin-engine:0.1.0 .
#
# The result has a Java runtime of the modules that Spark needs, Python with the engine in /opt/streamjoin, and tini; no compiler, pip or
# package lists. It runs as user 10001 with a read-only root file system: what it writes goes to /tmp and, in executors, to /var/data.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS java
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jdk-headless binutils
RUN jlink --output /opt/java --no-header-files --no-man-pages --strip-debug --compress=2 --add-modules \
    java.base,java.compiler,java.desktop,java.instrument,java.logging,java.management,java.naming,java.net.http,java.rmi,java.scripting,java.security.jgss,java.security.sasl,java.sql,java.xml,jdk.crypto.ec,jdk.incubator.vector,jdk.management,jdk.security.auth,jdk.unsupported,jdk.zipfs \
    && /opt/java/bin/java -Xshare:dump

FROM ${BASE} AS packages
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-pip python3-venv
# A proxy that looks into TLS needs its certificate: --build-arg PIP_CERT=... with that file mounted.
ARG PIP_CERT=
WORKDIR /build
COPY pyproject.toml ./
COPY docker/unused-jars.txt docker/unused-jars.txt
# What the engine needs, by far the largest part, has stages and a layer of its own, which a change of its code leaves as it is. Compiled to
# bytecode that nobody compares with its source: with a read-only root file system every start would compile anew.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/streamjoin \
    && mkdir engine operator && touch README.md LICENSE \
    && PIP_CERT=${PIP_CERT} /opt/pip/bin/pip --python /opt/streamjoin/bin/python install --no-cache-dir --no-compile ".[engine]" \
    && /opt/pip/bin/pip --python /opt/streamjoin/bin/python uninstall -q -y streamjoin \
    && cd /opt/streamjoin/lib/python3*/site-packages/pyspark \
    && grep -v '^#' /build/docker/unused-jars.txt | while read -r pattern; do rm -f jars/$pattern; done \
    && rm -rf examples data sbin licenses yarn kubernetes R \
    && find /opt/streamjoin -type d \( -name tests -o -name test \) -path '*/site-packages/*' -not -path '*/pyspark/*' -prune -exec rm -rf {} + \
    && find /opt/streamjoin -type f \( -name '*.h' -o -name '*.hpp' -o -name '*.a' \) -delete \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/streamjoin/lib

FROM packages AS code
ARG PIP_CERT=
COPY README.md LICENSE ./
COPY engine engine
COPY operator operator
RUN PIP_CERT=${PIP_CERT} /opt/pip/bin/pip --python /opt/streamjoin/bin/python install --no-cache-dir --no-compile --no-deps --prefix /code . \
    && find /code -type f -exec touch -d 2026-01-01 {} + \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /code/lib

FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libstdc++6 python3 tini zlib1g \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/*.log /usr/share/doc /usr/share/man \
    && groupadd --gid 10001 streamjoin && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin streamjoin
COPY --from=java /opt/java /opt/java
COPY --from=packages /opt/streamjoin /opt/streamjoin
COPY --from=code /code /opt/streamjoin
ENV JAVA_HOME=/opt/java PATH=/opt/streamjoin/bin:/opt/java/bin:/usr/bin:/bin HOME=/tmp NUMBA_CACHE_DIR=/tmp MPLCONFIGDIR=/tmp \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYSPARK_PYTHON=/opt/streamjoin/bin/python
# Spark's classes in one archive, and the machine code of the kernels for processors such as this one's: executors start in half of the time.
# Made here, as both are compared with the files that they were made from.
RUN NUMBA_CACHE_DIR=/opt/streamjoin/share/streamjoin/kernels python -m streamjoin.runner.archive && rm -rf /tmp/* /root/.cache
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080 7078 7079
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "streamjoin"]
