"""S11: checkpoints of a consistent region."""

from __future__ import annotations

from collections.abc import Mapping

from zk_group.coordinator.zk.znodes.regions import COMPLETED, CONSUMERS, INITIAL, RUNNING, Contribution, Region

from ..replay.commits import Changed, ChannelChange, Commit, RegionChange
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import CHECKPOINT, CONTRIBUTION, END, ROOT, CheckpointView, RegionView
from .base import Invariant
from .s10_restored import Restored


class CompleteCuts(Invariant):
    """Every complete checkpoint has one contribution of each participant, of one incarnation and one R, and its offsets
    are exactly those of the processed records.

    - A checkpoint begins while the region is Running and none is open, with the next number; its participants are all
      members of all targets that are not away from their seats.
    - A member contributes in one multi with its channel, with the channel's offsets, while the checkpoint is open; they
      are those of its records processed when its states were saved. Until the checkpoint has ended it processes none.
      Otherwise no offset of a member moves, except back to its initial one.
    - A coordinator only copies contributions of the previous cut, unchanged, and none of a participant.
    - A complete checkpoint has a contribution of each participant, in its incarnation and R, and every partition of the
      previous cut (of the same topic), none at an earlier offset. The same commit makes it the region's cut.
    - A region's cut changes only so, or by a reset; and it is never removed.

    Manually edited znodes are not judged.
    """

    name = "S11"
    sentence = "Every complete checkpoint has one contribution of each participant, and is what they have taken in."
    events = ("taken",)
    wants = Changed.REGION | Changed.CHANNEL

    def __init__(self, world: Replay, restored: Restored) -> None:
        super().__init__(world)
        self._restored = restored
        self._removed: set[tuple[str, int]] = set()

    def on_taken(self, event: Event) -> None:
        view = self.world.regions.of(event["group"])
        paused = view.paused(event["group"], event["consumer"], event["incarnation"]) if view is not None else None
        if paused is not None and not paused.by_hand:
            given = paused.contributions[f"{event['group']}~{event['consumer']}"][1]
            why = f"{event['consumer']} of group {event['group']} took in records at {moment(event['at'])}, before"
            self.broken(f"{why} checkpoint {paused.number}, to which it has contributed, had ended", given, event)

    def on_commit(self, commit: Commit) -> None:
        if commit.by_hand or not self.world.regions.views:
            return
        given: set[str] = set()
        for change in commit.regions:
            if change.view.data is not None and change.view.data.kind != CONSUMERS:
                continue
            contributions = change.checkpoint.contributions if change.checkpoint is not None else {}
            if contributions.get(change.name, (None, None))[0] is not None:
                given.add(change.name)
            if change.is_removed:
                self._judge_removed(change, commit)
            elif change.checkpoint is None or change.checkpoint.by_hand:
                if change.what == ROOT and not change.view.by_hand:
                    self._judge_root(change, commit)
            elif change.what == CHECKPOINT and change.is_new:
                self._judge_begun(change.view, change.checkpoint, commit)
            elif change.what == CONTRIBUTION:
                self._judge_contribution(change, change.checkpoint, commit)
            elif change.what == END and change.name == COMPLETED:
                self._judge_completed(change.view, change.checkpoint, commit)
        for moved in commit.channels:
            if f"{moved.view.group.name}~{moved.view.consumer}" not in given:
                self._judge_moved(moved, commit)

    # ---- a checkpoint begins

    def _judge_begun(self, view: RegionView, checkpoint: CheckpointView, commit: Commit) -> None:
        root = next((each for each in commit.regions if each.view is view and each.what == ROOT), None)
        before = root.before if root is not None else view.data
        data = checkpoint.data
        if before is None or data is None or view.data is None:
            return
        why = ""
        if root is None or view.data.open != checkpoint.number or checkpoint.number < before.next_sequence:
            why = "is not the next one, open with the same commit"
        elif before.state != RUNNING or before.open:
            why = f"began while the region was {before.state}" + (f" and {before.open} open" if before.open else "")
        elif (data.reset, data.base) != (before.reset, before.sequence):
            why = f"is of reset {data.reset} and follows {data.base}"
        elif not self._are_participants(view.data, data.participants):
            why = "has not every member of every target as participant"
        if why:
            self._report(checkpoint, why, commit)

    def _are_participants(self, region: Region, participants: Mapping[str, Mapping[str, str]]) -> bool:
        """Whether they are all present members of targets; one may have left just now."""
        for name in region.groups:
            group = self.world.groups.get(name)
            state = group.known if group is not None else None
            target = state.target if state is not None else {}
            away = state.region.away if state is not None and state.region is not None else ()
            every, joined = {each: share.incarnation for each, share in target.items()}, participants.get(name, {})
            if not joined.items() <= every.items() or not every.keys() - set(away) <= joined.keys():
                return False
        return participants.keys() <= set(region.groups)

    # ---- a contribution

    def _judge_contribution(self, change: RegionChange, checkpoint: CheckpointView, commit: Commit) -> None:
        view, given = change.view, checkpoint.contributions[change.name][0]
        group, _, consumer = change.name.partition("~")
        if not change.is_new:
            self._report(checkpoint, f"has another contribution {change.name} than before", commit)
            return
        if given is None or checkpoint.data is None or view.data is None:
            return
        if self.world.process(commit.who).is_node:
            self._judge_copy(view, checkpoint, change.name, given, commit)
            return
        if view.data.open != checkpoint.number or checkpoint.ends:
            self._report(checkpoint, f"has a contribution of {consumer}, and is not open", commit)
        incarnation = checkpoint.data.participants.get(group, {}).get(consumer)
        if (given.incarnation, given.reset) != (incarnation, checkpoint.data.reset):
            self._report(checkpoint, f"has a contribution of {consumer} that is no participant's of it", commit)
        of = (group, consumer)
        after = next((c.after for c in commit.channels if (c.view.group.name, c.view.consumer) == of), None)
        if after is None or after.region is None or after.region.drained != checkpoint.number:
            self._report(checkpoint, f"has a contribution of {consumer} that is not in its channel", commit)
        elif after.incarnation != given.incarnation or after.running != dict(given.offsets):
            self._report(checkpoint, f"has a contribution of {consumer} with other offsets than its channel", commit)
        app = self._restored.applications.get(commit.who)
        if app is None or app.incarnation != given.incarnation:
            return
        saved = app.saved.get(checkpoint.number)
        if saved is None:
            self._report(checkpoint, f"has a contribution of {consumer}, whose states were not taken", commit)
            return
        checkpoint.members[change.name] = saved[1]
        if any(saved[0].get(part) not in (offset, None) for part, offset in given.offsets.items()):
            why = f"has other offsets of {consumer} than its state has taken in"
            self._report(checkpoint, why, commit, app.given)

    def _judge_copy(
        self, view: RegionView, checkpoint: CheckpointView, name: str, given: Contribution, commit: Commit
    ) -> None:
        base = view.checkpoints.get(checkpoint.data.base) if checkpoint.data is not None else None
        group, _, consumer = name.partition("~")
        if checkpoint.data is not None and consumer in checkpoint.data.participants.get(group, {}):
            self._report(checkpoint, f"has a contribution of {consumer} that a coordinator has made", commit)
        elif base is not None and not base.by_hand:
            if given.member_state or given.file is not None:
                checkpoint.members[name] = base.members.get(name, {})
            known = base.offsets(group)
            for partition, offset in given.offsets.items():
                if known.get(partition) != (offset, given.topics.get(partition.topic, "")):
                    what = f"has {partition} at {offset} copied from checkpoint {base.number}, which differs"
                    self._report(checkpoint, what, commit, base.made)
                    return

    def _judge_moved(self, change: ChannelChange, commit: Commit) -> None:
        """Offsets move only with a contribution."""
        view, before, after = change.view, change.same, change.after
        if before is None or after is None or view.by_hand or self.world.regions.of(view.group.name) is None:
            return
        for part, offset in after.running.items():
            was = before.running.get(part)
            if was is not None and offset not in (None, was) and offset != self._restored.begin(view, part):
                why = f"{view} moved {part} from {was} to {offset} at {commit.moment}, and contributed to no checkpoint"
                self.broken(why, commit.event)
                return

    # ---- a checkpoint ends

    def _judge_completed(self, view: RegionView, checkpoint: CheckpointView, commit: Commit) -> None:
        data, region = checkpoint.data, view.data
        if data is None or region is None:
            return
        self.judged += 1
        if len(checkpoint.ends) > 1:
            self._report(checkpoint, "is complete, and had ended before", commit)
        if (region.sequence, region.open) != (checkpoint.number, 0):
            self._report(checkpoint, "is complete, and the region does not stand on it", commit)
        for group, members in sorted(data.participants.items()):
            for consumer, incarnation in sorted(members.items()):
                given = checkpoint.contributions.get(f"{group}~{consumer}", (None, commit.event))[0]
                if given is None or (given.incarnation, given.reset) != (incarnation, data.reset):
                    self._report(checkpoint, f"is complete without a contribution of {consumer}", commit)
                    return
        for group in region.groups:
            if why := self._gap(view, checkpoint, group):
                self._report(checkpoint, why, commit)
                return

    def _gap(self, view: RegionView, checkpoint: CheckpointView, group: str) -> str:
        """Why the cut is incomplete; empty when it is complete."""
        now = checkpoint.offsets(group)
        if sum(len(given.offsets) for _, given in checkpoint.of(group)) != len(now):
            return f"has a partition of group {group} twice"
        of = self.world.groups.get(group)
        target = of.known.target if of is not None and of.known is not None and not of.is_edited else {}
        away = checkpoint.away(group)
        run = [share.partitions for name, share in target.items() if name not in away]
        if missing := frozenset().union(*run) - now.keys():
            return f"lacks {min(missing)} of group {group}, which runs"
        base = checkpoint.data.base if checkpoint.data is not None else INITIAL
        for partition, (offset, topic_id) in sorted((view.offsets(group, base) or {}).items()):
            found = now.get(partition)
            if found is None:
                return f"lacks {partition} of group {group}, which checkpoint {base} has"
            if found[1] == topic_id and found[0] < offset:
                return f"has {partition} of group {group} at {found[0]}, and checkpoint {base} at {offset}"
        return ""

    # ---- the region's cut

    def _judge_root(self, change: RegionChange, commit: Commit) -> None:
        before, after, view = change.before, change.after, change.view
        if before is None or after is None:
            return
        opened = view.checkpoints.get(before.open) if before.open else None
        if opened is not None and after.open != before.open and not opened.ends and not opened.by_hand:
            self._report(opened, "is open no more, and has not ended", commit)
        if after.open and after.reset != before.reset:
            why = f"is in reset {after.reset}, and checkpoint {after.open} is open that began before"
            self.broken(f"region {view.name} {why} at {commit.moment}", commit.event)
        if after.next_sequence < before.next_sequence:
            why = f"went back from checkpoint {before.next_sequence} to {after.next_sequence} as the next one"
            self.broken(f"region {view.name} {why} at {commit.moment}", commit.event)
        if after.sequence == before.sequence:
            return
        target = view.checkpoints.get(after.sequence)
        is_complete = after.sequence == INITIAL or (target is not None and COMPLETED in target.ends)
        is_news = target is not None and target.ends.get(COMPLETED) is commit.event
        if not is_complete or not (is_news or after.reset > before.reset):
            why = f"region {view.name} stands on checkpoint {after.sequence} instead of {before.sequence}"
            why = f"{why} at {commit.moment}, which is neither complete with it nor a reset's"
            self.broken_by(commit, why, target.made if target is not None else None)

    def _judge_removed(self, change: RegionChange, commit: Commit) -> None:
        view, checkpoint = change.view, change.checkpoint
        current = view.data.sequence if view.data is not None else INITIAL
        if checkpoint is None or checkpoint.number != current or checkpoint.by_hand:
            return
        if (view.name, checkpoint.number) not in self._removed:
            self._removed = {(view.name, checkpoint.number)}
            self._report(checkpoint, "was removed, and the region stands on it", commit)

    def _report(self, checkpoint: CheckpointView, why: str, commit: Commit, *more: Event | None) -> None:
        self.broken_by(commit, f"{checkpoint} {why} at {commit.moment}", checkpoint.made, *more)
