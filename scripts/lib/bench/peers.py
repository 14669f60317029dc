"""Poll loops of other Python clients for Kafka, each in its own process, for comparison with `bench stream`.

A loop assigns all partitions, reads from their beginning with the library's defaults, and computes the length of each
value. `pyarrow` does the same with the files of the embedded log: the machine's speed of the hour. The time is from the
creation of the client to the last record, without the start of Python and the import of the library.

    python -m bench.peers NAME SERVERS TOPIC PARTITIONS RECORDS     prints {"seconds":…,"cpu_s":…}
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from common import measured_by

from zk_group.coordinator.zk.errors import MissingProgram

LOOP = "pyarrow"
PATIENCE_S = 600.0
AT_ONCE = 500
"""Records per call where the library has no default: kafka-python's default."""


class Took(NamedTuple):
    """The cost of one run over the whole topic."""

    seconds: float
    cpu_s: float


def check_installed(names: list[str]) -> None:
    """
    :raises MissingProgram: when one of these is not installed.
    """
    missing = [name for name in names if name in LOOPS and find_spec(LOOPS[name][0]) is None]
    if missing:
        raise MissingProgram(f"not installed: {', '.join(missing)}; pip install 'zk-group-coordinator[bench]'")


def run_peer(name: str, servers: str, topic: str, partitions: int, records: int) -> Took:
    """One run of a peer's loop, in its own process.

    :raises RuntimeError: when it fails.
    """
    return Took(**measured_by("bench.peers", [name, servers, topic, str(partitions), str(records)], PATIENCE_S))


def confluent(servers: str, topic: str, partitions: int, records: int) -> int:
    """`consume` of confluent-kafka; the bytes of all values."""
    ck: Any = importlib.import_module("confluent_kafka")
    consumer = ck.Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([ck.TopicPartition(topic, number, 0) for number in range(partitions)])
    seen = size = 0
    while seen < records:
        for message in consumer.consume(AT_ONCE, 1.0):
            if message.error() is None:
                seen += 1
                size += len(message.value())
    return size


def kafka_python(servers: str, topic: str, partitions: int, records: int) -> int:
    """`poll` of kafka-python; the bytes of all values."""
    kafka: Any = importlib.import_module("kafka")
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    parts = [kafka.TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(parts)
    consumer.seek_to_beginning(*parts)
    seen = size = 0
    while seen < records:
        for some in consumer.poll(timeout_ms=1000).values():
            seen += len(some)
            for record in some:
                size += len(record.value)
    return size


async def aiokafka(servers: str, topic: str, partitions: int, records: int) -> int:
    """`getmany` of aiokafka; the bytes of all values."""
    kafka: Any = importlib.import_module("aiokafka")
    consumer = kafka.AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    await consumer.start()
    parts = [kafka.TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(parts)
    await consumer.seek_to_beginning(*parts)
    seen = size = 0
    while seen < records:
        for some in (await consumer.getmany(timeout_ms=1000)).values():
            seen += len(some)
            for record in some:
                size += len(record.value)
    return size


def pyarrow(log_dir: str, topic: str, partitions: int, records: int) -> int:
    """A plain loop over the values in the files of the embedded log; the bytes of all values."""
    ipc: Any = importlib.import_module("pyarrow.ipc")
    seen = size = 0
    for path in sorted((Path(log_dir) / topic).rglob("*.arrow")):
        with ipc.open_file(path.read_bytes()) as file:
            for index in range(file.num_record_batches):
                values = file.get_batch(index).column("value").to_pylist()
                seen += len(values)
                for value in values:
                    size += len(value)
    if seen != records:
        raise RuntimeError(f"{seen} of {records} records are in {log_dir}")
    return size


LOOPS: dict[str, tuple[str, Callable[[str, str, int, int], int]]] = {
    "confluent": ("confluent_kafka", confluent),
    "kafka-python": ("kafka", kafka_python),
    "aiokafka": ("aiokafka", lambda *given: asyncio.run(aiokafka(*given))),
    LOOP: ("pyarrow", pyarrow),
}
"""Name -> the required module, and its loop."""


def main(name: str, servers: str, topic: str, partitions: str, records: str) -> None:
    """The main function of `python -m bench.peers`."""
    module, loop = LOOPS[name]
    importlib.import_module(module)
    began, cpu = time.monotonic(), time.process_time()
    loop(servers, topic, int(partitions), int(records))
    print(json.dumps({"seconds": time.monotonic() - began, "cpu_s": time.process_time() - cpu}))


if __name__ == "__main__":
    main(*sys.argv[1:])
