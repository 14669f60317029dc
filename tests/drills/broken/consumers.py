"""Ways to break a consumer in the processes that a drill starts. Each lasts as long as the process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import consumer.commands
import coordinator.zk.lease
from consumer.segments import Sealer
from coordinator.zk.commands import STOP_FETCHER
from tests.simulation import fences, holes
from tests.simulation.mutation import Patch, constant, replaced


def _apply(*patches: Patch) -> None:
    for patch in patches:
        patch().start()


def lease_outlives_its_session() -> None:
    """Who is cut off goes on fetching when ZooKeeper has given it up."""
    _apply(constant(coordinator.zk.lease, "LEASE_SHARE", 4.0))


def stop_forgets_the_epoch() -> None:
    """After a stop the channel no longer says which coordinator was obeyed last: an older one's command is news."""

    def forgetting(original: Any) -> Any:
        def after_command(channel: Any, name: str, command: Any, *refused: Any) -> Any:
            after = original(channel, name, command, *refused)
            return replace(after, epoch=0) if command.option == STOP_FETCHER else after

        return after_command

    _apply(replaced(consumer.commands, "after_command", forgetting))


def what_cannot_be_sealed_is_skipped() -> None:
    """Where a segment cannot be written its records are dropped, and the offsets go past them."""

    def dropping(original: Any) -> Any:
        def fail(self: Any, error: Exception) -> None:
            original(self, error)
            self._start_over("it could not be written")

        return fail

    _apply(*fences.PAST_DROPPED, replaced(Sealer, "_fail", dropping))


def stop_is_acknowledged_first() -> None:
    """A stop is removed, and only then obeyed."""
    _apply(*holes.REMOVED_FIRST)


def leader_stops_before_it_assigns() -> None:
    """A leader gives up what it fetches before it answers, and takes it again: as if it had to rejoin."""

    def giving_up(original: Any) -> Any:
        def drain(self: Any, store: Any, fenced: Any, give_up: Any) -> Any:
            decided = self._client._decided if self._client is not None else None
            if decided is None:
                return original(self, store, fenced, give_up)

            def stopping(*given: Any) -> Any:
                give_up(frozenset(fenced.channel.running))
                return decided(*given)

            self._client._decided = stopping
            try:
                return original(self, store, fenced, give_up)
            finally:
                del self._client._decided

        return drain

    _apply(replaced(consumer.commands.CommandDrain, "drain", giving_up))
