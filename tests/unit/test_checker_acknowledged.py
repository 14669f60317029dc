"""S6: removed by the consumer means done; removed by the coordinator means withdrawn, and never applied."""

from __future__ import annotations

from dataclasses import replace

from coordinator.zk.store import Check, Create, Delete, SetData
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR_EPOCH
from coordinator.zk.znodes.records import ASSIGNMENT_FAILED, Command
from tests.support.made_histories import Made
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, holds

P3 = TopicPartition("flights", 3)


def acknowledges(history: StoryHistory, consumer: str, **more: object) -> str:
    """A consumer removes the command in its channel and names it, with only the changes `more`; returns its name."""
    life, path = history.lives[consumer], history.command_of(consumer)
    command = Command.parse(path, history.tree[path][0].encode())
    name = path.rpartition("/")[2]
    done = replace(life.channel, epoch=command.epoch, generation=command.generation, command=name, **more)  # type: ignore[arg-type]
    history.set_channel(life, done, Delete(path))
    return name


@breaks(
    "S6", "a stop, was acknowledged by s1 of group g", "flights-3 still runs", at="stop sent",
    witness="b#1 commit g/state, s1#1 commit channel/s1",
)  # fmt: skip
def test_acknowledged_stop_whose_partition_still_runs_breaks_it(history: StoryHistory) -> None:
    acknowledges(history, "s1")


@breaks("S6", "flights-3 still runs", at="joined")
def test_full_stop_that_leaves_a_partition_running_breaks_it(history: StoryHistory) -> None:
    history.fenced("g", history.states["g"], history.stop("s2"))
    acknowledges(history, "s2")


@breaks(
    "S6", "flights-3 is still fetched by s1#1",
    witness="s1#1 begin, s1#1 lease, b#1 commit g/state, s1#1 commit channel/s1",
)  # fmt: skip
def test_acknowledged_stop_whose_partition_is_still_fetched_breaks_it(events: list[Made]) -> None:
    halt = next(e for e in events if e["event"] == "halt" and e["who"] == "s1#1")
    done = next(e for e in events[events.index(halt) :] if e["event"] == "commit")
    events.remove(halt)
    events.insert(events.index(done) + 1, {**halt, "at": done["at"]})


@breaks(
    "S6", "a start, was acknowledged by s2", "flights-3 neither runs nor is refused", at="start sent",
    witness="b#1 commit g/state, s2#1 commit channel/s2",
)  # fmt: skip
def test_acknowledged_start_whose_partition_does_not_run_breaks_it(history: StoryHistory) -> None:
    acknowledges(history, "s2")


@holds(at="start sent")
def test_a_start_may_be_refused(history: StoryHistory) -> None:
    acknowledges(history, "s2", refused=frozenset({P3}))


@breaks(
    "S6", "was removed by s2 of group g", "neither applied nor stale$", at="start sent",
    witness="b#1 commit g/state, s2#1 commit s2/command-0000000000",
)  # fmt: skip
def test_command_removed_unapplied_by_its_own_consumer_breaks_it(history: StoryHistory) -> None:
    history.commit("s2#1", Check(G.channel("s2"), 1), Delete(history.command_of("s2")))


@holds(at="joined", stale={"incarnation": "s2-old"})
@holds(at="joined", stale={"epoch": 1})
@holds(at="joined", stale={"generation": 1})
def test_a_stale_command_may_be_removed_unapplied(history: StoryHistory, stale: dict[str, object]) -> None:
    history.fenced("g", history.states["g"], history.start("s2", {"flights": "3"}, **stale))
    history.commit("s2#1", Check(G.channel("s2"), 1), Delete(history.command_of("s2")))


@holds(at="joined")
def test_unreadable_command_may_be_removed_unapplied(history: StoryHistory) -> None:
    create = Create(G.command_prefix("s2"), b"{}", sequential=True)
    history.fenced("g", history.states["g"], create)
    history.commit("s2#1", Check(G.channel("s2"), 1), Delete(history.command_of("s2")))


@breaks(
    "S6", "command-0000000000 of s2 in group g was withdrawn and then applied", at="start sent",
    witness="b#1 commit g/state, s2#1 commit channel/s2",
)  # fmt: skip
def test_withdrawn_command_that_is_applied_breaks_it(history: StoryHistory) -> None:
    path = history.command_of("s2")
    history.fenced("g", history.states["g"], Delete(path))
    life = history.lives["s2"]
    history.set_channel(life, replace(life.channel, command=path.rpartition("/")[2], epoch=2, generation=2))


