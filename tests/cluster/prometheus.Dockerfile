# Debian's Prometheus, and what tells it which pods to scrape, for tests in a cluster.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends prometheus python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /usr/share/doc
COPY discover.py /opt/discover.py
USER 10001:10001
ENTRYPOINT ["/usr/bin/prometheus"]
