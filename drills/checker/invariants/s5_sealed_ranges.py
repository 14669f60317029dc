"""S5, first half: committed ranges are contiguous."""

from __future__ import annotations

from collections.abc import Set

from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import COORDINATOR_EPOCH
from zk_group.coordinator.zk.znodes.records import Channel, OffsetRecord
from zk_group.coordinator.zk.znodes.segments import SealedRange

from ..replay.commits import Changed, ChannelChange, Commit, KnownProcess
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelView, GroupView, OffsetView, OwnerView, SegmentView
from .base import Invariant, Rules
from .s5_dataframe import DataFrames, Ends, Key

Held = tuple[str, str, str, int]
"""Group, incarnation, topic, partition."""

MEMBERS = ("node", "consumer", "slot", "liar")


class SealedRanges(Invariant):
    """Per partition and topic id the sealed ranges join without gap or overlap, and the DataFrame holds exactly them.

    Every advance of an offset in `running` begins at the previous end, for any owner, and none goes back unless an
    application that seals nothing has announced it (`sought`), nor passes a record that `poll` has not returned
    (`ReturnedRecords`); a segment's ranges are the advance of its commit; the end of a hold leaves the offset in
    `offsets/`. A new partition begins at its beginning, or at its recorded start, once; any goes on where an
    operator's reset has set its offset. No segment is removed before every registered query has finished it. In a
    consistent region of plain consumers offsets go back with its resets: S10 and S11 judge them. Deliveries of
    queries are judged by `DataFrames`.
    """

    name = "S5"
    sentence = "The sealed ranges of a partition join without gap or overlap, and the DataFrame holds exactly them."
    wants = Changed.CHANNEL | Changed.OFFSET | Changed.SEALED | Changed.COLLECTED | Changed.QUERY

    events = ("sought",)

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self.ends = Ends(self)
        self._frames, self._returned = DataFrames(self, self.ends), ReturnedRecords(self)
        self._seals: set[tuple[str, str]] = set()
        self._sought: set[tuple[str, str, TopicPartition, int | None]] = set()
        self._liars: set[tuple[str, TopicPartition]] = set()

    def on_sought(self, event: Event) -> None:
        """An application has chosen offsets itself."""
        for topic, partitions in event["partitions"].items():
            for number, offset in partitions.items():
                self._sought.add((event["group"], event["incarnation"], TopicPartition(topic, int(number)), offset))

    def on_commit(self, commit: Commit) -> None:
        for group, was, now in commit.queries:
            self._frames.on_query(group, was, now, commit)
        if commit.by_hand:
            self._forget(commit)
            return
        self._frames.deliveries.on_sealed(commit.sealed)
        sealed = self._sealed(commit) if commit.sealed else {}
        for change in commit.channels:
            if change.view.group.name in self.world.regions.ever:
                continue
            before, after = change.before, change.after
            if before is not None and commit.mask & Changed.RUNNING:
                gone = change.left if change.same is not None else before.running.keys()
                self._judge_released(change.view, before, gone, commit)
            if after is not None:
                self._advance(change, after, sealed, commit)
                self._liars.difference_update((change.view.group.name, partition) for partition in change.entered)
        if sealed:
            partition, item = next(iter(sealed.items()))
            why = f"{commit.sealed[0]} has {partition} from {item.first} to {item.next}"
            self.broken(f"{why}, which its commit at {commit.moment} does not advance", commit.event)
        by_operator = is_reset(commit, self.world.process(commit.who))
        for group, partition, offset in commit.offsets:
            if by_operator and offset.data is not None:
                key = (group.name, partition.topic, offset.data.topic_id, partition.partition)
                self.ends.move(key, offset.data.offset, commit.event)
                self._frames.deliveries.on_reset(key, offset.data.offset, commit)
            else:
                self._judge_offset(group, partition, offset, commit)
        for segment in commit.removed:
            self._judge_collected(segment, commit)

    def _sealed(self, commit: Commit) -> dict[TopicPartition, SealedRange]:
        for segment in commit.sealed:
            self._seals.add((segment.group.name, segment.consumer))
        if len(commit.sealed) > 1:
            names = " and ".join(segment.name for segment in commit.sealed)
            self.broken_by(commit, f"{names} were sealed in one commit at {commit.moment}")
        return {_place(each): each for segment in commit.sealed for each in segment.ranges or ()}

    def _forget(self, commit: Commit) -> None:
        """Partitions touched by a manual write or a lying member begin again."""
        for group, partition, _ in commit.offsets:
            self.ends.forget(group.name, [partition])
        for change in commit.channels:
            for data in (change.before, change.after):
                if data is not None:
                    self.ends.forget(change.view.group.name, data.running)
        for segment in (*commit.sealed, *commit.removed):
            self.ends.forget(segment.group.name, [_place(each) for each in segment.ranges or ()])

    # ---- advances

    def _advance(
        self, change: ChannelChange, after: Channel, sealed: dict[TopicPartition, SealedRange], commit: Commit
    ) -> None:
        view, known = change.view, change.same.running if change.same is not None else {}
        seals = (view.group.name, view.consumer) in self._seals or self.world.process(commit.who).kind == "slot"
        for partition, offset in after.running.items():
            was = known.get(partition)
            if offset is None or offset == was:
                continue  # not read yet, or to be read again: its end is unchanged
            self.judged += 1
            key = (view.group.name, partition.topic, after.topics.get(partition.topic, ""), partition.partition)
            part = sealed.pop(partition, None) if sealed else None
            if part is not None:
                first = self._first_sealed(key, was, offset, part, commit)
            elif seals:
                first = self._first_unsealed(key, was, offset, commit)
            else:
                first = self._began(view, key) if was is None else was
                is_sought = (view.group.name, after.incarnation, partition, offset) in self._sought
                if is_sought and first is not None and offset < first:
                    first = None
                elif not is_sought:
                    self._returned.judge(key, after.incarnation, offset, commit)
            if first is not None and (offset < first or not self.ends.joins(key, first)):
                self._report_gap(key, first, offset, commit)
            self.ends.move(key, offset, commit.event)
            self._liars.discard((view.group.name, partition))

    def _first_sealed(self, key: Key, was: int | None, offset: int, part: SealedRange, commit: Commit) -> int | None:
        """The begin of the advance to `offset`, by its segment; None when the segment has another range."""
        group, topic, topic_id, number = key
        if part.topic_id == topic_id and part.next == offset and was in (None, part.first):
            return part.first
        self.broken(
            f"{topic}-{number} (id {topic_id}) of group {group} went from {was} to {offset} at {commit.moment}, and "
            f"its segment has {part.first} to {part.next} of id {part.topic_id}",
            commit.event,
        )
        return None

    def _first_unsealed(self, key: Key, was: int | None, offset: int, commit: Commit) -> int | None:
        """A member that seals advances offsets only by segments; a previously unknown offset is its end."""
        if was is None or self.ends.has_jumped(key, was, offset):
            return offset
        why = f"{key[1]}-{key[3]} of group {key[0]} went from {was} to {offset} at {commit.moment} without a segment"
        self.broken(why, commit.event)
        return None

    def _began(self, view: ChannelView, key: Key) -> int | None:
        """The first offset of a consumer that seals nothing, before its first commit."""
        incarnation = view.data.incarnation if view.data is not None else ""
        hold = self.world.fetching.of(view.group.name, view.consumer, incarnation).get(key)
        if hold is not None:
            return hold.first
        known = self.ends.get(key)
        return known[0] if known is not None else None

    def _report_gap(self, key: Key, first: int, offset: int, commit: Commit) -> None:
        end, since, before = self._reached(key)
        what = f"{'a gap' if first > end else 'an overlap'} in {key[1]}-{key[3]} of group {key[0]}"
        why = f"{what}: {first} to {offset} was committed at {commit.moment}, and {before}"
        self.broken_by(commit, why, since)

    def _reached(self, key: Key) -> tuple[int, Event | None, str]:
        """The known end of a partition, its event, and both in words."""
        end, since = self.ends.get(key) or (0, None)
        return end, since, f"{end} was reached at {moment(since['at'])}" if since is not None else "nothing was before"

    # ---- the end of a hold

    def _judge_released(self, view: ChannelView, before: Channel, gone: Set[TopicPartition], commit: Commit) -> None:
        for partition in sorted(gone):
            offset, found = before.running[partition], view.group.offsets.get(partition)
            is_over = not view.lives_as(before.incarnation)  # a stop writes its offsets regardless of the owner znode
            if view.by_hand or (is_over and _is_of_another(view.group.owners.get(partition), before)):
                self._liars.add((view.group.name, partition))
            data = found.data if found is not None else None
            expected = (offset, before.topics.get(partition.topic, ""))
            if offset is None or (data is not None and (data.offset, data.topic_id) == expected):
                continue
            if (view.group.name, partition) in self._liars or (found is not None and found.by_hand):
                self.ends.forget(view.group.name, [partition])
            else:
                actual = f"{data.offset} of id {data.topic_id}" if data is not None else "none"
                why = f"{view.consumer} of {view.group} gave up {partition} at {offset} at {commit.moment}"
                self.broken(f"{why}, and `offsets` has {actual}", commit.event)

    def _judge_offset(self, group: GroupView, partition: TopicPartition, offset: OffsetView, commit: Commit) -> None:
        if offset.data is None or group.name in self.world.regions.ever:
            return
        key = (group.name, partition.topic, offset.data.topic_id, partition.partition)
        _, since, before = self._reached(key)
        if self.ends.joins(key, offset.data.offset) or (since is None and _may_begin(group, partition, offset.data)):
            if since is None:
                self.ends.move(key, offset.data.offset, commit.event)
            return
        why = f"`offsets` of {partition} in {group} was set to {offset.data.offset} at {commit.moment}, and {before}"
        self.broken_by(commit, why, since)

    # ---- collection

    def _judge_collected(self, segment: SegmentView, commit: Commit) -> None:
        readers = [query for query in segment.group.queries.values() if not query.is_expired]
        late = [query for query in readers if query.data is None or query.data.finished < segment.czxid]
        what = f"{segment} (czxid {segment.czxid}) was removed at {commit.moment}"
        if not readers:
            self.broken_by(commit, f"{what}, and no query reads the group", segment.made)
        elif late:
            query = min(late, key=lambda query: query.name)
            has = f"has finished {query.data.finished}" if query.data is not None else "cannot be read"
            self.broken_by(commit, f"{what}, and query {query.name} {has}", segment.made, query.written)


