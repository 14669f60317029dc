"""S3 and S4: epoch and generation never decrease, and nothing of a deposed coordinator appears later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.zk.store import Create, Delete, Operation, SetData
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, PAUSED
from coordinator.zk.znodes.records import EpochRecord, Pause, PausedRecord
from coordinator.zk.znodes.segments import Query, SegmentsRecord
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, holds, names, spoilt

# ---- S3: (epoch, generation) never decreases within an incarnation; no command is applied twice


SHARE = {"flights": "0-1"}


@breaks(
    "S3", "went back from epoch 2, generation 2 to 2, 1", at="joined",
    witness="s2#1 commit channel/s2, s2#1 commit channel/s2",
)  # fmt: skip
def test_channel_with_a_decreasing_generation_breaks_it(history: StoryHistory) -> None:
    life = history.lives["s2"]
    history.set_channel(life, replace(life.channel, generation=1))


@breaks("S3", "went back from epoch 2, generation 2 to 1, 7", at="joined")
def test_channel_with_a_decreasing_epoch_breaks_it_despite_a_higher_generation(history: StoryHistory) -> None:
    life = history.lives["s2"]
    history.set_channel(life, replace(life.channel, epoch=1, generation=7))


@holds(at="joined")
def test_new_incarnation_begins_without_a_generation(history: StoryHistory) -> None:
    history.register(history.lives["s2"], "s2-x")


def applied(history: StoryHistory, name: str, **fields: object) -> None:
    """s0's channel names a command."""
    life = history.lives["s0"]
    history.set_channel(life, replace(life.channel, command=name, **fields))  # type: ignore[arg-type]


@breaks(
    "S3", "command-0000000000 was applied twice by s0 of group g", at="joined",
    witness="s0#1 commit channel/s0, s0#1 commit channel/s0",
)  # fmt: skip
def test_a_command_that_is_applied_twice_breaks_it(history: StoryHistory) -> None:
    life = history.lives["s0"]
    first = life.channel.command
    history.fenced("g", history.states["g"], history.start("s0", SHARE))
    history.obey("s0")
    applied(history, first)


@holds(at="joined")
def test_a_command_that_takes_several_commits_is_applied_once(history: StoryHistory) -> None:
    history.fenced("g", history.states["g"], history.start("s0", SHARE))
    life, path = history.lives["s0"], history.command_of("s0")
    begun = replace(life.channel, command=path.rpartition("/")[2], generation=2, epoch=2)
    history.set_channel(life, begun)
    history.set_channel(life, begun, Delete(path))


@breaks("S3", "never stood in its channel", at="joined", witness="s0#1 commit channel/s0")
def test_applied_command_that_never_existed_breaks_it(history: StoryHistory) -> None:
    applied(history, "command-0000000077")


@breaks(
    "S3", "is for incarnation s0-old and was applied for s0-a", at="joined",
    witness="b#1 commit g/state, s0#1 commit channel/s0",
)  # fmt: skip
def test_a_command_for_another_incarnation_that_is_applied_breaks_it(history: StoryHistory) -> None:
    history.fenced("g", history.states["g"], history.start("s0", SHARE, incarnation="s0-old"))
    history.obey("s0")


@breaks(
    "S3", "is of epoch 1, generation 9 and was applied after epoch 2, generation 2", at="joined",
    witness="s2#1 commit channel/s2, b#1 commit g/state, s2#1 commit channel/s2", alone=False,
)  # fmt: skip
def test_a_command_of_an_older_epoch_that_is_applied_breaks_it(history: StoryHistory) -> None:
    start = history.start("s2", {"flights": "3"}, epoch=1, generation=9)
    history.fenced("g", history.states["g"], start)
    life, path = history.lives["s2"], history.command_of("s2")
    history.set_channel(life, replace(life.channel, command=path.rpartition("/")[2]), Delete(path))


