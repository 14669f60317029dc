"""The next release of the project, as far as znodes tell: all that it writes has a higher `version` and more fields."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.support.stores import FrontStore
from zk_group.coordinator.zk.store import Create, Operation, SetData, Store

NEWS: dict[str, Any] = {
    "not_yet_known": {"a": [1, {"b": None}], "partitions": "all of them"},
    "wählbar": 0.5,
    "": [],
}
"""Fields that this release does not know: objects, numbers that are not whole, names that are none of ours."""


def as_next_release(data: bytes) -> bytes:
    """`data` with a higher `version`, and with unknown fields in every object of fields.

    Objects that are maps (`running`, `ownershipMap`, `topics`, ...) have no fields: each of their keys is a name.
    """
    if not data:
        return data
    values = json.loads(data)
    values = {**NEWS, **values, "version": values.get("version", 0) + 8}
    if "target" in values:
        values["target"] = {name: {**NEWS, **target} for name, target in values["target"].items()}
    if "marks" in values:
        values["marks"] = [{**NEWS, **mark} for mark in values["marks"]]
    if isinstance(values.get("client"), dict):
        values["client"] = {**NEWS, **values["client"]}
    return json.dumps(values, separators=(",", ":")).encode()


class NextRelease(FrontStore):
    """The session of a process of the next release.

    :ivar written: the paths that it wrote data to.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._lock = threading.Lock()
        self.written: list[str] = []

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        sent = [
            replace(operation, data=as_next_release(operation.data))
            if isinstance(operation, Create | SetData)
            else operation
            for operation in operations
        ]
        done = self.behind.commit(sent)
        with self._lock:
            self.written += [o.path for o in operations if isinstance(o, Create | SetData) and o.data]
        return done


def this_release(store: Store) -> Store:
    return store


RELEASES: dict[str, Callable[[Store], Store]] = {"this": this_release, "next": NextRelease}
"""Names of releases, and what is in front of the sessions of each."""
