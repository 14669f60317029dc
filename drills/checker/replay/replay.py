"""Replays a history's commits, znode by znode as far as invariants need it, and collects each commit's changes.

One pass, and each znode's data is parsed once at most. A commit's changes are in a `Commit`, whose `mask` selects the
invariants to call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from coordinator.zk.znodes.paths import (
    COMMAND_PREFIX,
    COORDINATOR_EPOCH,
    GROUPS,
    PAUSED,
    SEGMENT_PREFIX,
    Brokers,
    GroupPaths,
)
from coordinator.zk.znodes.ranges import is_partition
from coordinator.zk.znodes.records import Registration

from .asks import on_answer, on_ask, on_sync_request
from .channel_data import ChannelData, read_channel, read_strange_channel
from .commits import (
    CHANNEL,
    COLLECTED,
    EPOCH,
    GONE,
    HAND,
    HISTORY,
    IN_GROUP,
    LIAR,
    LIFE,
    MEMBER,
    NAMED,
    OFFSET,
    OWNER,
    QUERY,
    RUNNING,
    SEALED,
    SEAT,
    SENT,
    STATE,
    TOPIC,
    Commit,
    Handler,
    KnownProcess,
    Route,
)
from .conditions import Conditions, Fault
from .event_schema import CHECK, CREATE, DELETE, SET
from .fetch_intervals import FetchIntervals, Hold
from .reading import (
    read_begun,
    read_command,
    read_epoch,
    read_missing,
    read_offset,
    read_query,
    read_registration,
    read_segment,
    read_state,
    read_topic,
)
from .regions import PREFIX, RegionViews
from .verdict import Event
from .znode_views import (
    ChannelChange,
    ChannelView,
    CommandView,
    GroupView,
    MemberView,
    OffsetView,
    OwnerView,
    QueryView,
    SegmentView,
    StateView,
    TopicView,
)

NO_GROUP = GroupView("")
Place = tuple[Handler, GroupView, str]
_SAMPLE = GroupPaths("g")
_BELOW = len(_SAMPLE.root) + 1
_ERROR = '"error":"'
"""In the data of a channel that has not ended of its process's own accord."""


