# Debian's Prometheus, for tests in a cluster. The context is empty.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /usr/share/doc
USER 10001:10001
ENTRYPOINT ["/usr/bin/prometheus"]
