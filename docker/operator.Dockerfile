# The operator. Needs only this repository and Debian's and Python's package indices:
#
#     docker build -f docker/operator.Dockerfile -t streamjoin-operator:0.1.0 .
#
# It has neither Spark nor Java, and no shell. It runs as user 10001 with a read-only root file system and writes nothing. All that is in it is locked
# by digest (locks/), and nothing of the image for another processor is run while it is built.
ARG BASE=docker.io/library/debian:bookworm-slim

FROM --platform=${BUILDPLATFORM} ${BASE} AS tools
RUN apt-get update -q && apt-get install -q -y --no-install-recommends \
    binutils-aarch64-linux-gnu binutils-x86-64-linux-gnu ca-certificates python3 python3-pip python3-venv
# A proxy that looks into TLS needs its certificate: --build-arg PIP_CERT=... with that file mounted.
ARG PIP_CERT=
ARG TARGETARCH
ARG SOURCE_DATE_EPOCH=1767225600
# As variables of the environment, which stages that are made of this one inherit.
ENV TARGETARCH=${TARGETARCH} SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PIP_CERT=${PIP_CERT} PYTHONHASHSEED=0 LC_ALL=C.UTF-8 \
    UV_NO_CACHE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
WORKDIR /build
COPY locks locks
COPY docker/unpack-debian.sh docker/make-root.sh docker/install-python.sh docker/sourceless.sh docker/
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install -q --no-cache-dir --require-hashes -r locks/build.txt

FROM tools AS root
RUN docker/unpack-debian.sh locks/debian.txt ${TARGETARCH} /root-fs python && docker/make-root.sh /root-fs

# What the operator needs has a stage and a layer of its own, which a change of its code leaves as it is.
FROM tools AS packages
COPY docker/prune-python.sh docker/check-libraries.sh docker/unused-python.txt docker/
COPY docker/scipy docker/scipy
RUN docker/install-python.sh operator ${TARGETARCH}

FROM packages AS code
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY operator operator
RUN docker/install-python.sh --code operator

FROM scratch
COPY --from=root /root-fs /
COPY --from=packages /opt/streamjoin /opt/streamjoin
COPY --from=code /code /opt/streamjoin
ENV PATH=/opt/streamjoin/bin:/usr/bin:/bin HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 LANG=C.UTF-8
# Of group 0, as a user is whom a cluster has chosen: Secrets of a pod without fsGroup are readable to that group.
USER 10001:0
WORKDIR /tmp
EXPOSE 8080
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "streamjoin-operator"]
