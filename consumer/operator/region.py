"""A member of a consistent region of plain consumers: it drains into checkpoints, and begins from cuts.

Sources R10 to R27. Three rules keep an application's state exact: an offset moves only when a `drain` is
acknowledged; a member begins at the offsets of its start's cut, never at those of `offsets/`; it takes in no record
before its state is restored. Everything here is called inside `poll`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from zk_group.coordinator.zk.errors import BadData, CoordinatorError, Refused, StoreError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import Create, Delete, Operation, SetData, Store
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.cuts import contributions
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import RegionPaths, checkpoint_number
from zk_group.coordinator.zk.znodes.records import Channel, Command, OffsetRecord
from zk_group.coordinator.zk.znodes.regions import (
    CHECKPOINT,
    COMPLETED,
    FAIL,
    FAILED,
    INITIAL,
    RESET,
    CheckpointEnd,
    Contribution,
    Order,
    Progress,
    RegionRequest,
    is_replaced,
)

from ..config import ConsumerConfig
from ..errors import DrainFailed
from ..membership.call_guard import MemberContext
from ..membership.channel import FencedChannel
from ..membership.claims import PARTITIONS_A_STEP, chunks
from ..membership.contributor import Contributor
from ..membership.member import ConsumerMember
from ..membership.offsets import CommittedOffsets
from ..membership.roles import OffsetReader, Record
from ..membership.start_position import find_nowhere
from ..sealing.segment_files import SegmentFolder, chroot_of, claim
from .states import State, StateFiles

if TYPE_CHECKING:
    from ..consumer import Consumer

log = logging.getLogger(__name__)

READ_AT_ONCE = 25
GIVE_UP_READING_S = 15.0
"""A cut that is unreadable for this long fails the region, or for half of `max_poll_interval_ms` if that is less (seed
002): the start stays in the channel meanwhile, and for a whole one the member would be evicted and begin again."""

REQUEST_TRIES = 10

SAVE_S = 10.0
"""Time limit of a leaving member's checkpoint."""
RETRY_S = 0.5
"""Delay of the next request after an aborted checkpoint."""
YOUNG_S = 600.0
"""A folder with a file younger than this is never removed."""
FOLDERS_AT_ONCE = 1_000
THROTTLED_S = 1.0
"""Period of slow fetching after a reset, which is often followed by another one (sources R23)."""

SUBSCRIBED = "SUBSCRIBED"
RESET_PENDING = "RESET_PENDING"
RESET_COMPLETE = "RESET_COMPLETE"
RECEIVING = "RECEIVING"
DRAINING = "DRAINING"
DRAINED = "DRAINED"


Fail = Callable[[Store, str, Record], None]
"""Called with the reason that the region cannot continue."""


