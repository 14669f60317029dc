"""What each slot of a pool does and waits for, by its job and by the group's znodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumer.config import Subscription
from consumer.sealing.segment_files import SegmentFolder
from consumer.spark.fetchers.slot import check_folders
from consumer.spark.fetchers.supervisor import (
    ENDED,
    NEW,
    RUNNING,
    WAITING,
    GroupView,
    SlotStatus,
    late_slots,
    late_text,
    read_group,
    shown_slots,
    view_of,
)
from coordinator.zk.errors import ConnectionLost, SessionLost, UsageError
from coordinator.zk.store import Node
from coordinator.zk.znodes.group_state import COMPLETING, FAILED, PREPARING, STABLE, GroupState, Target
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from coordinator.zk.znodes.records import WHITE_LIST, Channel
from coordinator.zk.znodes.segments import SegmentsRecord

SLOT = SlotStatus(0, "p-slot-0", RUNNING, attempts=1)
IDLE = SlotStatus(1, "p-slot-1", RUNNING, attempts=1)
RETRIED = replace(SLOT, attempts=3, last_error="no folder")
MISSING = {"t": "no such topic (yet)"}
T0 = TopicPartition("t", 0)
TARGET = {"p-slot-0": Target("i0", {"p-slot-0-0": frozenset({T0})}), "p-slot-1": Target("i1", {})}
BUSY = {"p-slot-0": Channel("i0", running={T0: 7}), "p-slot-1": Channel("i1")}
FREE = {"p-slot-0": Channel("i0"), "p-slot-1": Channel("i1")}
NO_COORDINATOR = "no coordinator is elected: start a node (zk-coordinator run)"
MORE_THREADS = "every partition is assigned to another consumer thread: there are more threads than partitions"


def group(channels: Mapping[str, Channel] = BUSY, state: str = STABLE, **fields: Any) -> GroupView:
    """A group whose target has a partition for the first slot of a pool and none for the second."""
    view = {name: fields.pop(name) for name in ("has_coordinator", "paused") if name in fields}
    return GroupView(channels, GroupState(state, target=TARGET, **fields), **view)


def shown(view: GroupView, *slots: SlotStatus, topics: Sequence[str] = ("s", "t")) -> list[SlotStatus]:
    return shown_slots(view, Subscription(dict.fromkeys(topics, 1)), slots)


COMPLETES = "waits for an assignment: the group is CompletingRebalance (c1 is asked)"
PREPARES = "waits for an assignment: the group is PreparingRebalance"
FAILS = "the group could not be rebalanced: too many"
NO_TOPIC = "topic t: no such topic (yet)"
SLOTS: tuple[tuple[SlotStatus, GroupView, str, str | None, str | bool], ...] = (
    (replace(SLOT, state=NEW, attempts=0), group({}), "new", None, True),
    (replace(SLOT, state=WAITING, last_error="no folder"), group(), "failing", "no folder", True),
    (replace(SLOT, state=ENDED), group(), "ended", None, True),
    (SLOT, GroupView(problem="no answer"), "unknown", "no answer", True),
    (SLOT, group({}), "registering", None, True),
    (SLOT, group({}, left_out={"p-slot-0": "evicted"}), "registering", "evicted", True),
    (RETRIED, group({}), "registering", "attempt 3, after: no folder", True),
    (IDLE, group({"p-slot-0": BUSY["p-slot-0"]}), "registering", None, True),
    (IDLE, group(has_coordinator=False), "unassigned", NO_COORDINATOR, True),
    (IDLE, group(left_out=MISSING), "unassigned", NO_TOPIC, False),
    (IDLE, group(left_out={"p-slot-1": "a bad pattern", **MISSING}), "unassigned", "a bad pattern", False),
    (IDLE, group(state=FAILED, reason="too many"), "unassigned", FAILS, True),
    (IDLE, group(), "unassigned", MORE_THREADS, False),
    (IDLE, GroupView(BUSY), "unassigned", "waits for an assignment: the group is Empty", True),
    (SLOT, group(FREE), "unassigned", "waits for its partitions", True),
    (SLOT, group(FREE, COMPLETING, reason="c1 is asked"), "unassigned", COMPLETES, True),
    (SLOT, group(FREE, PREPARING, left_out=MISSING), "unassigned", NO_TOPIC, PREPARES),
    (SLOT, group(), "fetching", None, False),
    (SLOT, group(has_coordinator=False), "fetching", None, NO_COORDINATOR),
    (SLOT, group(state=FAILED, reason="too many"), "fetching", None, FAILS),
    (SLOT, group(state=PREPARING), "fetching", None, PREPARES),
    (SLOT, group(left_out=MISSING), "fetching", NO_TOPIC, False),
    (SLOT, group(paused="5 GiB"), "paused", "5 GiB", False),
)
"""A slot, its group, its state and the reason; and whether it is waited for, and why if that is another reason."""


@pytest.mark.parametrize(("status", "view", "state", "reason", "late"), SLOTS)
def test_slot_has_its_state_and_the_reason(
    status: SlotStatus, view: GroupView, state: str, reason: str | None, late: str | bool
) -> None:
    (found,) = shown(view, status)

    assert (found.state, found.reason, found.consumer) == (state, reason, status.consumer)
    assert waits(view, status) == ({status.consumer: reason if late is True else late} if late else {})


def waits(view: GroupView, slot: SlotStatus) -> dict[str, str | None]:
    return {late.consumer: late.reason for late in late_slots(view, shown(view, slot))}


def test_of_many_missing_topics_three_are_named() -> None:
    missing = {f"t{number}": "no such topic (yet)" for number in range(9)}

    (found,) = shown(group(left_out=missing), SLOT, topics=sorted(missing))

    assert found.reason is not None and found.reason.endswith("; 6 more topics")


def test_topics_of_a_pattern_are_not_missed() -> None:
    (found,) = shown_slots(group(left_out=MISSING), Subscription({"t": 1}, WHITE_LIST), [SLOT])

    assert (found.state, found.reason) == ("fetching", None)


# ---- which slots are waited for


def test_text_of_slots_that_do_not_run_has_each_reason_once_with_its_slots() -> None:
    slots = [SlotStatus(number, f"p-slot-{number}", "registering") for number in range(7)]
    failing = SlotStatus(7, "p-slot-7", "failing", 2, "no such folder", "OSError: no such folder")

    assert late_text([*slots, failing]) == (
        "registering p-slot-0, p-slot-1, p-slot-2, p-slot-3, p-slot-4, and 2 more; "
        "failing p-slot-7: OSError: no such folder"
    )


# ---- the group's znodes

PATHS = GroupPaths("g")
STAT: Any = None


def store_of(nodes: Mapping[str, bytes]) -> Any:
    """A session that reads these znodes, once."""
    reads = iter([lambda paths: [Node(nodes[path], STAT) if path in nodes else None for path in paths]])
    return SimpleNamespace(get_many=lambda paths: next(reads)(paths))


def znodes(**channels: bytes) -> dict[str, bytes]:
    """The znodes of a Stable group with these channels, of registered consumers."""
    state = GroupState(STABLE, target=TARGET).to_bytes()
    found = {COORDINATOR: b"{}", PATHS.state: state, PATHS.segments: SegmentsRecord(paused="5 GiB").to_bytes()}
    found |= {PATHS.id(name): b"{}" for name in channels}
    return found | {PATHS.channel(name): data for name, data in channels.items()}


def test_group_is_read_by_one_request() -> None:
    view = read_group(store_of(znodes(a=Channel("i").to_bytes())), "g", ["a", "b"], {})

    assert view == GroupView({"a": Channel("i")}, GroupState(STABLE, target=TARGET), True, "5 GiB")


def test_group_without_readable_znodes_is_empty_and_has_no_members() -> None:
    nodes = {PATHS.state: b"?", PATHS.segments: b"?", PATHS.id("a"): b"?", PATHS.channel("a"): b"?"}

    assert read_group(store_of(nodes), "g", ["a"], {}) == GroupView(has_coordinator=False)


@pytest.mark.parametrize("data", [b"", Channel("i", ended="left").to_bytes(), Channel("before").to_bytes()])
def test_consumer_whose_channel_is_not_that_of_a_living_slot_is_registering(data: bytes) -> None:
    """Without an incarnation, ended, or of an earlier process with its name."""
    view = read_group(store_of(znodes(**{"p-slot-0": data})), "g", ["p-slot-0"], {"p-slot-0": "before"})

    assert [slot.state for slot in shown(view, SLOT)] == ["registering"]


def test_consumer_that_is_not_in_ids_is_registering() -> None:
    nodes = znodes(**{"p-slot-0": Channel("i").to_bytes()})
    del nodes[PATHS.id("p-slot-0")]

    assert [slot.state for slot in shown(read_group(store_of(nodes), "g", ["p-slot-0"], {}), SLOT)] == ["registering"]


@pytest.mark.parametrize("error", [ConnectionLost("no answer"), SessionLost("no answer")])
def test_errors_of_zookeeper_are_reasons(error: Exception) -> None:
    def refuse(_: Sequence[str]) -> list[Node | None]:
        raise error

    store: Any = SimpleNamespace(get_many=refuse)
    assert waits(view_of(store, "g", ["p-slot-0"], {}), SLOT) == {"p-slot-0": "no answer"}
    assert waits(view_of(None, "g", ["p-slot-0"], {}), SLOT) == {"p-slot-0": "the driver has no session with ZooKeeper"}


def test_folders_of_a_slot_are_tried_before_it_registers(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "file").touch()
    segments = SegmentFolder(str(tmp_path / "new" / "segments"))

    check_folders(str(tmp_path / "log"), segments, "g")
    check_folders("kafka:", segments, "g")
    assert list((tmp_path / "new" / "segments").rglob("*")) == [tmp_path / "new" / "segments" / "g"]
    with pytest.raises(UsageError, match=r"log_dir .*/nowhere is no folder on"):
        check_folders(f"file://{tmp_path}/nowhere", segments, "g")
    with pytest.raises(UsageError, match=r"segments_dir .*/file/x cannot be written on .*: Not a directory"):
        check_folders(str(tmp_path / "log"), SegmentFolder(str(tmp_path / "file" / "x")), "g")
    (tmp_path / "new" / "segments" / "g").chmod(0o777)
    with pytest.raises(UsageError, match=r"segments_dir .* cannot be written on .*: others may write folder g: "):
        check_folders("kafka:", segments, "g")
