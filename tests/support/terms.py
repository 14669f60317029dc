"""Terms of a coordinator for tests of its parts, and strategies for those that name one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from zk_group.coordinator.assignors import Assignor, RangeAssignor
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.term.directory import Directory
from zk_group.coordinator.term.elector import Election
from zk_group.coordinator.term.metrics import CoordinatorMetrics
from zk_group.coordinator.term.reading import Problems
from zk_group.coordinator.term.term import Term
from zk_group.coordinator.zk.lease import Lease
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.records import Topic

NO_DELAY: dict[str, Any] = {"zk": "unreachable:1", "group_initial_rebalance_delay_ms": 0}


def only(assignor: Assignor) -> dict[str, Assignor]:
    """A node that has this strategy and no other."""
    return {assignor.name: assignor}


RANGE = only(RangeAssignor())


class HeldLease(Lease):
    """A lease that never lapses."""

    def __init__(self) -> None:
        pass

    @property
    def is_held(self) -> bool:
        return True


def a_term(
    store: Store,
    runtime: Runtime,
    epoch: int = 1,
    fence: int = 0,
    metrics: CoordinatorMetrics | None = None,
    **config: Any,
) -> Term:
    """A term whose lease is always held.

    :param config: options of the coordinator.
    """
    options = CoordinatorConfig(**(NO_DELAY | config))
    term = Term(Election(epoch, fence), store, runtime, options, Problems(runtime, metrics), metrics)
    term.lease = HeldLease()
    return term


def directory_of(term: Term, topics: Mapping[str, Topic]) -> Directory:
    """A term's directory where listeners have found these topics."""
    directory = Directory(term.runtime)
    directory.topics = topics
    return directory


def with_store(term: Term, store: Store) -> Term:
    """The same term, through another store."""
    changed = copy.copy(term)
    changed.store = store
    return changed


def with_config(term: Term, **options: Any) -> Term:
    """The same term of a node with other options."""
    changed = copy.copy(term)
    changed.config = CoordinatorConfig(**(NO_DELAY | options))
    return changed
