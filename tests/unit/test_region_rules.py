"""Decisions and removals of a region's turn, and the wait of a generation for a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.property.tree import MemoryTree
from tests.support.stores import FrontStore, Interrupted, lost_reply
from tests.support.terms import RANGE, a_term
from tests.support.turns import snapshot_of
from tests.unit.manual import ManualRuntime
from zk_group.coordinator.planning.plan import plan
from zk_group.coordinator.planning.regional import MAX_GROUPS, RegionStep, after_reset
from zk_group.coordinator.planning.snapshot import Member, RegionView
from zk_group.coordinator.regions.plan import (
    Cuts,
    Ending,
    OpenCheckpoint,
    RegionGroups,
    RegionPlan,
    RegionRules,
    RegionSnapshot,
    Requests,
    region_plan,
)
from zk_group.coordinator.regions.region_reader import GroupRegionReader
from zk_group.coordinator.regions.turns import ENDED_KEPT, ZNODES_A_TURN, Regions, RegionTurns, to_retire
from zk_group.coordinator.term.reading import GroupMemory, Problems
from zk_group.coordinator.term.request_queue import AGAIN, RegionTurn, Request, RequestQueue
from zk_group.coordinator.zk.errors import ConnectionLost, OutcomeUnknown, RebalanceFailed
from zk_group.coordinator.zk.security.policy import AclPolicy
from zk_group.coordinator.zk.store import MAX_OPERATIONS, Create, Delete, Operation, Store
from zk_group.coordinator.zk.znodes.group_state import STABLE, GroupState, Target
from zk_group.coordinator.zk.znodes.json_fields import MAX_COUNT
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import ACL_POLICY, COORDINATOR_EPOCH, GroupPaths, RegionPaths
from zk_group.coordinator.zk.znodes.regions import (
    MAX_NUMBER_OF_PARTICIPANTS,
    Checkpoint,
    CheckpointEnd,
    GroupRegion,
    Region,
    RegionRequest,
)

PATHS = RegionPaths("r")
RULES = RegionRules(interval_s=60.0, drain_s=60.0, kept=1)
PART = TopicPartition("t", 0)
RUNNING = Region(state="Running", reset=1, groups=("g",), interval_ms=60_000)
STATE = GroupState(
    STABLE, 1, 1, "range", {"c1": Target("i1", {"c1-0": frozenset({PART})})}, {"t": "t-1"}, region=GroupRegion("r", 1)
)


# ---- a generation waits for a checkpoint


def test_wait_of_a_generation_counts_from_the_first_turn_that_deferred_it() -> None:
    runtime = ManualRuntime()
    memory = GroupMemory(a_tree(RUNNING).open(), runtime, Problems(runtime))
    reader = GroupRegionReader(memory, "g", lambda group: "r")

    def held_s(held_for: int) -> float:
        view = reader.read(STATE, {}, {}, held_for)
        memory.done()
        assert view is not None
        return view.held_s

    assert held_s(0) == 0.0
    assert held_s(1) == 0.0
    runtime.now += 120.0
    assert held_s(1) == 120.0
    assert held_s(0) == 0.0


# ---- a region's turn


def a_snapshot(
    region: Region = RUNNING,
    groups: Mapping[str, GroupState] | None = None,
    opened: OpenCheckpoint | None = None,
    request: RegionRequest | None = None,
    cut_s: float = 60.0,
    **of_groups: Any,
) -> RegionSnapshot:
    there = RegionGroups(groups or {"g": STATE}, **of_groups)
    return RegionSnapshot(region, there, opened or OpenCheckpoint(), Cuts(age_s=cut_s), Requests(request))


def with_members(count: int) -> dict[str, GroupState]:
    return {"g": replace(STATE, target={f"c{n}": Target(f"i{n}", {}) for n in range(count)})}


def test_region_with_over_5000_participants_reports_why_it_takes_no_checkpoint() -> None:
    assert MAX_NUMBER_OF_PARTICIPANTS == 5000

    most = region_plan(a_snapshot(groups=with_members(5000)), RULES)
    more = region_plan(a_snapshot(groups=with_members(5001)), RULES)

    names = {f"{'x' * 200}{n}": Target("i" * 64, {}) for n in range(2000)}
    large = region_plan(a_snapshot(groups={"g": replace(STATE, target=names)}), RULES)
    assert large.begun is None and "shorten consumers' names" in (large.region.reason or ""), "it fits into no znode"
    assert most.begun is not None and len(most.begun.participants["g"]) == 5000
    assert more.begun is None and more.again_s == RULES.interval_s
    assert "no checkpoint: its 5001 participants take " in (more.region.reason or "")
    again = region_plan(a_snapshot(region=more.region, groups=with_members(1)), RULES)
    assert again.begun is not None and again.region.reason is None


def test_participant_leaving_its_seat_ends_the_checkpoint_and_delays_no_later_one() -> None:
    begun = Checkpoint("periodic", 1, 0, {"g": {"c1": "i1", "c2": "i2"}})
    opened = replace(RUNNING, open=1, next_sequence=2)
    groups = with_members(3)
    left = {"g": replace(groups["g"], region=GroupRegion("r", 1, ("c2",)))}

    waits = region_plan(a_snapshot(opened, groups, OpenCheckpoint(begun)), RULES)
    ended = region_plan(a_snapshot(opened, left, OpenCheckpoint(begun)), RULES)
    late = region_plan(a_snapshot(opened, groups, OpenCheckpoint(begun, age_s=RULES.drain_s)), RULES)

    assert (waits.end, late.end) == (None, Ending(1, "aborted", is_late=True))
    assert (ended.end, ended.reason) == (Ending(1, "aborted", is_late=False), "c2 of group g has left")


def test_checkpoint_does_not_begin_while_a_group_is_paused_unrestored_or_absent() -> None:
    unready = {"g": replace(STATE, region=GroupRegion("r", 0))}
    away = {"g": replace(STATE, region=GroupRegion("r", 1, ("c1",)))}

    assert region_plan(a_snapshot(), RULES).begun is not None
    for changes in ({"paused": frozenset({"g"})}, {"groups": unready}, {"groups": away}, {"cut_s": 59.0}):
        assert region_plan(a_snapshot(**changes), RULES).begun is None, changes


def test_checkpoint_does_not_begin_while_the_turns_of_a_group_fail() -> None:
    asked = RegionRequest("checkpoint", "ann")

    found = region_plan(a_snapshot(failing={"g": "it is damaged"}, request=asked), RULES)

    assert found.begun is None and found.is_answered
    assert found.region.reason == "no checkpoint: the turns of group g fail: it is damaged" == found.reason
    again = region_plan(a_snapshot(region=found.region, failing={"g": "it is damaged"}), RULES)
    assert (again.region, again.is_answered) == (found.region, False), "it is written once"
    over = region_plan(a_snapshot(region=found.region, cut_s=0.0), RULES)
    assert (over.region, over.again_s) == (RUNNING, 0.0)
    failed = replace(RUNNING, state="Failed", reason="the log")
    assert region_plan(a_snapshot(region=failed, failing={"g": "it is damaged"}), RULES).region == failed
    groups = {"g": STATE, "h": replace(STATE, target={})}
    other = region_plan(a_snapshot(groups=groups, failing={"h": "it is damaged"}), RULES)
    assert other.begun is not None and list(other.begun.participants) == ["g"], "h is empty"


def test_absent_static_member_is_no_participant_and_is_named_for_copying() -> None:
    target = {**STATE.target, "s": Target("i2", {})}
    begun = region_plan(
        a_snapshot(groups={"g": replace(STATE, target=target, region=GroupRegion("r", 1, ("s",)))}), RULES
    ).begun

    assert begun is not None
    assert (begun.participants, begun.away) == ({"g": {"c1": "i1"}}, {"g": ("s",)})
    assert Checkpoint.parse("w", begun.to_bytes()) == begun


@pytest.mark.parametrize("stray", ["completed", "aborted"])
def test_manually_created_end_aborts_the_open_checkpoint(stray: str) -> None:
    tree = a_tree(replace(RUNNING, open=3, next_sequence=4))
    tree.put(PATHS.checkpoint(3), Checkpoint("periodic", 1, 0, {"g": {"c1": "i1"}}).to_bytes())
    tree.put(PATHS.end(3, stray), b"")

    turns(tree, ManualRuntime()).take_turn("")

    assert region_in(tree) == replace(RUNNING, next_sequence=4)
    assert tree.children(PATHS.checkpoint(3)) == ["aborted"]
    end = CheckpointEnd.parse("it", tree.data(PATHS.end(3, "aborted")) or b"")
    assert end.reason == f"{stray} was put below it by hand"


def requested(request: RegionRequest, **region: Any) -> RegionPlan:
    return region_plan(a_snapshot(region=replace(RUNNING, reset=5, **region), request=request, cut_s=0.0), RULES)


def test_a_members_request_of_an_earlier_reset_is_answered_and_changes_nothing() -> None:
    for what in ("reset", "fail", "checkpoint"):
        found = requested(RegionRequest(what, "c1", reset=4))
        assert found.is_answered and found.region == replace(RUNNING, reset=5), what
    assert requested(RegionRequest("reset", "c1", reset=5)).region.reset == 6
    assert requested(RegionRequest("reset", "ann")).region.reset == 6, "an operator's is of no reset"


# ---- retention


@pytest.mark.parametrize("what", ["reset", "checkpoint"])
def test_region_whose_numbers_leave_no_room_is_written_so_that_it_can_be_read(what: str) -> None:
    full = replace(RUNNING, reset=MAX_COUNT, next_sequence=MAX_COUNT)
    state = replace(STATE, region=GroupRegion("r", MAX_COUNT))

    decided = region_plan(a_snapshot(full, {"g": state}, request=RegionRequest(what, "ann", ""), cut_s=0.0), RULES)

    assert "is the last number that one may have" in decided.reason
    assert decided.is_answered and decided.begun is None
    assert Region.parse("", decided.region.to_bytes()) == decided.region
    with pytest.raises(RebalanceFailed, match="is the last that a region may have"):
        after_reset(full, 0, 0)


def test_retention_keeps_the_last_checkpoints_the_current_one_and_some_aborted() -> None:
    numbers = list(range(1, 40))
    aborted = [n for n in numbers if n % 2]
    complete = [n for n in numbers if not n % 2]

    assert to_retire(numbers, complete, aborted, 38, 3) == list(range(1, 34))
    assert to_retire(numbers, complete, aborted, 20, 3) == list(range(1, 20)), "a reset has gone back to it"
    assert to_retire([*range(1, 31)], [], [*range(1, 31)], 0, 3) == list(range(1, 31 - ENDED_KEPT))


def a_tree(region: Region) -> MemoryTree:
    tree = MemoryTree()
    for path in (COORDINATOR_EPOCH, PATHS.checkpoints, PATHS.initial, GroupPaths("g").root):
        tree.ensure(path)
    tree.put(PATHS.root, region.to_bytes())
    tree.put(GroupPaths("g").state, STATE.to_bytes())
    return tree


def region_in(tree: MemoryTree) -> Region:
    return Region.parse(PATHS.root, tree.data(PATHS.root) or b"")


def completed(tree: MemoryTree, numbers: Iterable[int]) -> None:
    for number in numbers:
        tree.put(PATHS.checkpoint(number), Checkpoint("periodic", 1, 0, {}).to_bytes())
        tree.put(PATHS.end(number, "completed"), CheckpointEnd().to_bytes())


def view_of(tree: MemoryTree, state: GroupState, members: Mapping[str, Member]) -> RegionView:
    """What a turn of the group reads of its region."""
    runtime = ManualRuntime()
    reader = GroupRegionReader(GroupMemory(tree.open(), runtime, Problems(runtime)), "g", lambda group: "")
    view = reader.read(state, members, {})
    assert view is not None
    return view


def turns(tree: MemoryTree, runtime: ManualRuntime, store: Store | None = None) -> RegionTurns:
    node = tree.node(COORDINATOR_EPOCH)
    assert node is not None
    return RegionTurns(a_term(store or tree.open(), runtime, 1, node.stat.version), "r", RULES, lambda group: False)


@pytest.mark.parametrize("base", [0, 10**10, 2**53 - 10])
def test_expired_checkpoints_are_removed_over_several_turns(base: int) -> None:
    runtime = ManualRuntime()
    first_one, current = base + 1, base + 3
    tree = a_tree(replace(RUNNING, sequence=current, next_sequence=base + 4))
    completed(tree, range(first_one, current + 1))
    given = [Create(f"{PATHS.checkpoint(first_one)}/g~c{n}") for n in range(ZNODES_A_TURN + 200)]
    for first in range(0, len(given), 300):
        tree.commit(given[first : first + 300], 0)
    region = turns(tree, runtime)

    assert region.take_turn("")[0] == 0.0, "some are left"
    assert tree.data(PATHS.end(first_one, "completed")) is None, "a reset can no longer return to it"
    assert 0 < len(tree.children(PATHS.checkpoint(first_one))) < len(given)
    assert region.take_turn("")[0] not in (0.0, None)

    assert tree.children(PATHS.checkpoints) == [PATHS.checkpoint(current).rsplit("/", 1)[1]]


class Breaks(FrontStore):
    """The second multi that removes something is not sent, and its session has no answer."""

    removals = 0

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        self.removals += any(isinstance(each, Delete) for each in operations)
        if self.removals == 2:
            raise OutcomeUnknown("connection lost")
        return super().commit(operations)

    def sync(self) -> None:
        if self.removals == 2:
            raise ConnectionLost("no answer")
        super().sync()


def test_reset_to_a_checkpoint_that_is_half_removed_is_refused() -> None:
    runtime = ManualRuntime()
    tree = a_tree(replace(RUNNING, sequence=3, next_sequence=4))
    completed(tree, range(1, 4))
    for first in range(0, 600, 300):
        tree.commit([Create(f"{PATHS.checkpoint(1)}/g~c{first + n}") for n in range(300)], 0)
    store = Breaks(tree.open())
    region = turns(tree, runtime, store)
    with pytest.raises(ConnectionLost):
        region.take_turn("")
    assert 0 < len(tree.children(PATHS.checkpoint(1))) < 601
    tree.put(PATHS.request, RegionRequest("reset", "ann", sequence=1).to_bytes())

    store.removals += 1
    region.take_turn("")

    assert (region_in(tree).sequence, region_in(tree).reset) == (3, 1)


@pytest.mark.parametrize(
    "data", [RegionRequest("reset", "c1").to_bytes(), RegionRequest("fail", "c1").to_bytes(), b"x"]
)
@pytest.mark.long
def test_requests_in_a_loop_are_answered_later_and_later(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    runtime, tree = ManualRuntime(), a_tree(RUNNING)
    region = turns(tree, runtime)
    began, answered = runtime.now, 0
    while runtime.now < began + 60:
        if tree.data(PATHS.request) is None:
            tree.put(PATHS.request, data)
        again_s, _ = region.take_turn("")
        answered += tree.data(PATHS.request) is None
        assert tree.data(PATHS.request) is None or (again_s is not None and again_s <= 1.0), "the next turn answers it"
        runtime.now += 0.01

    assert 60 <= answered <= 80
    assert caplog.text.count("region requests paced: region=r") == answered // 10 - (answered % 10 == 0)


def test_a_request_a_second_is_answered_at_once_for_ever() -> None:
    runtime, tree = ManualRuntime(), a_tree(RUNNING)
    region = turns(tree, runtime)
    for _ in range(60):
        tree.put(PATHS.request, RegionRequest("reset", "c1").to_bytes())
        region.take_turn("")
        assert tree.data(PATHS.request) is None
        runtime.now += 1.0


class Meanwhile(Interrupted):
    """A turn of a group writes its state right before the first multi of the region's turn.

    :ivar multis: the numbers of operations of all.
    """

    def __init__(self, tree: MemoryTree, state: GroupState) -> None:
        super().__init__(tree.open(), lambda: tree.put(GroupPaths("g").state, state.to_bytes()))
        self.multis: list[int] = []

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        self.multis.append(len(operations))
        return super().commit(operations)


def test_checkpoint_begins_with_the_groups_states_checked_in_the_same_multi() -> None:
    tree, runtime = a_tree(RUNNING), ManualRuntime()
    joined = replace(STATE, target={**STATE.target, "c2": Target("i2", {})})
    region = turns(tree, runtime, store := Meanwhile(tree, joined))
    runtime.now += RULES.interval_s

    region.take_turn("")

    begun = Checkpoint.parse(PATHS.checkpoint(1), tree.data(PATHS.checkpoint(1)) or b"")
    assert len(store.multis) == 2 and begun.participants == {"g": {"c1": "i1", "c2": "i2"}}


def test_region_is_running_with_the_groups_states_checked_in_the_same_multi() -> None:
    tree, runtime = a_tree(replace(RUNNING, state="Resetting")), ManualRuntime()
    region = turns(tree, runtime, Meanwhile(tree, replace(STATE, region=GroupRegion("r", 0))))

    region.take_turn("")

    assert region_in(tree).state == "Resetting"


def test_a_checkpoint_of_as_many_groups_as_a_region_may_have_begins_in_one_multi() -> None:
    names = tuple(f"g{number}" for number in range(MAX_GROUPS))
    tree, runtime = a_tree(replace(RUNNING, groups=names)), ManualRuntime()
    for name in names:
        tree.ensure(GroupPaths(name).root)
        tree.put(GroupPaths(name).state, STATE.to_bytes())
    region = turns(tree, runtime, store := Meanwhile(tree, STATE))
    runtime.now += RULES.interval_s
    tree.put(PATHS.request, RegionRequest("checkpoint", "ann").to_bytes())

    region.take_turn("")

    assert tree.data(PATHS.checkpoint(1)) and tree.data(PATHS.request) is None
    assert [number <= MAX_OPERATIONS for number in store.multis] == [True]


# ---- requests of a region's turn


def test_region_takes_its_turn_only_after_the_last_member_of_all_groups_drained() -> None:
    runtime = ManualRuntime()
    requests = RequestQueue(runtime)
    unused: Any = None
    regions = Regions(a_term(unused, runtime), requests, lambda group: False)
    step = RegionStep("r", RUNNING, replace(RUNNING, open=1, next_sequence=2, groups=("g", "h")))

    regions.after_turn("g", step, STATE, {"c1", "c2"})
    regions.after_turn("h", step, STATE, {"c3"})
    assert regions.acknowledged("g", "c1") and regions.acknowledged("h", "c3")
    assert not regions.acknowledged("g", "c1"), "it had none any more"
    assert len(requests) == 0

    assert regions.acknowledged("g", "c2")
    assert requests.take() == Request(RegionTurn("r"), (AGAIN,))


# ---- sizes in ZooKeeper are bounded, and manual edits are possible


def test_a_reset_abandons_more_checkpoints_than_fit_into_one_multi() -> None:
    tree = a_tree(replace(RUNNING, sequence=500, next_sequence=501))
    completed(tree, range(1, 501))
    tree.put(PATHS.request, RegionRequest("reset", "ann", sequence=0).to_bytes())

    turns(tree, ManualRuntime()).take_turn("")

    assert (region_in(tree).sequence, region_in(tree).reset, tree.data(PATHS.request)) == (0, 2, None)
    assert all("abandoned" in tree.children(PATHS.checkpoint(number)) for number in range(1, 501))


@pytest.mark.parametrize(
    ("request_", "reset"),
    [(RegionRequest("reset", "ann").to_bytes(), 3), (RegionRequest("reset", "c1", reset=1).to_bytes(), 2), (b"", 2)],
    ids=["an operator's", "obsolete", "unreadable"],
)
def test_request_is_removed_also_when_it_is_obsolete_or_has_nested_znodes(request_: bytes, reset: int) -> None:
    tree = a_tree(replace(RUNNING, reset=2))
    tree.put(PATHS.request, request_)
    tree.ensure(f"{PATHS.request}/a/b/c")

    turns(tree, ManualRuntime()).take_turn("")

    assert (tree.data(PATHS.request), region_in(tree).reset) == (None, reset)


def test_groups_take_their_turns_after_a_reset_whose_reply_was_lost() -> None:
    tree = a_tree(RUNNING)
    region = turns(tree, ManualRuntime(), Interrupted(tree.open(), after=lost_reply))
    region.take_turn("")
    tree.put(PATHS.request, RegionRequest("reset", "ann").to_bytes())

    assert region.take_turn("")[1] == ("g",)


def test_manually_created_checkpoint_is_skipped_with_any_number() -> None:
    tree = a_tree(replace(RUNNING, next_sequence=4))
    for number in (4, 5, 9_999_999_999):
        tree.put(PATHS.checkpoint(number), b"")

    turns(tree, ManualRuntime()).take_turn("checkpoint before a generation of g")

    assert (region_in(tree).open, region_in(tree).next_sequence) == (6, 7)


def test_recreated_region_is_another_one_with_the_same_numbers() -> None:
    runtime = ManualRuntime()
    tree = a_tree(replace(RUNNING, sequence=1, next_sequence=2))
    completed(tree, [1])
    some = turns(tree, runtime)
    some.take_turn("")
    tree.put(PATHS.root, replace(RUNNING, groups=()).to_bytes())
    some.take_turn("")
    assert tree.data(PATHS.end(1, "completed")) is not None, "its group is bound according to its state: a manual edit"
    tree.put(GroupPaths("g").state, replace(STATE, region=None).to_bytes())
    while tree.data(PATHS.root) is not None:
        some.take_turn("")
    tree.put(GroupPaths("g").state, STATE.to_bytes())
    for path in (PATHS.root, PATHS.checkpoints, PATHS.initial):
        tree.put(path, RUNNING.to_bytes())
    tree.put(PATHS.checkpoint(1), Checkpoint("periodic", 1, 0, {}).to_bytes())
    tree.put(PATHS.end(1, "aborted"), CheckpointEnd().to_bytes())
    tree.put(PATHS.request, RegionRequest("reset", "ann", sequence=1).to_bytes())

    some.take_turn("")

    assert region_in(tree).reset == 1, "it was aborted in this one"


def test_number_of_groups_in_a_region_is_limited() -> None:
    full = ",".join(f"o{n}" for n in range(MAX_GROUPS))
    snapshot = snapshot_of(f"region r Running reset=1 groups={full}\nmember c1 region=r wants=t\ntopic t t-1 0")

    with pytest.raises(RebalanceFailed, match=f"has {MAX_GROUPS} groups, as many as it may have"):
        plan(snapshot, RANGE)


def test_group_bound_again_to_its_region_keeps_its_checkpoint() -> None:
    torn = replace(RUNNING, groups=("h",), sequence=3, next_sequence=4)
    assert (torn.including("g", is_new=False).cut_of("g"), torn.including("g").cut_of("g")) == (3, 0)
    tree = a_tree(torn)
    for path in (PATHS.initial_of_group("g"), PATHS.checkpoint(3)):
        tree.ensure(path)
    tree.put(PATHS.checkpoint(3), Checkpoint("periodic", 1, 0, {}).to_bytes())

    assert not view_of(tree, STATE, {}).has_initial


SECURED = AclPolicy(is_secure=True, coordinators=("sasl:c",), operators=("sasl:o",), members=("sasl:m",))


@pytest.mark.parametrize(
    ("top", "own", "may_be_bound"),
    [
        (b"x", None, True),
        (b"x", AclPolicy().to_bytes(), True),
        (b"x", SECURED.to_bytes(), False),
        (b"x", replace(SECURED, regions=("r",)).to_bytes(), True),
        (b"x", b"x", False),
        (AclPolicy().to_bytes(), b"x", True),
        (replace(SECURED, members=()).to_bytes(), None, False),
    ],
)
def test_malformed_policy_of_the_chroot_keeps_bindings(top: bytes, own: bytes | None, may_be_bound: bool) -> None:
    tree = a_tree(replace(RUNNING, groups=()))
    tree.put(ACL_POLICY, top)
    if own is not None:
        tree.put(GroupPaths("g").acl, own)

    view = view_of(tree, GroupState(), snapshot_of("member c1 region=r").members.registered)

    assert (view.refusal == "") is may_be_bound


def test_region_takes_no_turn_after_a_group_turn_without_relevant_changes() -> None:
    runtime = ManualRuntime()
    queue = RequestQueue(runtime)
    regions = Regions(a_term(a_tree(RUNNING).open(), runtime), queue, lambda group: False)

    def asks(step: RegionStep, state: GroupState = STATE, draining: frozenset[str] = frozenset()) -> bool:
        regions.after_turn("g", step, state, draining)
        runtime.now += 1.0
        is_asked = len(queue) > 0
        queue.forget(RegionTurn("r"))
        return is_asked

    same = RegionStep("r", RUNNING, RUNNING)
    assert asks(same) and not asks(same)
    opened = RegionStep("r", replace(RUNNING, open=3), replace(RUNNING, open=3))
    assert not asks(opened, draining=frozenset({"c1"})), "a member has yet to contribute"
    assert asks(opened), "all have contributed, before their commands were known"
    assert asks(same, replace(STATE, region=GroupRegion("r", 0)))
    assert asks(replace(same, after=replace(RUNNING, reset=2)))
    assert asks(replace(same, held_for=RUNNING.next_sequence))
