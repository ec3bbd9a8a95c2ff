# The engine: driver and executors of a StreamJoin. Needs only this repository and Debian's and Python's package indices:
#
#     docker build -f docker/engine.Dockerfile -t streamjoin-engine:0.1.0 .
#     docker build -f docker/engine.Dockerfile -t streamjoin-engine-tables:0.1.0 --target tables .
#
# The second image is the first, layer by layer, and one layer with the packages that Delta and Iceberg tables need; the operator takes it for joins
# that have such tables.
#
#     docker build -f docker/engine.Dockerfile -t streamjoin-engine-spark:0.1.0 --target spark .
#
# The third is the second and one layer with all of Spark, and a larger Java runtime, for joins with spark as source or sink.
#
# The result has a Java runtime of the modules that Spark needs, Python with the engine in /opt/streamjoin, tini, and busybox and bash for Spark's
# scripts; no compiler, pip, perl or package manager. It runs as user 10001 with a read-only root file system: what it writes goes to /tmp and, in
# executors, to /var/data.
#
# All that is in it is locked by digest (locks/). Nothing of the image for another processor is run while it is built, so any machine builds it; its
# containers then do without the archive of Java's classes, which START makes.
ARG BASE=docker.io/library/debian:bookworm-slim
# What the image for tables begins with: the stage of this file, or an image that was made of it. tools/images.sh gives the image, as another build of
# the stage may have other bytes.
ARG ENGINE=engine
# The same of the image for Spark's sources.
ARG TABLES=tables

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
COPY docker/unpack-debian.sh docker/make-root.sh docker/link-java.sh docker/install-python.sh docker/sourceless.sh docker/
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install -q --no-cache-dir --require-hashes -r locks/build.txt

FROM tools AS root
RUN docker/unpack-debian.sh locks/debian.txt ${TARGETARCH} /root-fs python engine && docker/make-root.sh /root-fs

# Of java.desktop, Spark's logging takes its beans: no libraries for windows, pictures and sound.
FROM tools AS java
RUN machine=$(dpkg --print-architecture) \
    && docker/unpack-debian.sh locks/debian.txt "$machine" /machine java \
    && ln -s /machine/etc/java-17-openjdk /etc/ \
    && if [ "$machine" = "${TARGETARCH}" ]; then ln -s /machine /target; else docker/unpack-debian.sh locks/debian.txt ${TARGETARCH} /target java; fi \
    && docker/link-java.sh /opt/java java.base,java.compiler,java.desktop,java.instrument,java.logging,java.management,java.naming,java.net.http,java.rmi,java.scripting,java.security.jgss,java.security.sasl,java.sql,java.xml,jdk.crypto.ec,jdk.incubator.vector,jdk.management,jdk.security.auth,jdk.unsupported,jdk.zipfs \
    && mkdir -p /about/var/lib/dpkg/status.d /about/usr/share/doc \
    && cp /target/var/lib/dpkg/status.d/openjdk-17-jre-headless /about/var/lib/dpkg/status.d/ \
    && cp -r /target/usr/share/doc/openjdk-17-jre-headless /about/usr/share/doc/

# Sources and sinks of others ask for any module that programs may count on, and for all character sets.
FROM java AS java-of-sources
RUN docker/link-java.sh /spark/opt/spark/java java.se,jdk.charsets,jdk.crypto.ec,jdk.httpserver,jdk.incubator.vector,jdk.jfr,jdk.localedata,jdk.management,jdk.naming.dns,jdk.net,jdk.security.auth,jdk.security.jgss,jdk.unsupported,jdk.xml.dom,jdk.zipfs \
    && find /spark -exec touch -h -d @${SOURCE_DATE_EPOCH} {} +

# What the engine needs, by far the largest part, has stages and a layer of its own, which a change of its code leaves as it is.
FROM tools AS packages
COPY docker/prune-python.sh docker/check-libraries.sh docker/split-tables.sh docker/trim_jars.py docker/used-jars.txt docker/unused-python.txt docker/
COPY docker/scipy docker/scipy
RUN docker/install-python.sh engine ${TARGETARCH}

