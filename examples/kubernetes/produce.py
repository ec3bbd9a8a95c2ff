"""Sends the orders and payments of ``examples/fraud`` to Kafka, for ``kafka-s3.yaml``: a topic each, in the order of event time.

    python examples/fraud/data.py
    python examples/kubernetes/produce.py --servers localhost:9092

The topics must exist, or the brokers must make them on demand. ``--option`` takes any of librdkafka's, such as
``--option security.protocol=SASL_SSL``, as often as needed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

TOPICS = ("orders", "payments")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--servers", default="localhost:9092", help="the brokers (default: localhost:9092)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the producer")
    parser.add_argument("--data", type=Path, default=Path("out/fraud/data"), help="what examples/fraud/data.py wrote")
    arguments = parser.parse_args()
    options = dict(option.split("=", 1) for option in arguments.option)
    failures: list[str] = []

    def noted(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(f"{message.topic()}: {error}")

    producer = Producer({"bootstrap.servers": arguments.servers, "enable.idempotence": True, **options})
    for topic in TOPICS:
        files = sorted((arguments.data / topic).glob("*.json"))
        if not files:
            print(f"{arguments.data / topic}: no data there; run examples/fraud/data.py first", file=sys.stderr)
            return 1
        lines = [line for file in files for line in file.read_bytes().splitlines()]
        for line in lines:
            while True:
                try:
                    producer.produce(topic, line, str(json.loads(line)["customer"]).encode(), on_delivery=noted)
                    break
                except BufferError:  # the producer's queue is full
                    producer.poll(1)
        unsent = producer.flush(60)
        if unsent or failures:
            print(f"{topic}: {unsent} records not acknowledged. {'; '.join(failures[:3])}", file=sys.stderr)
            return 1
        print(f"{topic}: {len(lines):,} records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
