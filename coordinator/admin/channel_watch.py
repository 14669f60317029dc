"""Following the channels of a group live, for `channel watch`, and deriving the events.

An acknowledged command is removed in milliseconds, and one-shot watches lose events between two reads: this uses a
persistent recursive watch, and reads a command from within the callback of its event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from ..zk.errors import BadData, CoordinatorError, Retryable, SessionLost
from ..zk.runtime import Queue, Runtime
from ..zk.store import Node, SessionState, TreeEvent, TreeStore, existing_nodes, nodes_at
from ..zk.values import shown
from ..zk.znodes.json_fields import readable
from ..zk.znodes.partitions import range_texts
from ..zk.znodes.paths import COMMAND_PREFIX, GroupPaths, is_name, names_below, sequence
from ..zk.znodes.records import START_FETCHER, STOP_FETCHER, Channel, Command, Registration, parsed_channel

COMMAND, ACKNOWLEDGED, WITHDRAWN, REMOVED = "command", "acknowledged", "withdrawn", "removed"
REGISTERED, ENDED, MISSED = "registered", "ended", "missed"

GONE_UNREAD = "it was gone before it could be read"

LOOK_S = 0.5
COMMANDS, IDS, SESSION = "command", "ids", "session"


@dataclass(frozen=True, slots=True)
class ChannelEvent:
    """One event, as `channel watch` prints it; None for a field that does not apply or is unknown.

    :ivar event: `command` (sent), `acknowledged`, `withdrawn`, `removed` (unknown which of the two),
        `registered` and `ended` (a consumer's incarnation), `missed` (events may have been missed).
    :ivar at_ms: wall clock.
    :ivar partitions: topic -> ranges, started or revoked; None for a stop of everything, and for a command of
        client-side assignment.
    :ivar took_ms: time since the command was seen.
    :ivar ask: the command's assignment request.
    :ivar reason: why the assignment failed (`assignment-failed`).
    """

    event: str
    at_ms: int
    consumer: str | None = None
    command: str | None = None
    option: str | None = None
    epoch: int | None = None
    generation: int | None = None
    incarnation: str | None = None
    partitions: Mapping[str, str] | None = None
    took_ms: float | None = None
    note: str | None = None
    ask: str | None = None
    reason: str | None = None

    def to_json(self, group: str) -> dict[str, Any]:
        """The object that `-o jsonl` prints."""
        return {"event": self.event, "at_ms": self.at_ms, "group": group} | asdict(self)


@dataclass(frozen=True, slots=True)
class SeenCommand:
    """A present or removed command of a channel.

    :ivar command: None when unreadable.  :ivar problem: why.
    :ivar since_s: monotonic time at which it was seen; None when it was in the channel before.
    """

    consumer: str
    name: str
    command: Command | None
    since_s: float | None
    problem: str | None = None


def sent(seen: SeenCommand, at_ms: int) -> ChannelEvent:
    """A command was created."""
    note = seen.problem or (None if seen.since_s is not None else "it was there already")
    return replace(_of(seen, COMMAND, at_ms), note=note)


def removed(
    seen: SeenCommand, channel: Channel | None, at_ms: int, now_s: float, with_channel: bool | None = None
) -> ChannelEvent:
    """A command was removed: acknowledged or withdrawn, according to the data of its channel.

    :param channel: read just after the removal; None when unreadable.
    :param with_channel: whether the channel was written in the same multi; None when unknown.
    """
    event, note = _how_it_ended(seen, channel, with_channel)
    result = replace(_of(seen, event, at_ms), note=note)
    if seen.since_s is not None and seen.problem != GONE_UNREAD:  # seen late: a time of zero would be wrong
        result = replace(result, took_ms=round((now_s - seen.since_s) * 1000, 1))
    if seen.command is None and event == ACKNOWLEDGED and channel is not None:
        known = f"{seen.problem}; partitions are what its consumer runs" if seen.problem else "it could not be read"
        running = range_texts(channel.running)
        result = replace(
            result, epoch=channel.epoch, generation=channel.generation, incarnation=channel.incarnation,
            partitions=running, note=known,
        )  # fmt: skip
    return result


def registered(consumer: str, registration: Registration | None, problem: str | None, at_ms: int) -> ChannelEvent:
    """A consumer's `ids` znode was created."""
    if registration is None:
        return ChannelEvent(REGISTERED, at_ms, consumer, note=problem)
    subscription = ", ".join(f"{topic}:{threads}" for topic, threads in sorted(registration.subscription.items()))
    note = f"host {registration.host}, {registration.pattern} {subscription}".rstrip()
    if registration.client is not None:
        note += f", client-side {', '.join(registration.client.protocols)}"
    return ChannelEvent(REGISTERED, at_ms, consumer, incarnation=registration.incarnation, note=note)


def ended(consumer: str, incarnation: str | None, channel: Channel | None, at_ms: int) -> ChannelEvent:
    """A consumer's `ids` znode was removed."""
    if channel is None:
        note = "its channel cannot be read"
    elif incarnation is not None and channel.incarnation != incarnation:
        note = "another process has registered under its name"
    else:
        note = channel.ended or "its session ended"
    ended_incarnation = incarnation or (channel.incarnation if channel is not None else None)
    return ChannelEvent(ENDED, at_ms, consumer, incarnation=ended_incarnation, note=note)


def _of(seen: SeenCommand, event: str, at_ms: int) -> ChannelEvent:
    command = seen.command
    if command is None:
        return ChannelEvent(event, at_ms, seen.consumer, seen.name)
    named = range_texts(command.started if command.option == START_FETCHER else command.partitions)
    is_named = command.option == START_FETCHER or (command.option == STOP_FETCHER and bool(named))
    sender = (command.option, command.epoch, command.generation, command.incarnation)
    partitions, ask, reason = named if is_named else None, command.ask or None, command.reason or None
    return ChannelEvent(event, at_ms, seen.consumer, seen.name, *sender, partitions, ask=ask, reason=reason)


def _how_it_ended(seen: SeenCommand, channel: Channel | None, with_channel: bool | None) -> tuple[str, str | None]:
    """The multi that acknowledges a command names it in the channel, which only its consumer writes."""
    command = seen.command
    if channel is None:
        return REMOVED, "the channel cannot be read, so its outcome is unknown"
    if command is not None and command.incarnation != channel.incarnation:
        return WITHDRAWN, "the channel is another incarnation's"
    if channel.command == seen.name:
        refused = ", ".join(f"{topic}({text})" for topic, text in range_texts(channel.refused).items())
        return ACKNOWLEDGED, f"refused, as an owner was in the way: {refused}" if refused else None
    is_later = (sequence(channel.command) or -1) > (sequence(seen.name) or 0)
    if is_later and with_channel:  # its incarnation continued: not its end
        return ACKNOWLEDGED, seen.problem
    if is_later and with_channel is None:
        return REMOVED, "a later command was applied before the channel could be read"
    if channel.ended is not None:
        return WITHDRAWN, channel.ended
    if command is not None and (command.epoch, command.generation) < (channel.epoch, channel.generation):
        return WITHDRAWN, "it was older than what its consumer had applied"
    return WITHDRAWN, seen.problem


# ---- following


@dataclass(frozen=True, slots=True)
class _Happened:
    """An event as recorded by its callback: the znode, the time, and the read sent for it."""

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
        """All events, the existing commands first, for `for_s` seconds (None: without end).

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
        target = self._place(event.path)
        if target is None or event.kind == "changed" or store is not self._store:
            return
        # A creation needs the znode's own data, a deletion that of the channel.
        _, consumer, _ = target
        read = store.send_get(event.path if event.kind == "created" else self._paths.channel(consumer))
        now_s, now_ms = self._runtime.monotonic(), self._runtime.wall_ms()
        self._happened.put(_Happened(event.kind, *target, now_s, now_ms, read, is_with_channel))

    def _is_with_channel(self, event: TreeEvent) -> bool:
        """Whether the previous event, of the same channel, was a change of its data in the same multi."""
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
        """The kind of a path, its consumer, and its command if any; None for other paths and invalid names."""
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
        key = (happened.consumer, happened.command)
        if happened.what == IDS:
            yield self._registration(happened, node)
        elif happened.kind == "deleted":
            seen = self._standing.pop(key, None)
            if seen is not None:
                channel = self._channel(happened.consumer, node)
                yield removed(seen, channel, happened.at_ms, happened.at_s, happened.with_channel)
        elif key in self._standing:  # already reported while everything was read; only its time is new
            self._standing[key] = replace(self._standing[key], since_s=happened.at_s)
        else:
            self._standing[key] = self._seen(*key, node, happened.at_s)
            yield sent(self._standing[key], happened.at_ms)

    def _registration(self, happened: _Happened, node: Node | None) -> ChannelEvent:
        consumer = happened.consumer
        if happened.kind == "deleted":
            incarnation = self._lives.pop(consumer, None)
            return ended(consumer, incarnation, self._channel(consumer, node), happened.at_ms)
        registration, problem = self._read_registration(consumer, node)
        self._lives[consumer] = registration.incarnation if registration else None
        return registered(consumer, registration, problem, happened.at_ms)

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
        """Set the watch, read everything, and yield the changes since the last reading."""
        store = self._store
        assert store is not None
        try:
            for root in (self._paths.channels, self._paths.ids):
                path = f"{root}/{self._consumer}" if self._consumer else root
                store.watch_tree(path, partial(self._on_event, store))
            events = [*self._read_lives(store), *self._read_commands(store)]
        except (Retryable, SessionLost):
            return  # lost again: `_on_state` triggers the next attempt
        self._has_read = True
        if why is not None:
            note = f"{why}: events may have been missed; everything was read again"
            yield ChannelEvent(MISSED, self._runtime.wall_ms(), note=note)
        yield from events

    def _read_commands(self, store: TreeStore) -> list[ChannelEvent]:
        consumers = self._consumers(store, self._paths.channels)
        listings = store.children_many([self._paths.channel(name) for name in consumers])
        listed = zip(consumers, listings, strict=True)
        pairs = [(consumer, name) for consumer, listing in listed for name in sorted(listing.names if listing else ())]
        keys = [(consumer, name) for consumer, name in pairs if name.startswith(COMMAND_PREFIX) and is_name(name)]
        at_ms, now_s, events = self._runtime.wall_ms(), self._runtime.monotonic(), []
        gone = [seen for key, seen in self._standing.items() if key not in set(keys)]
        for seen, _, node in nodes_at(store, gone, lambda seen: self._paths.channel(seen.consumer)):
            del self._standing[seen.consumer, seen.name]
            command = SeenCommand(seen.consumer, seen.name, seen.command, None, seen.problem)  # time of removal unknown
            events.append(removed(command, self._channel(seen.consumer, node), at_ms, now_s))
        for key, _, node in existing_nodes(store, keys, lambda key: self._paths.command(*key)):
            if key not in self._standing:
                self._standing[key] = seen = self._seen(*key, node, None)
                events.append(sent(seen, at_ms))
        return events

    def _read_lives(self, store: TreeStore) -> list[ChannelEvent]:
        """The registered consumers; the first reading returns no events for them."""
        nodes = existing_nodes(store, self._consumers(store, self._paths.ids), self._paths.id)
        ids = {name: self._read_registration(name, node) for name, _, node in nodes}
        at_ms = self._runtime.wall_ms()
        lives = {name: registration.incarnation if registration else None for name, (registration, _) in ids.items()}
        gone = sorted(name for name, life in self._lives.items() if name not in lives or lives[name] != life)
        events = [
            ended(name, self._lives[name], self._channel(name, node), at_ms)
            for name, _, node in nodes_at(store, gone, self._paths.channel)
        ]
        new = [name for name in sorted(ids) if name not in self._lives or name in gone]
        events += [registered(name, *ids[name], at_ms) for name in new]
        self._lives = lives
        return events if self._has_read else []

    def _consumers(self, store: TreeStore, root: str) -> list[str]:
        return [self._consumer] if self._consumer is not None else names_below(store, root)

    # ---- untrusted data

    def _seen(self, consumer: str, name: str, node: Node | None, since_s: float | None) -> SeenCommand:
        if node is None:
            return SeenCommand(consumer, name, None, since_s, GONE_UNREAD)
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