class CutReader:
    """Where a member begins, over all its incarnations: offsets and states of its start's cut.

    :param offsets: resolves where the group begins with partitions that have never run.
    :param fail: reports to the region that this member cannot continue.
    :ivar order: of the last start applied; None before the first.
    :ivar reloads: whether running partitions begin again from the cut although their offsets are known.
    """

    def __init__(
        self, config: ConsumerConfig, runtime: Runtime, files: StateFiles, offsets: OffsetReader, fail: Fail
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._files = files
        self._offsets = offsets
        self._fail = fail
        self._paths = RegionPaths(config.region)
        self._give_up_s = min(GIVE_UP_READING_S, config.max_poll_interval_ms / 2000)
        self._cut: dict[str, Contribution] | None = None
        self._failing_since: float | None = None
        self.order: Order | None = None
        self.reloads = False

    def begin(self, order: Order | None, reloads: bool) -> None:
        """Read the cut of `order` from now on; None when the incarnation is over."""
        self.order, self.reloads = order, reloads
        self._cut = self._failing_since = None

    def read(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition], record: Record) -> Channel:
        """`channel` with the offsets of `partitions`: of the cut, else the initial ones, which are resolved once.

        :raises StoreError: when ZooKeeper did not answer.
        """
        order = self.order
        if order is None or channel.region is None or order.reset != channel.region.reset:
            return channel  # another start follows
        requested = frozenset(partitions)
        try:
            offsets = self._offsets_of(self._contributions(store, order), channel, requested)
            offsets |= self._initial(store, channel, requested - offsets.keys(), record)
        except BadData as error:
            self.unreadable(store, error, record)
            return channel
        self.reloads = self.reloads and len(offsets) < len(requested)
        return replace(channel, running={**channel.running, **offsets})

    def state(self, store: Store, channel: Channel, order: Order) -> State:
        """The states of running partitions.

        :raises BadData: when one cannot be read.
        """
        partitions: dict[TopicPartition, bytes] = {}
        member, inherited = b"", {}
        for name, given in self._contributions(store, order).items():
            where = self._paths.contribution(order.checkpoint, self._config.group, name)
            topics = {topic for topic, topic_id in given.topics.items() if channel.topics.get(topic) == topic_id}
            mine = frozenset(part for part in given.offsets if part in channel.running and part.topic in topics)
            state = self._files.get(where, given, mine)
            partitions |= state.partitions
            if name == self._config.consumer:
                member = state.member
            elif name in order.inherited and state.member:
                inherited[name] = state.member
        return State(partitions, member, inherited)

    def unreadable(self, store: Store, error: BadData, record: Record) -> None:
        """An unreadable cut is tried again for a while; then the region fails, with a remedy."""
        now = self._runtime.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            log.error("checkpoint unreadable: consumer=%s problem=%s", self._config.consumer, error)
        if now - self._failing_since >= self._give_up_s:
            self._failing_since = now
            remedy = f"restore it, or `zk-coordinator regions reset {self._paths.region} --to` another checkpoint"
            self._fail(store, f"{error}; {remedy}", record)

    def _contributions(self, store: Store, order: Order) -> dict[str, Contribution]:
        """The contributions of a start: with its partitions, its own, and of members that are gone."""
        if self._cut is None:
            names = sorted({*order.sources, *order.inherited}) if order.checkpoint != INITIAL else []
            group, sequence = self._config.group, order.checkpoint
            self._cut = dict(contributions(store, self._paths, sequence, group, names, READ_AT_ONCE))
        return self._cut

    def _offsets_of(
        self, cut: Mapping[str, Contribution], channel: Channel, partitions: PartitionSet
    ) -> dict[TopicPartition, int]:
        offsets = {}
        for given in cut.values():
            for part, offset in given.offsets.items():
                if part in partitions and given.topics.get(part.topic) == channel.topics.get(part.topic):
                    offsets[part] = offset
                elif part in partitions:
                    log.warning("checkpoint offset dropped, topic recreated: partition=%s", part)
        return offsets

    def _initial(
        self, store: Store, channel: Channel, partitions: PartitionSet, record: Record
    ) -> dict[TopicPartition, int]:
        """Where the group began with partitions that the cut does not have; recorded before any fetch."""
        if not partitions:
            return {}
        ordered = sorted(partitions)
        paths = [self._paths.initial_offset(self._config.group, *part) for part in ordered]
        offsets: dict[TopicPartition, int] = {}
        fresh: dict[TopicPartition, int | None] = {}
        for part, path, node in zip(ordered, paths, store.get_many(paths), strict=True):
            initial = OffsetRecord.parse(path, node.data) if node is not None else None
            if initial is not None and initial.topic_id == channel.topics.get(part.topic):
                offsets[part] = initial.offset
            else:
                fresh[part] = node.stat.version if node is not None else None
        begun = self._offsets.read(store, channel, fresh, record) if fresh else channel
        starts = {part: start for part in fresh if (start := begun.running.get(part)) is not None}
        if starts:
            self._record(store, channel, starts, fresh, record)
        return offsets | starts

    def _record(
        self,
        store: Store,
        channel: Channel,
        offsets: Mapping[TopicPartition, int],
        versions: Mapping[TopicPartition, int | None],
        record: Record,
    ) -> None:
        group, paths = self._config.group, self._paths
        topics = sorted({part.topic for part in offsets})
        ensure(store, [f"{paths.initial}/{group}", *(paths.initial_of(group, topic) for topic in topics)])
        for batch in chunks(offsets, 2 * PARTITIONS_A_STEP):
            written: list[Operation] = []
            for part in batch:
                path, version = paths.initial_offset(group, *part), versions[part]
                data = OffsetRecord(offsets[part], channel.topics.get(part.topic, ""), 0).to_bytes()
                written.append(Create(path, data) if version is None else SetData(path, data, version))
            record(written)