@breaks("S3", "cannot be read", at="joined", witness="b#1 commit g/state, s0#1 commit channel/s0")
def test_unreadable_command_that_is_applied_breaks_it(history: StoryHistory) -> None:
    create = Create(G.command_prefix("s0"), b'{"option":"dance"}', sequential=True)
    history.fenced("g", history.states["g"], create)
    path = history.command_of("s0")
    life = history.lives["s0"]
    history.set_channel(life, replace(life.channel, command=path.rpartition("/")[2]), Delete(path))


@holds(at="joined")
def test_manually_created_command_is_not_judged(history: StoryHistory) -> None:
    history.hand(history.start("s0", SHARE, incarnation="s0-old"))
    history.obey("s0")


@breaks("S3", "incarnation s2-x", at="joined")
def test_manually_reset_channel_is_not_judged_until_the_next_incarnation(history: StoryHistory) -> None:
    life = history.lives["s2"]
    history.hand(SetData(G.channel("s2"), replace(life.channel, generation=99).to_bytes()))
    history.set_channel(life, life.channel)
    history.register(life, "s2-x")
    history.set_channel(life, replace(life.channel, generation=5))
    history.set_channel(life, replace(life.channel, generation=4))


@holds(at="joined")
def test_commands_of_a_recreated_channel_are_other_commands(history: StoryHistory) -> None:
    life = history.lives["s2"]
    ended = replace(life.channel, running={}, topics={}, ended="left")
    history.set_channel(life, ended, *history.released(life, life.channel.running), Delete(G.id("s2")))
    history.commit(history.coordinator, Delete(G.channel("s2")))
    del history.sequences[G.command_prefix("s2")]
    history.register(life, "s2-x")
    history.fenced("g", history.rebalance("g", {"s2": {"flights": "3"}}), history.start("s2", {}))
    history.obey("s2")


# ---- S4: nothing that a coordinator of epoch e writes appears after the bump to e + 1


BUMP = "commit consumers/coordinator"


def depose(history: StoryHistory) -> str:
    """The other node is elected though this one lives; returns the name of the deposed one."""
    history.session("a#1")
    deposed = history.coordinator
    history.tree.pop(COORDINATOR, None)
    history.elect("a#1")
    return deposed


