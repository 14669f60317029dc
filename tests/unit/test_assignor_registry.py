"""Registered strategies and client assignors: built-in ones, those of installed packages, and the drill's own."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests.unit.test_client_assignors import assigned_by, subscribes
from zk_group.consumer.assignment import base
from zk_group.consumer.assignment.adapter import CoordinatorStrategy
from zk_group.consumer.assignment.consumers import ENTRY_POINTS, client_assignors, named
from zk_group.consumer.assignment.lag import LagAssignor
from zk_group.coordinator.assignors import Assignment, RangeAssignor, Subscriber, assigned, registry
from zk_group.coordinator.zk.errors import UsageError
from zk_group.drills.workloads import slot
from zk_group.drills.workloads.slot import DrillAssignor

THEIRS = "a_third_partys_module"


class First:
    """All partitions to the first member's first thread."""

    name = "first"
    is_eager = False

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        return RangeAssignor().assign(sorted(subscribers, key=lambda one: one.consumer)[:1], topics)


class Local(base.ClientAssignor):
    name = "local"
    is_cooperative = True

    def assign(self, cluster: base.Cluster, metadata: Mapping[str, bytes]) -> dict[str, base.Assignment]:
        return {}


class Named(Local):
    """For both sides."""

    def __init__(self, name: object, flag: object = True, assign: object = print) -> None:
        self.name = name  # type: ignore[assignment]
        self.is_eager = self.is_cooperative = flag  # type: ignore[assignment]
        self.assign = assign  # type: ignore[assignment, method-assign]


class Silent(Local):
    on_assignment = None  # type: ignore[assignment]


class Theirs(RangeAssignor):
    name = "theirs"


class CannotBeMade:
    def __init__(self) -> None:
        raise ValueError("no\nlicence")


class Leaves:
    def __init__(self) -> None:
        sys.exit(7)


def fails() -> None:
    raise AssertionError("is not called")


@pytest.fixture(autouse=True)
def theirs() -> Iterator[None]:
    """A module as an installed package has it."""
    module = ModuleType(THEIRS)
    for made in (First, Local, Silent, Theirs, CannotBeMade, Leaves, fails):
        setattr(module, made.__name__, made)
    for instance in (First(), Local(), Named("second"), Named("theirs"), Named("perhaps", "yes")):
        setattr(module, str(instance.name), instance)
    for name, instance in {"elsewhere": Named("elsewhere\n"), "unnamed": Named(None)}.items():
        setattr(module, name, instance)
    module.idle = Named("idle", True, None)  # type: ignore[attr-defined]
    sys.modules[THEIRS] = module
    yield
    del sys.modules[THEIRS]


class Side(NamedTuple):
    """Strategies of coordinators, or client assignors. A package offers `own`; logs have a name in `quotes`."""

    entry_points: str
    registered: Callable[..., Mapping[str, Any]]
    own: type
    quotes: str = ""

    @property
    def name(self) -> str:
        return str(self.own.name)  # type: ignore[attr-defined]

    def offered(self, name: str, what: str) -> EntryPoint:
        return EntryPoint(name, f"{THEIRS}:{what}", self.entry_points)


STRATEGY = Side(registry.ENTRY_POINTS, registry.assignors, First)
CLIENT = Side(ENTRY_POINTS, client_assignors, Local, "'")
SIDES = {"strategy": STRATEGY, "client": CLIENT}


