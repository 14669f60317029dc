"""What of the product is another number in a run, and by which numbers the checker judges it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import zk_group.consumer.consumer
import zk_group.consumer.fetching.polling
import zk_group.consumer.membership.client_assignment
import zk_group.consumer.membership.contributor
import zk_group.consumer.membership.member
import zk_group.consumer.membership.offsets
import zk_group.consumer.membership.registration
import zk_group.consumer.operator.region
import zk_group.consumer.operator.states
import zk_group.consumer.sealing.segment_check
import zk_group.consumer.streaming.fetchers.slot
import zk_group.consumer.streaming.source.data_source
import zk_group.coordinator.planning.asking
import zk_group.coordinator.planning.regional
import zk_group.coordinator.rebalance.group_reader
import zk_group.coordinator.rebalance.rebalancer
import zk_group.coordinator.term.elector
import zk_group.coordinator.zk.update
from tests.simulation.links import WIDE
from tests.simulation.parts import SharedDisk
from tests.simulation.profile import Profile
from tests.simulation.world import CHECKPOINT_INTERVAL_MS, DRAIN_TIMEOUT_MS
from zk_group.consumer.membership.claims import chunks
from zk_group.consumer.membership.registration import Keeper
from zk_group.coordinator.service import Coordinator
from zk_group.coordinator.zk.lease import LEASE_SHARE

LOOKS_S = 0.3
"""Fetchers look for data three times a second; the product's fifty cost half of a run, and find no more."""

ORPHAN_AFTER_S = 12.0

YOUNG_S = 4.0
"""Files of states that are younger are left alone; the product's 600 s are ten runs."""

LONGEST_HOLD_S = 6.0
"""For a checkpoint; the product's 120 s are two runs."""

LONGEST_BACKOFF_S = 1.5
"""After leaders that failed; the product's 30 s are what a run takes."""

ROOM = 2
"""Entries in one multi of a leader: an answer takes several."""

UNKNOWN_LEASE_MS = 3000
"""What a group waits for whose state was lost; the product's 40 s allow for sessions of 60 s."""

NEVER_S = 600.0
"""Longer than a run."""

NOTICE_S = 3.0
"""Within this a change is acted upon whose watch events come."""

TURN_S = 1.0
"""Within this a coordinator takes the turn that is due, when nothing hinders it: its debounce, and a straggler's half
second, are over by then."""

SLOW_S = 8.0
"""A turn of some dozen requests, one after the other, takes so long on a slow connection that stalls."""


def _collects_only(self: Coordinator) -> None:
    while not self._ended.wait(self._term.config.sweep_interval_ms / 1000):
        self._collect(self._collector.collect)


@contextmanager
def tuned(profile: Profile, disk: SharedDisk) -> Iterator[None]:
    """Meanwhile, constants of the product are other ones that would make a run long and show nothing more.

    :param disk: where states of applications go that are large.
    """
    changes: list[AbstractContextManager[object]] = [
        patch.object(zk_group.consumer.streaming.fetchers.slot, "LOOK_FOR_DATA_S", LOOKS_S),
        patch.object(zk_group.consumer.consumer, "LOOK_FOR_DATA_S", LOOKS_S),
        patch.object(zk_group.consumer.fetching.polling, "LOOK_FOR_DATA_S", LOOKS_S),
        patch.object(zk_group.consumer.sealing.segment_check, "ORPHAN_AFTER_S", ORPHAN_AFTER_S),
        patch.object(zk_group.coordinator.rebalance.group_reader, "UNKNOWN_LEASE_MS", UNKNOWN_LEASE_MS),
        patch.object(zk_group.coordinator.planning.asking, "LONGEST_BACKOFF_S", LONGEST_BACKOFF_S),
        patch.object(zk_group.consumer.membership.client_assignment, "ROOM", ROOM),
        patch.object(zk_group.consumer.operator.states, "SegmentFolder", lambda url: disk),
        patch.object(zk_group.consumer.operator.region, "YOUNG_S", YOUNG_S),
        patch.object(zk_group.consumer.streaming.source.data_source, "SegmentFolder", lambda url: disk),
        patch.object(zk_group.consumer.streaming.source.data_source, "spare_modules", lambda: None),
        patch.object(zk_group.coordinator.planning.regional, "LONGEST_HOLD_S", LONGEST_HOLD_S),
        patch.object(socket, "gethostname", lambda: "host"),
    ]
    if not profile.sweeps:
        changes += [
            patch.object(Coordinator, "_sweep", _collects_only),
            patch.object(Keeper, "_look_again", lambda self, store: None),
            patch.object(zk_group.coordinator.term.elector, "_LOOK_AGAIN_S", NEVER_S),
            patch.object(zk_group.coordinator.zk.update, "READ_AGAIN_S", NEVER_S),
            patch.object(zk_group.consumer.membership.contributor, "LOOK_AGAIN_S", NEVER_S),
        ]
    if profile.steps:
        size = profile.steps
        changes += [
            patch.object(zk_group.consumer.membership.member, "chunks", partial(chunks, size=size)),
            patch.object(zk_group.consumer.membership.offsets, "PARTITIONS_A_STEP", 2 * size),
            patch.object(zk_group.consumer.membership.registration, "PARTITIONS_A_STEP", 2 * size),
            patch.object(zk_group.coordinator.rebalance.rebalancer, "PARTITIONS_A_STEP", 2 * size),
        ]
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield


def bounds(profile: Profile) -> dict[str, float]:
    """What the checker measures by, in seconds."""
    session_s = profile.session_timeout_ms / 1000
    sweep_s = profile.sweep_interval_ms / 1000
    return {
        "session_timeout": session_s,
        "tick": profile.tick_s,
        "sweep": sweep_s,
        "lease": session_s * LEASE_SHARE,
        "poll_interval": max(profile.poll_intervals_ms) / 1000,
        "shortest_poll_interval": min(profile.poll_intervals_ms) / 1000,
        "seal_interval": 0.4,
        "channel_retention": profile.retention_ms / 1000,
        "collection": 2 * sweep_s + 2 * session_s,
        "notice": (2 * sweep_s + 1.0 if profile.sweeps else NOTICE_S) + (SLOW_S if profile.latency == WIDE else 0.0),
        "turn": TURN_S + (SLOW_S if profile.latency == WIDE else 0.0),
        "hold": LONGEST_HOLD_S + 2 * DRAIN_TIMEOUT_MS / 1000,
        "reset_timeout": 3.0,
        "checkpoint_interval": CHECKPOINT_INTERVAL_MS / 1000,
        "drain_timeout": DRAIN_TIMEOUT_MS / 1000,
        "assignment_timeout": profile.assignment_timeout_ms / 1000 + LONGEST_BACKOFF_S + 1.0,
    }
