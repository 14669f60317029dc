"""A made history of a group whose assignment a member decides: asks, answers, adoptions, up to its calm end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.support.history_words import tell
from tests.support.made_histories import Happening, Made, MadeLife, Shares, Story, offer, parted
from zk_group.coordinator.zk.store import Create, Delete, Operation, SetData
from zk_group.coordinator.zk.znodes.group_state import (
    CLIENT,
    COMPLETING,
    FAILED,
    Answer,
    Ask,
    AskMember,
    ClientSide,
    GroupState,
    MemberAnswer,
)
from zk_group.coordinator.zk.znodes.paths import GroupPaths, ask_name
from zk_group.coordinator.zk.znodes.records import ASSIGN, ASSIGNMENT_FAILED, Command, Registration, Seat

G = GroupPaths("g")
PARTITIONS = 4


class LedGroup(Story):
    """Group `g`: m0 and m1 share a topic; m2 joins; a leader fails, and another coordinator takes over.

    :ivar asks: those that were made, by name.
    """

    def __init__(self, point: str = "", happening: Happening | None = None) -> None:
        super().__init__(point, happening)
        self.events[0]["bounds"]["assignment_timeout"] = 5.0
        self.asks: dict[str, Ask] = {}
        self.client = ClientSide("consumer")
        tell(self, __file__)

    # ---- members

    def member(self, name: str, life: int = 1, topics: tuple[str, ...] = ("flights",), **wants: Any) -> MadeLife:
        """A process that can do client-side assignment only registers."""
        found = self.consumer(f"{name}#{life}", "g", "consumer")
        self.register(found, f"{name}-{life}", subscription={}, pattern=CLIENT, client=offer(*topics), **wants)
        return found

    def static_member(self, name: str, life: int = 1) -> MadeLife:
        """The same of a static one, with its seat."""
        found = self.member(name, life, instance_id=name)
        registration = Registration.parse("", self.tree[G.id(name)][0].encode())
        self.commit(found.who, self.put(G.seat(name), Seat(registration, 6000).to_bytes()))
        return found

    def identity(self, name: str) -> str:
        """A member's identity in an ask."""
        seat = self.tree.get(G.seat(name))
        return f"seat-{seat[3]:x}" if seat is not None else self.lives[name].channel.incarnation

    # ---- asks

    def asked(self, leader: str, members: Mapping[str, str], number: int = 0, attempt: int = 1) -> Ask:
        """An ask of these members (name -> identity), not yet made."""
        some = {name: AskMember(identity, "digest", 4000) for name, identity in members.items()}
        incarnation = self.lives[leader].channel.incarnation
        ask = Ask("range", leader, incarnation, some, attempt=attempt, reason="a test")
        self.asks[ask_name(number or len(self.asks) + 1)] = ask
        return ask

    @property
    def name(self) -> str:
        """The newest ask."""
        return max(self.asks)

    def assign(self, name: str = "", **more: Any) -> Operation:
        """The command for the leader of an ask."""
        ask = self.asks[name or self.name]
        life = self.lives[ask.leader]
        fields = {"epoch": self.epoch, "generation": self.states["g"].generation, **more}
        command = Command(ASSIGN, incarnation=life.channel.incarnation, ask=name or self.name, **fields)
        return Create(G.command_prefix(ask.leader), command.to_bytes(), sequential=True)

    def ask(self, leader: str, *names: str, attempt: int = 1, identities: Mapping[str, str] | None = None) -> Made:
        """A turn that makes an ask, with its command."""
        members = {name: self.identity(name) for name in names} | dict(identities or {})
        made = self.asked(leader, members, attempt=attempt)
        parents: list[Operation] = [] if G.sync in self.tree else [Create(G.sync)]
        state = replace(self.states["g"], state=COMPLETING, client=self.client, epoch=self.epoch)
        return self.fenced("g", state, *parents, Create(G.ask(self.name), made.to_bytes()), self.assign())

    def entries(self, shares: Shares, name: str = "") -> list[Operation]:
        """A leader's entries below an ask, without the answer."""
        return [
            Create(
                G.member_answer(name or self.name, consumer),
                MemberAnswer({f"{consumer}-0": parted(share)} if share else {}, protocol="range").to_bytes(),
            )
            for consumer, share in shares.items()
        ]

    def answer_of(self, shares: Shares, error: str | None = None, partitions: int = PARTITIONS) -> Answer:
        topics = {} if error else {"flights": self.ids["flights"]}
        numbers = {topic: frozenset(range(partitions)) for topic in topics}
        return Answer(tuple(sorted(shares)), topics, numbers, True, error)

    def answer(self, shares: Shares, error: str | None = None, name: str = "", who: str = "", **more: Any) -> Made:
        """A leader's last multi: the rest of the entries, the answer, the command removed."""
        ask = self.asks[name or self.name]
        life = self.lives[ask.leader]
        command = self.command_of(ask.leader)
        life.channel = replace(life.channel, epoch=self.epoch, command=command.rpartition("/")[2], **more)
        return self.commit(
            who or life.who,
            SetData(life.paths.channel(life.name), life.channel.to_bytes()),
            *([] if error else self.entries(shares, name)),
            Create(G.answer(name or self.name), self.answer_of(shares, error).to_bytes()),
            Delete(command),
        )

    def adopted(self, shares: Shares, name: str = "", **more: Any) -> GroupState:
        """The state that an adoption writes."""
        self.client = ClientSide("consumer", name or self.name, True)
        fields = {"topics": {"flights": self.ids["flights"]}, "client": self.client, **more}
        state = replace(self.rebalance("g", shares), **fields)
        topics = {topic: set(range(PARTITIONS)) for topic in state.topics}
        for share in state.target.values():
            for part in share.partitions:
                topics.get(part.topic, set()).discard(part.partition)
        left = {
            topic: f"leader assigns partitions {sorted(some)} to no member" for topic, some in topics.items() if some
        }
        return replace(state, left_out=left)

    def adopt(self, shares: Shares, *operations: Operation, name: str = "", **more: Any) -> Made:
        """A turn that adopts an answer."""
        return self.fenced("g", self.adopted(shares, name, **more), *operations)

    def settle(self, shares: Shares) -> None:
        """Each member gets its start, one after the other, and the group is Stable. Finished asks are removed."""
        state = self.states["g"]
        for consumer, share in sorted(shares.items()):
            gone = frozenset(self.lives[consumer].channel.running) - parted(share)
            if gone:
                named = {part.topic: str(part.partition) for part in gone}
                assert len(gone) == 1, "the stories give one up at a time"
                self.fenced("g", state, self.stop(consumer, named))
                self.obey(consumer)
        for consumer, share in sorted(shares.items()):
            self.fenced("g", state, self.start(consumer, share, ask=self.client.ask))
            self.obey(consumer)
        old = [name for name in self.asks if name != self.client.ask and G.ask(name) in self.tree]
        self.fenced("g", replace(self.states["g"], state="Stable", epoch=self.epoch), *self.removed(*old))

    def removed(self, *names: str) -> list[Operation]:
        """Asks removed, with what is below them."""
        paths = [path for name in names for path in sorted(self.tree, reverse=True) if self._is_of(path, name)]
        return [Delete(path) for path in paths]

    def _is_of(self, path: str, name: str) -> bool:
        return path == G.ask(name) or path.startswith(f"{G.ask(name)}/")

    def turn_of(self, shares: Shares, leader: str = "m0") -> None:
        """A whole round: asked, answered, adopted, settled."""
        self.ask(leader, *shares)
        self.answer(shares)
        self.adopt(shares)
        self.settle(shares)

    # ---- what the builder does not know of client-side assignment

    def obey(self, consumer: str, begins: bool = True) -> Made:
        path = self.command_of(consumer)
        command = Command.parse(path, self.tree[path][0].encode())
        life = self.lives[consumer]
        if command.option == ASSIGNMENT_FAILED:
            done = replace(life.channel, epoch=command.epoch, command=path.rpartition("/")[2])
            return self.set_channel(life, done, Delete(path))
        if command.ask:
            life.channel = replace(life.channel, ask=command.ask)
        return super().obey(consumer, begins)

    def fail(self, *names: str) -> None:
        """The leader of the newest ask, the first of these, has failed: they get the notice of it."""
        self.client = replace(self.client, failed=(self.identity(names[0]),), attempts=1, failed_ask=self.name)
        fields = self.epoch, self.states["g"].generation
        notices = {
            name: Command(ASSIGNMENT_FAILED, *fields, self.lives[name].channel.incarnation, ask=self.name)
            for name in names
        }
        self.fenced(
            "g",
            replace(self.states["g"], state=FAILED, client=self.client),
            *(Create(G.command_prefix(name), each.to_bytes(), sequential=True) for name, each in notices.items()),
        )


led = LedGroup.made