FROM packages AS code
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY operator operator
RUN docker/install-python.sh --code engine

# The machine code of native functions, for the levels of processors of the image's kind: a library of some hundred kilobytes instead of Numba and
# LLVM. They run here on the machine that builds, whatever the image is for.
FROM tools AS kernels
COPY --from=code /code /code
RUN docker/install-python.sh --kernels ${TARGETARCH}

# Spark's classes in one archive: executors start in less time. Made last, as it is compared with the files that it was made from.
FROM packages AS start
COPY --from=java /opt/java /opt/java
COPY --from=code /code /opt/streamjoin
COPY --from=kernels /kernels /opt/streamjoin
COPY docker/check_engine.py docker/
ARG START=yes
RUN mkdir -p /start/opt/streamjoin/share/streamjoin \
    && if [ "${START}" = yes ] && [ "$(dpkg --print-architecture)" = "${TARGETARCH}" ]; then \
    find /opt/streamjoin /opt/java -exec touch -h -d @${SOURCE_DATE_EPOCH} {} + \
    && /opt/java/bin/java -XX:+UseSerialGC -Xshare:dump \
    && PYTHONDONTWRITEBYTECODE=1 /opt/streamjoin/bin/python docker/check_engine.py \
    && JAVA_HOME=/opt/java HOME=/tmp PYTHONDONTWRITEBYTECODE=1 \
       PYSPARK_PYTHON=/opt/streamjoin/bin/python /opt/streamjoin/bin/python -m streamjoin.runner.archive \
    && mv /opt/streamjoin/share/streamjoin/*.jsa /start/opt/streamjoin/share/streamjoin/ \
    && mkdir -p /start/opt/java/lib/server && mv /opt/java/lib/server/*.jsa /start/opt/java/lib/server/; fi

# Whether tables find all that they need in both, on this machine's own processor.
FROM start AS with-tables
COPY docker/check_tables.py docker/
RUN if [ "$(dpkg --print-architecture)" = "${TARGETARCH}" ]; then \
    cp -a /tables/opt/streamjoin/. /opt/streamjoin/ && PYTHONDONTWRITEBYTECODE=1 /opt/streamjoin/bin/python docker/check_tables.py; fi

# The same of Spark's sources and sinks. What is in the image begins here, so that it is one layer.
FROM with-tables AS with-spark
COPY --from=java-of-sources /spark /spark
COPY docker/check_spark.py docker/
RUN if [ "$(dpkg --print-architecture)" = "${TARGETARCH}" ]; then \
    ln -s /spark/opt/spark /opt/spark && STREAMJOIN_SPARK_HOME=/opt/spark JAVA_HOME=/opt/java HOME=/tmp PYTHONDONTWRITEBYTECODE=1 \
    SPARK_LOCAL_HOSTNAME=localhost SPARK_LOCAL_IP=127.0.0.1 \
    PYSPARK_PYTHON=/opt/streamjoin/bin/python /opt/streamjoin/bin/python docker/check_spark.py; fi

FROM scratch AS engine
COPY --from=root /root-fs /
COPY --from=java /about /
COPY --from=java /opt/java /opt/java
COPY --from=packages /opt/streamjoin /opt/streamjoin
COPY --from=code /code /opt/streamjoin
COPY --from=kernels /kernels /opt/streamjoin
COPY --from=start /start /
ENV JAVA_HOME=/opt/java PATH=/opt/streamjoin/bin:/opt/java/bin:/usr/bin:/bin HOME=/tmp MPLCONFIGDIR=/tmp \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYSPARK_PYTHON=/opt/streamjoin/bin/python LANG=C.UTF-8
# Of group 0, as a user is whom a cluster has chosen: Secrets of a pod without fsGroup are readable to that group.
USER 10001:0
WORKDIR /tmp
EXPOSE 8080 7078 7079
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "streamjoin"]

FROM ${ENGINE} AS tables
COPY --from=with-tables /tables /

FROM ${TABLES} AS spark
COPY --from=with-spark /spark /
ENV STREAMJOIN_SPARK_HOME=/opt/spark

# The last stage is what a build without a target makes.
FROM engine