@pytest.fixture(params=SIDES)
def side(request: pytest.FixtureRequest) -> Side:
    return SIDES[request.param]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `entry_points.txt` of an installed package."""
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return metadata / "entry_points.txt"


def test_built_in_ones_are_registered_without_any_package() -> None:
    strategies, found = registry.assignors([]), client_assignors([])
    built_in = {*strategies, "lag", "rack"}

    assert set(strategies) == {"range", "round-robin", "sticky", "cooperative-sticky"} == set(registry.BUILT_IN)
    assert set(found) >= built_in
    assert all(name == one.name for each in (strategies, found) for name, one in each.items())
    assert {name for name in built_in if found[name].is_cooperative} == {"cooperative-sticky", "lag", "rack"}


@pytest.mark.parametrize("is_class", [True, False])
def test_a_class_or_an_assignor_can_be_offered(side: Side, is_class: bool) -> None:
    found = side.registered([side.offered(side.name, side.own.__name__ if is_class else side.name)])

    assert found.keys() - side.registered([]).keys() == {side.name}
    assert isinstance(found[side.name], side.own)
    if side is STRATEGY:
        given = assigned(found["first"], [Subscriber("a", {"t": 1}), Subscriber("b", {"t": 1})], {"t": range(2)})
        assert {consumer: len(threads["a-0"]) for consumer, threads in given.items()} == {"a": 2}


OTHER_NAME = "its `name` must be that of its entry point, not "
KEPT = "a built-in strategy has this name, and keeps it"
OF_BOTH = {
    "gone": ("gone", "Nothing", "it cannot be loaded: AttributeError: "),
    "cannot be made": ("first", "CannotBeMade", r"it cannot be loaded: ValueError: no\nlicence"),
    "ends the process": ("first", "Leaves", "it cannot be loaded: SystemExit: 7"),
    "another name": ("another", "second", OTHER_NAME + "'second'"),
    "a name with a line": ("elsewhere", "elsewhere", OTHER_NAME + r"'elsewhere\n'"),
    "no name": ("unnamed", "unnamed", OTHER_NAME + "'None'"),
}
UNUSABLE = {
    **{f"{name}, {case}": (SIDES[name], *row) for name in SIDES for case, row in OF_BOTH.items()},
    "neither eager nor not": (STRATEGY, "perhaps", "perhaps", "its `is_eager` must be True or False"),
    "no method": (STRATEGY, "idle", "idle", "it has no method `assign`"),
    "a function": (STRATEGY, "fails", "fails", "its `is_eager` must be True or False"),
    "strategy, a built-in name": (STRATEGY, "range", "First", KEPT),
    "strategy, no name at all": (STRATEGY, "a b", "First", "its name is none"),
    "neither cooperative nor not": (CLIENT, "perhaps", "perhaps", "its `is_cooperative` must be True or False"),
    "client, no method": (CLIENT, "local", "Silent", "it has no method `on_assignment`"),
    "a coordinator-side strategy": (CLIENT, "theirs", "Theirs", "its `is_cooperative` must be True or False"),
    "client, a built-in name": (CLIENT, "lag", "Local", KEPT),
    "a built-in strategy's name": (CLIENT, "sticky", "Local", KEPT),
    "client, no name at all": (CLIENT, "a b", "Local", "its name is none"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_one_is_ignored_with_the_reason_and_others_not(case: str, caplog: pytest.LogCaptureFixture) -> None:
    side, name, what, reason = UNUSABLE[case]
    known = {name: type(one) for name, one in side.registered([]).items()}

    with caplog.at_level(logging.WARNING):
        found = side.registered([side.offered(name, what), side.offered("second", "second")])

    assert {name: type(one) for name, one in found.items()} == {**known, "second": Named}
    (line,) = caplog.messages
    shown = f"{side.quotes}{name}{side.quotes}"
    assert line.startswith(f"ignoring unusable strategy: strategy={shown} entry_point={THEIRS}:{what} reason={reason}")
    assert line.isprintable()


def test_two_with_one_name_are_both_ignored(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = side.registered([side.offered(side.name, what) for what in (side.own.__name__, "second")])

    assert side.name not in found
    assert re.search(r"reason=several (are offered under this name|packages offer this name)", caplog.text)


def test_a_package_that_is_found_twice_offers_one(side: Side) -> None:
    assert side.name in side.registered([side.offered(side.name, side.own.__name__)] * 2)


# ---- both sides in one consumer


def installed(install: Path, ours: str, theirs: str) -> Mapping[str, base.ClientAssignor]:
    """The client assignors with a package that offers `ours` as one and `theirs` as a strategy."""
    install.write_text(f"[{ENTRY_POINTS}]\n{ours}\n[{registry.ENTRY_POINTS}]\n{theirs}\n")
    return client_assignors()


def test_installed_packages_are_searched_for_assignors_of_both_sides(install: Path) -> None:
    theirs = f"theirs = {THEIRS}:Theirs\nsticky = {THEIRS}:First"

    found, strategies = installed(install, f"local = {THEIRS}:Local", theirs), registry.assignors()

    assert isinstance(found["local"], Local)
    assert isinstance(found["theirs"], CoordinatorStrategy) and not found["theirs"].is_cooperative
    assert isinstance(strategies["theirs"], Theirs)
    assert strategies["sticky"] is registry.BUILT_IN["sticky"]


def test_client_assignor_of_a_package_precedes_its_strategy_of_the_same_name(install: Path) -> None:
    found = installed(install, f"theirs = {THEIRS}:theirs", f"theirs = {THEIRS}:Theirs")

    assert isinstance(found["theirs"], Named)


def test_strategy_of_a_package_takes_no_client_assignors_name(install: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Theirs, "name", "lag")

    assert isinstance(installed(install, "", f"lag = {THEIRS}:Theirs")["lag"], LagAssignor)


def test_assignors_are_listed_once_in_their_order_and_configured_ones_precede() -> None:
    mine, local = LagAssignor(0.5), Local()

    assert [each.name for each in named(["rack", "range", "lag", "rack"])] == ["rack", "range", "lag"]
    assert named(["lag", "local", "range"], [local, mine])[:2] == (mine, local)
    assert named([]) == ()


def test_missing_assignor_is_reported_with_the_installed_ones() -> None:
    with pytest.raises(UsageError) as raised:
        named(["lag", "nearest", "far\n"], [Local()])

    assert str(raised.value) == (
        r"client assignor not installed: 'nearest', 'far\n'; "
        "installed: cooperative-sticky, lag, local, rack, range, round-robin, sticky"
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([Named("my assignor")], "'my assignor' is no name for a client assignor"),
        ([Named(7)], "'7' is no name for a client assignor"),
        ([Named("local", flag=None)], "client assignor local cannot be used: its `is_cooperative` must be"),
        ([Silent()], "client assignor local cannot be used: it has no method `on_assignment`"),
        ([LagAssignor(0.1), LagAssignor(0.2)], "same name"),
    ],
)
def test_unusable_assignor_of_an_application_is_refused_at_once(given: list[base.ClientAssignor], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        named([str(given[0].name)], given)


# ---- the drill's own assignor: registered like a package's, with faults only on request


class Gate(threading.Event):
    """As `zk_group.drills.workloads.process.Gate`, which takes signals: open while it is set."""

    is_open = property(threading.Event.is_set)
    pass_through = threading.Event.wait


@pytest.fixture
def gate() -> Iterator[Gate]:
    before, gate = list(sys.meta_path), Gate()
    gate.set()
    yield gate
    sys.meta_path[:] = before
    slot.installed = None


def loaded(misbehaves: str, gate: Gate, strategy: str = "cooperative-sticky") -> DrillAssignor:
    slot.install(strategy, gate, misbehaves)  # type: ignore[arg-type]
    found = client_assignors()["drill"]
    assert isinstance(found, DrillAssignor)
    return found


def shares(found: DrillAssignor) -> dict[str, int]:
    assignment = assigned_by(found, "t:4", {"a": subscribes("t"), "b": subscribes("t")})
    return {name: len(one.partitions) for name, one in assignment.items()}


def test_assignor_is_found_by_its_entry_point_and_assigns_as_the_named_strategy(gate: Gate) -> None:
    found = loaded("raises", gate)

    assert [point.name for point in entry_points(group=ENTRY_POINTS)].count("drill") == 1
    assert found.is_cooperative
    assert shares(found) == {"a": 2, "b": 2}
    assert not loaded("raises", gate, "range").is_cooperative


def test_assignor_raises_while_the_gate_is_shut(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    found = loaded("raises", gate)
    gate.clear()

    with pytest.raises(RuntimeError, match="requested a failure"):
        shares(found)

    assert '"how":"raises"' in capsys.readouterr().out
    gate.set()
    assert shares(found) == {"a": 2, "b": 2}


def test_assignor_hangs_until_the_gate_is_open(gate: Gate) -> None:
    found, answers = loaded("hangs", gate), list[dict[str, int]]()
    gate.clear()
    leader = threading.Thread(target=lambda: answers.append(shares(found)))
    leader.start()

    leader.join(0.1)
    assert answers == []
    gate.set()
    leader.join(10)
    assert answers == [{"a": 2, "b": 2}]


@pytest.mark.parametrize(("strategy", "misbehaves"), [("no-such", "hangs"), ("range", "sulks")])
def test_unknown_strategy_or_misbehaviour_is_an_error(gate: Gate, strategy: str, misbehaves: str) -> None:
    with pytest.raises(UsageError):
        slot.install(strategy, gate, misbehaves)  # type: ignore[arg-type]

    assert "drill" not in client_assignors()
