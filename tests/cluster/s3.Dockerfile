# An S3 server, moto's, for tests in a cluster.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /usr/share/doc
# A proxy that looks into TLS needs its certificate: --build-arg PIP_CERT=... with that file mounted.
ARG PIP_CERT=
RUN python3 -m venv /opt/moto && PIP_CERT=${PIP_CERT} /opt/moto/bin/pip install --no-cache-dir "moto[server]>=5"
USER 10001:10001
ENTRYPOINT ["/opt/moto/bin/moto_server", "--host=0.0.0.0", "--port=5000"]
