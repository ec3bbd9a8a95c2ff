# A Kafka broker, for tests in a cluster. The context holds Kafka's jars.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
# Java's package fails without a directory for its manual.
RUN mkdir -p /usr/share/man/man1 && apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /usr/share/doc
COPY jars /opt/kafka
USER 10001:10001
ENTRYPOINT ["/usr/bin/java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx384m", "-cp", "/opt/kafka/*"]
