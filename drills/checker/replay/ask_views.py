"""A group's asks: the request to a leader, its entries, and its answer."""

from __future__ import annotations

from coordinator.zk.znodes.paths import ask_number
from coordinator.zk.znodes.sync import Answer, Ask, MemberAnswer

from .verdict import Event

THE_ASK, ENTRY, ANSWER, STRAY = "ask", "entry", "answer", "stray"


class AskView:
    """A `sync/ask` znode with its children.

    :ivar group: the group's name.
    :ivar ask: None when it cannot be read.
    :ivar entries: consumer -> its entry; None when it cannot be read.
    :ivar answer: None without one, and when it cannot be read: then `answered` is still set.
    :ivar gone: the commit that removed the ask, None while it exists.
    :ivar by_hand: whether it or a child was written manually.
    :ivar is_torn: whether a coordinator has begun to remove its children.
    """

    __slots__ = ("answer", "answered", "ask", "by_hand", "entries", "gone", "group", "is_torn", "made", "name")

    def __init__(self, group: str, name: str, ask: Ask | None, made: Event, by_hand: bool) -> None:
        self.group = group
        self.name = name
        self.ask = ask
        self.made = made
        self.by_hand = by_hand
        self.entries: dict[str, MemberAnswer | None] = {}
        self.answer: Answer | None = None
        self.answered: Event | None = None
        self.gone: Event | None = None
        self.is_torn = False

    @property
    def number(self) -> int:
        """0 when its name is not an ask's."""
        return ask_number(self.name)


class AskChange:
    """One operation at or below an ask.

    :ivar what: `THE_ASK`, `ENTRY`, `ANSWER`, or `STRAY` for an unknown child.
    :ivar answered: the answer's commit before this operation.
    :ivar is_new: whether the znode is created; else it is set, or removed (`is_removed`).
    :ivar previous: the ask before this one, when this operation creates it.
    """

    __slots__ = ("answered", "is_new", "is_removed", "previous", "view", "what")

    def __init__(
        self, view: AskView, what: str, is_new: bool, is_removed: bool, previous: AskView | None = None
    ) -> None:
        self.view = view
        self.what = what
        self.is_new = is_new
        self.is_removed = is_removed
        self.answered = view.answered
        self.previous = previous
