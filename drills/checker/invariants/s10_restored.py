"""S10: the state of applications in a consistent region."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coordinator.zk.znodes.regions import RUNNING, Region

from ..replay.commits import CHANNEL, GONE, REGION, SENT, STATE, Commit
from ..replay.fast_json import Partition
from ..replay.reading import CommandData, StateData
from ..replay.region_views import ROOT, RegionChange, RegionView
from ..replay.replay import Replay
from ..replay.sketches import (
    NOTHING,
    ApplicationView,
    Key,
    Sketch,
    add,
    by_partition,
    by_topic_id,
    difference,
    of_range,
    sketch_text,
)
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelChange, ChannelView, CommandView, GroupView, StateView
from .base import Invariant


# Large: one invariant, whose rules share the applications, orders and notes of a region.
class Restored(Invariant):
    """The state of an application in a consistent region is that of one uninterrupted run over the same records.

    - What `on_reset` restores (`restored`) is, of each partition that its member runs, exactly every record from the
      group's initial offset up to that of the start's cut; the channel has the same offset, and the initial one is
      recorded by then. Processed records (`taken`) join it, and are of the channel's reset. The reported state of the
      application (`saved`, `state`) is what was restored and processed.
    - When the region is Running, the sum of the members' own states over a group is the same as of its partitions.
    - Every generation, and every other incarnation in a target, raises R in its own commit, and ends an open
      checkpoint. R never falls. A start names R (or an earlier one: another follows), a cut, and its member's complete
      target; it is acknowledged once the state is restored.
    - The region is Running when every live member of every target has restored its state of this R, and runs its share.

    Manually edited znodes are not judged.
    """

    name = "S10"
    sentence = "The state of an application in a consistent region is that of one uninterrupted run."
    wants = REGION | STATE | SENT | GONE | CHANNEL

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self.applications: dict[str, ApplicationView] = {}
        self._of: dict[tuple[str, str], ApplicationView] = {}
        self._orders: dict[tuple[str, str], tuple[str, CommandData]] = {}
        self._stateful: set[tuple[str, str]] = set()

    def handlers(self) -> Mapping[str, Callable[[Event], None]]:
        return {
            "start": self._on_start,
            "restored": self._on_restored,
            "taken": self._on_taken,
            "saved": self._on_saved,
            "state": self._on_state,
            "exit": self._on_exit,
        }

    # ---- events of processes

    def _on_exit(self, event: Event) -> None:
        self.applications.pop(event["who"], None)

    def _on_start(self, event: Event) -> None:
        if event.get("region"):
            self._stateful.add((event.get("group") or "", event.get("consumer") or ""))

    def _channel(self, event: Event) -> ChannelView | None:
        """The channel of the event's process, if it is the live incarnation's, without manual edits."""
        group = self.world.groups.get(event["group"])
        view = group.channels.get(event["consumer"]) if group is not None else None
        if view is None or view.data is None or view.by_hand or not view.is_live:
            return None
        return view if view.data.incarnation == event["incarnation"] else None

    def begin(self, view: ChannelView, part: Partition) -> int | None:
        """Where a member must begin with a partition: at the cut of its start, else at the group's initial offset."""
        region = self.world.regions.of(view.group.name)
        order = self._orders.get((view.group.name, view.consumer))
        if region is None or order is None or view.data is None or order[0] != view.data.incarnation:
            return None
        named = order[1].region
        cut = region.offsets(view.group.name, named.checkpoint) if named is not None else None
        if cut is None:
            return None
        topic_id = view.data.id_of(part[0])
        for offset, of in (cut.get(part, (0, "")), region.initial.get((view.group.name, part), (0, ""))):
            if of == topic_id:
                return offset
        return -1

    def _initial(self, view: ChannelView, part: Partition) -> int | None:
        region = self.world.regions.of(view.group.name)
        offset, of = region.initial.get((view.group.name, part), (0, "")) if region is not None else (0, "")
        return offset if view.data is not None and of == view.data.id_of(part[0]) else None

    def _on_restored(self, event: Event) -> None:
        app = self.applications[event["who"]] = ApplicationView(event)
        view = self._channel(event)
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
                self.broken(
                    f"{event['consumer']} of group {event['group']} was given back {sketch_text(app.states[part])} of "
                    f"{part[0]}-{part[1]} at {moment(event['at'])}, and the cut has every record from {initial} to "
                    f"{begin}",
                    event,
                )

    def _on_taken(self, event: Event) -> None:
        view, app = self._channel(event), self.applications.get(event["who"])
        if view is None or view.data is None or self.world.regions.of(event["group"]) is None:
            return
        progress = view.data.region
        reset = progress.reset if progress is not None else 0
        consumer = f"{event['consumer']} of group {event['group']}"
        if app is None or app.incarnation != event["incarnation"] or app.reset != reset:
            self.broken(
                f"{consumer} took in records at {moment(event['at'])}, and its state of reset {reset} was not back",
                app.given if app is not None else None,
                view.written,
                event,
            )
            return
        for item in event["ranges"]:
            self._take(view, app, item, event)

    def _take(self, view: ChannelView, app: ApplicationView, item: Mapping[str, int], event: Event) -> None:
        part = str(item["topic"]), item["partition"]
        first, following = item["first"], item["next"]
        known = app.next.get(part)
        if known is not None and known != first:
            self.broken(
                f"{event['consumer']} of group {event['group']} took in {part[0]}-{part[1]} from {first} at "
                f"{moment(event['at'])}, and its state is that up to {known}",
                app.given,
                event,
            )
        taken = of_range(first, following)
        key = part[0], str(item["topic_id"]), part[1]
        app.next[part] = following
        app.states[part] = app.states.get(part, NOTHING).plus(taken)
        app.member[key] = app.member.get(key, NOTHING).plus(taken)

    def _on_saved(self, event: Event) -> None:
        app = self._compare(event)
        if app is not None:
            app.saved = {event["checkpoint"]: (dict(app.next), dict(app.member))}

    def _on_state(self, event: Event) -> None:
        self._compare(event)

    def _compare(self, event: Event) -> ApplicationView | None:
        """The reported state of an application."""
        app = self.applications.get(event["who"])
        if app is None or app.incarnation != event["incarnation"]:
            return None
        states, member = by_partition(event["states"]), by_topic_id(event["member"])
        known = {part: app.states.get(part, NOTHING) for part in states}
        if odd := difference(states, known) or difference(member, app.member):
            self.broken(
                f"{event['consumer']} of group {event['group']} reports at {moment(event['at'])} the state {odd}",
                app.given,
                event,
            )
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
        for group, before, after in commit.states:
            self._judge_generation(group, before, after, roots, commit)
        for view, command in commit.made:
            if command.data is not None and command.data.is_start and not command.by_hand:
                self._judge_start(view, command.data, commit)
        for view, command in commit.gone:
            if command.data is not None and command.data.is_start and not command.by_hand:
                self._judge_acknowledged(view, command, commit)
        for root in roots:
            self._judge_root(root, commit)

    def _judge_begun(self, change: ChannelChange, commit: Commit) -> None:
        """The offset at which a member begins, in its channel once its state is restored."""
        view, before, after = change.view, change.before, change.after
        if view.by_hand or after is None or not after.is_live or self.world.regions.of(view.group.name) is None:
            return
        known = before.running if before is not None and before.incarnation == after.incarnation else {}
        for part, offset in sorted(after.running.items()):
            if offset is None or known.get(part) is not None:
                continue
            begin = self.begin(view, part)
            if begin is not None and offset != begin:
                where = "no initial offset was recorded" if begin < 0 else f"the cut of its start has {begin}"
                self.broken(
                    f"{view.consumer} of group {view.group.name} began {part[0]}-{part[1]} at {offset}, by its channel "
                    f"at {moment(commit.at)}, and {where}",
                    commit.event,
                )
                return

    def _note_order(self, view: ChannelView, commit: Commit) -> None:
        """Note the last start in a channel."""
        data, key = view.data, (view.group.name, view.consumer)
        if data is None or not data.is_live:
            self._orders.pop(key, None)
            return
        named = view.commands.get(data.command) or next(
            (command for of, command in commit.gone if of is view and command.name == data.command), None
        )
        if named is not None and named.data is not None and named.data.is_start:
            self._orders[key] = data.incarnation, named.data

    def _judge_generation(
        self,
        group: GroupView,
        before: StateView | None,
        after: StateView | None,
        roots: list[RegionChange],
        commit: Commit,
    ) -> None:
        was, now = before.data if before is not None else None, after.data if after is not None else None
        region = self.world.regions.of(group.name)
        if was is None or now is None or region is None or was.region is None or now.region is None:
            return
        if before is not None and before.by_hand:
            return
        what = _reset_cause(was, now)
        is_reset = any(
            root.view is region and root.before is not None and root.after is not None
            and root.after.reset > root.before.reset
            for root in roots
        )  # fmt: skip
        if what and not is_reset:
            self.broken(
                f"{what} of group {group.name} came at {moment(commit.at)} without a reset of region {region.name}",
                before.written if before is not None else None,
                region.written,
                commit.event,
            )

    def _judge_start(self, view: ChannelView, data: CommandData, commit: Commit) -> None:
        region, state = self.world.regions.of(view.group.name), view.group.state
        if region is None or region.data is None or region.by_hand or state is None or state.data is None:
            return
        share = state.data.target.get(view.consumer)
        order = data.region
        now = region.data
        why = ""
        if order is None or order.reset > now.reset or (order.reset == now.reset and order.checkpoint > now.sequence):
            named = f"reset {order.reset} and checkpoint {order.checkpoint}" if order is not None else "no reset"
            why = f"names {named}, and the region is in reset {now.reset} on checkpoint {now.sequence}"
        elif share is None or share.partitions != data.partitions:
            why = "does not name all that it shall run"
        if why:
            self.broken(
                f"the start for {view.consumer} of group {view.group.name} at {moment(commit.at)} {why}",
                region.written,
                commit.event,
            )

    def _judge_acknowledged(self, view: ChannelView, command: CommandView, commit: Commit) -> None:
        data = view.data
        is_own = commit.who == view.owner and command.name in view.applied
        if not is_own or data is None or not data.is_live or view.by_hand or command.data is None:
            return
        if data.incarnation != command.data.incarnation:
            return  # removed together with the previous one
        order, progress = command.data.region, data.region
        if order is not None and (progress is None or progress.ready != order.reset):
            self.broken(
                f"{command.name} was acknowledged by {view.consumer} of group {view.group.name} at "
                f"{moment(commit.at)}, and its state is not back",
                command.made,
                commit.event,
            )

    def _judge_root(self, change: RegionChange, commit: Commit) -> None:
        before, after = change.before, change.after
        if after is None or before is None or change.view.by_hand:
            return
        if after.reset not in (before.reset, before.reset + 1):
            self.broken(
                f"region {change.view.name} went from reset {before.reset} to {after.reset} at {moment(commit.at)}",
                change.view.reset_at,
                commit.event,
            )
        elif after.state == RUNNING and before.state != RUNNING:
            self._judge_running(change.view, after, commit)

    def _judge_running(self, view: RegionView, region: Region, commit: Commit) -> None:
        for name in region.groups:
            group = self.world.groups.get(name)
            state = group.state if group is not None else None
            if group is None or state is None or state.data is None or state.by_hand or not state.data.target:
                continue
            if any(channel.by_hand for channel in group.channels.values()):
                continue
            for consumer, share in sorted(state.data.target.items()):
                channel = group.channels.get(consumer)
                data = channel.data if channel is not None else None
                if channel is None or data is None or not data.is_live or data.incarnation != share.incarnation:
                    continue
                progress = data.region
                ready = (progress.reset, progress.ready) if progress is not None else (0, 0)
                if ready != (region.reset, region.reset) or data.running.keys() != share.partitions:
                    self.broken(
                        f"region {view.name} is Running at {moment(commit.at)} in reset {region.reset}, and {consumer} "
                        f"of group {name} does not have its state back",
                        channel.written,
                        commit.event,
                    )
                    return
            self._judge_members(view, region, group, state.data, commit)

    def _judge_members(
        self, view: RegionView, region: Region, group: GroupView, state: StateData, commit: Commit
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
                    self.broken(
                        f"region {view.name} is Running at {moment(commit.at)} in reset {region.reset}, and {consumer} "
                        f"of group {group.name} was given no state in it",
                        app.given if app is not None else None,
                        commit.event,
                    )
                return
            applications.append(app)
        cut = view.offsets(group.name, sequence)
        if cut is None:
            return
        expected = self._expected(view, group.name, cut)
        for app in applications:
            add(found, app.restored)
        odd = sorted(key for key, sketch in expected.items() if found.get(key, NOTHING) != sketch)
        if odd:
            topic, _, number = odd[0]
            self.broken(
                f"the members of group {group.name} were given back {sketch_text(found.get(odd[0], NOTHING))} of "
                f"{topic}-{number} in reset {region.reset}, and checkpoint {sequence} has "
                f"{sketch_text(expected[odd[0]])}",
                *(app.given for app in applications),
                commit.event,
            )

    @staticmethod
    def _expected(view: RegionView, group: str, cut: Mapping[Partition, tuple[int, str]]) -> dict[Key, Sketch]:
        found: dict[Key, Sketch] = {}
        for (of, (topic, number)), (initial, topic_id) in view.initial.items():
            if of == group:
                offset, cut_id = cut.get((topic, number), (initial, topic_id))
                found[topic, topic_id, number] = of_range(initial, offset) if cut_id == topic_id else NOTHING
        return found


def _reset_cause(was: StateData, now: StateData) -> str:
    """The change of a group's state that requires a reset; empty without one."""
    if now.generation > was.generation:
        return f"generation {now.generation}"
    for name, share in sorted(now.target.items()):
        if name in was.target and was.target[name].incarnation != share.incarnation:
            return f"another incarnation of {name}"
    return ""
