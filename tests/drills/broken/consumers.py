"""Ways to break a consumer in the processes that a drill starts. Each lasts as long as the process."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import zk_group.consumer.membership.member
import zk_group.coordinator.zk.lease
from tests.simulation.mutation import apply, constant, replaced
from tests.simulation.mutations import MUTATIONS, slip
from zk_group.consumer.membership.channel import FencedChannel
from zk_group.consumer.membership.member import CommandDrain
from zk_group.consumer.sealing.sealer import Sealer
from zk_group.coordinator.zk.errors import CoordinatorError, Refused
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.records import STOP_FETCHER
from zk_group.drills.checker.replay.sketches import of_range
from zk_group.drills.workloads.application import Sketching

claims_without_owners = slip("a claim creates no owners")
stop_is_acknowledged_first = slip("a command is removed before it is obeyed")


def lease_outlives_its_session() -> None:
    """A disconnected consumer continues fetching after its session expired."""
    apply(*(constant(zk_group.coordinator.zk.lease, name, 4.0) for name in ("LEASE_SHARE", "CERTAIN_SHARE")))


def stop_forgets_the_epoch() -> None:
    """After a stop the channel lacks the last obeyed coordinator's epoch: an older one's command is applied."""

    def forgetting(original: Any) -> Any:
        def after_command(channel: Any, name: str, command: Any, *refused: Any) -> Any:
            after = original(channel, name, command, *refused)
            return replace(after, epoch=0) if command.option == STOP_FETCHER else after

        return after_command

    apply(replaced(zk_group.consumer.membership.member, "after_command", forgetting))


def what_cannot_be_sealed_is_skipped() -> None:
    """Where a segment cannot be written its records are dropped, and the offsets go past them."""

    def dropping(original: Any) -> Any:
        def fail(self: Any, error: Exception) -> None:
            original(self, error)
            self._start_over("it could not be written")

        return fail

    apply(*MUTATIONS["an offset goes past dropped records"].patches, replaced(Sealer, "_fail", dropping))


def obeys_every_command() -> None:
    """Commands of an older epoch or generation, and those for another incarnation, are applied."""
    apply(constant(zk_group.consumer.membership.member.CommandDrain, "_is_stale", lambda *_: False))


def obeys_withdrawn_commands() -> None:
    """A command that was read is applied until it succeeds, also when its znode is gone."""

    def remembering(original: Any) -> Any:
        def received(self: Any, store: Any) -> Any:
            self._unapplied = {
                **vars(self).get("_unapplied", {}),
                **{each.name: each for each in original(self, store)},
            }
            return sorted(self._unapplied.values(), key=lambda each: (each.order, each.name))

        return received

    def forgetting(original: Any) -> Any:
        def take(self: Any, store: Any, fenced: Any, received: Any) -> None:
            original(self, store, fenced, received)
            del self._unapplied[received.name]

        return take

    def forcing(original: Any) -> Any:
        def commit(self: Any, after: Any, operations: Any = ()) -> None:
            try:
                original(self, after, operations)
            except Refused as refused:
                rest = [each for each in operations if each.path != refused.path or "/command-" not in each.path]
                if len(rest) == len(operations):
                    raise
                original(self, after, rest)

        return commit

    apply(replaced(CommandDrain, "_received", remembering), replaced(CommandDrain, "_take", forgetting))
    apply(replaced(FencedChannel, "commit", forcing))


def idles_until_the_group_is_stable() -> None:
    """After a stop of some of its partitions a consumer does nothing until the others' starts are obeyed."""

    def idling(original: Any) -> Any:
        def stop(self: Any, store: Any, *given: Any) -> None:
            original(self, store, *given)
            while f'"{STABLE}"'.encode() not in store.get(self._paths.state).data:
                time.sleep(0.1)

        return stop

    apply(replaced(CommandDrain, "_stop", idling))


def gives_few_signs_of_life() -> None:
    """A consumer without records sets its channel every two thirds of `max_poll_interval_ms`."""

    def halving(original: Any) -> Any:
        def touch(self: Any) -> None:
            self._is_second = not vars(self).get("_is_second", False)
            if not self._is_second:
                original(self)

        return touch

    apply(replaced(FencedChannel, "touch", halving))


def ends_well_without_its_name() -> None:
    """A consumer whose name another process has taken ends with exit code 0, as after any other error."""
    apply(constant(CoordinatorError, "exit_code", 0))


def states_of_the_gone_are_dropped() -> None:
    """An application makes nothing of what members that are gone have left to it."""

    def dropping(original: Any) -> Any:
        return lambda self, checkpoint, state: original(self, checkpoint, replace(state, inherited={}))

    apply(replaced(Sketching, "on_reset", dropping))


def first_record_after_a_reset_counts_twice() -> None:
    """An application counts one record of the first poll after a reset once more than it reports."""

    def noting(original: Any) -> Any:
        def on_reset(self: Any, *given: Any) -> None:
            original(self, *given)
            self._is_new = True

        return on_reset

    def doubling(original: Any) -> Any:
        def take(self: Any, found: Any) -> None:
            original(self, found)
            if found and self._is_new:
                self._is_new = False
                part, records = next(iter(found.items()))
                number = int(records[0].value)
                self.by_partition[part] = self.by_partition[part].plus(of_range(number, number + 1))

        return take

    apply(replaced(Sketching, "on_reset", noting), replaced(Sketching, "take", doubling))


def leader_stops_before_it_assigns() -> None:
    """A leader gives up what it fetches before it answers, and takes it again: as if it had to rejoin."""

    def giving_up(original: Any) -> Any:
        def drain(self: Any, store: Any, fenced: Any) -> Any:
            client = next((role for role in self._roles if hasattr(role, "_decided")), None)
            if client is None:
                return original(self, store, fenced)
            decided = client._decided

            def stopping(*given: Any) -> Any:
                self.give_up(frozenset(fenced.channel.running))
                return decided(*given)

            client._decided = stopping
            try:
                return original(self, store, fenced)
            finally:
                del client._decided

        return drain

    apply(replaced(zk_group.consumer.membership.member.CommandDrain, "drain", giving_up))
