"""A scenario of the conformance kit, and the features that a consumer may leave out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.zk.errors import CoordinatorError

if TYPE_CHECKING:
    from .bench import Bench

STATIC_MEMBERS = "static-members"
WILDCARDS = "wildcards"
OPTIONAL = (STATIC_MEMBERS, WILDCARDS)
"""Features that a consumer may leave out."""


class NotConforming(CoordinatorError):
    """The consumer did what `zk_paths.md` does not allow; the message says what."""


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    :ivar title: what the consumer must do.
    :ivar act: starts the processes, acts, and compares.  :raises NotConforming: with what the consumer did wrong.
    :ivar needs: the feature without which it is left out; "" for a required one.
    :ivar partitions: of the topic.
    :ivar nodes: coordinators that are started before.
    :ivar long_sessions: whether sessions outlast everything that the scenario suspends.
    :ivar max_poll_interval_ms: of its consumers.
    :ivar repeats: whether a consumer may repeat records in it.
    """

    name: str
    title: str
    act: Callable[[Bench], None]
    needs: str = ""
    partitions: int = 4
    nodes: int = 1
    long_sessions: bool = False
    max_poll_interval_ms: int = 60_000
    repeats: bool = False


def require(holds: bool, otherwise: str) -> None:
    """
    :raises NotConforming: unless it holds.
    """
    if not holds:
        raise NotConforming(otherwise)