WRITES: dict[str, Callable[[StoryHistory], Operation]] = {
    "state": lambda history: SetData(G.state, history.states["g"].to_bytes()),
    "a command": lambda history: history.start("s0", {"flights": "0-1"}),
    "an end": lambda history: SetData(
        G.channel("s0"), replace(history.lives["s0"].channel, ended="evicted").to_bytes()
    ),
    "an eviction": lambda history: Delete(G.id("s0")),
    "history": lambda history: Create(G.rebalance(9), b"{}"),
    "collected": lambda history: SetData(G.segments, SegmentsRecord(1).to_bytes()),
    "expiry": lambda history: SetData(G.query("q"), Query("r2", 50, 0, 1).to_bytes()),
    "an answer": lambda history: Delete(G.request),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_any_write_of_a_deposed_coordinator_breaks_it(write: Callable[[StoryHistory], Operation]) -> None:
    (finding,) = spoilt("joined", lambda history: history.commit(depose(history), write(history)))["S4"].findings

    bumps, last = names(finding)[:2], names(finding)[2:]
    assert bumps == [f"b#1 {BUMP}", f"a#1 {BUMP}"] and len(last) == 1 and last[0].startswith("b#1 commit")
    assert "b#1 wrote as a coordinator" in finding.why and "a#1 raised the epoch to 3" in finding.why


@breaks("S4", at="joined", witness=f"b#1 {BUMP}, a#1 {BUMP}, b#1 commit g/state")
def test_writes_of_a_deposed_coordinator_break_no_other_invariant(history: StoryHistory) -> None:
    history.commit(depose(history), SetData(G.state, history.states["g"].to_bytes()))


@holds(at="joined")
def test_reelected_coordinator_may_write(history: StoryHistory) -> None:
    deposed = depose(history)
    history.session(deposed)
    history.elect(deposed)
    history.stable("g")


@breaks("S4", at="joined", witness=f"b#1 {BUMP}, b#1 {BUMP}, b#1 commit g/state")
def test_old_session_of_a_reelected_coordinator_may_not_write(history: StoryHistory) -> None:
    deposed = depose(history)
    old = history.sessions[deposed]
    history.session(deposed)
    history.elect(deposed)
    history.sessions[deposed] = old
    history.stable("g")


@breaks("S4", at="joined", witness=f"b#1 {BUMP}, s0#1 commit g/state")
def test_state_written_by_a_never_elected_process_breaks_it(history: StoryHistory) -> None:
    history.commit("s0#1", SetData(G.state, history.states["g"].to_bytes()))


@breaks(
    "S4", "^a#1 wrote what only a coordinator writes at 1.05 s", witness="a#1 commit g/state", alone=False,
)  # fmt: skip
def test_state_written_before_the_first_election_breaks_it(events: list[dict[str, object]]) -> None:
    bump = next(e for e in events if e["event"] == "commit")
    bump["ops"] = []


@holds(at="joined")
def test_manual_write_is_allowed_and_changes_no_known_epoch(history: StoryHistory) -> None:
    history.hand(SetData(G.state, history.states["g"].to_bytes()))
    history.hand(SetData(COORDINATOR_EPOCH, EpochRecord(40).to_bytes()))
    history.stable("g")


# ---- epochs


def elects(history: StoryHistory, epoch: int) -> None:
    """The other node is elected with this epoch."""
    history.epoch = epoch - 1
    depose(history)


@breaks(
    "S4", "a#1 was elected at", "with epoch 2, after epoch 2", at="joined", witness=f"b#1 {BUMP}, a#1 {BUMP}", epoch=2
)
@holds(at="joined", epoch=3)
def test_an_election_with_an_epoch_that_is_not_above_the_last_breaks_it(history: StoryHistory, epoch: int) -> None:
    elects(history, epoch)


@breaks("S4", "with epoch 2, after epoch 2", at="joined", witness=f"b#1 commit g/state, a#1 {BUMP}", epoch=2)
@holds(at="joined", epoch=3)
def test_after_a_manual_edit_an_epoch_is_above_those_of_all_states(history: StoryHistory, epoch: int) -> None:
    history.fenced("g", replace(history.states["g"], epoch=2))
    history.hand(Delete(COORDINATOR_EPOCH))
    elects(history, epoch)


@holds(at="failed over")
def test_after_a_manual_edit_an_epoch_without_a_write_may_come_again(history: StoryHistory) -> None:
    history.hand(Delete(COORDINATOR_EPOCH))
    elects(history, 2)


def elects_another(history: StoryHistory) -> None:
    """The other node is elected, with its epoch in the state that it will write."""
    history.close(history.coordinator)
    history.session("a#1")
    history.elect("a#1")
    history.states["g"] = replace(history.states["g"], epoch=history.epoch)


@breaks(
    "S4", "a#1 took a turn of group g", at="joined",
    witness=f"hand commit consumers/paused, a#1 {BUMP}, a#1 commit g/state",
)  # fmt: skip
def test_a_turn_of_a_group_that_was_paused_before_the_election_breaks_it(history: StoryHistory) -> None:
    history.hand(Create(PAUSED, PausedRecord(groups={"g": Pause("ann", 0)}).to_bytes()))
    elects_another(history)
    history.fenced("g", history.states["g"])


@holds(at="joined")
def test_a_turn_that_began_before_the_pause_is_finished(history: StoryHistory) -> None:
    elects_another(history)
    history.hand(Create(PAUSED, PausedRecord(everything=Pause("ann", 0)).to_bytes()))
    history.fenced("g", history.states["g"])


@holds(at="joined", pause=PausedRecord(groups={"h": Pause("ann", 0)}).to_bytes())
@holds(at="joined", pause=b"{")
def test_another_groups_pause_or_one_that_cannot_be_read_keeps_no_turn_back(
    history: StoryHistory, pause: bytes
) -> None:
    history.hand(Create(PAUSED, pause))
    elects_another(history)
    history.fenced("g", history.states["g"])
