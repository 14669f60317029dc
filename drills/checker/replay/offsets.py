"""Replays writes of a group's offsets."""

from __future__ import annotations

from .commits import IN_GROUP, OFFSET, Commit, Route
from .event_schema import DELETE
from .reading import read_begun, read_offset
from .verdict import Event
from .znode_views import OffsetView


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
