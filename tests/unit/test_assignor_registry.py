"""The registered strategies: built-in ones, and those of installed packages."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from coordinator.assignors import Assignment, RangeAssignor, Subscriber, assigned
from coordinator.assignors.registry import BUILT_IN, ENTRY_POINTS, assignors

THEIRS = "a_third_partys_module"


class First:
    """All partitions to the first member's first thread."""

    name = "first"
    is_eager = False

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        return RangeAssignor().assign(sorted(subscribers, key=lambda one: one.consumer)[:1], topics)


class Named:
    def __init__(self, name: object, is_eager: object = True, assign: object = print) -> None:
        self.name = name
        self.is_eager = is_eager
        self.assign = assign


def fails() -> None:
    raise AssertionError("is not called")


class CannotBeMade(First):
    def __init__(self) -> None:
        raise ValueError("no\nlicence")


class Leaves(First):
    def __init__(self) -> None:
        sys.exit(7)


@pytest.fixture(autouse=True)
def theirs() -> Iterator[None]:
    """A module as an installed package has it."""
    module = ModuleType(THEIRS)
    for name, made in {
        "First": First,
        "first": First(),
        "CannotBeMade": CannotBeMade,
        "Leaves": Leaves,
        "second": Named("second"),
        "elsewhere": Named("elsewhere\n"),
        "unnamed": Named(None),
        "perhaps": Named("perhaps", "yes"),
        "idle": Named("idle", True, None),
        "fails": fails,
    }.items():
        setattr(module, name, made)
    sys.modules[THEIRS] = module
    yield
    del sys.modules[THEIRS]


def offered(name: str, what: str) -> EntryPoint:
    return EntryPoint(name, f"{THEIRS}:{what}", ENTRY_POINTS)


def test_built_in_strategies_are_registered_without_any_package() -> None:
    assert set(assignors([])) == {"range", "round-robin", "sticky", "cooperative-sticky"}
    assert all(name == assignor.name for name, assignor in BUILT_IN.items())


@pytest.mark.parametrize("what", ["First", "first"])
def test_a_class_or_an_assignor_can_be_offered(what: str) -> None:
    found = assignors([offered("first", what)])

    assert set(found) == {*BUILT_IN, "first"}
    given = assigned(found["first"], [Subscriber("a", {"t": 1}), Subscriber("b", {"t": 1})], {"t": range(2)})
    assert {consumer: len(threads["a-0"]) for consumer, threads in given.items()} == {"a": 2}


UNUSABLE = {
    "gone": ("gone", "Nothing", "it cannot be loaded: AttributeError: "),
    "cannot be made": ("first", "CannotBeMade", r"it cannot be loaded: ValueError: no\nlicence"),
    "ends the process": ("first", "Leaves", "it cannot be loaded: SystemExit: 7"),
    "another name": ("another", "second", "its `name` must be that of its entry point, not 'second'"),
    "a name with a line": ("elsewhere", "elsewhere", r"its `name` must be that of its entry point, not 'elsewhere\n'"),
    "no name": ("unnamed", "unnamed", "its `name` must be that of its entry point, not 'None'"),
    "neither eager nor not": ("perhaps", "perhaps", "its `is_eager` must be True or False"),
    "no method": ("idle", "idle", "it has no method `assign`"),
    "a function": ("fails", "fails", "its `is_eager` must be True or False"),
    "a built-in name": ("range", "First", "a built-in strategy has this name, and keeps it"),
    "no name at all": ("a b", "First", "its name is none"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_strategy_is_ignored_with_the_reason_and_the_rest_is_registered(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, what, reason = UNUSABLE[case]

    with caplog.at_level(logging.WARNING):
        found = assignors([offered(name, what), offered("second", "second")])

    assert set(found) == {*BUILT_IN, "second"}
    assert found["range"] is BUILT_IN["range"]
    (line,) = caplog.messages
    assert line.startswith(f"ignoring unusable strategy: strategy={name} entry_point={THEIRS}:{what} reason=")
    assert reason in line and line.isprintable()


def test_two_strategies_with_one_name_are_both_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = assignors([offered("first", "First"), offered("first", "second")])

    assert "first" not in found
    assert "several are offered under this name" in caplog.text


def test_a_package_that_is_found_twice_offers_one_strategy() -> None:
    found = assignors([offered("first", "First"), offered("first", "First")])

    assert "first" in found


def test_installed_packages_are_searched_for_strategies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nfirst = {THEIRS}:First\nsticky = {THEIRS}:First\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    found = assignors()

    assert isinstance(found["first"], First)
    assert found["sticky"] is BUILT_IN["sticky"]
