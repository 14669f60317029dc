"""Replays writes below `sync`: asks, leaders' entries and answers, and a leader's request for another ask."""

from __future__ import annotations

from coordinator.zk.znodes.group_state import Answer, Ask, MemberAnswer
from coordinator.zk.znodes.paths import ANSWER as ANSWER_NAME
from coordinator.zk.znodes.paths import MEMBER_PREFIX

from .commits import ASK, IN_GROUP, Commit, Route
from .event_schema import CREATE, DELETE
from .fast_json import strictly
from .verdict import Event
from .znode_views import ANSWER, ENTRY, STRAY, THE_ASK, AskChange, AskView

_PARSE_ASK, _PARSE_ENTRY, _PARSE_ANSWER = Ask.parse, MemberAnswer.parse, Answer.parse


def on_ask(commit: Commit, route: Route, verb: str, op: Event) -> None:
    """An ask is created or removed."""
    group = route.group
    commit.mask |= IN_GROUP | ASK
    view = group.asks.get(route.name)
    if verb == DELETE:
        if view is not None:
            del group.asks[route.name]
            view.gone = commit.event
            _note(commit, view, THE_ASK, verb)
        return
    if verb == CREATE or view is None:
        ask = strictly(_PARSE_ASK, route.path, op.get("data") or "")
        view = AskView(group.name, route.name, ask, commit.event, commit.by_hand)
        _note(commit, view, THE_ASK, CREATE, group.newest_ask)
        group.asks[route.name] = group.newest_ask = view
        return
    view.by_hand = view.by_hand or commit.by_hand
    _note(commit, view, THE_ASK, verb)


def on_answer(commit: Commit, route: Route, verb: str, op: Event) -> None:
    """A child of an ask is written or removed."""
    commit.mask |= IN_GROUP
    view = route.group.asks.get(route.parent)
    if view is None:
        return
    commit.mask |= ASK
    is_entry = route.name.startswith(MEMBER_PREFIX)
    what = ANSWER if route.name == ANSWER_NAME else ENTRY if is_entry else STRAY
    _note(commit, view, what, verb)
    view.by_hand = view.by_hand or commit.by_hand
    text = op.get("data") or ""
    if what == ANSWER:
        if verb != DELETE or commit.by_hand:
            view.answered = None if verb == DELETE else commit.event
        view.answer = None if verb == DELETE else strictly(_PARSE_ANSWER, route.path, text)
    elif what == ENTRY:
        consumer = route.name[len(MEMBER_PREFIX) :]
        view.entries.pop(consumer, None)
        if verb != DELETE:
            view.entries[consumer] = strictly(_PARSE_ENTRY, route.path, text)


def on_sync_request(commit: Commit, route: Route, verb: str, op: Event) -> None:
    """A leader's request for another ask is written or removed."""
    commit.mask |= IN_GROUP
    route.group.requested = None if verb == DELETE else commit.event


def _note(commit: Commit, view: AskView, what: str, verb: str, previous: AskView | None = None) -> None:
    commit.asks += (AskChange(view, what, verb == CREATE, verb == DELETE, view.answered, previous),)
