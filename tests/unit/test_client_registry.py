"""The registered client assignors: built-in ones, coordinator-side strategies, and those of installed packages."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from consumer.assignment.adapter import CoordinatorStrategy
from consumer.assignment.base import Assignment, ClientAssignor, Cluster
from consumer.assignment.consumers import ENTRY_POINTS, client_assignors, named
from consumer.assignment.lag import LagAssignor
from coordinator.assignors import RangeAssignor
from coordinator.assignors import registry as coordinator_side
from coordinator.zk.errors import UsageError

THEIRS = "a_third_partys_client_module"
BUILT_IN = {"range", "round-robin", "sticky", "cooperative-sticky", "lag", "rack"}


class Local(ClientAssignor):
    name = "local"
    is_cooperative = True

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> dict[str, Assignment]:
        return {}


class Named(Local):
    def __init__(self, name: object, is_cooperative: object = True) -> None:
        self.name = name  # type: ignore[assignment]
        self.is_cooperative = is_cooperative  # type: ignore[assignment]


class CannotBeMade(Local):
    def __init__(self) -> None:
        raise ValueError("no\nlicence")


class Leaves(Local):
    def __init__(self) -> None:
        sys.exit(7)


class Silent(Local):
    on_assignment = None  # type: ignore[assignment]


class Theirs(RangeAssignor):
    name = "theirs"


@pytest.fixture(autouse=True)
def theirs() -> Iterator[None]:
    """A module as an installed package has it."""
    module = ModuleType(THEIRS)
    for name, made in {
        "Local": Local,
        "local": Local(),
        "CannotBeMade": CannotBeMade,
        "Leaves": Leaves,
        "Silent": Silent,
        "second": Named("second"),
        "elsewhere": Named("elsewhere\n"),
        "perhaps": Named("perhaps", "yes"),
        "Theirs": Theirs,
        "theirs": Named("theirs"),
    }.items():
        setattr(module, name, made)
    sys.modules[THEIRS] = module
    yield
    del sys.modules[THEIRS]


def offered(name: str, what: str) -> EntryPoint:
    return EntryPoint(name, f"{THEIRS}:{what}", ENTRY_POINTS)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `entry_points.txt` of an installed package."""
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return metadata / "entry_points.txt"


def test_built_in_assignors_are_registered_without_any_package() -> None:
    found = client_assignors([])

    assert set(found) >= BUILT_IN
    assert all(name == assignor.name for name, assignor in found.items())
    assert {name for name in BUILT_IN if found[name].is_cooperative} == {"cooperative-sticky", "lag", "rack"}


@pytest.mark.parametrize("what", ["Local", "local"])
def test_a_class_or_an_assignor_can_be_offered(what: str) -> None:
    assert isinstance(client_assignors([offered("local", what)])["local"], Local)


UNUSABLE = {
    "gone": ("gone", "Nothing", "it cannot be loaded: AttributeError: "),
    "cannot be made": ("local", "CannotBeMade", r"it cannot be loaded: ValueError: no\nlicence"),
    "ends the process": ("local", "Leaves", "it cannot be loaded: SystemExit: 7"),
    "another name": ("another", "second", "its `name` must be that of its entry point, not 'second'"),
    "a name with a line": ("elsewhere", "elsewhere", r"its `name` must be that of its entry point, not 'elsewhere\n'"),
    "neither cooperative nor not": ("perhaps", "perhaps", "its `is_cooperative` must be True or False"),
    "no method": ("local", "Silent", "it has no method `on_assignment`"),
    "a coordinator-side strategy": ("theirs", "Theirs", "its `is_cooperative` must be True or False"),
    "a built-in name": ("lag", "Local", "a built-in strategy has this name, and keeps it"),
    "a built-in strategy's name": ("sticky", "Local", "a built-in strategy has this name, and keeps it"),
    "no name at all": ("a b", "Local", "its name is none"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_assignor_is_ignored_with_the_reason_and_the_rest_is_registered(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, what, reason = UNUSABLE[case]

    with caplog.at_level(logging.WARNING):
        found = client_assignors([offered(name, what), offered("second", "second")])

    assert set(found) >= {*BUILT_IN, "second"}
    assert not isinstance(found.get(name), Local)
    (line,) = caplog.messages
    assert "ignoring unusable strategy: strategy=" in line
    assert f"entry_point={THEIRS}:{what} reason={reason}" in line
    assert line.isprintable()


def test_two_assignors_with_one_name_are_both_ignored() -> None:
    assert "local" not in client_assignors([offered("local", "Local"), offered("local", "second")])


def test_a_package_that_is_found_twice_offers_one_assignor() -> None:
    assert "local" in client_assignors([offered("local", "Local"), offered("local", "Local")])


def test_installed_packages_are_searched_for_assignors_of_both_sides(install: Path) -> None:
    install.write_text(
        f"[{ENTRY_POINTS}]\nlocal = {THEIRS}:Local\n[{coordinator_side.ENTRY_POINTS}]\ntheirs = {THEIRS}:Theirs\n"
    )

    found = client_assignors()

    assert isinstance(found["local"], Local)
    assert isinstance(found["theirs"], CoordinatorStrategy)
    assert not found["theirs"].is_cooperative


def test_client_assignor_of_a_package_precedes_its_strategy_of_the_same_name(install: Path) -> None:
    install.write_text(
        f"[{ENTRY_POINTS}]\ntheirs = {THEIRS}:theirs\n[{coordinator_side.ENTRY_POINTS}]\ntheirs = {THEIRS}:Theirs\n"
    )

    assert isinstance(client_assignors()["theirs"], Named)


def test_coordinator_side_package_cannot_take_a_built_in_client_assignors_name(
    install: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Theirs, "name", "lag")
    install.write_text(f"[{coordinator_side.ENTRY_POINTS}]\nlag = {THEIRS}:Theirs\n")

    assert isinstance(client_assignors()["lag"], LagAssignor)


def test_assignors_are_listed_once_each_in_order_of_their_names() -> None:
    assert [each.name for each in named(["rack", "range", "lag", "rack"])] == ["rack", "range", "lag"]
    assert named([]) == ()


def test_configured_assignor_precedes_an_installed_one() -> None:
    mine, local = LagAssignor(0.5), Local()

    assert named(["lag", "local", "range"], [local, mine])[:2] == (mine, local)


def test_missing_assignor_is_reported_with_the_installed_ones() -> None:
    with pytest.raises(UsageError) as raised:
        named(["lag", "nearest", "far\n"], [Local()])

    assert str(raised.value) == (
        r"client assignor not installed: 'nearest', 'far\n'; "
        "installed: cooperative-sticky, lag, local, rack, range, round-robin, sticky"
    )


def test_two_configured_assignors_with_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="same name"):
        named(["lag"], [LagAssignor(0.1), LagAssignor(0.2)])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (Named("my assignor"), "'my assignor' is no name for a client assignor"),
        (Named(7), "'7' is no name for a client assignor"),
        (Named("local", is_cooperative=None), "client assignor local cannot be used: its `is_cooperative` must be"),
        (Silent(), "client assignor local cannot be used: it has no method `on_assignment`"),
    ],
)
def test_unusable_application_assignor_is_refused_when_the_consumer_is_created(
    given: ClientAssignor, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        named([str(given.name)], [given])
