"""What is known of the asks of a group: the question to a leader, what it wrote below it, and its answer."""

from __future__ import annotations

from coordinator.zk.paths import ask_number
from coordinator.zk.sync import Answer, Ask, MemberAnswer

from .verdict import Event

THE_ASK, ENTRY, ANSWER, STRAY = "ask", "entry", "answer", "stray"


class AskView:
    """A `sync/ask` znode with what is below it.

    :ivar group: the group's name.
    :ivar ask: None when it cannot be read.
    :ivar entries: consumer -> what the leader gives it; None when it cannot be read.
    :ivar answer: None while there is none, and when it cannot be read: then `answered` says that it is there.
    :ivar gone: the commit that removed the ask, None while it is there.
    :ivar by_hand: whether a hand has written it, or anything below it.
    :ivar is_torn: whether a coordinator has begun to remove what is below it.
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
        """0 where its name is none of an ask."""
        return ask_number(self.name)


class AskChange:
    """One operation at or below an ask.

    :ivar what: `THE_ASK`, `ENTRY`, `ANSWER`, or `STRAY` for what nobody writes there.
    :ivar answered: the answer's commit as it was known before this operation.
    :ivar is_new: whether the znode is made; else its data is set, or it is removed (`is_removed`).
    :ivar previous: the ask that was made before this one, when this is the making of one.
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
