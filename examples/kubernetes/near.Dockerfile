# The driver of spark-application.yaml: Spark's image, and a newer Python with StreamJoin. Executors may have it, too, and need nothing of it.
#
#     docker build -f examples/kubernetes/near.Dockerfile -t registry.example.com/near:1 .
FROM docker.io/apache/spark:4.0.1-python3
COPY --from=ghcr.io/astral-sh/uv:0.9 /uv /usr/local/bin/
USER root
ENV UV_PYTHON_INSTALL_DIR=/opt/python
RUN uv venv --python 3.12 /opt/near && uv pip install --python /opt/near/bin/python streamjoin
COPY examples/kubernetes/near.py /opt/near/
USER spark
