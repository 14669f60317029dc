"""Seed 000's four listeners: topics, topic partitions, groups, group members.

A watch event only means that data may have changed; one thread then reads it again, sets the next watch in the same
call, and requests the turns that follow. After a reconnect, and in every sweep, everything is read again: that
detects changes hidden by a lost watch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..regions.handler import KEY as REGION_KEY
from ..regions.handler import Regions
from ..term.bad_data import Findings
from ..term.operator_requests import Asked
from ..term.term import Term
from ..zk.errors import AccessDenied, BadData, Retryable
from ..zk.runtime import Queue
from ..zk.store import Node
from ..zk.znodes.paths import GROUPS, REGIONS, GroupPaths
from ..zk.znodes.records import Registration, Topic
from .interests import Interests
from .topics import AskForTurn, TopicListener

log = logging.getLogger(__name__)

TOPICS, TOPIC, GROUP_LIST, MEMBERS, EVERYTHING, STOP = "topics", "topic", "groups", "members", "everything", "stop"
REGION_LIST, REGION_REQUEST = "regions", "region request"
PAUSES, REQUEST, SYNC_REQUEST = "pauses", "request", "sync request"


class Event(NamedTuple):
    """Data that may have changed."""

    kind: str
    name: str = ""


class Listeners:
    """Watches topics, groups, regions and requests for one term, and keeps `interests` up to date.

    :param ask: requests a turn.
    :param asked: operators' requests, read here too.
    :param forget: called with a group that is gone.
    :param regions: the consistent regions, read here too.
    """

    def __init__(
        self,
        term: Term,
        interests: Interests,
        ask: AskForTurn,
        asked: Asked,
        forget: Callable[[str], None] = lambda group: None,
        regions: Regions | None = None,
    ) -> None:
        self._term = term
        self._store = term.store
        self._interests = interests
        self._ask = ask
        self._asked = asked
        self._forget = forget
        self._regions = regions
        self._topics = TopicListener(term, interests, ask, self._on_topics, self._on_topic)
        self._findings: dict[str, Findings] = {}
        self._events: Queue[Event] = term.runtime.queue()
        self._members: dict[str, dict[str, tuple[int, int]]] = {}
        self._watched: set[str] = set()

    # ---- read by others

    def topics(self) -> Mapping[str, Topic]:
        """All topics, as last read."""
        return self._topics.topics

    def groups(self) -> list[str]:
        """All groups, as last read."""
        return sorted(self._members)

    # ---- start

    def start(self) -> None:
        """Seed 000, `coordinatorStartup` 1 to 4: read and watch topics and groups, and request a turn of every group.

        :raises StoreError: when one of the reads fails; the caller resigns.
        """
        self.pause_change()  # before any turn: a new coordinator obeys it from the first
        self.region_change()
        self._topics.topic_change()
        self.group_change()
        for group in self.groups():
            self._ask(group, "coordinator elected")

    def run(self) -> None:
        """Handle events until `stop`. Returns only with an error that ends the term (`SessionLost`)."""
        while True:
            event = self._events.get()
            if event is None or event.kind == STOP:
                return
            try:
                self._handle(event)
            except Retryable as error:
                log.info("watch read failed, retrying: what=%s name=%s reason=%s", event.kind, event.name, error)
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
                self._watched.discard(event.name)
                self.group_member_change(event.name[len(GROUPS) + 1 :].split("/", 1)[0])
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
                for group in self.groups():
                    self._ask(group, "sweep")

    # ---- watches: each only queues an event

    def _on_topics(self, path: str) -> None:
        self._events.put(Event(TOPICS))

    def _on_topic(self, path: str) -> None:
        self._events.put(Event(TOPIC, path.rsplit("/", 1)[-1]))

    def _on_groups(self, path: str) -> None:
        self._events.put(Event(GROUP_LIST))

    def _on_members(self, path: str) -> None:
        # Either .../groups/[group]/ids, or .../groups/[group]/ids/[consumer]
        self._events.put(Event(MEMBERS, path))

    def _on_paused(self, path: str) -> None:
        self._events.put(Event(PAUSES))

    def _on_request(self, path: str) -> None:
        self._events.put(Event(REQUEST, path[len(GROUPS) + 1 :].split("/", 1)[0]))

    def _on_sync_request(self, path: str) -> None:
        self._events.put(Event(SYNC_REQUEST, path[len(GROUPS) + 1 :].split("/", 1)[0]))

    def _on_regions(self, path: str) -> None:
        self._events.put(Event(REGION_LIST))

    def _on_region_request(self, path: str) -> None:
        self._events.put(Event(REGION_REQUEST, path[len(REGIONS) + 1 :].split("/", 1)[0]))

    # ---- consistent regions

    def region_change(self) -> None:
        """Read the list of regions; each gets a turn."""
        if self._regions is not None:
            for region in self._regions.read(self._on_regions, self._on_region_request):
                self._ask(f"{REGION_KEY}{region}", "read")

    def region_request_change(self, region: str) -> None:
        """A request for a checkpoint or a reset was made or answered."""
        if self._regions is not None and self._regions.watch_requests([region], self._on_region_request):
            self._ask(f"{REGION_KEY}{region}", "request")

    # ---- requests of leaders

    def sync_request_change(self, groups: Sequence[str]) -> None:
        """Read the groups whose leader requests another ask; the turn reads the reason."""
        paths = [GroupPaths(group).sync_request for group in groups]
        for group, node in zip(groups, self._store.get_many(paths, watch=self._on_sync_request), strict=True):
            if node is not None:
                self._ask(group, "sync request")

    # ---- requests of operators

    def pause_change(self) -> None:
        """Read the paused groups; resumed ones get a turn."""
        before, after = self._asked.read_paused(self._on_paused)
        for group in sorted({*self._members, *before.groups, *self._asked.held()}):
            if before.of(group) and not after.of(group):
                self._ask(group, "resumed")

    def request_change(self, groups: Sequence[str]) -> None:
        """Read the groups for which operators request turns."""
        for group, requested in self._asked.read_requests(groups, self._on_request).items():
            self._ask(group, requested.trigger)

    # ---- groups

    def group_change(self, all_of_them: bool = False) -> None:
        """Seed 000, `GroupChangeListener`, also for groups that are gone."""
        listing = self._store.children(GROUPS, watch=self._on_groups)
        try:
            names = set(self._found_in(GROUPS).usable(GROUPS, listing.names if listing else ()))
        except AccessDenied as error:
            self._found_in(GROUPS).report(error.path, str(error))
            names = set(self._members)
        self._found_in(GROUPS).done()
        for group in sorted(set(self._members) - names):
            del self._members[group]
            self._interests.forget(group)
            self._forget(group)
            self._asked.forget(group)
            self._found_in(GroupPaths(group).ids).done()
            self._findings.pop(GroupPaths(group).ids, None)
        if all_of_them:
            self._watched.clear()
        new = sorted(names if all_of_them else names - set(self._members))
        self.request_change(new)  # first: a group with known members is not read again
        self.sync_request_change(new)
        for group in new:
            self.group_member_change(group)

    def group_member_change(self, group: str) -> None:
        """Seed 000, `GroupMemberChangeListener`; a member is (name, czxid), and its data may change in place."""
        paths = GroupPaths(group)
        listing = self._store.children(paths.ids, watch=self._on_members)
        try:
            names = sorted(self._found_in(paths.ids).usable(paths.ids, listing.names if listing else ()))
        except AccessDenied as error:
            self._found_in(paths.ids).report(error.path, str(error))
            self._found_in(paths.ids).done()
            self._members.setdefault(group, {})
            return  # the members stay as they were; the group's turns fail
        nodes = self._read_members([paths.id(name) for name in names])
        present = {name: node for name, node in zip(names, nodes, strict=True) if node is not None}
        self._interests.update(group, self._registrations(paths, present))
        self._found_in(paths.ids).done()
        before = self._members.get(group)
        after = {name: (node.stat.czxid, node.stat.mzxid) for name, node in present.items()}
        self._members[group] = after
        if after != before:
            self._ask(group, _who_changed(before or {}, after))

    def _read_members(self, ids: list[str]) -> list[Node | None]:
        """All of `ids`, with watches on those that have none: these take a request each, the others one for all."""
        new = [path for path in ids if path not in self._watched]
        old = [path for path in ids if path in self._watched]
        found = dict(zip(new, self._store.get_many(new, watch=self._on_members), strict=True))
        self._watched |= set(new)
        found |= zip(old, self._store.get_many(old), strict=True)
        return [found[path] for path in ids]

    def _registrations(self, paths: GroupPaths, nodes: Mapping[str, Node]) -> Iterable[Registration]:
        for name, node in nodes.items():
            try:
                yield Registration.parse(paths.id(name), node.data)
            except BadData as error:
                self._found_in(paths.ids).report(paths.id(name), str(error))

    def _found_in(self, path: str) -> Findings:
        return self._findings.setdefault(path, Findings(self._term.problems))


def _who_changed(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> str:
    lives_before = {name: life for name, (life, _) in before.items()}
    lives_after = {name: life for name, (life, _) in after.items()}
    joined = sorted(name for name, life in lives_after.items() if lives_before.get(name) != life)
    left = sorted(name for name in lives_before if name not in lives_after)
    changed = sorted(name for name in after if name in before and name not in joined and after[name] != before[name])
    changes = [
        f"{what} {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for what, names in (("joined", joined), ("left", left), ("changed", changed))
        if names
    ]
    return "; ".join(changes) or "members read"
