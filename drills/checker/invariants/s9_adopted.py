"""S9: client-side assignment: leaders, answers, and adopted targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.zk.znodes.group_state import Ask, AskMember
from coordinator.zk.znodes.paths import ask_number
from coordinator.zk.znodes.records import ASSIGN

from ..replay.commits import ASK, MEMBER, OWNER, STATE, Commit
from ..replay.conditions import NEVER
from ..replay.fast_json import Partition, partitions
from ..replay.reading import CommandData, StateData, TargetData
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ANSWER, THE_ASK, AskChange, AskView, ChannelView, CommandView, GroupView, StateView
from .base import Invariant

SOON_S = 1.0
"""Maximum age of a turn's reads when it writes, without delays."""


@dataclass(slots=True, eq=False)
class _Omitted:
    """A member of an ask that the target, adopted from its answer, lacks."""

    group: GroupView
    consumer: str
    identity: str
    state: StateView
    at: float


# Large: one invariant, whose rules follow an ask from its request to the adopted target.
class Adopted(Invariant):
    """The target of a generation is one leader's whole answer to one ask, less departed members.

    - No ask is made while another is pending: neither adopted nor failed nor answered, and its leader alive. It names a
      static member by its seat.
    - Znodes below an ask are written by its leader, while the `assign` that names it is in the leader's channel; the
      answer in the commit that removes that command, whose epoch is not before the state's. Nothing below an ask
      changes after its answer, until a coordinator removes it.
    - Adoption: the state names an ask with an answer without an error, no ask twice and none after a later one. The
      generation is the next one; topics and shares are the answer's, no partition is assigned twice, and each member
      has the ask's identity. Omitted members have left. The topics are the existing ones (unless a lasting fault kept
      the coordinator from seeing them).
    - Otherwise the target stays unchanged, except incarnations of static members, until the group is empty or under the
      coordinator's strategies; its generation changes only where a running partition has lost its owner.

    A manually edited or removed state resets all of that; manually edited asks and their children are not judged.
    """

    name = "S9"
    sentence = "The target of a generation is one leader's whole answer to one ask, less departed members."
    wants = ASK | STATE | OWNER | MEMBER

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._adopted: dict[str, dict[str, Event]] = {}
        self._epochs: dict[str, tuple[int, float]] = {}
        self._generations: dict[str, float] = {}
        self._owners_lost: dict[str, float] = {}
        self._omitted: list[_Omitted] = []
        self._static: set[str] = set()

    def on_commit(self, commit: Commit) -> None:
        if commit.mask & OWNER and not commit.channels:
            self._note_lost_owners(commit)
        for change in commit.asks:
            if commit.by_hand:
                continue
            group = self.world.groups[change.view.group]
            if change.what == THE_ASK:
                self._judge_ask(group, change, commit)
            else:
                self._judge_below(group, change, commit)
        for _, _, member in commit.members:
            registration = member.registration if member is not None else None
            if registration is not None and registration.instance_id:
                self._static.add(registration.incarnation)
        for group, before, after in commit.states:
            self._judge_state(group, before, after, commit)

    # ---- an ask is made

    def _judge_ask(self, group: GroupView, change: AskChange, commit: Commit) -> None:
        view = change.view
        if change.is_removed:
            return
        if not change.is_new:
            self.broken(
                f"{view.name} of group {group.name} was changed at {moment(commit.at)}", view.made, commit.event
            )
            return
        previous = change.previous
        if previous is not None and self._is_out(group, previous, commit):
            leader = previous.ask.leader if previous.ask is not None else ""
            self.broken(
                f"{view.name} of group {group.name} was made at {moment(commit.at)}, while {leader} lives and has not "
                f"answered {previous.name}",
                previous.made,
                commit.event,
            )
        if view.ask is not None:
            self._judge_identities(group, view, view.ask, commit)

    def _is_out(self, group: GroupView, view: AskView, commit: Commit) -> bool:
        """Whether an ask is pending, for long enough that the writer of another one must know."""
        seen_by = commit.at - self._notice_s(commit.at)
        if view.ask is None or view.by_hand or view.answered is not None or view.gone not in (None, commit.event):
            return False
        if group.state is None or group.state.data is None or group.hand_at >= view.made["at"]:
            return False
        client = group.state.data.client
        handled = max(map(ask_number, self._adopted.get(group.name, ())), default=0)
        if client is None or view.number <= max(handled, ask_number(client.failed_ask)):
            return False
        leader, channel = group.members.get(view.ask.leader), group.channels.get(view.ask.leader)
        if leader is None or channel is None or not group.is_asked(view.ask):
            return False
        if max(leader.written["at"], channel.since["at"]) > seen_by:
            return False
        offered = leader.registration.client if leader.registration is not None else None
        return offered is not None and view.ask.protocol in offered.protocols

    def _judge_identities(self, group: GroupView, view: AskView, ask: Ask, commit: Commit) -> None:
        for name, asked in sorted(ask.members.items()):
            member = group.members.get(name)
            registration = member.registration if member is not None else None
            if registration is None or registration.instance_id != name or name not in group.seats:
                continue
            if asked.identity == registration.incarnation:
                self.broken(
                    f"{view.name} of group {group.name}, made at {moment(commit.at)}, names the static member {name} "
                    f"by its incarnation {asked.identity}, and not by its seat",
                    member.written if member is not None else None,
                    commit.event,
                )

    # ---- children of an ask

    def _judge_below(self, group: GroupView, change: AskChange, commit: Commit) -> None:
        view = change.view
        if self.world.process(commit.who).is_node:
            self._judge_nodes(group, change, commit)
            return
        if view.by_hand or view.ask is None:
            return
        what = f"{change.what} of {view.name} in group {group.name} at {moment(commit.at)}"
        if change.answered is not None:
            self.broken(f"{commit.who} wrote the {what}, after the answer", change.answered, commit.event)
        leader = group.channels.get(view.ask.leader)
        if leader is None or leader.by_hand:
            return
        if leader.owner != commit.who:
            self.broken(
                f"{commit.who} wrote the {what}, and is not its leader {view.ask.leader}", view.made, commit.event
            )
            return
        removed = _assign_of(view, [command for of, command in commit.gone if of is leader])
        standing = _assign_of(view, leader.commands.values())
        if removed is None and standing is None:
            self.broken(
                f"{commit.who} wrote the {what}, and no `assign` for it stood in its channel", view.made, commit.event
            )
        elif change.what == ANSWER and removed is None:
            self.broken(f"{commit.who} wrote the {what}, and left its `assign` there", view.made, commit.event)
        elif change.what == ANSWER and removed is not None and removed.data is not None:
            self._judge_epoch(group, view, removed, removed.data, commit)

    def _judge_nodes(self, group: GroupView, change: AskChange, commit: Commit) -> None:
        """A coordinator writes nothing below an ask, and removes all of it."""
        if change.is_removed:
            change.view.is_torn = True
            return
        self.broken(
            f"{commit.who} wrote the {change.what} of {change.view.name} in group {group.name} at {moment(commit.at)}, "
            "and is a coordinator",
            change.view.made,
            commit.event,
        )

    def _judge_epoch(
        self, group: GroupView, view: AskView, command: CommandView, assign: CommandData, commit: Commit
    ) -> None:
        epoch, since = self._epochs.get(group.name, (0, NEVER))
        if assign.epoch < epoch and commit.at - since > SOON_S and not command.by_hand:
            self.broken(
                f"{view.name} of group {group.name} was answered at {moment(commit.at)} for {command.name} of epoch "
                f"{assign.epoch}, and the group has had turns of epoch {epoch} since {moment(since)}",
                command.made,
                commit.event,
            )

    # ---- the state

    def _judge_state(self, group: GroupView, before: StateView | None, after: StateView | None, commit: Commit) -> None:
        state = after.data if after is not None and not commit.by_hand else None
        known = before.data if before is not None and not before.by_hand else None
        if known is None or known.client is None:
            self._forget(group)
        if state is None:
            self._forget(group)
            return
        if self._epochs.get(group.name, (0, NEVER))[0] != state.epoch:
            self._epochs[group.name] = (state.epoch, commit.at)
        is_next = known is None or known.generation != state.generation
        if state.client is not None and after is not None:
            name = state.client.ask
            if name and (known is None or known.client is None or known.client.ask != name):
                self._judge_adoption(group, known, after, state, name, commit)
            elif known is not None:
                self._judge_kept(group, known, state, commit)
        if is_next:
            self._generations[group.name] = commit.at

    def _forget(self, group: GroupView) -> None:
        """Forget earlier adoptions: the state was lost, or the coordinator's strategies apply."""
        self._adopted.pop(group.name, None)

    def _judge_adoption(
        self, group: GroupView, before: StateData | None, after: StateView, state: StateData, name: str, commit: Commit
    ) -> None:
        self.judged += 1
        view = group.asks.get(name)
        adopted = self._adopted.setdefault(group.name, {})
        later = max(adopted, key=ask_number, default="")
        what = f"{name} of group {group.name} was adopted at {moment(commit.at)}"
        if name in adopted:
            self.broken(f"{what} a second time", adopted[name], commit.event)
        elif ask_number(name) < ask_number(later):
            self.broken(f"{what}, after {later}", adopted[later], commit.event)
        self._adopted[group.name] = adopted | {name: commit.event}
        if view is None:
            if group.hand_at <= self._generations.get(group.name, NEVER):
                self.broken(f"{what}, and is not there", commit.event)
            return
        if view.by_hand or view.ask is None:
            return
        if view.answer is None or view.answer.error is not None or view.is_torn:
            why = "has no answer" if view.answered is None else "has an answer that is none"
            self.broken(f"{what}, and {why}", view.made, view.answered, commit.event)
            return
        if before is not None and state.generation != before.generation + 1:
            self.broken(f"{what} in generation {state.generation}, after generation {before.generation}", commit.event)
        if dict(state.topics) != dict(view.answer.topics):
            self.broken(f"{what} with other topics than its answer has", view.answered, commit.event)
        if state.twice is not None:
            topic, number = state.twice
            self.broken(f"{what} and gives {topic}-{number} to two", view.answered, commit.event)
        for consumer, share in sorted(state.target.items()):
            self._judge_share(group, view, view.ask.members.get(consumer), consumer, share, what, commit)
        self._judge_threads(view, state, what, commit)
        self._judge_topics(view, state, what, commit)
        self._omitted += [
            _Omitted(group, consumer, asked.identity, after, commit.at)
            for consumer, asked in sorted(view.ask.members.items())
            if consumer not in state.target
        ]

    def _judge_share(
        self,
        group: GroupView,
        view: AskView,
        asked: AskMember | None,
        consumer: str,
        share: TargetData,
        what: str,
        commit: Commit,
    ) -> None:
        if asked is None:
            self.broken(f"{what} with {consumer}, which is no member of the ask", view.made, commit.event)
            return
        seat = group.seats.get(consumer)
        is_static = asked.identity.startswith("seat-")
        # The turn has read this seat, and not one before it, when the target has its holder's incarnation.
        channel = group.channels.get(consumer)
        is_read = channel is not None and channel.data is not None and channel.data.incarnation == share.incarnation
        if is_static and seat is not None and is_read and asked.identity != f"seat-{seat:x}":
            self.broken(f"{what} with {consumer}, whose seat is another than that of the ask", view.made, commit.event)
        elif not is_static and asked.identity != share.incarnation:
            self.broken(
                f"{what} for incarnation {share.incarnation} of {consumer}, and the ask is about {asked.identity}",
                view.made,
                commit.event,
            )

    def _judge_threads(self, view: AskView, state: StateData, what: str, commit: Commit) -> None:
        """Every share is the answer's."""
        for consumer, share in sorted(state.target.items()):
            entry = view.entries.get(consumer)
            expected = (
                {thread: frozenset(parts) for thread, parts in entry.threads.items()} if entry is not None else {}
            )
            found = _threads(state.raw, consumer)
            is_other = (
                found != expected if found is not None else share.partitions != frozenset().union(*expected.values())
            )
            if is_other:
                self.broken(
                    f"{what}, and {consumer} has another share than its answer gives it", view.answered, commit.event
                )
                return

    def _judge_topics(self, view: AskView, state: StateData, what: str, commit: Commit) -> None:
        """The answer is for the existing topics, unless the coordinator may have missed the change."""
        answer, conditions = view.answer, self.world.conditions
        for name, topic_id in sorted(state.topics.items()):
            topic = self.world.topics.get(name)
            if answer is None or topic is None or topic.data is None:
                continue
            changed = topic.written["at"]
            if topic.data.id == topic_id and topic.partitions == answer.partitions.get(name):
                continue
            if conditions.undisturbed_long(changed, self._notice_s(changed)) and commit.at - changed > 2 * SOON_S:
                self.broken(
                    f"{what} for topic {name} as it was before {moment(changed)}",
                    topic.written,
                    view.answered,
                    commit.event,
                )

    def _judge_kept(self, group: GroupView, before: StateData, after: StateData, commit: Commit) -> None:
        """The target stays until an answer is adopted."""
        for name in sorted(before.target.keys() | after.target.keys()):
            was, now = before.target.get(name), after.target.get(name)
            if was is None or now is None or was.partitions != now.partitions:
                self.broken(
                    f"the target of group {group.name} changed for {name} at {moment(commit.at)}, and no answer was "
                    "adopted",
                    commit.event,
                )
                return
            if was.incarnation != now.incarnation and now.incarnation not in self._static:
                self.broken(
                    f"the target of group {group.name} came to be for incarnation {now.incarnation} of {name}, no "
                    f"static member, at {moment(commit.at)}, and no answer was adopted",
                    commit.event,
                )
                return
        seen = max((view.data.generation for view in group.channels.values() if view.data is not None), default=0)
        if after.generation == before.generation or before.generation < seen <= after.generation:
            return  # a lost state resumes above the generation that members have seen
        lost_at = self._owners_lost.get(group.name, NEVER)
        if not _has_lost_owners(group) and lost_at < self._generations.get(group.name, NEVER):
            self.broken(
                f"generation {after.generation} of group {group.name} began at {moment(commit.at)}: no answer was "
                "adopted, and no partition that runs has lost its owner",
                commit.event,
            )

    # ---- omitted members

    def on_tick(self, now: float) -> None:
        if not self._omitted:
            return
        due = [each for each in self._omitted if now - each.at >= SOON_S]
        self._omitted = [each for each in self._omitted if now - each.at < SOON_S]
        for each in due:
            group = each.group
            is_there = group.state is each.state and group.has_identity(each.consumer, each.identity)
            if is_there and group.hand_at < each.at:
                self.broken(
                    f"the target that group {group.name} adopted at {moment(each.at)} has nothing for {each.consumer}, "
                    "which is a member of the ask and lives",
                    each.state.written,
                )

    # ---- possibly unseen changes

    def _notice_s(self, now: float) -> float:
        """Seconds before which a change is certainly seen."""
        bounds = self.world.bounds
        if not bounds:
            return float("inf")
        longer: float = bounds["notice"] + bounds["session_timeout"]
        return longer if self.world.conditions.disturbed_until > now - longer else bounds["notice"]

    def _note_lost_owners(self, commit: Commit) -> None:
        for group in {group for group in self.world.groups.values() if _has_lost_owners(group)}:
            self._owners_lost[group.name] = commit.at


def _assign_of(view: AskView, commands: Any) -> CommandView | None:
    """The `assign` for an ask, among commands."""
    return next(
        (
            command
            for command in commands
            if command.data is not None and command.data.option == ASSIGN and command.data.ask == view.name
        ),
        None,
    )


def _threads(target: object, consumer: str) -> Mapping[str, frozenset[Partition]] | None:
    """Thread -> partitions of a target as written; None where unknown."""
    if not isinstance(target, dict):
        return None
    found = {thread: partitions(by_topic) for thread, by_topic in target[consumer]["ownershipMap"].items()}
    return {thread: parts for thread, parts in found.items() if parts}


def _has_lost_owners(group: GroupView) -> bool:
    """Whether a live member runs partitions without owner znodes."""
    return any(_runs_unowned(group, view) for view in group.channels.values())


def _runs_unowned(group: GroupView, view: ChannelView) -> bool:
    return view.data is not None and view.data.is_live and not view.data.running.keys() <= group.owners.keys()
