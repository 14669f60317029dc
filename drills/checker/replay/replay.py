"""Replays a history's commits, znode by znode as far as invariants need it, and collects each commit's changes.

One pass, and each znode's data is parsed once at most. A commit's changes are in a `Commit`, whose `mask` selects the
invariants to call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import ANSWER as ANSWER_NAME
from zk_group.coordinator.zk.znodes.paths import (
    COMMAND_PREFIX,
    COORDINATOR_EPOCH,
    GROUPS,
    MEMBER_PREFIX,
    PAUSED,
    REGIONS,
    SEGMENT_PREFIX,
    Brokers,
    GroupPaths,
    checkpoint_number,
)
from zk_group.coordinator.zk.znodes.ranges import is_partition
from zk_group.coordinator.zk.znodes.records import Channel
from zk_group.coordinator.zk.znodes.regions import CONSUMERS, ENDS

from . import reading
from .commits import (
    CHECK,
    CREATE,
    DELETE,
    HAND,
    LIAR,
    SET,
    AskChange,
    Changed,
    ChannelChange,
    Commit,
    Handler,
    KnownProcess,
    MemberChange,
    RegionChange,
    Route,
    StateChange,
)
from .conditions import Conditions, Fault
from .fetch_intervals import FetchIntervals, Hold
from .verdict import Event, handlers_of
from .znode_views import (
    ANSWER,
    CHECKPOINT,
    CONTRIBUTION,
    END,
    ENTRY,
    ROOT,
    STRAY,
    THE_ASK,
    AskView,
    ChannelView,
    CheckpointView,
    CommandView,
    GroupView,
    MemberView,
    OffsetView,
    OwnerView,
    QueryView,
    RegionView,
    SegmentView,
    StateView,
    TopicView,
)

NO_GROUP = GroupView("")
Place = tuple[Handler, GroupView, str]
_SAMPLE = GroupPaths("g")
_BELOW = len(_SAMPLE.root) + 1
_REGION = f"{REGIONS}/"
_ERROR = '"error":"'
"""In the data of a channel that has not ended of its process's own accord."""


