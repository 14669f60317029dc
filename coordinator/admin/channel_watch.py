"""Following the channels of a group live, for `channel watch`.

An acknowledged command is gone in milliseconds, and one-shot watches lose events between two reads: this uses a
persistent recursive watch, and reads a command from within the callback of its event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from ..zk.errors import BadData, CoordinatorError, Retryable, SessionLost
from ..zk.runtime import Queue, Runtime
from ..zk.store import Node, SessionState, TreeEvent, TreeStore
from ..zk.znodes.json_fields import readable
from ..zk.znodes.paths import COMMAND_PREFIX, GroupPaths, is_name, names_below, shown
from ..zk.znodes.records import Channel, Command, Registration, parsed_channel
from . import channel_events
from .channel_events import ChannelEvent, SeenCommand
from .groups import existing

LOOK_S = 0.5
COMMANDS, IDS, SESSION = "command", "ids", "session"


@dataclass(frozen=True, slots=True)
class _Happened:
    """An event, as its callback recorded it: the znode, the time, and the read that it sent."""

    kind: str
    what: str
    consumer: str = ""
    command: str = ""
    at_s: float = 0.0
    at_ms: int = 0
    read: Callable[[], Node | None] | None = None
    with_channel: bool = False


class ChannelWatch:
    """Follows one group's channels across connections and sessions.

    :param consumer: only this consumer's channel.
    :param open_store: opens a session; called again when the session has ended.
    """

    def __init__(
        self, open_store: Callable[[], TreeStore], runtime: Runtime, group: str, consumer: str | None = None
    ) -> None:
        self._open_store = open_store
        self._runtime = runtime
        self._paths = GroupPaths(group)
        self._consumer = consumer
        self._standing: dict[tuple[str, str], SeenCommand] = {}
        self._lives: dict[str, str | None] = {}
        self._before: dict[str, TreeEvent] = {}
        self._has_read = False
        self._store: TreeStore | None = None
        self._happened: Queue[_Happened] = runtime.queue()

    def events(self, for_s: float | None = None) -> Iterator[ChannelEvent]:
        """All events, the commands that are already there first, for `for_s` seconds (None: without end).

        :raises ZooKeeperUnreachable: when no server answers at the start; later it retries.
        :raises StoreError: when the server does not support persistent watches.
        """
        until = None if for_s is None else self._runtime.monotonic() + for_s
        try:
            yield from self._begin(None)
            while (left_s := LOOK_S if until is None else until - self._runtime.monotonic()) > 0:
                happened = self._happened.get(min(LOOK_S, left_s))
                if happened is not None:
                    yield from self._events_of(happened)
        finally:
            if self._store is not None:
                self._store.close()

    # ---- callbacks: they record the event, and send the read that must not wait

    def _on_event(self, store: TreeStore, event: TreeEvent) -> None:
        is_with_channel = self._is_with_channel(event)
        place = self._place(event.path)
        if place is None or event.kind == "changed" or store is not self._store:
            return
        # A creation needs the znode's own data, a deletion that of the channel.
        _, consumer, _ = place
        read = store.send_get(event.path if event.kind == "created" else self._paths.channel(consumer))
        now_s, now_ms = self._runtime.monotonic(), self._runtime.wall_ms()
        self._happened.put(_Happened(event.kind, *place, now_s, now_ms, read, is_with_channel))

    def _is_with_channel(self, event: TreeEvent) -> bool:
        """Whether the event before, of the same channel, was a change of its data in the same multi."""
        root = f"{self._paths.channels}/"
        if not event.path.startswith(root):
            return False
        consumer = event.path[len(root) :].partition("/")[0]
        before = self._before.get(consumer)
        self._before[consumer] = event
        if before is None or event.kind != "deleted":
            return False
        return (before.kind, before.path, before.zxid) == ("changed", f"{root}{consumer}", event.zxid)

    def _place(self, path: str) -> tuple[str, str, str] | None:
        """What a path is of, the consumer, and the command if any; None for other paths and invalid names."""
        for root, what in ((self._paths.channels, COMMANDS), (self._paths.ids, IDS)):
            if path.startswith(f"{root}/"):
                consumer, _, name = path[len(root) + 1 :].partition("/")
                is_command = name.startswith(COMMAND_PREFIX) and is_name(name)
                is_wanted = is_name(consumer) and self._consumer in (None, consumer)
                if is_wanted and (is_command if what == COMMANDS else not name):
                    return what, consumer, name
        return None

    def _on_state(self, store: TreeStore, state: SessionState) -> None:
        if store is self._store and state is not SessionState.SUSPENDED:
            self._happened.put(_Happened(state.value, SESSION))

    # ---- one event at a time

    def _events_of(self, happened: _Happened) -> Iterator[ChannelEvent]:
        if happened.what == SESSION:
            if happened.kind == SessionState.LOST.value or (self._store is not None and self._store.lost):
                yield from self._begin("the session with ZooKeeper has ended")
            else:
                yield from self._again("the connection to ZooKeeper was lost")
            return
        try:
            node = happened.read() if happened.read is not None else None
        except (Retryable, SessionLost):
            return  # connection lost: everything is read again on reconnect
        if happened.what == IDS:
            yield self._registration(happened, node)
        elif happened.kind == "created":
            yield from self._created(happened, node)
        else:
            yield from self._deleted(happened, node)

    def _created(self, happened: _Happened, node: Node | None) -> Iterator[ChannelEvent]:
        key = (happened.consumer, happened.command)
        if key in self._standing:  # already reported while everything was read; only its time is new
            self._standing[key] = replace(self._standing[key], since_s=happened.at_s)
            return
        self._standing[key] = seen = self._seen(*key, node, happened.at_s)
        yield channel_events.sent(seen, happened.at_ms)

    def _deleted(self, happened: _Happened, node: Node | None) -> Iterator[ChannelEvent]:
        seen = self._standing.pop((happened.consumer, happened.command), None)
        if seen is not None:
            channel = self._channel(happened.consumer, node)
            yield channel_events.removed(seen, channel, happened.at_ms, happened.at_s, happened.with_channel)

    def _registration(self, happened: _Happened, node: Node | None) -> ChannelEvent:
        consumer = happened.consumer
        if happened.kind == "deleted":
            incarnation = self._lives.pop(consumer, None)
            return channel_events.ended(consumer, incarnation, self._channel(consumer, node), happened.at_ms)
        registration, problem = self._read_registration(consumer, node)
        self._lives[consumer] = registration.incarnation if registration else None
        return channel_events.registered(consumer, registration, problem, happened.at_ms)

    # ---- reading everything: at the start, and after events may have been missed

    def _begin(self, why: str | None) -> Iterator[ChannelEvent]:
        """Open a session and read everything; a failure at the start is raised, a later one retried."""
        while True:
            old, self._store = self._store, None
            if old is not None:
                old.close()
            self._happened = self._runtime.queue()
            try:
                self._store = store = self._open_store()
            except CoordinatorError:
                if why is None:
                    raise
                self._runtime.sleep(LOOK_S)
                continue
            store.add_listener(partial(self._on_state, store))
            yield from self._again(why)
            return

    def _again(self, why: str | None) -> Iterator[ChannelEvent]:
        store = self._store
        assert store is not None
        try:
            events = self._read_all(store)
        except (Retryable, SessionLost):
            return  # lost again: `_on_state` triggers the next attempt
        if why is not None:
            yield channel_events.missed(why, self._runtime.wall_ms())
        yield from events

    def _read_all(self, store: TreeStore) -> list[ChannelEvent]:
        """Set the watch, read everything, and return the changes since the last reading."""
        for root in (self._paths.channels, self._paths.ids):
            path = f"{root}/{self._consumer}" if self._consumer else root
            store.watch_tree(path, partial(self._on_event, store))
        events = [*self._read_lives(store), *self._read_commands(store)]
        self._has_read = True
        return events

    def _read_commands(self, store: TreeStore) -> list[ChannelEvent]:
        consumers = self._consumers(store, self._paths.channels)
        listings = store.children_many([self._paths.channel(name) for name in consumers])
        keys = [
            (consumer, name)
            for consumer, listing in zip(consumers, listings, strict=True)
            for name in sorted(listing.names if listing else ())
            if name.startswith(COMMAND_PREFIX) and is_name(name)
        ]
        at_ms, now_s, events = self._runtime.wall_ms(), self._runtime.monotonic(), []
        gone = [seen for key, seen in self._standing.items() if key not in set(keys)]
        channels = store.get_many([self._paths.channel(seen.consumer) for seen in gone])
        for seen, node in zip(gone, channels, strict=True):
            del self._standing[seen.consumer, seen.name]
            known = SeenCommand(seen.consumer, seen.name, seen.command, None, seen.problem)  # time of removal unknown
            events.append(channel_events.removed(known, self._channel(seen.consumer, node), at_ms, now_s))
        for key, node in existing(store, {key: self._paths.command(*key) for key in keys}).items():
            if key not in self._standing:
                self._standing[key] = seen = self._seen(*key, node, None)
                events.append(channel_events.sent(seen, at_ms))
        return events

    def _read_lives(self, store: TreeStore) -> list[ChannelEvent]:
        """The registered consumers; the first reading returns no events for those that are already there."""
        nodes = existing(store, {name: self._paths.id(name) for name in self._consumers(store, self._paths.ids)})
        found = {name: self._read_registration(name, node) for name, node in nodes.items()}
        at_ms = self._runtime.wall_ms()
        lives = {name: registration.incarnation if registration else None for name, (registration, _) in found.items()}
        gone = sorted(name for name, life in self._lives.items() if name not in lives or lives[name] != life)
        channels = store.get_many([self._paths.channel(name) for name in gone])
        events = [
            channel_events.ended(name, self._lives[name], self._channel(name, node), at_ms)
            for name, node in zip(gone, channels, strict=True)
        ]
        events += [
            channel_events.registered(name, *found[name], at_ms)
            for name in sorted(found)
            if name not in self._lives or name in gone
        ]
        self._lives = lives
        return events if self._has_read else []

    def _consumers(self, store: TreeStore, root: str) -> list[str]:
        return [self._consumer] if self._consumer is not None else names_below(store, root)

    # ---- untrusted data

    def _seen(self, consumer: str, name: str, node: Node | None, since_s: float | None) -> SeenCommand:
        if node is None:
            return SeenCommand(consumer, name, None, since_s, channel_events.GONE_UNREAD)
        try:
            return SeenCommand(consumer, name, Command.parse(self._paths.command(consumer, name), node.data), since_s)
        except BadData as error:
            return SeenCommand(consumer, name, None, since_s, str(error))

    def _channel(self, consumer: str, node: Node | None) -> Channel | None:
        return readable(parsed_channel, self._paths.channel(consumer), node)

    def _read_registration(self, consumer: str, node: Node | None) -> tuple[Registration | None, str | None]:
        if node is None:
            return None, "it was gone before its registration could be read"
        try:
            return Registration.parse(self._paths.id(consumer), node.data), None
        except BadData as error:
            return None, shown(str(error), 300)
