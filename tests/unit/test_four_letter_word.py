"""Four-letter words to a server that need not be ZooKeeper, with bounds of bytes and time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from coordinator.zk.embedded.ensemble import LONGEST_ANSWER, four_letter_word

Answers = Callable[[Iterator[bytes]], int]


@pytest.fixture
def answers() -> Iterator[Answers]:
    """A server that sends the given pieces to each client; returns its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(pieces: Iterator[bytes]) -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(16)  # unread bytes at the close of a connection make the other end lose the answer
                for piece in pieces:
                    connection.sendall(piece)

        def start(pieces: Iterator[bytes]) -> int:
            threading.Thread(target=serve, args=[pieces], daemon=True).start()
            return int(server.getsockname()[1])

        yield start


def test_answer_is_read_whole(answers: Answers) -> None:
    assert (
        four_letter_word("127.0.0.1", answers(iter([b"Zookeeper ", b"version"])), timeout_s=10.0) == "Zookeeper version"
    )


def test_answer_without_an_end_is_truncated(answers: Answers) -> None:
    endless = (b"x" * 10_000 for _ in range(1000))

    assert len(four_letter_word("127.0.0.1", answers(endless), timeout_s=10.0)) == LONGEST_ANSWER


@pytest.mark.long
def test_slow_answer_ends_at_the_timeout(answers: Answers) -> None:
    over = threading.Event()
    trickle = (b"x" for _ in range(1000) if not over.wait(0.02))
    began = time.monotonic()

    assert four_letter_word("127.0.0.1", answers(trickle), timeout_s=0.3) == ""

    assert time.monotonic() - began < 5
    over.set()
