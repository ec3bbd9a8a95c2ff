# The operator. Needs only this repository and Debian's and Python's package indices:
#
#     docker build -f docker/operator.Dockerfile -t streamjoin-operator:0.1.0 .
#
# It has neither Spark nor Java. It runs as user 10001 with a read-only root file system and writes nothing.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS packages
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-pip python3-venv
# A proxy that looks into TLS needs its certificate: --build-arg PIP_CERT=... with that file mounted.
ARG PIP_CERT=
WORKDIR /build
COPY pyproject.toml ./
# What the operator needs has a stage and a layer of its own, which a change of its code leaves as it is. Compiled to bytecode that nobody
# compares with its source: with a read-only root file system every start would compile anew.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/streamjoin \
    && mkdir engine operator && touch README.md LICENSE \
    && PIP_CERT=${PIP_CERT} /opt/pip/bin/pip --python /opt/streamjoin/bin/python install --no-cache-dir --no-compile ".[operator]" \
    && /opt/pip/bin/pip --python /opt/streamjoin/bin/python uninstall -q -y streamjoin \
    && rm -rf /opt/streamjoin/lib/python3*/site-packages/kubernetes/aio \
    && find /opt/streamjoin -type d -name tests -path '*/site-packages/*' -prune -exec rm -rf {} + \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/streamjoin/lib

FROM packages AS code
ARG PIP_CERT=
COPY README.md LICENSE ./
COPY engine engine
COPY operator operator
RUN PIP_CERT=${PIP_CERT} /opt/pip/bin/pip --python /opt/streamjoin/bin/python install --no-cache-dir --no-compile --no-deps --prefix /code . \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /code/lib

FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libstdc++6 python3 tini zlib1g \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/*.log /usr/share/doc /usr/share/man \
    && groupadd --gid 10001 streamjoin && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin streamjoin
COPY --from=packages /opt/streamjoin /opt/streamjoin
COPY --from=code /code /opt/streamjoin
ENV PATH=/opt/streamjoin/bin:/usr/bin:/bin HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "streamjoin-operator"]