class RegionMember(Contributor):
    """The role of a member with a state in its region: a start stays until that state is restored.

    :param application: its `on_drain`, `on_checkpoint` and `on_reset` are called, see `Callbacks`; the state that it
        gives has the offsets of all running partitions.
    :ivar is_ready: whether the application has its state of the present reset.
    :ivar resets: number of states restored.
    """

    restores = True

    def __init__(self, context: MemberContext, application: Consumer) -> None:
        super().__init__(context)
        self._application = application
        self._files = StateFiles(context.config.checkpoint_dir, context.config.region)
        self._cut = self.reading(CommittedOffsets(context.runtime, self._group, find_nowhere))
        self.is_ready = False
        self._start = ""
        self._throttled_until = float("-inf")
        self._next_take = float("-inf")
        self._is_sweeping = False
        self._sweep_problem = ""
        self.resets = 0
        context.meter.reads_drains(lambda: self.drain_ms, lambda: self.longest_drain_ms)

    # ---- queries

    @property
    def state(self) -> str:
        """The member's state, in the operator's words (sources R10)."""
        if self._draining_for:
            return DRAINING
        if self._paused_for:
            return DRAINED
        if self._cut.order is None:
            return SUBSCRIBED
        if not self.is_ready:
            return RESET_PENDING
        return RESET_COMPLETE if self._runtime.monotonic() < self._throttled_until else RECEIVING

    @property
    def may_take(self) -> bool:
        """Whether records may be taken in: the state is restored, and no checkpoint waits."""
        now = self._runtime.monotonic()
        if not self.is_ready or self.is_in_checkpoint:
            return False
        if now >= self._throttled_until:
            return True
        if now < self._next_take:
            return False
        self._next_take = now + 0.1
        return True

    # ---- commands

    def admits(self, channel: Channel, name: str, command: Command) -> bool | None:
        """A start that was applied completely waits in the channel for the state."""
        if command.region is None:
            return False
        order, reset = command.region, channel.region.reset if channel.region is not None else 0
        if (order, order.reset) != (self._cut.order, reset):
            return True
        # A large start takes several multis, each of which writes its name.
        is_whole = command.started - channel.refused <= channel.running.keys()
        if channel.command == name and is_whole:
            self._start = name  # also when the reply was lost; a later command (`assign`) has the name `command`
        return None if name == self._start else True

    def ordered(self, channel: Channel, command: Command) -> None:
        """All partitions begin at the cut of the start, also running ones."""
        self._cut.begin(command.region, reloads=bool(channel.running))
        self.is_ready = False
        self._start = ""

    def started(self, name: str, command: Command) -> None:
        """The start is removed when the state is restored."""
        self._start = name

    def stopping(self, is_whole: bool) -> None:
        super().stopping(is_whole)
        self.is_ready = False
        # If their release is withdrawn, running partitions begin again from the cut.
        self._cut.begin(self._cut.order, reloads=self._cut.order is not None)

    def lost(self, reason: str) -> None:
        super().lost(reason)
        self._cut.begin(None, reloads=False)

    def reading(self, offsets: OffsetReader) -> CutReader:
        """See `Role`; it also resolves where the group begins with partitions that never ran."""
        self._cut = CutReader(self._config, self._runtime, self._files, offsets, self._fail)
        return self._cut

    def _may_contribute(self, channel: Channel, order: Order) -> bool:
        is_current = channel.region is not None and (channel.region.reset, channel.region.ready) == (order.reset,) * 2
        return self.is_ready and is_current

    def _contribution(self, store: Store, fenced: FencedChannel, order: Order) -> Contribution | None:
        """None while the application has not finished."""
        channel = fenced.channel
        if not self._has_finished(order.checkpoint):
            return None
        chroot = chroot_of(store) if self._files.folder is not None else ""
        try:
            state = self._application.on_checkpoint(order.checkpoint)
            name = f"{order.checkpoint:010d}/{fenced.incarnation}-{self._runtime.random_id()[:8]}"
            states, member, file = self._files.put(state, name, chroot)
            offsets = {part: state.offsets[part] for part in channel.running}
        except Exception as error:  # the application's: records since the last cut are lost
            raise _failed(order.checkpoint, error) from error
        return Contribution(fenced.incarnation, order.reset, offsets, channel.topics, states, member, file)

    def _has_finished(self, checkpoint: int) -> bool:
        """Whether the application has now processed all its records."""
        try:
            return self._application.on_drain() is not False
        except Exception as error:
            raise _failed(checkpoint, error) from error

    # ---- between commands

    def tend(self, store: Store, fenced: FencedChannel) -> None:
        """Restore the application's state when a start requires it, and continue after a checkpoint has ended.

        :raises StoreError: when ZooKeeper did not answer: call again.
        """
        super().tend(store, fenced)
        if self._draining_for and self._has_finished(self._draining_for):
            self._wake.set()  # the command is applied again
        channel, order = fenced.channel, self._cut.order
        if order is None or channel.region is None or channel.region.reset != order.reset or self.is_ready:
            return
        if not self._start and channel.region.ready != order.reset:
            return  # the start has stopped between two multis: it is continued first
        offsets = {part: offset for part, offset in channel.running.items() if offset is not None}
        if self._cut.reloads or len(offsets) < len(channel.running):
            return
        try:
            state = replace(self._cut.state(store, channel, order), offsets=offsets)
        except BadData as error:
            self._cut.unreadable(store, error, fenced.guarded)
            return
        self._application.on_reset(order.checkpoint, state)
        if channel.region.ready != order.reset:
            after = replace(channel, region=Progress(order.reset, order.reset, channel.region.drained))
            fenced.commit(after, [Delete(self._group.command(self._config.consumer, self._start))])
        self.is_ready = True
        self.resets += 1
        now = self._runtime.monotonic()
        self._throttled_until = now + THROTTLED_S if order.reset > 1 else now
        log.info(
            "state restored: group=%s consumer=%s region=%s reset=%d checkpoint=%d partitions=%d",
            self._config.group, self._config.consumer, self.paths.region, order.reset, order.checkpoint,
            len(channel.running),
        )  # fmt: skip

    def _completed(self, store: Store, checkpoint: int) -> None:
        """Remove state files without a checkpoint, in a separate thread: a poll does not wait for it."""
        folder = self._files.folder
        if folder is None or self._is_sweeping:
            return

        def run() -> None:
            try:
                if sweep(store, self._runtime, folder, self.paths.region, checkpoint):
                    self._sweep_problem = ""
            except Exception as error:  # noqa: BLE001  the next checkpoint tries again
                is_new, self._sweep_problem = str(error) != self._sweep_problem, str(error)
                if is_new:
                    log.warning("state file removal failed: region=%s reason=%s", self.paths.region, error)
            finally:
                self._is_sweeping = False

        self._is_sweeping = True
        self._runtime.spawn(run, f"state-files-{self._config.consumer}")

    # ---- the application's requests

    def request_checkpoint(self, store: Store, fenced: FencedChannel) -> None:
        """Request a checkpoint (operator-driven: sources R17)."""
        self._request(store, RegionRequest(CHECKPOINT, self._config.consumer), fenced.guarded)

    def request_reset(self, store: Store, fenced: FencedChannel, reason: str) -> None:
        """Request a reset to the last cut."""
        request = RegionRequest(RESET, self._config.consumer, reason[:1000], None, by_application=True)
        self._request(store, request, fenced.guarded)

    def failing(self, why: str) -> Callable[[Store, FencedChannel], None]:
        """Reports to the region that this member cannot continue."""
        return lambda store, fenced: self._fail(store, why, fenced.guarded)

    def _fail(self, store: Store, why: str, record: Record) -> None:
        self._request(store, RegionRequest(FAIL, self._config.consumer, why[:1000]), record)

    def _request(self, store: Store, request: RegionRequest, record: Record) -> None:
        """Send a request to the coordinator. An existing one is sufficient, unless it is for an earlier reset, which
        is ignored, or for a checkpoint where this is for a reset or a failure: then it is replaced.

        :raises StoreError: when there was no answer, or the request znode keeps changing.
        """
        path, order = self.paths.request, self._cut.order
        asked = replace(request, reset=order.reset if order is not None else 0)
        # Not by `retried`: a refusal of the fence, and a lost reply, are the caller's.
        for _ in range(REQUEST_TRIES):
            standing = store.get(path)
            if standing is not None and not is_replaced(path, standing.data, asked):
                return
            data, version = asked.to_bytes(), standing.stat.version if standing is not None else 0
            try:
                return record([Create(path, data) if standing is None else SetData(path, data, version)])
            except Refused as refused:
                if refused.path != path:
                    raise
        raise StoreError(f"{path} keeps changing")

    def has_failed(self, store: Store) -> bool:
        """Whether the region takes no checkpoints before an operator has reset it."""
        region = self._region(store)
        return region is not None and region.state == FAILED


