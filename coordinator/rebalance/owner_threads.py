"""The threads in which members run their partitions, from their owner znodes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from ..planning.snapshot import ChannelView, Member
from ..planning.target import is_live
from ..zk.errors import BadData
from ..zk.store import Store
from ..zk.znodes.group_state import CLIENT, GroupState
from ..zk.znodes.partitions import PartitionSet, TopicPartition
from ..zk.znodes.paths import GroupPaths
from ..zk.znodes.records import OwnerRecord

Life = tuple[str, str, str]
"""Consumer, incarnation, and the last command that it has applied: until the next one its owners stay as they are."""


class OwnerThreads:
    """Reads the owner znodes of members with several threads, each once after a command."""

    def __init__(self, store: Store, paths: GroupPaths) -> None:
        self._store = store
        self._paths = paths
        self._known: dict[Life, dict[TopicPartition, str]] = {}

    def read(
        self,
        state: GroupState,
        members: Mapping[str, Member],
        channels: Mapping[str, ChannelView],
        owners: PartitionSet,
    ) -> dict[TopicPartition, str]:
        """Partition -> its thread, of those that a member with several threads runs."""
        known: dict[Life, dict[TopicPartition, str]] = {}
        for name, member in sorted(members.items()):
            view = channels.get(name)
            channel = view.channel if view is not None else None
            if view is None or channel is None or not is_live(member, view) or not _has_threads(state, member):
                continue
            life = (name, channel.incarnation, channel.command)
            before = self._known.get(life, {})
            missing = sorted((view.running & owners) - before.keys())
            known[life] = {**before, **self._threads(missing)} if missing else before
        self._known = known
        return {part: thread for threads in known.values() for part, thread in threads.items()}

    def _threads(self, partitions: list[TopicPartition]) -> dict[TopicPartition, str]:
        paths = [self._paths.owner(*partition) for partition in partitions]
        found = {}
        for partition, path, node in zip(partitions, paths, self._store.get_many(paths), strict=True):
            if node is not None:
                with suppress(BadData):  # only its existence counts then
                    found[partition] = OwnerRecord.parse(path, node.data).thread
        return found


def _has_threads(state: GroupState, member: Member) -> bool:
    """Whether a member has, or had in the target, more than one thread; of a led one only its leader knows."""
    registration, target = member.registration, state.target.get(member.consumer)
    if registration is None:
        return False
    is_led = registration.pattern == CLIENT or state.client is not None
    most = max(registration.subscription.values(), default=0)
    return is_led or most > 1 or (target is not None and len(target.threads) > 1)
