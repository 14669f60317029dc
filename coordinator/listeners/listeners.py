"""The draft's four listeners (sources D17 to D20): topics, topic partitions, groups, group members.

A watch event only means that data may have changed; one thread then reads it again, sets the next watch in the same
call, and requests the turns that follow. After a reconnect, and in every sweep, everything is read again: that
detects changes hidden by a lost watch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..regions.turns import Regions
from ..term.directory import Directory
from ..term.operator_requests import OperatorRequests
from ..term.reading import Findings
from ..term.request_queue import GroupTurn, RegionTurn
from ..term.term import Term
from ..zk.errors import Retryable
from ..zk.runtime import Runtime
from ..zk.store import Watch, existing_nodes
from ..zk.znodes.paths import GROUPS, REGIONS, GroupPaths
from .members import MemberListener
from .topics import RequestTurn, TopicListener


def group_of(path: str) -> str:
    """The group whose znode is at `path`, or above it."""
    return path[len(GROUPS) + 1 :].split("/", 1)[0]


class Event(NamedTuple):
    """Data that may have changed."""

    kind: str
    name: str = ""


class Agenda:
    """Events of two lanes: all queued changes are taken in turn, then one piece of long work.

    A change waits for each other change once, and for one piece of long work.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._added = runtime.condition()
        self._changes: dict[Event, None] = {}
        self._round: deque[Event] = deque()
        self._long: dict[Event, None] = {}
        self._later: dict[Event, float] = {}
        self._is_changes_turn = True
        self._runtime = runtime

    def put_at(self, event: Event, time: float) -> None:
        """Queue a change for `time`, by the monotonic clock; no later than an equal one that waits."""
        with self._added:
            self._later[event] = min(time, self._later.get(event, time))
            self._added.notify_all()

    def put(self, event: Event) -> None:
        """Queue a change; equal ones are queued once."""
        with self._added:
            self._changes[event] = None
            self._added.notify_all()

    def put_long(self, event: Event) -> None:
        """Queue a piece of long work."""
        with self._added:
            self._long[event] = None
            self._added.notify_all()

    def take(self) -> Event:
        """The next event; blocks until there is one."""
        with self._added:
            while True:
                self._take_due()
                if self._round:
                    return self._round.popleft()
                if self._long and not self._is_changes_turn:
                    self._is_changes_turn = True
                    event = next(iter(self._long))
                    del self._long[event]
                    return event
                self._is_changes_turn = False
                self._round.extend(self._changes)
                self._changes.clear()
                if not self._round and not self._long:
                    next_s = min(self._later.values()) - self._runtime.monotonic() if self._later else None
                    self._added.wait(next_s)

    def _take_due(self) -> None:
        for event in [each for each, time in self._later.items() if time <= self._runtime.monotonic()]:
            del self._later[event]
            self._changes[event] = None


log = logging.getLogger(__name__)

TOPICS, TOPIC, GROUP_LIST, MEMBERS, EVERYTHING, STOP = "topics", "topic", "groups", "members", "everything", "stop"
REGION_LIST, REGION_REQUEST = "regions", "region request"
PAUSES, REQUEST, SYNC_REQUEST = "pauses", "request", "sync request"
MORE_MEMBERS, UNREAD = "more members", "unread"
GROUPS_AT_ONCE = 50
"""Groups that are read before the listeners continue with changes of others."""