def _failed(checkpoint: int, error: Exception) -> DrainFailed:
    return DrainFailed(f"checkpoint {checkpoint} failed: {type(error).__name__}: {error}")


def final_checkpoint(context: MemberContext, member: ConsumerMember, region: RegionMember) -> None:
    """Before a member leaves, request a checkpoint and wait until it is complete; without new records it needs none.

    Without one the member leaves anyway: records processed since the last checkpoint are processed again.
    """
    if not region.is_ready:
        return
    try:
        problem = _take(context, member, region)
    except CoordinatorError as error:
        problem = str(error)
    if problem:
        log.warning(
            "leaving without checkpoint: group=%s consumer=%s region=%s since=%d reason=%s",
            context.config.group, context.consumer, context.config.region, region.saved, problem,
        )  # fmt: skip


def _take(context: MemberContext, member: ConsumerMember, region: RegionMember) -> str:
    """Why there was none; empty when it completed."""
    saved, resets = region.saved, region.resets
    now = request_at = context.runtime.monotonic()
    until = now + SAVE_S
    while (now := context.runtime.monotonic()) < until:
        store = member.store
        if store is None or not region.is_ready or region.resets != resets:
            return "the region is reset"
        if not region.is_in_checkpoint and now >= request_at:
            if region.has_failed(store):
                return "the region has failed"
            member.in_session(region.request_checkpoint)
            request_at = now + RETRY_S
        member.tend()
        if region.saved != saved:
            return ""
        context.wake.wait(0.01)
    return f"none was complete within {SAVE_S:g} s"


