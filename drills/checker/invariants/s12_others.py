"""S12: what a member says about itself."""

from __future__ import annotations

from ..replay.channel_data import ChannelData
from ..replay.commits import OFFSET, OWNER, SENT, STATE, Commit
from ..replay.fast_json import Partition
from ..replay.reading import read_owner
from ..replay.replay import Replay
from ..replay.verdict import moment
from ..replay.znode_views import ChannelView, GroupView, OwnerView, StateView
from .base import Invariant

Life = tuple[str, str, str]
"""Group, consumer, incarnation."""


class OthersUnmoved(Invariant):
    """What a member says about itself never moves an offset, an owner or a generation of another member.

    A coordinator that ends an incarnation writes the offset of a partition only if that incarnation has had its owner
    znode, or a start that named it; not judged once `state` was lost, which has what was given. It removes the owner
    znode of no other incarnation that lives, unless its channel was edited manually. A generation is the next one of
    `state`, or where that was lost of the group, whatever channels say; not judged for the first state after a manual
    write, nor under client-side assignment (S9).
    """

    name = "S12"
    sentence = "What a member says about itself never moves an offset, an owner or a generation of another member."
    wants = OFFSET | OWNER | SENT | STATE

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._given: dict[Life, set[Partition]] = {}
        self._generations: dict[str, int] = {}

    def on_commit(self, commit: Commit) -> None:
        for view, command in commit.made:
            data = command.data
            if data is not None and data.is_start and not command.by_hand:
                self._of(view.group, view.consumer, data.incarnation).update(data.partitions)
        for group, partition, before, after in commit.owners:
            if after is not None and (life := _life(group, after)) is not None:
                self._given.setdefault(life, set()).add(partition)
            elif before is not None and after is None and self._is_coordinator(commit):
                self._judge_owner(group, partition, before, commit)
        if not self._is_coordinator(commit):
            return
        for group, partition, offset in commit.offsets:
            if offset.data is not None:
                self._judge_offset(group, partition, commit)
        for group, was, now in commit.states:
            self._judge_generation(group, was, now, commit)

    def _is_coordinator(self, commit: Commit) -> bool:
        return not commit.by_hand and self.world.process(commit.who).is_node

    def _of(self, group: GroupView, consumer: str, incarnation: str) -> set[Partition]:
        return self._given.setdefault((group.name, consumer, incarnation), set())

    def _judge_offset(self, group: GroupView, partition: Partition, commit: Commit) -> None:
        ended: list[tuple[ChannelView, ChannelData]] = [
            (change.view, change.before)
            for change in commit.channels
            if change.view.group is group and change.before is not None and partition in change.before.running
        ]
        if not ended or group.state_hand_at > float("-inf"):
            return
        self.judged += 1
        if not any(partition in self._of(group, view.consumer, data.incarnation) for view, data in ended):
            view, data = ended[0]
            self.broken(
                f"the offset of {partition[0]}-{partition[1]} of group {group.name} was written at "
                f"{moment(commit.at)} as {view.consumer} (incarnation {data.incarnation}) had it in `running`, which "
                "has had neither its owner znode nor a start with it",
                view.since,
                commit.event,
            )

    def _judge_owner(self, group: GroupView, partition: Partition, owner: OwnerView, commit: Commit) -> None:
        life = _life(group, owner)
        view = group.channels.get(life[1]) if life is not None else None
        if life is None or view is None or view.by_hand:
            return
        self.judged += 1
        if view.is_live and view.data is not None and view.data.incarnation == life[2] and group.live(life[1]):
            self.broken(
                f"the owner znode of {partition[0]}-{partition[1]} of group {group.name} was removed at "
                f"{moment(commit.at)}, and {life[1]}, whose it is, lives",
                owner.made,
                commit.event,
            )

    def _judge_generation(
        self, group: GroupView, before: StateView | None, after: StateView | None, commit: Commit
    ) -> None:
        was = before.data if before is not None and not before.by_hand else None
        now = after.data if after is not None else None
        if now is None:
            return
        known = self._generations.get(group.name, 0)
        self._generations[group.name] = max(known, now.generation)
        if was is None or now.client is not None:
            return
        self.judged += 1
        if not was.generation <= now.generation <= max(was.generation, known) + 1:
            self.broken(
                f"generation {now.generation} of group {group.name} follows {was.generation} at {moment(commit.at)}",
                before.written if before is not None else None,
                commit.event,
            )


def _life(group: GroupView, owner: OwnerView) -> Life | None:
    record = read_owner("", owner.text)
    return (group.name, record.consumer, record.incarnation) if record is not None else None
