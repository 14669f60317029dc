"""A consumer's channel: the fence for all of its writes, one multi at a time.

The data of the channel znode is the truth of what the consumer runs, its version the fence. Ending this incarnation
increments the version; ZooKeeper refuses its writes from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from zk_group.coordinator.zk.errors import IncarnationOver, OutcomeUnknown, Refused, StoreError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import Check, Operation, SetData, Store
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.json_fields import readable
from zk_group.coordinator.zk.znodes.paths import GroupPaths, parents_of
from zk_group.coordinator.zk.znodes.records import Channel, parsed_channel

from ..errors import ChannelGone, FencedInstanceId, refusal_in

log = logging.getLogger(__name__)


class FencedChannel:
    """The channel of one incarnation on one session, from its registration to its end.

    :ivar channel: the data as last written or read, with offsets that were read since.
    :ivar over: why the incarnation has ended, None while it lives.
    :ivar lock: held by every commit, and by callers that need no commit after their read of `channel`.
    """

    def __init__(
        self, store: Store, runtime: Runtime, paths: GroupPaths, consumer: str, channel: Channel, version: int
    ) -> None:
        self._store = store
        self._path = paths.channel(consumer)
        self.lock = runtime.lock()
        self._version = version
        self._is_unsure = False
        self._written: tuple[bytes | None, Channel] = None, channel
        self.channel = channel
        self.over: IncarnationOver | None = None
        self.is_ending = False

    @property
    def incarnation(self) -> str:
        """The incarnation's random name."""
        return self.channel.incarnation

    def commit(self, after: Channel, operations: Sequence[Operation] = ()) -> None:
        """Write `after` and do `operations`, under the fence.

        :raises IncarnationOver: when another process moved the fence.
        :raises Refused: when another operation was refused, or the channel differs from the known one: no effect, read
            again.
        :raises Retryable: when ZooKeeper did not answer; the next call resolves the outcome first.
        """
        with self.lock:
            self._refuse_if_old()
            data = after.to_bytes()
            self._send([SetData(self._path, data, self._version), *operations], after)
            self._written = data, after

    def guarded(self, operations: Sequence[Operation]) -> None:
        """Do `operations` under the fence, without writing the channel. Raises as `commit`."""
        with self.lock:
            self._refuse_if_old()
            self._send([Check(self._path, self._version), *operations], None)

    def settle(self) -> None:
        """Resolve a commit whose reply was lost: only then is `channel` known.

        Raises as `commit`.
        """
        with self.lock:
            self._settle()

    def touch(self) -> None:
        """Send a heartbeat. Raises as `commit`."""
        with self.lock:
            self.commit(replace(self.channel, touched=self.channel.touched + 1))

    def end(self, after: Channel, operations: Sequence[Operation], why: IncarnationOver) -> None:
        """Commit the end of this incarnation. Raises as `commit`."""
        with self.lock:
            self.is_ending = True  # before it is sent: after the commit other members may have the partitions
            try:
                self.commit(after, operations)
            except Refused:
                self.is_ending = False
                raise
            self.over = why

    def check(self) -> None:
        """Read the fence; for the lease.

        :raises IncarnationOver: when another process has moved it.
        """
        with self.lock:
            if self.over is not None:
                raise self.over
            # The data stays as it is, for concurrent readers: the next commit notices the change.
            self._is_unsure = self._look()[1] != self._version or self._is_unsure

    # ---- inside the lock

    def _refuse_if_old(self) -> None:
        """Refuse a change computed before an unknown outcome was resolved, when that commit did happen."""
        version = self._version
        self._settle()
        if self._version != version:
            raise Refused(0, self._path, "bad-version")

    def _send(self, operations: Sequence[Operation], after: Channel | None) -> None:
        try:
            self._store.commit(operations)
        except Refused as refused:
            if refused.path == self._path:
                before = self.channel
                self._read()
                log.info("channel write refused, retrying: path=%s changed=%s", self._path, self.channel != before)
            elif refused.reason == "no-node":
                # No turn of the coordinator makes them while a command is out. Without an answer the refusal stands.
                with suppress(StoreError):
                    ensure(self._store, parents_of(refused.path))
            raise
        except OutcomeUnknown:
            self._is_unsure = True
            version = self._version
            self._settle()
            if after is None or self._version == version or self.channel != after:
                raise  # no effect, or unknown (a removal of commands): the caller reads again
            return
        if after is not None:
            self._version += 1
            self.channel = after

    def _settle(self) -> None:
        """Resolve a commit whose reply was lost: `sync` waits for all requests before it."""
        if self.over is not None:
            raise self.over
        if self._is_unsure:
            self._store.sync()
            self._read()
            self._is_unsure = self.is_ending = False

    def _read(self) -> None:
        latest, version = self._look()
        if version != self._version:
            self._version = version
            self.channel = latest

    def _look(self) -> tuple[Channel, int]:
        """The current data and version; raises, permanently, when another process has moved them."""
        node = self._store.get(self._path)
        latest = readable(self._parsed, self._path, node, log)
        if node is None or latest is None or not latest.incarnation:
            raise self._finished(ChannelGone("the channel was removed or overwritten"))
        if latest.incarnation != self.incarnation:
            name = self._path.rpartition("/")[2]
            raise self._finished(FencedInstanceId(f"another process has registered as {name}"))
        if latest.ended is not None:
            raise self._finished(refusal_in(latest))
        return latest, node.stat.version

    def _parsed(self, path: str, data: bytes) -> Channel:
        """The parsed data; usually the data last written, which needs no parsing."""
        return self._written[1] if data == self._written[0] else parsed_channel(path, data)

    def _finished(self, why: IncarnationOver) -> IncarnationOver:
        self.over = why
        return why