def sweep(store: Store, runtime: Runtime, folder: SegmentFolder, region: str, below: int) -> int:
    """Members remove the state files of dropped checkpoints, since the coordinator may not reach the files.

    Remove the folders of checkpoints before `below` that no longer exist and whose files no existing checkpoint
    names; the number removed.

    A checkpoint's files are in a separate folder, `[region]/[sequence]/` below `checkpoint_dir`. A state without a new
    contribution is copied from the checkpoint before, with the name of its file: `files` of a complete checkpoint lists
    the earlier ones whose files it names.

    In this order: folders, then checkpoints, the oldest first. A number below that of a complete checkpoint is never
    used again, and a copy is made while its source checkpoint exists. The marker is read last: nothing is removed in a
    folder of another chroot.

    :param below: a checkpoint that is complete.
    :raises StoreError: when ZooKeeper did not answer.
    :raises BadData: when a checkpoint's file names cannot be read.
    :raises ForeignFolder: when the region's folder belongs to another chroot.
    :raises OSError: when the folder cannot be listed, or a file cannot be removed.
    """
    paths = RegionPaths(region)
    there = {int(name): name for name in folder.folders(region) if name.isascii() and name.isdigit()}
    store.sync()
    listing = store.children(paths.checkpoints)
    if listing is None:
        return 0
    standing = sorted(filter(None, map(checkpoint_number, listing.names)))
    old = sorted(number for number in there.keys() - set(standing) if 0 < number < below)
    if not old:
        return 0
    named: set[int] = set()
    ends = [paths.end(number, COMPLETED) for number in standing]
    for path, node in zip(ends, store.get_many(ends), strict=True):
        if node is not None:
            named.update(CheckpointEnd.parse(path, node.data).files)
    again = store.children(paths.checkpoints)
    if again is None or max(map(checkpoint_number, again.names), default=0) > max(standing, default=0):
        return 0  # a new checkpoint may name one of them: the next one sweeps again
    removed = 0
    before_s = runtime.wall_ms() / 1000 - YOUNG_S
    unnamed = [each for each in old if each not in named][:FOLDERS_AT_ONCE]
    if unnamed:
        claim(folder, region, chroot_of(store), "checkpoint_dir")
    for number in unnamed:
        if folder.remove_folder(f"{region}/{there[number]}", before_s):
            log.info("state files removed: region=%s checkpoint=%d", region, number)
            removed += 1
    return removed