# Large: a handler for each kind of znode, which all change the same views.
class Replay:
    """The state of the world at one time of the history."""

    def __init__(self) -> None:
        self.bounds: dict[str, float] = {}
        self.groups: dict[str, GroupView] = {}
        self.topics: dict[str, TopicView] = {}
        self.topics_changed = 0
        self.topics_changed_at = float("-inf")
        self.epoch: int | None = None
        self.closed: dict[object, Event] = {}
        self.processes: dict[str, KnownProcess] = {}
        self.regions = RegionViews()
        self.fetching = FetchIntervals()
        self.conditions = Conditions()
        self._topics_root = Brokers().topics
        self._routes: dict[str, Route] = {}
        self._folders: dict[str, Place] = {}
        self._registrations: dict[str, Registration | None] = {}
        self._sequential: dict[Handler, str] = {self._on_segment: SEGMENT_PREFIX, self._on_command: COMMAND_PREFIX}
        self._kinds: dict[tuple[str, int], Handler] = {
            (_SAMPLE.channels[_BELOW:], 1): self._on_channel,
            (_SAMPLE.channels[_BELOW:], 2): self._on_command,
            (_SAMPLE.ids[_BELOW:], 1): self._on_member,
            (_SAMPLE.seats[_BELOW:], 1): self._on_seat,
            (_SAMPLE.sync[_BELOW:], 1): on_ask,
            (_SAMPLE.sync[_BELOW:], 2): on_answer,
            (_SAMPLE.owners[_BELOW:], 2): self._on_owner,
            (_SAMPLE.offsets[_BELOW:], 1): on_begun,
            (_SAMPLE.offsets[_BELOW:], 2): on_offset,
            (_SAMPLE.segments[_BELOW:], 1): self._on_segment,
            (_SAMPLE.queries[_BELOW:], 1): self._on_query,
            (_SAMPLE.history[_BELOW:], 1): self._on_history,
        }

    # ---- processes

    def process(self, who: str) -> KnownProcess:
        """The state of a process."""
        found = self.processes.get(who)
        if found is None:
            found = self.processes[who] = KnownProcess(who)
        return found

    def on_start(self, event: Event) -> None:
        process = self.process(event["who"])
        process.kind = event.get("kind", "")
        process.group = event.get("group") or ""
        process.consumer = event.get("consumer") or ""
        process.is_node = process.kind == "node"

    def on_fault(self, event: Event) -> None:
        fault = Fault(event)
        hit = [process for process in self.processes.values() if fault.hit(process.who)]
        self.conditions.on_fault(fault, bool(hit) and not any(process.is_node for process in hit))

    # ---- transactions

    def commit(self, event: Event) -> Commit:
        """Apply a `commit`."""
        commit = Commit(event, self.process(event["who"]).kind == LIAR)
        routes = self._routes
        for op in event["ops"]:
            verb = op["op"]
            if verb == CHECK:
                continue
            path = op["path"]
            route = routes.get(path) or self._route(path)
            route.handler(commit, route, verb, op)
            if commit.who == HAND:
                route.group.hand_at = commit.at
        return commit

    def close(self, event: Event) -> Commit:
        """Apply a `closed`."""
        commit = Commit(event)
        self.closed[event["session"]] = event
        for path in event.get("paths", ()):
            route = self._routes.get(path) or self._route(path)
            route.handler(commit, route, DELETE, event)
        return commit

    def _route(self, path: str) -> Route:
        """The route of a path. Paths of sequential znodes are not cached: each occurs once."""
        if path.startswith(PREFIX):
            return Route(path, self.regions.handle, NO_GROUP)
        folder, _, name = path.rpartition("/")
        place = self._folders.get(folder)
        if place is None:
            place = self._folders[folder] = self._place(folder)
        handler, group, parent = place
        prefix = self._sequential.get(handler)
        if prefix is not None:
            return Route(path, handler if name.startswith(prefix) else self._on_other, group, parent, name)
        route = self._routes[path] = self._leaf(path, handler, group, parent, name)
        return route

    def _leaf(self, path: str, handler: Handler, group: GroupView, parent: str, name: str) -> Route:
        special = {COORDINATOR_EPOCH: self._on_epoch, PAUSED: self._on_paused}.get(path)
        if group is not NO_GROUP:
            own = GroupPaths(group.name)
            special = {own.state: self._on_state, own.sync_request: on_sync_request}.get(path)
        if special is not None:
            return Route(path, special, group)
        if handler in (self._on_owner, on_offset) and not is_partition(name):
            return Route(path, self._on_other, group)
        return Route(path, handler, group, parent, name)

    def _place(self, folder: str) -> Place:
        """The handler of a folder's children: (handler, group, name of the folder where it matters)."""
        if folder == self._topics_root:
            return self._on_topic, NO_GROUP, ""
        if not folder.startswith(GROUPS + "/"):
            return self._on_nothing, NO_GROUP, ""
        name, *parts = folder[len(GROUPS) + 1 :].split("/")
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = GroupView(name)
        handler = self._kinds.get((parts[0], len(parts)), self._on_other) if parts else self._on_other
        return handler, group, parts[-1] if parts else ""

    # ---- znodes: each handler records the change, and applies it

    def _on_nothing(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        """A znode without relevance to any invariant."""

    def _on_other(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        commit.mask |= IN_GROUP

    def _on_history(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        commit.mask |= IN_GROUP | HISTORY

    def _on_channel(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group, view = route.group, route.group.channels.get(route.name)
        if verb == DELETE:
            if view is None:
                return
            del group.channels[route.name]
            after = None
        else:
            if view is None:
                view = group.channels[route.name] = ChannelView(group, route.name, commit.event, commit.event)
            text = op.get("data") or ""
            after = (
                read_strange_channel(route.path, text) if commit.by_hand else read_channel(route.path, text, view.data)
            )
        before, view.data, view.written = view.data, after, commit.event
        mask = commit.mask | CHANNEL | IN_GROUP
        if before is None or after is None or before.incarnation != after.incarnation or before.ended != after.ended:
            mask |= LIFE | RUNNING | NAMED
            if after is not None and after.ended is not None and _ERROR not in op["data"]:
                self._on_left(commit, view, after)
            self._on_life(commit, view, before)
        elif after.moved is None:
            if before.running.keys() != after.running.keys():
                mask |= RUNNING
            if before.command != after.command or before.generation != after.generation or before.epoch != after.epoch:
                mask |= NAMED
        if commit.by_hand:
            view.by_hand = True
            self.fetching.suspend(group.name, route.name)
        commit.mask = mask
        commit.channels += (ChannelChange(view, before, after),)

    def _on_left(self, commit: Commit, view: ChannelView, after: ChannelData) -> None:
        """An incarnation ended, of its own accord if its own process has ended it."""
        if view.owner == commit.who:
            holds = self.fetching.of(view.group.name, view.consumer, after.incarnation)
            commit.left += ((view, frozenset((key[1], key[3]) for key in holds)),)

    def _on_life(self, commit: Commit, view: ChannelView, before: ChannelData | None) -> None:
        after, group = view.data, view.group
        view.since = commit.event
        group.changed_at = commit.at
        is_new = after is not None and (before is None or before.incarnation != after.incarnation)
        is_taken = is_new and view.owner != commit.who
        # A process other than a coordinator that ends it is its own, or one that takes its name over in several steps.
        is_own = view.owner == commit.who or not self.process(commit.who).is_node
        has_left = not is_new and after is not None and after.ended is not None and is_own
        if before is not None and not commit.by_hand and (is_taken or has_left):
            end = self.fetching.take_over if is_taken else self.fetching.end
            end(group.name, view.consumer, before.incarnation, commit.at)
        if is_new and not commit.by_hand:
            view.owner, view.by_hand = commit.who, False

    def _on_command(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        view = route.group.channels.get(route.parent)
        commit.mask |= IN_GROUP
        if view is None:
            return
        if verb == DELETE:
            command = view.commands.pop(route.name, None)
            if command is not None:
                commit.mask |= GONE
                commit.gone += ((view, command),)
        else:
            data = read_command(route.path, op.get("data") or "")
            command = view.commands[route.name] = CommandView(route.name, data, commit.event, commit.by_hand)
            commit.mask |= SENT
            commit.made += ((view, command),)

    def _on_state(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group, before = route.group, route.group.state
        commit.mask |= STATE | IN_GROUP
        is_edited = commit.by_hand and not commit.creates(GroupPaths(group.name).root)
        if verb == DELETE:
            group.state = None
        else:
            known = before.data if before is not None else None
            data = read_state(route.path, op.get("data") or "", known)
            group.state = StateView(data, commit.event, is_edited)
        if is_edited:
            group.state_hand_at = commit.at
            for view in group.channels.values():  # the marks' partitions are unknown
                if not view.is_live:
                    self.fetching.suspend(group.name, view.consumer)
        commit.states += ((group, before, group.state),)

    def _on_member(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group, before = route.group, route.group.members.get(route.name)
        after = None
        if verb != DELETE:
            registration = self._registration(route.path, op.get("data") or "")
            after = MemberView(route.name, registration, commit.event, commit.session, commit.zxid)
            if before is not None and verb == SET:
                after.session, after.czxid = before.session, before.czxid
            after.by_hand = commit.by_hand
            group.members[route.name] = after
        elif before is None:
            return
        else:
            del group.members[route.name]
        commit.mask |= MEMBER | IN_GROUP
        commit.members += ((group, before, after),)
        group.changed_at = commit.at
        if commit.by_hand:
            self.fetching.suspend(group.name, route.name)

    def _on_seat(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group = route.group
        commit.mask |= IN_GROUP
        if verb != DELETE:
            group.seats.setdefault(route.name, commit.zxid)
            group.seat_texts[route.name] = op.get("data") or ""
            return
        if group.seats.pop(route.name, None) is not None:
            commit.mask |= SEAT
            group.seats_lost[route.name] = commit.at
            commit.seats += ((group, route.name),)
        view = group.channels.get(route.name)
        has_left = view is None or (not view.is_live and view.written is not commit.event)
        if has_left and not commit.by_hand and self.process(commit.who).is_node:
            group.changed_at = group.seat_given_up_at = commit.at

    def _registration(self, path: str, text: str) -> Registration | None:
        if text not in self._registrations:
            self._registrations[text] = read_registration(path, text)
        return self._registrations[text]

    def _on_owner(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        owners = route.group.owners
        commit.mask |= OWNER | IN_GROUP
        before, after = owners.pop(route.partition, None), None
        if verb != DELETE:
            session = commit.session if op.get("ephemeral") else None
            after = owners[route.partition] = OwnerView(op.get("data") or "", session, commit.event, commit.by_hand)
        commit.owners += ((route.group, route.partition, before, after),)

    def _on_segment(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group = route.group
        commit.mask |= IN_GROUP
        if verb == DELETE:
            gone = group.segments.pop(route.name, None)
            if gone is not None:
                gone.gone, gone.is_lost = commit.event, commit.by_hand
                commit.mask |= COLLECTED
                commit.removed += (gone,)
            return
        segment = group.segments.get(route.name)
        if segment is None or verb == CREATE:
            segment = group.segments[route.name] = SegmentView(group, route.name, commit.zxid, commit.event)
            group.sealed.append(segment)
            commit.mask |= SEALED
            commit.sealed += (segment,)
        text = op.get("data") or ""
        found = read_segment(route.path, text)
        segment.consumer, segment.ranges = found or ("", None)
        segment.missing = read_missing(text) if found else {}
        segment.is_lost = commit.by_hand

    def _on_query(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group, before = route.group, route.group.queries.get(route.name)
        commit.mask |= QUERY | IN_GROUP
        if verb == DELETE:
            after = None
            group.queries.pop(route.name, None)
            if before is not None and commit.event is op:  # a `closed`
                group.queries_lost[route.name] = before, commit.at
        else:
            group.queries_lost.pop(route.name, None)
            data = read_query(route.path, op.get("data") or "")
            after = group.queries[route.name] = QueryView(route.name, data, commit.event)
            after.continues(before)
        was, now = before is not None and before.data, after is not None and after.data
        if not was or not now or bool(was.expired_ms) != bool(now.expired_ms):
            group.readers_changed = commit.event
        commit.queries += ((group, before, after),)

    def _on_topic(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        before, after = self.topics.get(route.name), None
        if verb == DELETE:
            if before is None:
                return
            del self.topics[route.name]
        else:
            czxid = before.czxid if before is not None and verb == SET else commit.zxid
            data = read_topic(route.path, route.name, op.get("data") or "", czxid)
            partitions = frozenset(data.partitions if data is not None else ())
            after = self.topics[route.name] = TopicView(data, commit.event, czxid, partitions)
        self.topics_changed += 1
        self.topics_changed_at = commit.at
        commit.mask |= TOPIC
        commit.topics += ((route.name, before, after),)

    def _on_epoch(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        commit.mask |= EPOCH
        self.epoch = read_epoch(route.path, op.get("data") or "")
        if verb != DELETE and not commit.by_hand:
            self.process(commit.who).is_node = True

    def _on_paused(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        self.conditions.on_paused(commit.event, "" if verb == DELETE else op.get("data") or "")


def fetch_intervals(events: Iterable[Event]) -> Sequence[Hold]:
    """All fetch intervals of a whole history, ordered by their begin."""
    world = Replay()
    handlers: Mapping[str, Callable[[Event], object]] = {
        "start": world.on_start, "commit": world.commit, **world.fetching.handlers(),
    }  # fmt: skip
    for event in events:
        if event["event"] == "closed":
            world.close(event)
        if (handler := handlers.get(event["event"])) is not None:
            handler(event)
    return world.fetching.kept


def on_begun(commit: Commit, route: Route, verb: str, op: Event) -> None:
    """`offsets/[topic]` was written."""
    commit.mask |= IN_GROUP
    text = "" if verb == DELETE else op.get("data") or ""
    route.group.begun[route.name] = read_begun(route.path, text) if text else None


def on_offset(commit: Commit, route: Route, verb: str, op: Event) -> None:
    """`offsets/[topic]/[partition]` was written."""
    group = route.group
    commit.mask |= OFFSET | IN_GROUP
    if verb == DELETE:
        view = OffsetView(None, commit.event, commit.by_hand)
        group.offsets.pop(route.partition, None)
    else:
        view = OffsetView(read_offset(route.path, op.get("data") or ""), commit.event, commit.by_hand)
        group.offsets[route.partition] = view
    commit.offsets += ((group, route.partition, view),)
