"""A Kafka broker that has just started and knows no broker yet, nor itself: played by a socket."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from consumer.logs.kafka.client import KafkaClient
from consumer.logs.kafka.options import kafka_options
from consumer.logs.kafka.topics import TopicLookup
from tests.support.wait import eventually

pytestmark = pytest.mark.integration

METADATA, API_VERSIONS = 3, 18
NEITHER = struct.pack(">iihiii", 0, 0, -1, -1, 0, -(1 << 31))
"""Metadata, version 8: no brokers, no controller, no topics."""

UNSUPPORTED = struct.pack(">hi", 35, 0)
KNOWN = struct.pack(">hihhhhhh", 0, 2, METADATA, 8, 8, API_VERSIONS, 0, 0)


@contextmanager
def young_broker() -> Iterator[tuple[str, list[float]]]:
    """Its address, and when it was asked for metadata, by the monotonic clock."""
    asked: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with suppress(OSError), connection, connection.makefile("rb") as requests:
                while len(size := requests.read(4)) == 4:
                    request = requests.read(struct.unpack(">i", size)[0])
                    api, version = struct.unpack(">hh", request[:4])
                    if api == METADATA:
                        asked.append(time.monotonic())
                    answered = NEITHER if api == METADATA else UNSUPPORTED if version else KNOWN
                    body = request[4:8] + answered  # its correlation id first
                    connection.sendall(struct.pack(">i", len(body)) + body)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        server.shutdown(socket.SHUT_RDWR)


def test_a_broker_that_knows_none_yet_is_asked_again_each_second() -> None:
    with young_broker() as (address, asked):
        client = KafkaClient(address, kafka_options({}, {}))
        topics = TopicLookup(client)
        topics.of("t", "an id")

        def is_asked_often() -> bool:
            topics.ask({}, 0, time.monotonic())
            topics.collect(time.monotonic())
            return len(asked) >= 6

        try:
            eventually(is_asked_often, 6, "it is asked again, and again")
        finally:
            client.close()
