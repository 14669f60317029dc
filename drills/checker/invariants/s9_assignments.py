"""S9: client-side assignment: leaders, answers, and adopted targets."""

from __future__ import annotations

from collections.abc import Iterable

from zk_group.coordinator.zk.znodes.group_state import AskMember, GroupState
from zk_group.coordinator.zk.znodes.paths import ask_number

from ..replay.commits import AskChange, Changed, Commit, StateChange
from ..replay.conditions import NEVER
from ..replay.expected_target import notice_s
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ANSWER, THE_ASK, AskView, CommandView, GroupView
from .base import Invariant

SOON_S = 1.0
"""Maximum age of a turn's reads when it writes, without delays."""


class Adopted(Invariant):
    """The target of a generation is one leader's answer to one ask, less departed members.

    - No ask is made while another is pending: neither adopted nor failed nor answered, and its leader alive. It names a
      static member by its seat.
    - Znodes below an ask are written by its leader, while the `assign` that names it is in the leader's channel; the
      answer in the commit that removes that command, whose epoch is not before the state's. Nothing below an ask
      changes after its answer, until a coordinator removes it.
    - Adoption: the state names an ask with an answer without an error, no ask twice and none after a later one. The
      generation is the next one; topics and shares are the answer's, and each member has the ask's identity. The topics
      are the existing ones (unless a lasting fault kept the coordinator from seeing them).

    A manually edited or removed state resets all of that; manually edited asks and their children are not judged.
    """

    name = "S9"
    sentence = "The target of a generation is one leader's answer to one ask, less departed members."
    wants = Changed.ASK | Changed.STATE

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._adopted: dict[str, dict[str, Event]] = {}
        self._epochs: dict[str, tuple[int, float]] = {}
        self._generations: dict[str, float] = {}

    def on_commit(self, commit: Commit) -> None:
        for change in commit.asks if not commit.by_hand else ():
            if change.what == THE_ASK:
                self._judge_ask(change, commit)
            else:
                self._judge_below(change, commit)
        for written in commit.states:
            self._judge_state(written, commit)

    # ---- an ask is made

    def _judge_ask(self, change: AskChange, commit: Commit) -> None:
        view, previous = change.view, change.previous
        if change.is_removed:
            return
        if not change.is_new:
            self.broken_by(commit, f"{view} was changed at {commit.moment}", view.made)
            return
        if previous is not None and previous.ask is not None and self._is_out(view.group, previous, commit):
            why = f"{view} was made at {commit.moment}, while {previous.ask.leader} lives and has not answered"
            self.broken_by(commit, f"{why} {previous.name}", previous.made)
        for name, asked in sorted(view.ask.members.items() if view.ask is not None else ()):
            registration = view.group.registration(name)
            if registration is None or registration.instance_id != name or name not in view.group.seats:
                continue
            if asked.identity == registration.incarnation:
                why = f"{view}, made at {commit.moment}, names the static member {name} by its incarnation"
                why = f"{why} {asked.identity}, and not by its seat"
                self.broken_by(commit, why, view.group.members[name].written)

    def _is_out(self, group: GroupView, view: AskView, commit: Commit) -> bool:
        """Whether an ask is pending, for long enough that the writer of another one must know."""
        seen_by = commit.at - notice_s(self.world, commit.at)
        if view.ask is None or view.by_hand or view.answered is not None or view.gone not in (None, commit.event):
            return False
        if group.known is None or group.hand_at >= view.made["at"]:
            return False
        client = group.known.client
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

    # ---- children of an ask

    def _judge_below(self, change: AskChange, commit: Commit) -> None:
        view = change.view
        wrote = f"{commit.who} wrote the {change.what} of {view.name} in {view.group} at {commit.moment}"
        if self.world.process(commit.who).is_node:  # it writes nothing below an ask, and removes all of it
            view.is_torn |= change.is_removed
            if not change.is_removed:
                self.broken_by(commit, f"{wrote}, and is a coordinator", view.made)
            return
        if view.by_hand or view.ask is None:
            return
        if change.answered is not None:
            self.broken_by(commit, f"{wrote}, after the answer", change.answered)
        leader = view.group.channels.get(view.ask.leader)
        if leader is None or leader.by_hand:
            return
        if leader.owner != commit.who:
            self.broken_by(commit, f"{wrote}, and is not its leader {view.ask.leader}", view.made)
            return
        removed = _assign_of(view, commit.removed_from(leader))
        if removed is None and _assign_of(view, leader.commands.values()) is None:
            self.broken_by(commit, f"{wrote}, and no `assign` for it stood in its channel", view.made)
        elif change.what == ANSWER and removed is None:
            self.broken_by(commit, f"{wrote}, and left its `assign` there", view.made)
        elif change.what == ANSWER and removed is not None and removed.data is not None:
            epoch, since = self._epochs.get(view.group.name, (0, NEVER))
            if removed.data.epoch < epoch and commit.at - since > SOON_S and not removed.by_hand:
                why = f"{view} was answered at {commit.moment} for {removed.name} of epoch {removed.data.epoch}"
                why = f"{why}, and the group has had turns of epoch {epoch} since {moment(since)}"
                self.broken_by(commit, why, removed.made)

    # ---- the state

    def _judge_state(self, written: StateChange, commit: Commit) -> None:
        group, known, after = written.group, written.was, written.after
        state = after.data if after is not None and not commit.by_hand else None
        if known is None or known.client is None or state is None:
            self._adopted.pop(group.name, None)  # the state was lost, or the coordinator's strategies apply
        if state is None:
            return
        if self._epochs.get(group.name, (0, NEVER))[0] != state.epoch:
            self._epochs[group.name] = (state.epoch, commit.at)
        if state.client is not None and after is not None:
            name = state.client.ask
            if name and (known is None or known.client is None or known.client.ask != name):
                self._judge_adoption(group, known, state, name, commit)
        if known is None or known.generation != state.generation:
            self._generations[group.name] = commit.at

    def _judge_adoption(
        self, group: GroupView, was: GroupState | None, state: GroupState, name: str, commit: Commit
    ) -> None:
        self.judged += 1
        view = group.asks.get(name)
        adopted = self._adopted.setdefault(group.name, {})
        later = max(adopted, key=ask_number, default="")
        what = f"{name} of {group} was adopted at {commit.moment}"
        if name in adopted:
            self.broken_by(commit, f"{what} a second time", adopted[name])
        elif ask_number(name) < ask_number(later):
            self.broken_by(commit, f"{what}, after {later}", adopted[later])
        self._adopted[group.name] = adopted | {name: commit.event}
        if view is None:
            if group.hand_at <= self._generations.get(group.name, NEVER):
                self.broken_by(commit, f"{what}, and is not there")
            return
        if view.by_hand or view.ask is None:
            return
        if view.answer is None or view.answer.error is not None or view.is_torn:
            why = "has no answer" if view.answered is None else "has an answer that is none"
            self.broken_by(commit, f"{what}, and {why}", view.made, view.answered)
            return
        if was is not None and state.generation != was.generation + 1:
            self.broken_by(commit, f"{what} in generation {state.generation}, after generation {was.generation}")
        if dict(state.topics) != dict(view.answer.topics):
            self.broken_by(commit, f"{what} with other topics than its answer has", view.answered)
        for consumer in sorted(state.target):
            self._judge_share(view, view.ask.members.get(consumer), consumer, state, what, commit)
        given = {consumer: dict(entry.threads) for consumer, entry in view.entries.items() if entry is not None}
        odd = [name for name, share in sorted(state.target.items()) if dict(share.threads) != given.get(name, {})]
        if odd:
            self.broken_by(commit, f"{what}, and {odd[0]} has another share than its answer gives it", view.answered)
        self._judge_topics(view, state, what, commit)

    def _judge_share(
        self, view: AskView, asked: AskMember | None, consumer: str, state: GroupState, what: str, commit: Commit
    ) -> None:
        if asked is None:
            self.broken_by(commit, f"{what} with {consumer}, which is no member of the ask", view.made)
            return
        seat, channel = view.group.seats.get(consumer), view.group.channels.get(consumer)
        incarnation, is_static = state.target[consumer].incarnation, asked.identity.startswith("seat-")
        # The turn has read this seat, and not one before it, when the target has its holder's incarnation.
        is_read = channel is not None and channel.data is not None and channel.data.incarnation == incarnation
        if is_static and seat is not None and is_read and asked.identity != f"seat-{seat:x}":
            self.broken_by(commit, f"{what} with {consumer}, whose seat is another than that of the ask", view.made)
        elif not is_static and asked.identity != incarnation:
            why = f"{what} for incarnation {incarnation} of {consumer}, and the ask is about {asked.identity}"
            self.broken_by(commit, why, view.made)

    def _judge_topics(self, view: AskView, state: GroupState, what: str, commit: Commit) -> None:
        """The answer is for the existing topics, unless the coordinator may have missed the change."""
        answer, conditions = view.answer, self.world.conditions
        for name, topic_id in sorted(state.topics.items()):
            topic = self.world.topics.get(name)
            if answer is None or topic is None or topic.data is None:
                continue
            changed = topic.written["at"]
            if topic.data.id == topic_id and topic.partitions == answer.partitions.get(name):
                continue
            if conditions.undisturbed_long(changed, notice_s(self.world, changed)) and commit.at - changed > 2 * SOON_S:
                why = f"{what} for topic {name} as it was before {moment(changed)}"
                self.broken_by(commit, why, topic.written, view.answered)


def _assign_of(view: AskView, commands: Iterable[CommandView]) -> CommandView | None:
    """The `assign` for an ask, among commands."""
    return next((each for each in commands if each.asks_for(view.name)), None)
