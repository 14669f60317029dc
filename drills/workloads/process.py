"""Common parts of a drill's processes: topics, events, and hanging."""

from __future__ import annotations

import json
import signal
import threading
from typing import Any

from zk_group.coordinator.zk.runtime import on_signals
from zk_group.coordinator.zk.znodes.json_fields import Fields


class HangGate:
    """The hanging point of a process between SIGUSR1 and SIGUSR2. Made in the main thread.

    :ivar ended: set by SIGTERM and SIGINT; a hang continues.
    """

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self.ended = threading.Event()
        acts = {
            signal.SIGUSR1: self._is_open.clear,
            signal.SIGUSR2: self._is_open.set,
            signal.SIGTERM: self.ended.set,
            signal.SIGINT: self.ended.set,
        }
        on_signals(acts, lambda number: acts[number]())

    @property
    def is_open(self) -> bool:
        """Whether `pass_through` returns at once."""
        return self._is_open.is_set()

    def pass_through(self) -> None:
        """Return at once, or when the gate is open again."""
        self._is_open.wait()


def topics_of(fields: Fields) -> dict[str, int]:
    """The subscription: `topics`, topic -> threads."""
    return {topic: int(threads) for topic, threads in fields.mapping("topics").items()}


def emit(event: str, **values: Any) -> None:
    """One JSON line on stdout."""
    print(json.dumps({"event": event, **values}, separators=(",", ":")), flush=True)