@holds(at="start sent")
def test_command_may_be_withdrawn_while_it_is_applied_in_steps(history: StoryHistory) -> None:
    """The channel names it from its first commit on."""
    path = history.command_of("s2")
    life = history.lives["s2"]
    begun = replace(life.channel, command=path.rpartition("/")[2], epoch=2, generation=2)
    history.set_channel(life, begun, Check(path, -1))
    history.fenced("g", history.states["g"], Delete(path))
    history.set_channel(life, replace(begun, touched=1))


@holds(at="start sent")
def test_process_that_takes_a_name_over_removes_commands_to_the_earlier_process(history: StoryHistory) -> None:
    history.register(history.consumer("s2#2", "g"), "s2-x")


@holds(at="start sent")
def test_manually_created_or_removed_commands_are_not_judged(history: StoryHistory) -> None:
    history.hand(history.start("s0", {"flights": "0-1"}))
    history.commit("s0#1", Check(G.channel("s0"), 1), Delete(history.command_of("s0")))
    history.hand(Delete(history.command_of("s2")))
    history.hand(SetData(G.channel("s2"), b"{"))


# ---- commands of earlier coordinators and turns are withdrawn before others are sent


def elect_another(history: StoryHistory) -> None:
    """The other node is elected, and has taken no turn."""
    history.close(history.coordinator)
    history.session("a#1")
    history.elect("a#1")


@breaks(
    "S6", "of epoch 3 was sent to s0 of group g", "command-0000000000 of epoch 2 is pending in the channel of s2",
    at="start sent", witness="b#1 commit g/state, a#1 commit g/state", withdraws=False,
)  # fmt: skip
@holds(at="start sent", withdraws=True)
def test_a_start_beside_one_of_an_earlier_epoch_breaks_it(history: StoryHistory, withdraws: bool) -> None:
    command = history.command_of("s2")
    elect_another(history)
    state = replace(history.states["g"], epoch=history.epoch)
    gone = [Delete(command)] if withdraws else []
    history.fenced("g", state, *gone, history.start("s0", {"flights": "0-1"}))


@breaks("S6", "is pending in the channel of s0", at="joined", by_hand=False)
@holds(at="joined", by_hand=True)
def test_two_starts_in_one_channel_break_it_unless_made_by_hand(history: StoryHistory, by_hand: bool) -> None:
    if by_hand:
        history.hand(history.start("s0", {"flights": "0-1"}))
    history.fenced("g", history.states["g"], history.start("s0", {"flights": "0-1"}))
    if not by_hand:
        history.fenced("g", history.states["g"], history.start("s0", {"flights": "0-1"}))


@holds(at="joined")
def test_the_notice_of_a_failure_stays_beside_later_commands(history: StoryHistory) -> None:
    notice = Command(ASSIGNMENT_FAILED, history.epoch, history.states["g"].generation, "s0-a", ask="ask-0000000001")
    history.fenced(
        "g", history.states["g"], Create(G.command_prefix("s0"), notice.to_bytes(), sequential=True)
    )  # fmt: skip
    elect_another(history)
    state = replace(history.states["g"], epoch=history.epoch)
    history.fenced("g", state, history.start("s0", {"flights": "0-1"}))


@holds("S6", at="start sent", after_s=0.9, fault=False)
@breaks(
    "S6", "of epoch 2 was applied by s2 of group g", "the coordinator of epoch 3 has taken its turn", at="start sent",
    alone=False, after_s=1.1, fault=False,
)  # fmt: skip
@holds("S6", at="start sent", after_s=1.1, fault=True)
def test_a_start_of_an_earlier_epoch_applied_in_a_stable_group_breaks_it(
    history: StoryHistory, after_s: float, fault: bool
) -> None:
    elect_another(history)
    history.fenced("g", replace(history.states["g"], epoch=history.epoch, state="Stable"))
    history.pass_(0.1)
    if fault:
        history.event("fault", "server", kind="drop-connection", process="s2#1")
    history.pass_(after_s - 0.1)
    history.obey("s2")


@holds(at="start sent")
def test_a_start_of_an_earlier_epoch_may_be_applied_before_the_next_turn(history: StoryHistory) -> None:
    elect_another(history)
    history.commit(history.coordinator, Check(COORDINATOR_EPOCH, history.fence), Delete(G.id("nobody")))
    history.pass_(2.0)
    history.obey("s2")
