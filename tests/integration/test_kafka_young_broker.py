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
from tests.support.wait import within

pytestmark = [pytest.mark.full("each way to run a broker"), pytest.mark.integration]

YOUNG_S = 1.5
"""librdkafka itself asks again once, a second after its start, and then after ten."""

SOON_S = 5.0
METADATA, API_VERSIONS = 3, 18
NO_TOPICS = struct.pack(">ii", 0, -(1 << 31))
NEITHER = struct.pack(">iihi", 0, 0, -1, -1) + NO_TOPICS
"""Metadata, version 8: no brokers, no controller."""

UNSUPPORTED = struct.pack(">hi", 35, 0)
KNOWN = struct.pack(">hihhhhhh", 0, 2, METADATA, 8, 8, API_VERSIONS, 0, 0)


def itself(port: int) -> bytes:
    """Metadata, version 8: the broker, which is the controller."""
    host = b"127.0.0.1"
    broker = struct.pack(">ih", 0, len(host)) + host + struct.pack(">ih", port, -1)
    return struct.pack(">ii", 0, 1) + broker + struct.pack(">hi", -1, 0) + NO_TOPICS


class YoungBroker:
    """It knows no broker until `grow`.

    :ivar asked: the requests for metadata.
    """

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._port = server.getsockname()[1]
        self._metadata = NEITHER
        self.asked: list[bytes] = []
        self.address = f"127.0.0.1:{self._port}"

    def grow(self) -> None:
        """From now on it knows itself."""
        self._metadata = itself(self._port)

    def serve(self) -> None:
        """Accept connections until the socket is closed."""
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as requests:
            while len(size := requests.read(4)) == 4:
                request = requests.read(struct.unpack(">i", size)[0])
                api, version = struct.unpack(">hh", request[:4])
                if api == METADATA:
                    self.asked.append(request)
                answered = self._metadata if api == METADATA else UNSUPPORTED if version else KNOWN
                body = request[4:8] + answered  # its correlation id first
                connection.sendall(struct.pack(">i", len(body)) + body)


@contextmanager
def young_broker() -> Iterator[YoungBroker]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker = YoungBroker(server)
        threading.Thread(target=broker.serve, daemon=True).start()
        yield broker
        server.shutdown(socket.SHUT_RDWR)


def test_a_topic_is_confirmed_soon_by_a_broker_that_knew_none_before() -> None:
    with young_broker() as broker:
        client = KafkaClient(broker.address, kafka_options({}, {}))
        topics, began = TopicLookup(client), time.monotonic()
        topics.of("its-topic", "an id")

        def has_asked_about_the_topic() -> bool:
            topics.ask({}, 0, time.monotonic())
            topics.collect(time.monotonic())
            if time.monotonic() > began + YOUNG_S:
                broker.grow()
            return any(b"its-topic" in request for request in broker.asked)

        try:
            what = "the request that waits for the controller is sent to it"
            within(has_asked_about_the_topic, SOON_S, what, ignoring=(RuntimeError,))  # of the empty answer
        finally:
            client.close()
