"""What the `%` lines of `command_lines.py` do: each is a method of `Hands`, with the words and options of the line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import cast

from tests.support.made_group import MadeGroup
from tests.support.parties import Parties
from tests.support.sealed import SealedGroup, batches
from tests.support.world import World
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.coordinator.admin.topics import delete_topic
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.store import DENIED, AclEntry, AclStore, Create, Delete, Store
from zk_group.coordinator.zk.znodes.group_state import EMPTY, Mark, Target
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel, CoordinatorRecord, OffsetRecord, Registration, Seat, Topic
from zk_group.coordinator.zk.znodes.regions import GroupRegion
from zk_group.coordinator.zk.znodes.segments import Segment


def partition(text: str) -> TopicPartition:
    """That of `t-0`."""
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def _mark(text: str) -> Mark:
    member, _, some = text.partition(":")
    name, _, life = member.partition("/")
    return Mark(name, life, frozenset(map(partition, some.split(","))), 30_000, "evicted")


class Hands:
    """Makes and shows znodes and files.

    :ivar names: values that have a name, as `<id of t>`.
    """

    def __init__(self, world: World, folder: Path) -> None:
        self.names: dict[str, str] = {}
        self._world = world
        self._folder = folder
        self._parties = Parties(world.zk, folder)
        self._environment: dict[str, str | None] = {"ZK_GROUP_ZK": world.zk}
        self._groups: dict[str, MadeGroup] = {}
        self._targets: dict[str, dict[str, Target]] = {}

    @property
    def _store(self) -> Store:
        return self._world.store

    @contextmanager
    def acting(self, party: str) -> Iterator[None]:
        """What is done within is done with the credentials of a party."""
        mine = self._world.store
        with ExitStack() as stack:
            if party:
                self._world.store = self._parties.session(party)
                stack.callback(self._world.store.close)
                stack.callback(setattr, self._world, "store", mine)
            yield

    def environment(self, party: str) -> dict[str, str | None]:
        """That of a command; with the credentials of a party, if it has a name."""
        return {**self._environment, **({"ZK_GROUP_ZK_AUTH_FILE": self._parties.file(party)} if party else {})}

    def env(self, name: str, *lines: str) -> None:
        """A variable of later commands, or none of the name any more."""
        self._environment[name] = "\n".join(lines) if lines else None

    def let(self, name: str, text: str, times: str = "1") -> None:
        """`<name>` is this text, which may have escapes."""
        self.names[f"<{name}>"] = text.encode().decode("unicode_escape") * int(times)

    def sleep(self, seconds: str) -> None:
        ThreadRuntime().sleep(float(seconds))

    # ---- znodes and files

    def put(self, path: str, data: str = "", ephemeral: str = "") -> None:
        """Make a znode with its parents, or overwrite it."""
        if ephemeral:
            self._store.commit([Create(path, data.encode(), ephemeral=True)])
        else:
            self._world.put(path, data.encode())

    def remove(self, path: str) -> None:
        self._world.remove(path)

    def delete(self, path: str) -> None:
        """Delete one znode."""
        self._store.commit([Delete(path)])

    def data(self, path: str) -> str:
        found = self._world.data(path)
        return "no znode" if found is None else "closed" if found == DENIED else found.decode()

    def acl(self, path: str, *entries: str) -> str | None:
        """Show a znode's ACL, or set it: `31=IDENTITY`."""
        store = cast(AclStore, self._store)
        if not entries:
            (found,) = store.get_acls([path])
            return "".join(f"{one.permissions}={one.identity}\n" for one in found or ())
        some = [one.partition("=") for one in entries]
        assert store.set_acl(path, tuple(AclEntry(int(rights), identity) for rights, _, identity in some))
        return None

    def version(self, path: str) -> str:
        node = self._store.get(path)
        return "no znode" if node is None else str(node.stat.version)

    def names_in(self, path: str) -> str:
        return " ".join(self._world.names(path)) or "none"

    def write(self, file: str, *lines: str, times: str = "1") -> None:
        path = Path(self._folder, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines) * int(times))

    def edit(self, file: str, old: str = "", new: str = "") -> None:
        """Replace some bytes; without any, the last byte goes."""
        path = Path(self._folder, file)
        before = path.read_bytes()
        path.write_bytes(before.replace(old.encode(), new.encode()) if old else before[:-1])
        assert path.read_bytes() != before

    def blank(self, file: str) -> None:
        """Overwrite every byte."""
        path = Path(self._folder, file)
        path.write_bytes(b"x" * path.stat().st_size)

    def cat(self, file: str) -> str:
        return Path(self._folder, file).read_text()

    def rm(self, file: str) -> None:
        Path(self._folder, file).unlink()

    def mv(self, file: str, to: str) -> None:
        Path(self._folder, file).rename(Path(self._folder, to))

    def ls(self, folder: str = ".") -> str:
        """Each file below it."""
        found = sorted(os.path.relpath(path, self._folder) for path in Path(self._folder, folder).rglob("*"))
        return "".join(f"{each}\n" for each in found if Path(self._folder, each).is_file()) or "no files"

    # ---- topics and their records

    def topic(self, name: str, partitions: str) -> None:
        self.names[f"<id of {name}>"] = self._world.topic(name, int(partitions)).id

    def delete_topic(self, name: str) -> None:
        delete_topic(self._store, self._world.brokers, name)

    def records(self, *counts: str, each_ms: str = "0") -> None:
        """So many records in each partition (`t-0=8`), record n at 2020 and n times `each_ms`."""
        topics = {name: self._topic(name) for name in (partition(one.split("=")[0]).topic for one in counts)}
        with Producer(self._folder / "log", topics) as producer:
            for place, count in (one.split("=") for one in counts):
                for number in range(int(count)):
                    at_ms = 1_577_836_800_000 + int(each_ms) * number
                    topic, n = partition(place)
                    producer.send(topic, b"x", partition=n, timestamp_ms=at_ms)

    def _topic(self, name: str) -> Topic:
        path = self._world.brokers.topic(name)
        node = self._store.get(path)
        return Topic(name, "id", (0,)) if node is None else Topic.parse(path, name, node.data, node.stat.czxid)

    # ---- groups

    def group(self, *names: str, state: str = EMPTY) -> None:
        """Groups in generation 3; `-` is no state."""
        for name in names:
            self._groups[name] = MadeGroup(self._store, name, None if state == "-" else state)

    def state(self, group: str, state: str, *marks: str, region: str = "", **left_out: str) -> None:
        """The state that the coordinator writes, with all members in its target, and marks (`c1/life:t-0,t-1`).

        :param left_out: why what has this name is left out.
        """
        targets = self._targets.get(group, {})
        topics = {part.topic for target in targets.values() for part in target.partitions}
        ids = {name: self._topic(name).id for name in topics}
        bound = GroupRegion(region) if region else None
        some = tuple(map(_mark, marks))
        self._groups[group].state(state, target=targets, topics=ids, marks=some, region=bound, left_out=left_out)

    def offsets(self, group: str, *offsets: str, of: str = "") -> str | None:
        """Set offsets (`t-0=5`) of the topic with the id `of` or today's; without any, show those that are set."""
        if not offsets:
            found = sorted(self._made(group).offsets.items())
            return " ".join(f"{topic}-{number}={offset}" for (topic, number), offset in found) or "none"
        for place, offset in (one.split("=") for one in offsets):
            topic, number = partition(place)
            record = OffsetRecord(int(offset), of or self._topic(topic).id, 2)
            self._world.put(GroupPaths(group).offset(topic, number), record.to_bytes())
        return None

    def _made(self, group: str) -> MadeGroup:
        return self._groups.get(group) or MadeGroup(self._store, group, None)

    def member(self, group: str, name: str, *topics: str, runs: str = "", **registration: str) -> None:
        """A member that runs partitions (`t-0:5,t-1`) with their offsets."""
        some = [one.partition(":") for one in runs.split(",") if one]
        running = {partition(place): int(offset) if offset else None for place, _, offset in some}
        ids = {part.topic: self._topic(part.topic).id for part in running}
        target = self._groups[group].member(name, dict.fromkeys(topics, 1), running, ids, **registration)
        self._targets.setdefault(group, {})[name] = target

    def leaves(self, group: str, name: str) -> None:
        self._groups[group].leaves(name)

    def channel(self, group: str, name: str, runs: str = "", ended: str | None = None, sealed: str = "") -> None:
        running = {partition(runs): 9} if runs else {}
        made = Channel("abc" if sealed else "life", running=running, ended=ended, sealed=sealed)
        self._world.put(GroupPaths(group).channel(name), made.to_bytes())

    def seat(self, group: str, name: str) -> None:
        """Of an absent static member."""
        made = Seat(Registration("life", {"t": 1}, instance_id=name), 10_000)
        self._world.put(GroupPaths(group).seat(name), made.to_bytes())

    def elected(self, node: str, host: str = "here", epoch: str = "7") -> None:
        """An elected node that takes no turn."""
        self._world.put(COORDINATOR, CoordinatorRecord(node, host, int(epoch)).to_bytes())

    # ---- nodes and consumers that run

    def coordinator(self, node: str) -> None:
        """A node, which is elected."""
        self._world.elected(self._world.coordinator(node))

    def consumer(self, group: str, name: str, *topics: str, protocols: str = "", **options: str) -> None:
        named = {"protocols": tuple(protocols.split(","))} if protocols else {}
        self._world.consumer(group, name, dict.fromkeys(topics, 1), **options, **named)

    def stable(self, group: str, members: str) -> None:
        """Wait for it."""
        self._world.stable(group, int(members))

    # ---- segments and queries of group g

    @cached_property
    def _sealed(self) -> SealedGroup:
        return SealedGroup(self._store, self._folder / "segments")

    def seal(self, *counts: str, partition: str = "0", first: str = "", holds: str = "", topic_id: str = "id") -> None:
        """Segments of so many rows each; `holds` is what their file has instead (`t-0:3+7`: 7 records from 3 on)."""
        for count in counts or ("10",):
            made = self._sealed.write(int(count), int(partition), int(first) if first else None)
            made = replace(made, ranges=tuple(part._replace(topic_id=topic_id) for part in made.ranges))
            self._sealed.name(self._rewritten(made, holds) if holds else made)

    def _rewritten(self, segment: Segment, holds: str) -> Segment:
        some = [re.split(r"[:+]", one.removeprefix("t-")) for one in holds.split(",")]
        inside = [batch for each in some for batch in batches(*map(int, each))]
        size = self._sealed.folder.write(segment.file, inside)
        return replace(segment, size=size, rows=sum(batch.num_rows for batch in inside))

    def file_of_segment(self) -> None:
        """One more file, which no znode names."""
        self._sealed.write()

    def segment(self, name: str, **fields: str) -> None:
        """Change the znode of a segment."""
        changes = {key: int(value) if value.isdecimal() else value for key, value in fields.items()}
        changed = replace(self._sealed.segment(name), **changes)  # type: ignore[arg-type]
        self._world.put(self._sealed.paths.segment(name), changed.to_bytes())

    def query(self, name: str, after: str = "", expired_ms: str = "0", ephemeral: str = "") -> None:
        self._sealed.query(name, after, int(expired_ms), bool(ephemeral))
