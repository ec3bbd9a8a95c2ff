# A Kafka broker, for tests in a cluster. The context holds Kafka's jars; Java is the engine's.
ARG ENGINE
FROM ${ENGINE}
COPY jars /opt/kafka
ENTRYPOINT ["/opt/java/bin/java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx384m", "-cp", "/opt/kafka/*"]
