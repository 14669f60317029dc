"""S3: (epoch, generation) never decreases within an incarnation; no command is applied twice."""

from __future__ import annotations

from dataclasses import replace

from coordinator.zk.store import Create, Delete, SetData
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, holds

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
