"""S10: the state of applications in a consistent region."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zk_group.coordinator.zk.znodes.group_state import GroupState
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import Command
from zk_group.coordinator.zk.znodes.regions import RUNNING, Region

from ..replay.commits import Changed, ChannelChange, Commit, RegionChange, StateChange
from ..replay.replay import Replay
from ..replay.sketches import NOTHING, Key, Sketch, add, by_partition, by_topic_id, difference, of_range
from ..replay.verdict import Event, moment
from ..replay.znode_views import ROOT, ChannelView, CommandView, GroupView, RegionView
from .base import Invariant


class ApplicationView:
    """The state of one process of a stateful application, by its events.

    :ivar given: its last `restored` event.
    :ivar next: partition -> the offset of the next record to process.
    :ivar states: partition -> sketch of its processed records; `member` likewise, of the member's own state.
    :ivar restored: `member` as restored.
    """

    def __init__(self, event: Event) -> None:
        self.given = event
        self.incarnation: str = event["incarnation"]
        self.reset: int = event["reset"]
        self.checkpoint: int = event["checkpoint"]
        self.states = by_partition(event["states"])
        self.member = by_topic_id(event["member"])
        self.restored = dict(self.member)
        self.next: dict[TopicPartition, int | None] = dict.fromkeys(self.states)
        self.saved: dict[int, tuple[dict[TopicPartition, int | None], Mapping[Key, Sketch]]] = {}


# Large: one invariant, whose rules share the applications, orders and notes of a region.
class Restored(Invariant):
    """The state of an application in a consistent region is that of one uninterrupted run over the same records.

    - The state restored by `on_reset` (`restored`) has, of each running partition of its member, exactly every record
      from the group's initial offset up to that of the start's cut; the channel has the same offset, and the initial
      one is recorded by then. Processed records (`taken`) join it, and are of the channel's reset. The reported state
      of the application (`saved`, `state`) has exactly the restored and processed records.
    - When the region is Running, the sum of the members' own states over a group is the same as of its partitions.
    - Every generation, and every other incarnation in a target, raises R in its own commit, and ends an open
      checkpoint. R never falls. A start names R (or an earlier one: another follows), a cut, and its member's complete
      target; it is acknowledged once the state is restored.
    - The region is Running when every live member of every target has restored its state of this R, and runs its part.

    Manually edited znodes are not judged.
    """

    name = "S10"
    sentence = "The state of an application in a consistent region is that of one uninterrupted run."
    events = ("start", "restored", "taken", "saved", "state", "exit")
    wants = Changed.REGION | Changed.STATE | Changed.SENT | Changed.GONE | Changed.CHANNEL

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self.applications: dict[str, ApplicationView] = {}
        self._of: dict[tuple[str, str], ApplicationView] = {}
        self._orders: dict[tuple[str, str], tuple[str, Command]] = {}
        self._stateful: set[tuple[str, str]] = set()

    # ---- events of processes

    def on_exit(self, event: Event) -> None:
        self.applications.pop(event["who"], None)

    def on_start(self, event: Event) -> None:
        if event.get("region"):
            self._stateful.add((event.get("group") or "", event.get("consumer") or ""))

    def begin(self, view: ChannelView, part: TopicPartition) -> int | None:
        """The required first offset of a member's partition: the cut's of its start, else the group's initial one."""
        region = self.world.regions.of(view.group.name)
        incarnation, start = self._orders.get((view.group.name, view.consumer), ("", None))
        if region is None or start is None or start.region is None or view.data is None:
            return None
        cut = region.offsets(view.group.name, start.region.checkpoint)
        if cut is None or incarnation != view.data.incarnation:
            return None
        topic_id = view.data.topics.get(part.topic, "")
        for offset, of in (cut.get(part, (0, "")), region.initial.get((view.group.name, part), (0, ""))):
            if of == topic_id:
                return offset
        return -1

    def _initial(self, view: ChannelView, part: TopicPartition) -> int | None:
        region = self.world.regions.of(view.group.name)
        offset, of = region.initial.get((view.group.name, part), (0, "")) if region is not None else (0, "")
        return offset if view.data is not None and of == view.data.topics.get(part.topic, "") else None

    def on_restored(self, event: Event) -> None:
        app = self.applications[event["who"]] = ApplicationView(event)
        view = self.world.channel(event)
        if view is None or view.data is None:
            return  # superseded by another process of its name, without its knowledge
        self._of[event["group"], event["consumer"]] = app
        for part in sorted(app.states):
            if part not in view.data.running:
                continue
            app.next[part] = begin = self.begin(view, part)
            initial = self._initial(view, part)
            if begin is None or begin < 0 or initial is None:
                continue
            self.judged += 1
            if app.states[part] != of_range(initial, begin):
                why = f"{_who(event)} was given back {app.states[part]} of {part} at {moment(event['at'])}"
                self.broken(f"{why}, and the cut has every record from {initial} to {begin}", event)

    def on_taken(self, event: Event) -> None:
        view, app = self.world.channel(event), self.applications.get(event["who"])
        if view is None or view.data is None or self.world.regions.of(event["group"]) is None:
            return
        reset = view.data.region.reset if view.data.region is not None else 0
        if app is None or app.incarnation != event["incarnation"] or app.reset != reset:
            why = f"{_who(event)} took in records at {moment(event['at'])}, and its state of reset {reset} was not back"
            self.broken(why, app.given if app is not None else None, view.written, event)
            return
        for item in event["ranges"]:
            self._take(app, item, event)

    def _take(self, app: ApplicationView, item: Mapping[str, Any], event: Event) -> None:
        part, first, following = TopicPartition(item["topic"], item["partition"]), item["first"], item["next"]
        known = app.next.get(part)
        if known is not None and known != first:
            why = f"{_who(event)} took in {part} from {first} at {moment(event['at'])}"
            self.broken(f"{why}, and its state is that up to {known}", app.given, event)
        taken = of_range(first, following)
        key = part.topic, item["topic_id"], part.partition
        app.next[part] = following
        app.states[part] = app.states.get(part, NOTHING).plus(taken)
        app.member[key] = app.member.get(key, NOTHING).plus(taken)

    def on_saved(self, event: Event) -> None:
        app = self._compare(event)
        if app is not None:
            app.saved = {event["checkpoint"]: (dict(app.next), dict(app.member))}

    def on_state(self, event: Event) -> None:
        self._compare(event)

    def _compare(self, event: Event) -> ApplicationView | None:
        """The reported state of an application."""
        app = self.applications.get(event["who"])
        if app is None or app.incarnation != event["incarnation"]:
            return None
        states, member = by_partition(event["states"]), by_topic_id(event["member"])
        known = {part: app.states.get(part, NOTHING) for part in states}
        if odd := difference(states, known) or difference(member, app.member):
            self.broken(f"{_who(event)} reports at {moment(event['at'])} the state {odd}", app.given, event)
        return app

    # ---- commits of coordinators and members

    def on_commit(self, commit: Commit) -> None:
        if not self.world.regions.views:
            return
        for change in commit.channels:
            self._note_order(change.view, commit)
        if commit.by_hand:
            return
        for change in commit.channels:
            self._judge_begun(change, commit)
        roots = [change for change in commit.regions if change.what == ROOT and not change.is_removed]
        for written in commit.states:
            self._judge_generation(written, roots, commit)
        for view, command in commit.made:
            if command.data is not None and command.is_start and not command.by_hand:
                self._judge_start(view, command.data, commit)
        for view, command in commit.gone:
            if command.is_start and not command.by_hand:
                self._judge_acknowledged(view, command, commit)
        for root in roots:
            self._judge_root(root, commit)

    def _judge_begun(self, change: ChannelChange, commit: Commit) -> None:
        """The offset at which a member begins, in its channel once its state is restored."""
        view, after = change.view, change.after
        if view.by_hand or after is None or not after.is_live or self.world.regions.of(view.group.name) is None:
            return
        known = change.same.running if change.same is not None else {}
        for part, offset in sorted(after.running.items()):
            if offset is None or known.get(part) is not None:
                continue
            begin = self.begin(view, part)
            if begin is not None and offset != begin:
                where = "no initial offset was recorded" if begin < 0 else f"the cut of its start has {begin}"
                why = f"{view} began {part} at {offset}, by its channel at {commit.moment}, and {where}"
                self.broken(why, commit.event)
                return

    def _note_order(self, view: ChannelView, commit: Commit) -> None:
        """Note the last start in a channel."""
        data, key = view.data, (view.group.name, view.consumer)
        if data is None or not data.is_live:
            self._orders.pop(key, None)
            return
        named = view.commands.get(data.command) or commit.removed_command(view, data.command)
        if named is not None and named.data is not None and named.is_start:
            self._orders[key] = data.incarnation, named.data

    def _judge_generation(self, written: StateChange, roots: list[RegionChange], commit: Commit) -> None:
        group, was, now = written.group, written.was, written.now
        region = self.world.regions.of(group.name)
        if was is None or now is None or region is None or was.region is None or now.region is None:
            return
        what = _reset_cause(was, now)
        resets = [(root.before, root.after) for root in roots if root.view is region]
        if what and not any(one is not None and two is not None and two.reset > one.reset for one, two in resets):
            why = f"{what} of {group} came at {commit.moment} without a reset of region {region.name}"
            self.broken_by(commit, why, written.before.written if written.before is not None else None, region.written)

    def _judge_start(self, view: ChannelView, data: Command, commit: Commit) -> None:
        region, state = self.world.regions.of(view.group.name), view.group.state
        if region is None or region.data is None or region.by_hand or state is None or state.data is None:
            return
        share, order, now = state.data.target.get(view.consumer), data.region, region.data
        why = ""
        if order is None or order.reset > now.reset or (order.reset == now.reset and order.checkpoint > now.sequence):
            named = f"reset {order.reset} and checkpoint {order.checkpoint}" if order is not None else "no reset"
            why = f"names {named}, and the region is in reset {now.reset} on checkpoint {now.sequence}"
        elif share is None or share.partitions != data.started:
            why = "does not name all that it shall run"
        if why:
            self.broken_by(commit, f"the start for {view} at {commit.moment} {why}", region.written)

    def _judge_acknowledged(self, view: ChannelView, command: CommandView, commit: Commit) -> None:
        data = view.data
        is_own = commit.who == view.owner and command.name in view.applied
        if not is_own or data is None or view.by_hand or command.data is None:
            return
        if not view.lives_as(command.data.incarnation):
            return  # removed together with the previous one
        order, progress = command.data.region, data.region
        if order is not None and (progress is None or progress.ready != order.reset):
            why = f"{command.name} was acknowledged by {view} at {commit.moment}, and its state is not back"
            self.broken_by(commit, why, command.made)

    def _judge_root(self, change: RegionChange, commit: Commit) -> None:
        before, after = change.before, change.after
        if after is None or before is None or change.view.by_hand:
            return
        if after.reset not in (before.reset, before.reset + 1):
            why = f"region {change.view.name} went from reset {before.reset} to {after.reset} at {commit.moment}"
            self.broken_by(commit, why, change.view.reset_at)
        elif after.state == RUNNING and before.state != RUNNING:
            self._judge_running(change.view, after, commit)

    def _judge_running(self, view: RegionView, region: Region, commit: Commit) -> None:
        running = f"region {view.name} is Running at {commit.moment} in reset {region.reset}"
        for name in region.groups:
            group = self.world.groups.get(name)
            if group is None or group.known is None or group.is_edited or not group.known.target:
                continue
            if any(channel.by_hand for channel in group.channels.values()):
                continue
            for consumer, share in sorted(group.known.target.items()):
                channel = group.channels.get(consumer)
                if channel is None or channel.data is None or not channel.lives_as(share.incarnation):
                    continue
                progress = channel.data.region
                ready = (progress.reset, progress.ready) if progress is not None else (0, 0)
                if ready != (region.reset, region.reset) or channel.running.keys() != share.partitions:
                    why = f"{running}, and {consumer} of {group} does not have its state back"
                    self.broken_by(commit, why, channel.written)
                    return
            self._judge_members(view, region, group, group.known, running, commit)

    def _judge_members(
        self, view: RegionView, region: Region, group: GroupView, state: GroupState, running: str, commit: Commit
    ) -> None:
        """The sum of the members' own states is the cut's of the partitions; absent members' are taken from the cut."""
        applications: list[ApplicationView] = []
        found: dict[Key, Sketch] = {}
        sequence = region.cut_of(group.name)
        standing = view.checkpoints.get(sequence)
        for consumer, share in sorted(state.target.items()):
            if state.region is not None and consumer in state.region.away:
                add(found, standing.members.get(f"{group.name}~{consumer}", {}) if standing is not None else {})
                continue
            app = self._of.get((group.name, consumer))
            if app is None or (app.incarnation, app.reset) != (share.incarnation, region.reset):
                if (group.name, consumer) in self._stateful:
                    why = f"{running}, and {consumer} of {group} was given no state in it"
                    self.broken_by(commit, why, app.given if app is not None else None)
                return
            applications.append(app)
        cut = view.offsets(group.name, sequence)
        if cut is None:
            return
        expected = self._expected(view, group.name, cut)
        for app in applications:
            add(found, app.restored)
        odd = min((key for key, sketch in expected.items() if found.get(key, NOTHING) != sketch), default=None)
        if odd is not None:
            why = f"the members of {group} were given back {found.get(odd, NOTHING)} of {odd[0]}-{odd[2]} in reset"
            why = f"{why} {region.reset}, and checkpoint {sequence} has {expected[odd]}"
            self.broken_by(commit, why, *(app.given for app in applications))

    @staticmethod
    def _expected(view: RegionView, group: str, cut: Mapping[TopicPartition, tuple[int, str]]) -> dict[Key, Sketch]:
        found: dict[Key, Sketch] = {}
        for (of, part), (initial, topic_id) in view.initial.items():
            if of == group:
                offset, cut_id = cut.get(part, (initial, topic_id))
                is_same = cut_id == topic_id
                found[part.topic, topic_id, part.partition] = of_range(initial, offset) if is_same else NOTHING
        return found


def _who(event: Event) -> str:
    return f"{event['consumer']} of group {event['group']}"


def _reset_cause(was: GroupState, now: GroupState) -> str:
    """The change of a group's state that requires a reset; empty without one."""
    if now.generation > was.generation:
        return f"generation {now.generation}"
    for name, share in sorted(now.target.items()):
        if name in was.target and was.target[name].incarnation != share.incarnation:
            return f"another incarnation of {name}"
    return ""