class RegionViews:
    """Every region of a history.

    :ivar views: by name.  :ivar ever: groups that are or were in a region of plain consumers.
    """

    def __init__(self) -> None:
        self.views: dict[str, RegionView] = {}
        self.ever: set[str] = set()
        self._of: dict[str, RegionView] = {}

    def of(self, group: str) -> RegionView | None:
        """The region of plain consumers of a group."""
        return self._of.get(group)

    def siblings(self, group: str) -> tuple[str, ...]:
        """The groups of a group's region, including itself."""
        view = self._of.get(group)
        return view.data.groups if view is not None and view.data is not None else (group,)

    def handle(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        """Apply one operation."""
        name, *parts = route.path[len(_REGION) :].split("/")
        view = self.views.setdefault(name, RegionView(name))
        text = "" if verb == DELETE else op.get("data") or ""
        commit.mask |= Changed.REGION
        if not parts:
            self._root(commit, view, verb, text)
        elif parts[0] == "initial" and len(parts) == 4 and is_partition(parts[3]):
            found = reading.read_offset(text)
            key = parts[1], TopicPartition(parts[2], int(parts[3]))
            view.initial.pop(key, None)
            if found is not None:
                view.initial[key] = found.offset, found.topic_id
        elif parts[0] == "checkpoints" and len(parts) in (2, 3) and (number := checkpoint_number(parts[1])):
            below = parts[2] if len(parts) == 3 else ""
            self._checkpoint(commit, view, number, below, verb, text)

    def _root(self, commit: Commit, view: RegionView, verb: str, text: str) -> None:
        before = view.data
        after = view.data = reading.read_region(text)
        view.written, view.by_hand = commit.event, commit.by_hand
        if after is not None and (before is None or before.reset != after.reset):
            view.reset_at = commit.event
        if after is not None and after.kind == CONSUMERS:
            for group in before.groups if before is not None else ():
                self._of.pop(group, None)
            self._of.update(dict.fromkeys(after.groups, view))
            self.ever.update(after.groups)
        commit.regions += (RegionChange(view, ROOT, verb == CREATE, verb == DELETE, before=before, after=after),)

    def _checkpoint(self, commit: Commit, view: RegionView, number: int, below: str, verb: str, text: str) -> None:
        checkpoint = view.checkpoints.get(number)
        if checkpoint is None:
            if verb == DELETE:
                return
            checkpoint = view.checkpoints[number] = CheckpointView(view.name, number, None, commit.event)
        what = END if below in ENDS else CONTRIBUTION if "~" in below else CHECKPOINT
        if below and what == CHECKPOINT:
            return  # not relevant
        checkpoint.by_hand = checkpoint.by_hand or commit.by_hand
        if what == CHECKPOINT:
            if verb == DELETE:
                del view.checkpoints[number]
            else:
                checkpoint.data = reading.read_checkpoint(text)
        elif what == END:
            checkpoint.ends.pop(below, None)
            if verb != DELETE:
                checkpoint.ends[below] = commit.event
        else:
            checkpoint.contributions.pop(below, None)
            if verb != DELETE:
                checkpoint.contributions[below] = reading.read_contribution(text), commit.event
        commit.regions += (RegionChange(view, what, verb == CREATE, verb == DELETE, checkpoint, below),)


# Large: a handler for each kind of znode, which all change the same views.
class Replay:
    """The state of the world at one time of the history."""

    events = ("run", "start", "fault")

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
        return self.processes.setdefault(who, KnownProcess(who))

    def on_run(self, event: Event) -> None:
        self.bounds = dict(event.get("bounds", {}))

    def on_start(self, event: Event) -> None:
        process = self.process(event["who"])
        process.kind = event.get("kind", "")
        process.group = event.get("group") or ""
        process.is_node = process.kind == "node"

    def on_fault(self, event: Event) -> None:
        fault = Fault(event)
        hit = [process for process in self.processes.values() if fault.hit(process.who)]
        self.conditions.disturb(fault, bool(hit) and not any(process.is_node for process in hit))

    def channel(self, event: Event) -> ChannelView | None:
        """The channel of the event's incarnation, while that lives and nothing is manually edited; else None."""
        group = self.groups.get(event["group"])
        view = group.channels.get(event["consumer"]) if group is not None else None
        return view if view is not None and view.lives_as(event["incarnation"]) and not view.by_hand else None

    # ---- transactions

    def commit(self, event: Event) -> Commit:
        """Apply a `commit`."""
        commit = Commit(event, self.process(event["who"]).kind == LIAR)
        for op in event["ops"]:
            if op["op"] != CHECK:
                self._apply(commit, op["path"], op["op"], op)
        return commit

    def close(self, event: Event) -> Commit:
        """Apply a `closed`."""
        commit = Commit(event)
        self.closed[event["session"]] = event
        for path in event.get("paths", ()):
            self._apply(commit, path, DELETE, event)
        return commit

    def _apply(self, commit: Commit, path: str, verb: str, op: Event) -> None:
        route = self._routes.get(path) or self._route(path)
        if route.group is not NO_GROUP:
            commit.mask |= Changed.IN_GROUP
            if commit.who == HAND:
                route.group.hand_at = commit.at
        route.handler(commit, route, verb, op)

    def _route(self, path: str) -> Route:
        """The route of a path. Paths of sequential znodes are not cached: each occurs once."""
        if path.startswith(_REGION):
            return Route(path, self.regions.handle, NO_GROUP)
        folder, _, name = path.rpartition("/")
        place = self._folders.get(folder)
        if place is None:
            place = self._folders[folder] = self._place(folder)
        handler, group, parent = place
        prefix = self._sequential.get(handler)
        if prefix is not None:
            return Route(path, handler if name.startswith(prefix) else self._on_nothing, group, parent, name)
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
            return Route(path, self._on_nothing, group)
        return Route(path, handler, group, parent, name)

    def _place(self, folder: str) -> Place:
        """The handler of a folder's children: (handler, group, name of the folder where it matters)."""
        if folder == self._topics_root:
            return self._on_topic, NO_GROUP, ""
        if not folder.startswith(GROUPS + "/"):
            return self._on_nothing, NO_GROUP, ""
        name, *parts = folder[len(GROUPS) + 1 :].split("/")
        group = self.groups.setdefault(name, GroupView(name))
        handler = self._kinds.get((parts[0], len(parts)), self._on_nothing) if parts else self._on_nothing
        return handler, group, parts[-1] if parts else ""

    # ---- znodes: each handler records the change, and applies it

    def _on_nothing(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        """A znode without relevance to any invariant."""

    def _on_history(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        commit.mask |= Changed.HISTORY

    def _on_channel(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group, view = route.group, route.group.channels.get(route.name)
        if verb == DELETE:
            if view is None:
                return
            del group.channels[route.name]
            after = None
            if commit.who == HAND and view.data is not None:
                group.deleted_lives.setdefault(route.name, set()).add(view.data.incarnation)
        else:
            if view is None:
                view = group.channels[route.name] = ChannelView(group, route.name, commit.event, commit.event)
            after = reading.read_channel(op.get("data") or "")
        before, view.data, view.written = view.data, after, commit.event
        by_hand = commit.by_hand or self._is_late_end(commit, view, before)
        mask = commit.mask | Changed.CHANNEL
        if before is None or after is None or before.incarnation != after.incarnation or before.ended != after.ended:
            mask |= Changed.LIFE | Changed.RUNNING | Changed.NAMED
            if after is not None and after.ended is not None and _ERROR not in op["data"]:
                self._on_left(commit, view, after)
            self._on_life(commit, view, before, by_hand)
        else:
            if before.running.keys() != after.running.keys():
                mask |= Changed.RUNNING
            if before.command != after.command or before.generation != after.generation or before.epoch != after.epoch:
                mask |= Changed.NAMED
        if by_hand:
            view.by_hand = True
            self.fetching.suspend(group.name, route.name)
        commit.mask = mask
        commit.channels += (ChannelChange(view, before, after),)

    def _is_late_end(self, commit: Commit, view: ChannelView, before: Channel | None) -> bool:
        """Whether a coordinator ends a life whose channel a hand has deleted, in the next one's channel.

        It has read the first one, and its fence is the version, which begins at 0 again.
        """
        after, deleted = view.data, view.group.deleted_lives.get(view.consumer, ())
        is_end = after is not None and after.ended is not None and after.incarnation in deleted
        is_another = before is not None and after is not None and before.incarnation != after.incarnation
        return is_end and is_another and self.process(commit.who).is_node

    def _on_left(self, commit: Commit, view: ChannelView, after: Channel) -> None:
        """An incarnation ended, of its own accord if its own process has ended it."""
        if view.owner == commit.who:
            holds = self.fetching.of(view.group.name, view.consumer, after.incarnation)
            commit.left += ((view, frozenset(TopicPartition(key[1], key[3]) for key in holds)),)

    def _on_life(self, commit: Commit, view: ChannelView, before: Channel | None, by_hand: bool) -> None:
        after, group = view.data, view.group
        view.since = commit.event
        group.changed_at = commit.at
        is_new = after is not None and (before is None or before.incarnation != after.incarnation)
        is_taken = is_new and view.owner != commit.who
        # A process other than a coordinator that ends it is its own, or one that takes its name over in several steps.
        is_own = view.owner == commit.who or not self.process(commit.who).is_node
        has_left = not is_new and after is not None and after.ended is not None and is_own
        if before is not None and not by_hand and (is_taken or has_left):
            end = self.fetching.take_over if is_taken else self.fetching.end
            end(group.name, view.consumer, before.incarnation, commit.at)
        if is_new and not by_hand:
            view.owner, view.by_hand = commit.who, False
            if before is not None and before.incarnation:
                group.deleted_lives.pop(view.consumer, None)

    def _on_command(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        view = route.group.channels.get(route.parent)
        if view is None:
            return
        if verb == DELETE:
            command = view.commands.pop(route.name, None)
            if command is not None:
                commit.mask |= Changed.GONE
                commit.gone += ((view, command),)
        else:
            data = reading.read_command(op.get("data") or "")
            command = view.commands[route.name] = CommandView(route.name, data, commit.event, commit.by_hand)
            commit.mask |= Changed.SENT
            commit.made += ((view, command),)

    def _on_state(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group, before = route.group, route.group.state
        commit.mask |= Changed.STATE
        is_edited = commit.by_hand and not commit.creates(GroupPaths(group.name).root)
        if verb == DELETE:
            group.state = None
        else:
            group.state = StateView(reading.read_state(op.get("data") or ""), commit.event, is_edited)
        if is_edited:
            group.state_hand_at = commit.at
            for view in group.channels.values():  # the marks' partitions are unknown
                if not view.is_live:
                    self.fetching.suspend(group.name, view.consumer)
        commit.states += (StateChange(group, before, group.state),)

    def _on_member(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group, before = route.group, route.group.members.get(route.name)
        after = None
        if verb != DELETE:
            registration = reading.read_registration(op.get("data") or "")
            session = before.session if before is not None and verb == SET else commit.session
            after = MemberView(route.name, registration, commit.event, session, commit.by_hand)
            group.members[route.name] = after
        elif before is None:
            return
        else:
            del group.members[route.name]
        commit.mask |= Changed.MEMBER
        commit.members += (MemberChange(group, before, after),)
        group.changed_at = commit.at
        if commit.by_hand:
            self.fetching.suspend(group.name, route.name)

    def _on_seat(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group = route.group
        if verb != DELETE:
            group.seats.setdefault(route.name, commit.zxid)
            group.seat_data[route.name] = reading.read_seat(op.get("data") or "")
            return
        if group.seats.pop(route.name, None) is not None:
            commit.mask |= Changed.SEAT
            commit.seats += ((group, route.name),)
        view = group.channels.get(route.name)
        has_left = view is None or (not view.is_live and view.written is not commit.event)
        if has_left and not commit.by_hand and self.process(commit.who).is_node:
            group.changed_at = group.seat_given_up_at = commit.at

    def _on_owner(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        owners = route.group.owners
        commit.mask |= Changed.OWNER
        before, after = owners.pop(route.partition, None), None
        if verb != DELETE:
            session = commit.session if op.get("ephemeral") else None
            data = reading.read_owner(op.get("data") or "")
            after = owners[route.partition] = OwnerView(data, session, commit.event, commit.by_hand)
        commit.owners += ((route.group, route.partition, before, after),)

    def _on_segment(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group = route.group
        if verb == DELETE:
            gone = group.segments.pop(route.name, None)
            if gone is not None:
                gone.gone, gone.is_lost = commit.event, commit.by_hand
                commit.mask |= Changed.COLLECTED
                commit.removed += (gone,)
            return
        segment = group.segments.get(route.name)
        if segment is None or verb == CREATE:
            segment = group.segments[route.name] = SegmentView(group, route.name, commit.zxid, commit.event)
            group.sealed.append(segment)
            commit.mask |= Changed.SEALED
            commit.sealed += (segment,)
        data = reading.read_segment(op.get("data") or "")
        segment.consumer, segment.ranges = (data.consumer, data.ranges) if data is not None else ("", None)
        missing = data.missing if data is not None else ()
        segment.missing = {TopicPartition(each.topic, each.partition): each.offsets for each in missing}
        segment.is_lost = commit.by_hand

    def _on_query(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        group, before = route.group, route.group.queries.get(route.name)
        commit.mask |= Changed.QUERY
        if verb == DELETE:
            after = None
            group.queries.pop(route.name, None)
            if before is not None and commit.event is op:  # a `closed`
                group.queries_lost[route.name] = before, commit.at
        else:
            group.queries_lost.pop(route.name, None)
            data = reading.read_query(op.get("data") or "")
            after = group.queries[route.name] = QueryView(route.name, data, commit.event)
            after.continues(before)
        was, now = before is not None and before.data, after is not None and after.data
        if not was or not now or bool(was.expired_ms) != bool(now.expired_ms):
            group.readers_changed = commit.event
        commit.queries += ((group, before, after),)

    def _on_topic(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        before = self.topics.get(route.name)
        if verb == DELETE:
            if before is None:
                return
            del self.topics[route.name]
        else:
            czxid = before.czxid if before is not None and verb == SET else commit.zxid
            data = reading.read_topic(route.name, op.get("data") or "", czxid)
            partitions = frozenset(data.partitions if data is not None else ())
            self.topics[route.name] = TopicView(data, commit.event, czxid, partitions)
        self.topics_changed += 1
        self.topics_changed_at = commit.at
        commit.mask |= Changed.TOPIC

    def _on_epoch(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        commit.mask |= Changed.EPOCH
        record = reading.read_epoch(op.get("data") or "")
        self.epoch = record.epoch if record is not None else None
        if verb != DELETE and not commit.by_hand:
            self.process(commit.who).is_node = True
            self.conditions.note_election(commit)

    def _on_paused(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        self.conditions.pause(commit.event, "" if verb == DELETE else op.get("data") or "")


def fetch_intervals(events: Iterable[Event]) -> Sequence[Hold]:
    """All fetch intervals of a whole history, ordered by their begin."""
    world = Replay()
    routes: list[tuple[str, Callable[[Event], object]]] = [("commit", world.commit), ("closed", world.close)]
    routes += [*handlers_of(world), *handlers_of(world.fetching)]
    for event in events:
        for kind, handler in routes:
            if kind == event["event"]:
                handler(event)
    return world.fetching.kept


def on_begun(commit: Commit, route: Route, verb: str, op: Event) -> None:
    """`offsets/[topic]` was written."""
    text = "" if verb == DELETE else op.get("data") or ""
    route.group.begun[route.name] = reading.read_begun(text)


def on_offset(commit: Commit, route: Route, verb: str, op: Event) -> None:
    """`offsets/[topic]/[partition]` was written."""
    group = route.group
    commit.mask |= Changed.OFFSET
    if verb == DELETE:
        view = OffsetView(None, commit.event, commit.by_hand)
        group.offsets.pop(route.partition, None)
    else:
        view = OffsetView(reading.read_offset(op.get("data") or ""), commit.event, commit.by_hand)
        group.offsets[route.partition] = view
    commit.offsets += ((group, route.partition, view),)


def on_ask(commit: Commit, route: Route, verb: str, op: Event) -> None:
    """An ask is created or removed."""
    group = route.group
    commit.mask |= Changed.ASK
    view = group.asks.get(route.name)
    if verb == DELETE:
        if view is not None:
            del group.asks[route.name]
            view.gone = commit.event
            _note(commit, view, THE_ASK, verb)
    elif verb == CREATE or view is None:
        ask = reading.read_ask(op.get("data") or "")
        view = AskView(group, route.name, ask, commit.event, commit.by_hand)
        _note(commit, view, THE_ASK, CREATE, group.newest_ask)
        group.asks[route.name] = group.newest_ask = view
    else:
        view.by_hand = view.by_hand or commit.by_hand
        _note(commit, view, THE_ASK, verb)


def on_answer(commit: Commit, route: Route, verb: str, op: Event) -> None:
    """A child of an ask is written or removed."""
    view = route.group.asks.get(route.parent)
    if view is None:
        return
    commit.mask |= Changed.ASK
    is_entry = route.name.startswith(MEMBER_PREFIX)
    what = ANSWER if route.name == ANSWER_NAME else ENTRY if is_entry else STRAY
    _note(commit, view, what, verb)
    view.by_hand = view.by_hand or commit.by_hand
    text = op.get("data") or ""
    if what == ANSWER:
        if verb != DELETE or commit.by_hand:
            view.answered = None if verb == DELETE else commit.event
        view.answer = None if verb == DELETE else reading.read_answer(text)
    elif what == ENTRY:
        consumer = route.name[len(MEMBER_PREFIX) :]
        view.entries.pop(consumer, None)
        if verb != DELETE:
            view.entries[consumer] = reading.read_entry(text)


def on_sync_request(commit: Commit, route: Route, verb: str, op: Event) -> None:
    """A leader's request for another ask is written or removed."""
    route.group.requested = None if verb == DELETE else commit.event


def _note(commit: Commit, view: AskView, what: str, verb: str, previous: AskView | None = None) -> None:
    commit.asks += (AskChange(view, what, verb == CREATE, verb == DELETE, view.answered, previous),)