class Listeners:
    """Watches topics, groups, regions and requests for one term, and keeps the directory up to date.

    :param request_turn: requests a turn.
    :param operator_requests: operators' requests, read here too.
    :param forget: called with a group that is gone.
    :param regions: the consistent regions, read here too.
    """

    def __init__(
        self,
        term: Term,
        directory: Directory,
        request_turn: RequestTurn,
        operator_requests: OperatorRequests,
        forget: Callable[[str], None],
        regions: Regions,
    ) -> None:
        self._term = term
        self._store = term.store
        self._directory = directory
        self._request_turn = request_turn
        self._operator_requests = operator_requests
        self._forget = forget
        self._regions = regions
        self._on_groups = self._queued(GROUP_LIST)
        self._on_paused = self._queued(PAUSES)
        self._on_request = self._queued(REQUEST, group_of)
        self._on_sync_request = self._queued(SYNC_REQUEST, group_of)
        self._on_regions = self._queued(REGION_LIST)
        self._on_region_request = self._queued(REGION_REQUEST, lambda path: path[len(REGIONS) + 1 :].split("/", 1)[0])
        on_topic = self._queued(TOPIC, lambda path: path.rsplit("/", 1)[-1])
        self._topics = TopicListener(term, directory, request_turn, self._queued(TOPICS), on_topic)
        self._events = Agenda(term.runtime)
        later = lambda group: self._events.put_long(Event(MORE_MEMBERS, group))  # noqa: E731
        on_members = self._queued(MEMBERS, lambda path: self._members.fired(path))
        self._members = MemberListener(term, directory, request_turn, on_members, later)
        self._findings = Findings(term.problems)
        self._unread: dict[str, bool] = {}

    # ---- start

    def start(self) -> None:
        """Start (sources D10 to D12): read and watch topics and groups, and request a turn of every group.

        :raises StoreError: when one of the reads fails; the caller resigns.
        """
        self.pause_change()  # before any turn: it applies to a new coordinator's first turn, too
        self.region_change()
        self._topics.topic_change()
        self.group_change()
        while self._unread:
            self.read_groups()
        for group in self._directory.groups():
            self._request_turn(GroupTurn(group), "coordinator elected")
        self._directory.is_complete = True

    def run(self) -> None:
        """Handle events until `stop`. Returns only with an error that ends the term (`SessionLost`)."""
        while True:
            event = self._events.take()
            if event.kind == STOP:
                return
            try:
                self._handle(event)
            except Retryable as error:
                log.debug("watch read failed, retrying: what=%s name=%s reason=%s", event.kind, event.name, error)
                self._term.runtime.sleep(0.1)
                self._events.put(event)

    def look_again(self) -> None:
        """Read everything again: after a reconnect, and in every sweep."""
        self._events.put(Event(EVERYTHING))

    def stop(self) -> None:
        """End `run`."""
        self._events.put(Event(STOP))

    def _handle(self, event: Event) -> None:
        match event.kind:
            case "topics":
                self._topics.topic_change()
            case "topic":
                self._topics.topic_partition_change([event.name])
            case "groups":
                self.group_change()
            case "members":
                if time := self._members.read_changed(event.name):
                    self._events.put_at(event, time)
            case "more members":
                self._members.go_on(event.name)
            case "unread":
                self.read_groups()
            case "pauses":
                self.pause_change()
            case "request":
                self.request_change([event.name])
            case "sync request":
                self.sync_request_change([event.name])
            case "regions":
                self.region_change()
            case "region request":
                self.region_request_change(event.name)
            case "everything":
                self.pause_change()
                self.region_change()
                self._topics.topic_change(all_of_them=True)
                self.group_change(all_of_them=True)

    # ---- watches: each only queues an event

    def _queued(self, kind: str, name_of: Callable[[str], str] = lambda path: "") -> Watch:
        """A watch that queues an event with the name that its path has."""
        return lambda path: self._events.put(Event(kind, name_of(path)))

    # ---- consistent regions

    def region_change(self) -> None:
        """Read the list of regions; each gets a turn."""
        for region in self._regions.read(self._on_regions, self._on_region_request):
            self._request_turn(RegionTurn(region), "read")

    def region_request_change(self, region: str) -> None:
        """A request for a checkpoint or a reset was made or answered."""
        if self._regions.watch_requests([region], self._on_region_request):
            self._request_turn(RegionTurn(region), "request")

    # ---- requests of leaders

    def sync_request_change(self, groups: Sequence[str]) -> None:
        """Read the groups whose leader requests another ask; the turn reads the reason."""
        watch = self._on_sync_request
        for group, _, _ in existing_nodes(self._store, groups, lambda group: GroupPaths(group).sync_request, watch):
            self._request_turn(GroupTurn(group), "sync request")

    # ---- requests of operators

    def pause_change(self) -> None:
        """Read the paused groups; resumed ones get a turn."""
        before, after = self._operator_requests.read_paused(self._on_paused)
        for group in sorted({*self._directory.groups(), *before.groups, *self._operator_requests.held()}):
            if before.of(group) and not after.of(group):
                self._request_turn(GroupTurn(group), "resumed")

    def request_change(self, groups: Sequence[str]) -> None:
        """Read the groups for which operators request turns."""
        for group, requested in self._operator_requests.read_requests(groups, self._on_request).items():
            self._request_turn(GroupTurn(group), requested.trigger)

    # ---- groups

    def group_change(self, all_of_them: bool = False) -> None:
        """`GroupChangeListener` (sources D17), also for groups that are gone."""
        listed = self._findings.listed(GROUPS, self._store.children(GROUPS, watch=self._on_groups))
        names = set(self._directory.groups() if listed is None else listed)
        self._findings.done()
        new, gone = self._members.listed(names)
        for group in gone:
            self._forget(group)
            self._operator_requests.forget(group)
        for group in sorted(names) if all_of_them else new:
            self._unread[group] = all_of_them
        if self._unread:
            self._events.put_long(Event(UNREAD))

    def read_groups(self) -> None:
        """Read the next of the groups that are new, or are to be read again."""
        batch = list(self._unread.items())[:GROUPS_AT_ONCE]
        names = [group for group, _ in batch]
        self.request_change(names)  # first: a group with known members is not read again
        self.sync_request_change(names)
        for is_all in (False, True):
            if chosen := [group for group, each in batch if each is is_all]:
                self._members.read(chosen, is_all)
        for group, is_all in batch:
            del self._unread[group]
            if is_all:
                self._request_turn(GroupTurn(group), "sweep")
        if self._unread:
            self._events.put_long(Event(UNREAD))