def _place(item: SealedRange) -> TopicPartition:
    return TopicPartition(item.topic, item.partition)


def _is_of_another(owner: OwnerView | None, life: Channel) -> bool:
    """Whether a hand, or a lying member, has created an owner znode of another incarnation: no offset is written."""
    return owner is not None and owner.by_hand and (owner.data is None or owner.data.incarnation != life.incarnation)


def _may_begin(group: GroupView, partition: TopicPartition, start: OffsetRecord) -> bool:
    """Whether a new partition may begin elsewhere than at its beginning: at a start that was resolved from another
    position, for a partition that existed when the group began."""
    begun = group.begun.get(partition[0])
    is_elsewhere = start.start not in ("", "beginning")
    return is_elsewhere and begun is not None and not begun.came_later(start.topic_id, partition[1])


class ReturnedRecords(Rules):
    """No offset passes a record that `poll` has not returned to the application.

    The application has every record from its incarnation's first offset of a partition up to the end of the last
    records returned by `poll`, or to the offset of a seek, or of a jump of the log. Offsets without a record
    (`records` 0 of a fetch) are passed when nothing is buffered before them. Offsets below the begin are an earlier
    owner's. A process without `returned` is not judged.
    """

    events = ("begin", "sought", "jump", "returned", "fetch")

    def __init__(self, invariant: Invariant) -> None:
        super().__init__(invariant)
        self._ends: dict[Held, tuple[int, Event]] = {}
        self._tells: set[str] = set()

    def on_begin(self, event: Event) -> None:
        for topic, partitions in event["partitions"].items():
            for number, first in partitions.items():
                if first is not None:
                    self._move(event, topic, int(number), first)

    on_sought = on_begin

    def on_jump(self, event: Event) -> None:
        self._move(event, event["topic"], event["partition"], event["after"])

    def on_returned(self, event: Event) -> None:
        self._tells.add(event["who"])
        for item in event["ranges"]:
            self._move(event, item["topic"], item["partition"], item["next"])

    def on_fetch(self, event: Event) -> None:
        for item in event["ranges"]:
            known = self._ends.get((event["group"], event["incarnation"], item["topic"], item["partition"]))
            if item.get("records") == 0 and known is not None and known[0] == item["first"]:
                self._move(event, item["topic"], item["partition"], item["next"])

    def _move(self, event: Event, topic: str, number: int, offset: int) -> None:
        self._ends[event["group"], event["incarnation"], topic, number] = (offset, event)

    def judge(self, key: tuple[str, str, str, int], incarnation: str, offset: int, commit: Commit) -> None:
        """An application's commit moves the offset of a partition.

        :param key: group, topic, topic id, partition.
        """
        group, topic, _, number = key
        known = self._ends.get((group, incarnation, topic, number))
        if known is not None and offset > known[0] and commit.who in self._tells:
            why = f"{offset} of {topic}-{number} was committed in group {group} at {commit.moment}"
            self.broken_by(commit, f"{why}, and {commit.who} was given the records below {known[0]} only", known[1])


def is_reset(commit: Commit, process: KnownProcess) -> bool:
    """Whether offsets are written by neither a coordinator, which checks its epoch, nor a consumer, which checks its
    channel."""
    if commit.by_hand or not commit.mask & Changed.OFFSET or process.kind in MEMBERS:
        return False
    paths = [op["path"] for op in commit.event.get("ops", ())]
    return not any(path == COORDINATOR_EPOCH or "/channel/" in path for path in paths)
