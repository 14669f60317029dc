"""A member of a consistent region of plain consumers: it drains into checkpoints, and begins from cuts.

Seed 002, "Operator Function". Three rules keep an application's state exact: an offset moves only when a `drain` is
acknowledged; a member begins at the offsets of the cut that its start names, never at those of `offsets/`; it takes
in no record before its state is back. Everything here is called inside `poll`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from coordinator.zk.errors import BadData, Refused, StoreError
from coordinator.zk.records import Channel
from coordinator.zk.region_requests import CHECKPOINT, FAIL, RESET, RegionRequest, is_replaced
from coordinator.zk.regions import FAILED, Contribution, Order, Progress
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Create, Delete, SetData, Store

from ..channel import FencedChannel
from ..config import ConsumerConfig
from ..errors import DrainFailed
from ..holding import Reader
from ..offsets import Offsets, Record
from ..starts import find_nowhere
from .contributor import Contributor
from .cut import CutReader
from .states import State, StateFiles
from .sweep import sweep

log = logging.getLogger(__name__)

REQUEST_TRIES = 10

THROTTLED_S = 1.0
"""For so long after a reset records come slowly: what follows at once is often another one (seed 002)."""

SUBSCRIBED = "SUBSCRIBED"
RESET_PENDING = "RESET_PENDING"
RESET_COMPLETE = "RESET_COMPLETE"
RECEIVING = "RECEIVING"
DRAINING = "DRAINING"
DRAINED = "DRAINED"


class Application(Protocol):
    """Whoever processes the records of a member."""

    def on_drain(self) -> bool | None:
        """Finish what `poll` has returned. False: not finished yet, ask again."""

    def on_checkpoint(self, checkpoint: int) -> State:
        """What it is now, after exactly the records below `State.offsets`, which has every partition that runs."""

    def on_reset(self, checkpoint: int, state: State) -> None:
        """Be this from now on, whatever it was: the state at a cut, 0 for the initial state."""


class RegionMember(Contributor):
    """The part of one member that keeps state, over all its incarnations.

    :ivar resets: how often the application was given a state.
    """

    def __init__(self, config: ConsumerConfig, runtime: Runtime, application: Application) -> None:
        super().__init__(config, runtime)
        self._application = application
        self._files = StateFiles(config.checkpoint_dir, config.region)
        self._cut = CutReader(config, runtime, self._files, Offsets(runtime, self._group, find_nowhere), self._fail)
        self._is_ready = False
        self._start = ""
        self._throttled_until = float("-inf")
        self._next_take = float("-inf")
        self._is_sweeping = False
        self.resets = 0

    # ---- what others may ask

    @property
    def state(self) -> str:
        """The member's state, in the seed's words."""
        if self._draining_for:
            return DRAINING
        if self._paused_for:
            return DRAINED
        if self._cut.order is None:
            return SUBSCRIBED
        if not self._is_ready:
            return RESET_PENDING
        return RESET_COMPLETE if self._runtime.monotonic() < self._throttled_until else RECEIVING

    @property
    def is_ready(self) -> bool:
        """Whether the application has its state of the present reset."""
        return self._is_ready

    @property
    def may_take(self) -> bool:
        """Whether records may be taken in: the state is back, and no checkpoint waits."""
        now = self._runtime.monotonic()
        if not self._is_ready or self.is_in_checkpoint:
            return False
        if now >= self._throttled_until:
            return True
        if now < self._next_take:
            return False
        self._next_take = now + 0.1
        return True

    # ---- commands

    def ordered(self, channel: Channel, order: Order) -> None:
        """A start is about to be applied: all that it names begins from its cut, also what runs already."""
        self._cut.begin(order, reloads=bool(channel.running))
        self._is_ready = False
        self._start = ""

    def is_applied(self, channel: Channel, name: str, order: Order) -> bool:
        """Whether a start that stands has been applied, and waits for the state to be back."""
        reset = channel.region.reset if channel.region is not None else 0
        if (order, order.reset) == (self._cut.order, reset) and channel.command == name:
            self._start = name  # also where the reply was lost; what is applied after it (`assign`) takes `command`
        return (order, name, order.reset) == (self._cut.order, self._start, reset)

    def started(self, name: str) -> None:
        """The start of that name was applied; it is removed when the state is back."""
        self._start = name

    def stopped(self) -> None:
        """See `Contributor`."""
        super().stopped()
        self._is_ready = False
        self._cut.again()

    def lost(self, reason: str) -> None:
        """See `Contributor`."""
        super().lost(reason)
        self._cut.end()

    def reading(self, offsets: Offsets) -> Reader:
        """What reads where partitions begin, with what resolves where the group begins with those that never ran."""
        cut = CutReader(self._config, self._runtime, self._files, offsets, self._fail)
        self._cut = cut
        return cut

    def _may_contribute(self, channel: Channel, order: Order) -> bool:
        is_told = channel.region is not None and (channel.region.reset, channel.region.ready) == (order.reset,) * 2
        return self._is_ready and is_told

    def _contribution(self, fenced: FencedChannel, order: Order) -> Contribution | None:
        """None while the application has not finished."""
        channel = fenced.channel
        if not self._has_finished(order.checkpoint):
            return None
        try:
            state = self._application.on_checkpoint(order.checkpoint)
            name = f"{order.checkpoint:010d}/{fenced.incarnation}-{self._runtime.random_id()[:8]}"
            states, member, file = self._files.put(state, name)
            offsets = {part: state.offsets[part] for part in channel.running}
        except Exception as error:  # the application's: what it has taken in since the last cut is lost
            raise _failed(order.checkpoint, error) from error
        return Contribution(fenced.incarnation, order.reset, offsets, channel.topics, states, member, file)

    def _has_finished(self, checkpoint: int) -> bool:
        """Whether the application has processed what it was given, as it says now."""
        try:
            return self._application.on_drain() is not False
        except Exception as error:
            raise _failed(checkpoint, error) from error

    # ---- between commands

    def tend(self, store: Store, fenced: FencedChannel) -> None:
        """Give the application its state back where it is due, and go on after a checkpoint has ended.

        :raises StoreError: when ZooKeeper did not answer: call again.
        """
        super().tend(store, fenced)
        if self._draining_for and self._has_finished(self._draining_for):
            self.wake()  # the command is taken up again
        channel, order = fenced.channel, self._cut.order
        if order is None or channel.region is None or channel.region.reset != order.reset or self._is_ready:
            return
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
            fenced.commit(after, [Delete(self._group.command(self._config.consumer, self._start or channel.command))])
        self._is_ready = True
        self.resets += 1
        now = self._runtime.monotonic()
        self._throttled_until = now + THROTTLED_S if order.reset > 1 else now
        log.info(
            "state restored: group=%s consumer=%s region=%s reset=%d checkpoint=%d partitions=%d",
            self._config.group, self._config.consumer, self.paths.region, order.reset, order.checkpoint,
            len(channel.running),
        )  # fmt: skip

    def _completed(self, store: Store, checkpoint: int) -> None:
        """Look for state files that no checkpoint names, in a thread of its own: a poll does not wait for it."""
        folder = self._files.folder
        if folder is None or self._is_sweeping:
            return

        def run() -> None:
            try:
                sweep(store, self._runtime, folder, self.paths.region, checkpoint)
            except Exception as error:  # noqa: BLE001  the next checkpoint tries again
                log.warning("state files not removed: region=%s reason=%s", self.paths.region, error)
            finally:
                self._is_sweeping = False

        self._is_sweeping = True
        self._runtime.spawn(run, f"state-files-{self._config.consumer}")

    # ---- what an application asks for

    def request_checkpoint(self, store: Store, fenced: FencedChannel) -> None:
        """Ask for a checkpoint (operator-driven, in the seed's words)."""
        self._request(store, RegionRequest(CHECKPOINT, self._config.consumer), fenced.guarded)

    def request_reset(self, store: Store, fenced: FencedChannel, reason: str) -> None:
        """Ask for a reset to the last cut."""
        request = RegionRequest(RESET, self._config.consumer, reason[:1000], None, by_application=True)
        self._request(store, request, fenced.guarded)

    def failing(self, why: str) -> Callable[[Store, FencedChannel], None]:
        """What tells the region that this member cannot go on."""
        return lambda store, fenced: self._fail(store, why, fenced.guarded)

    def _fail(self, store: Store, why: str, record: Record) -> None:
        remedy = "restore it, or reset the region to another checkpoint"
        self._request(store, RegionRequest(FAIL, self._config.consumer, f"{why}; {remedy}"[:1000]), record)

    def _request(self, store: Store, request: RegionRequest, record: Record) -> None:
        """Ask the coordinator. One that stands already serves as well, but for a reset or a failure not a checkpoint's,
        nor one of an earlier reset, which is ignored: these are replaced.

        :raises StoreError: when there was no answer, or what stands keeps changing.
        """
        path, order = self.paths.request, self._cut.order
        asked = replace(request, reset=order.reset if order is not None else 0)
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
