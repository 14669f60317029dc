"""Which commands count as carried out, from when the eviction clock counts, and at which pace commands are sent.

The cases of `eviction_clock.txt` are statements:

    reads 0,1 sent=START     a turn in which the channel runs these partitions (- none, ? unreadable), with the commands
                             in it, numbered from first= on. named= is the last one applied; refused= generation= ask=
                             region= life=; owned= has the owner znodes, after= seconds, waits= what the clock has
    sends STOP withdraws=1   what the turn decides: so many of the commands that were read go, the last ones first;
                             `begins` a generation
    defers; started          it waits for others; a start is sent to a member that runs nothing
    shows START 0,1          the command is carried out in such a channel; `hides`: it is not
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.stories import split, statements
from tests.support.turns import cases
from tests.unit.manual import ManualRuntime
from zk_group.coordinator.planning.plan import Plan
from zk_group.coordinator.planning.snapshot import (
    ChannelView,
    CoordinatorFacts,
    MemberFacts,
    PartitionFacts,
    SentCommand,
    Snapshot,
    wave_of,
)
from zk_group.coordinator.rebalance.observation import (
    AT_ONCE,
    LOSS_PAUSE_S,
    PAUSE_S,
    Memory,
    ReadTimes,
    has_complied,
    observe,
    written,
)
from zk_group.coordinator.zk.znodes.group_state import GroupState
from zk_group.coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.records import ASSIGN, DRAIN, START_FETCHER, STOP_FETCHER, Channel, Command
from zk_group.coordinator.zk.znodes.regions import Order, Progress


def parts(text: str) -> PartitionSet:
    return frozenset(TopicPartition("t", int(number)) for number in text.split(",") if number not in "-?")


START = Command(START_FETCHER, 1, 2, "i", {"c-0": parts("0,1")}, topics={"t": "id"})
JOB = Command(START_FETCHER, 1, 2, "i", ask="ask-0000000001")
STOP = Command(STOP_FETCHER, 1, 2, "i", partitions=parts("0"), topics={"t": "id"})
COMMANDS = {
    "START": START,
    "LED": replace(START, ask=JOB.ask),
    "IN_REGION": replace(START, region=Order(7)),
    "JOB": JOB,
    "STOP": STOP,
    "STOP_ALL": replace(STOP, partitions=NONE),
    "ASK": Command(ASSIGN, 1, 2, "i", ask="ask-0000000002"),
    "DRAIN": Command(DRAIN, 1, 2, "i", region=Order(7, 1)),
}


def command(name: str) -> Command:
    """One of these, or a stop of the partition 11 for `STOP-11`."""
    name, _, number = name.partition("-")
    return replace(COMMANDS[name], partitions=parts(number)) if number else COMMANDS[name]


def view(
    running: str = "-", sent: str = "", first: str = "0", topic: str = "id", life: str = "i", **fields: str
) -> ChannelView:
    """A channel as the words say."""
    names = sent.split(",") if sent else []
    commands = tuple(SentCommand(f"command-{n}", command(name)) for n, name in enumerate(names, int(first)))
    if running == "?":
        return ChannelView("c", 2, None, commands)
    known: dict[str, Any] = {
        "named": lambda number: {"command": f"command-{number}"},
        "refused": lambda some: {"refused": parts(some)},
        "generation": lambda number: {"generation": int(number)},
        "ask": lambda number: {"ask": f"ask-{number:0>10}"},
        "region": lambda text: {"region": Progress(*map(int, text.split("/")))},
    }
    found: dict[str, Any] = {"generation": 2}
    for name, text in fields.items():
        found |= known[name](text)
    return ChannelView(
        "c", 1, Channel(life, 1, running=dict.fromkeys(parts(running), 5), topics={"t": topic}, **found), commands
    )


class Seen:
    """A member as one coordinator sees it, turn by turn. The statements are methods."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.memory = Memory()
        self.pending: tuple[SentCommand, ...] = ()

    def reads(
        self, runs: str = "-", owned: str = "-", after: str = "0", waits: str = "", **channel: str
    ) -> ChannelView:
        self.runtime.now += float(after)
        seen = view(runs, **channel)
        self.pending = seen.commands
        group = Snapshot(
            "g", CoordinatorFacts(1), GroupState(), MemberFacts({"c": seen}), PartitionFacts({}, parts(owned))
        )
        snapshot, self.memory = observe(self.memory, group, ReadTimes(self.runtime.now))
        found = snapshot.members.channels["c"]
        assert not waits or found.compliance.waits_s == float(waits)
        return found

    def sends(self, *names: str, withdraws: str = "0") -> None:
        starts = tuple(("c", command(name)) for name in names if name != "begins")
        self.decides(starts, int(withdraws), "begins" in names)

    def decides(self, starts: tuple[tuple[str, Command], ...], withdraws: int = 0, begins: bool = False) -> None:
        withdrawn = tuple(("c", each) for each in self.pending[len(self.pending) - withdraws :])
        self._decided(Plan(GroupState(), starts=starts, withdrawn=withdrawn, is_new_generation=begins))

    def defers(self) -> None:
        self._decided(Plan(GroupState(), deferred=frozenset({"c"})))

    def _decided(self, plan: Plan) -> None:
        self.memory = written(self.memory, plan, 1, self.runtime.now)

    def started(self) -> None:
        self.reads()
        self.sends("START")

    def shows(self, name: str, runs: str, *ownerless: str, **channel: str) -> None:
        assert has_complied(command(name), view(runs, **channel), has_owners=not ownerless)

    def hides(self, name: str, runs: str, *ownerless: str, **channel: str) -> None:
        assert not has_complied(command(name), view(runs, **channel), has_owners=not ownerless)


@pytest.fixture
def some() -> Seen:
    return Seen()


CASES = {case.title: case.text for case in cases(Path(__file__).with_name("eviction_clock.txt").read_text())[1]}


@pytest.mark.parametrize("case", CASES)
def test_eviction_clock(some: Seen, case: str) -> None:
    for line in CASES[case].splitlines():
        for name, *words in statements(line):
            plain, options = split(words)
            try:
                getattr(some, name)(*plain, **options)
            except Exception as error:
                error.add_note(f"in: {name} {' '.join(words)}")
                raise


def test_some_commands_of_a_wave_are_sent_at_once_and_then_one_a_second(some: Seen) -> None:
    for _ in range(AT_ONCE):
        assert some.reads().compliance.paced == {}
        some.sends("START")
    assert some.reads().compliance.paced == {wave_of(START): PAUSE_S}
    assert some.reads(after=str(PAUSE_S)).compliance.paced == {}
    some.sends("START")
    assert some.reads().compliance.paced == {wave_of(START): PAUSE_S}
    some.decides((("c", replace(START, generation=3)),))
    assert some.reads().compliance.paced == {}
    some.sends("STOP")
    assert some.reads().compliance.paced == {}


def test_generations_for_lost_owner_znodes_have_a_pause_between_them(some: Seen) -> None:
    assert some.reads("0,1", "0,1").compliance.loss_pause_s == 0
    assert some.reads("0,1", "0").compliance.loss_pause_s == 0
    some.sends("begins")
    assert some.reads("0,1", "0", after="0.5").compliance.loss_pause_s == LOSS_PAUSE_S - 0.5
    assert some.reads("0,1", "0,1").compliance.loss_pause_s == 0
    assert some.reads("0,1", "0", after=str(LOSS_PAUSE_S)).compliance.loss_pause_s == 0
