"""Members of consistent regions whose znodes are made by hand, a thousand at once: they obey in a few multis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tests.support.made_group import MadeGroup
from zk_group.coordinator.zk.store import Check, Create, Delete, Node, Operation, SetData, Store
from zk_group.coordinator.zk.update import batches, ensure
from zk_group.coordinator.zk.znodes.paths import GroupPaths, RegionPaths, contribution_name
from zk_group.coordinator.zk.znodes.records import DRAIN, START_FETCHER, Channel, Command, parsed_channel
from zk_group.coordinator.zk.znodes.regions import Contribution, Progress, RegionMembership

OFFSET = 7


class MadeMembers:
    """The members of one group of region `r`. Each drains at offset 7, and has its state back at once.

    :ivar largest: command -> bytes of the largest that was obeyed.
    """

    def __init__(self, store: Store, group: str, names: Sequence[str], topics: Sequence[str]) -> None:
        self._store = store
        self.paths = GroupPaths(group)
        self.names = list(names)
        self.largest: Counter[str] = Counter()
        self._region = RegionPaths("r")
        made = MadeGroup(store, group)
        ensure(store, [self.paths.owners_of(topic) for topic in topics])
        for name in names:
            made.member(name, dict.fromkeys(topics, 1), region=RegionMembership("r"))

    def obey(self, names: Sequence[str] | None = None) -> int:
        """Acknowledge the commands in the channels of these members, of all when they are not given; how many had
        something."""
        some = self.names if names is None else list(names)
        listings = self._store.children_many([self.paths.channel(name) for name in some])
        sent = [(name, each.names[0]) for name, each in zip(some, listings, strict=True) if each and each.names]
        commands = self._store.get_many([self.paths.command(*each) for each in sent])
        channels = self._store.get_many([self.paths.channel(name) for name, _ in sent])
        units = [
            self._obeyed(*each, command, channel)
            for each, command, channel in zip(sent, commands, channels, strict=True)
            if command is not None and channel is not None
        ]
        for some_units in batches(units):
            self._store.commit(some_units)
        return len(units)

    def _obeyed(self, name: str, command_name: str, sent: Node, node: Node) -> list[Operation]:
        command, path = Command.parse(command_name, sent.data), self.paths.channel(name)
        channel, order = parsed_channel(path, node.data), command.region
        assert order is not None
        self.largest[command.option] = max(self.largest[command.option], len(sent.data))
        drained = channel.region.drained if channel.region is not None else 0
        after = replace(channel, epoch=command.epoch, generation=command.generation, command=command_name)
        done: list[Operation] = [Delete(self.paths.command(name, command_name))]
        if command.option == DRAIN:
            after = replace(channel, region=Progress(order.reset, order.reset, order.checkpoint))
            where = f"{self._region.checkpoint(order.checkpoint)}/{contribution_name(self.paths.group, name)}"
            offsets = dict.fromkeys(channel.running, OFFSET)
            given = Contribution(channel.incarnation, order.reset, offsets, channel.topics)
            done += [Check(self._region.checkpoint(order.checkpoint), 0), Create(where, given.to_bytes())]
        elif command.option == START_FETCHER:
            running = dict.fromkeys(command.started, OFFSET)
            ready = Progress(order.reset, order.reset, drained)
            after = replace(after, running=running, topics=command.topics, region=ready)
            # Not ephemeral: one session is not made for the owners of a thousand members.
            done += [Create(self.paths.owner(*part)) for part in sorted(running)]
        else:
            after = replace(after, running={}, topics={}, region=Progress(0, 0, drained))
            done += [Delete(self.paths.owner(*part)) for part in sorted(channel.running)]
        return [SetData(path, after.to_bytes(), node.stat.version), *done]

    def channel(self, name: str) -> Channel:
        """A member's running partitions."""
        node = self._store.get(self.paths.channel(name))
        assert node is not None
        return parsed_channel(name, node.data)
