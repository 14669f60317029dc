"""A member that is made by hand and writes into its own znodes whatever a test wants; it obeys nothing by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zk_group.coordinator.zk.errors import Refused
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Create, Delete, SetData, Store
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import (
    START_FETCHER,
    Channel,
    Command,
    OwnerRecord,
    Registration,
    parsed_channel,
)


class Liar:
    """A registered member, on a session of its own."""

    def __init__(
        self,
        zk: str,
        group: str,
        name: str,
        topics: Mapping[str, int],
        *,
        running: Mapping[TopicPartition, int | None] | None = None,
        topic_ids: Mapping[str, str] | None = None,
        session_ms: int = 30_000,
        incarnation: str = "",
        **registration: Any,
    ) -> None:
        self.name, self.paths = name, GroupPaths(group)
        self.store: Store = open_kazoo(zk, session_ms)
        registration = {"lease_ms": 500, "max_poll_interval_ms": 300_000, **registration}
        self.registration = Registration(incarnation or f"lie-of-{name}", topics, **registration)
        ensure(self.store, [*self.paths.skeleton, self.path])
        new = Channel(self.registration.incarnation, running=running or {}, topics=topic_ids or {})
        self.store.commit(
            [
                SetData(self.path, new.to_bytes()),
                Create(self.paths.id(name), self.registration.to_bytes(), ephemeral=True),
            ]
        )

    @property
    def path(self) -> str:
        return self.paths.channel(self.name)

    @property
    def channel(self) -> Channel:
        node = self.store.get(self.path)
        return parsed_channel(self.path, node.data if node is not None else b"")

    @property
    def is_evicted(self) -> bool:
        return self.channel.ended is not None

    def commands(self) -> dict[str, Command]:
        """Name -> command, in the order of their sequence."""
        listing = self.store.children(self.path)
        names = sorted(listing.names if listing else [])
        nodes = zip(names, self.store.get_many([self.paths.command(self.name, name) for name in names]), strict=True)
        return {name: Command.parse(name, node.data) for name, node in nodes if node is not None}

    def says(self, **fields: Any) -> None:
        """Write its channel, as it was but for `fields`.

        :raises Refused: when another has written it meanwhile.
        """
        node = self.store.get(self.path)
        assert node is not None
        now = parsed_channel(self.path, node.data)
        self.store.commit([SetData(self.path, replace(now, **fields).to_bytes(), node.stat.version)])

    def acknowledges(self, *, claims: bool = False, owns: bool = False, is_named: bool = True, **fields: Any) -> bool:
        """Remove its commands; whether there was any.

        :param claims: whether it says that it runs what a start names; `owns`: whether it makes the owner znodes too.
        :param is_named: whether its channel says that the last one was applied.
        """
        commands = self.commands()
        if not commands or self.is_evicted:
            return False
        name, last = list(commands.items())[-1]
        if claims and last.option == START_FETCHER:
            running = {**self.channel.running, **dict.fromkeys(last.started, 0)}
            fields |= {"running": running, "topics": {**self.channel.topics, **last.topics}}
        if is_named:
            fields |= {"command": name, "epoch": last.epoch, "generation": last.generation, "ask": last.ask}
        owner = OwnerRecord(f"{self.name}-0", self.name, self.registration.incarnation, last.generation).to_bytes()
        claimed = last.started if owns and last.option == START_FETCHER else frozenset()
        missing = [part for part in sorted(claimed) if self.store.get(self.paths.owner(*part)) is None]
        try:
            self.store.commit(
                [
                    SetData(self.path, replace(self.channel, **fields).to_bytes()),
                    *(Create(self.paths.owner(*part), owner, ephemeral=True) for part in missing),
                    *(Delete(self.paths.command(self.name, each)) for each in commands),
                ]
            )
        except Refused:
            return False
        return True

    def close(self) -> None:
        """End its session."""
        self.store.close()
