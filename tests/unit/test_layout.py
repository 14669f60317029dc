"""Who imports what: the lines of the layout, held over the source tree."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 420
CLOCKS_AND_THREADS = {"threading", "queue", "time", "concurrent", "multiprocessing", "asyncio", "sched"}


class Import(NamedTuple):
    """An import statement; `module` is absolute."""

    file: str
    line: int
    module: str

    @property
    def top(self) -> str:
        return self.module.split(".")[0]

    def is_of(self, module: str) -> bool:
        return self.module == module or self.module.startswith(module + ".")


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports_of(path: Path) -> Iterator[Import]:
    """Every import, wherever it stands; `from a import b` also counts as an import of `a.b`, which it may be."""
    file = path.relative_to(ROOT).as_posix()
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (Import(file, node.lineno, f"{module}.{alias.name}") for alias in node.names)


IMPORTS = [found for package in ("coordinator", "consumer") for path in sources(package) for found in imports_of(path)]


def shown(found: list[Import]) -> str:
    return "\n".join(f"{each.file}:{each.line} imports {each.module}" for each in found)


def assert_none(found: list[Import]) -> None:
    assert not found, shown(found)


def importers(top: str) -> list[Import]:
    return [each for each in IMPORTS if each.top == top]


def test_the_consumer_imports_coordinator_zk_and_its_assignment_also_the_assignors_which_are_pure() -> None:
    from_there = [each for each in importers("coordinator") if each.file.startswith("consumer/")]

    assert from_there
    # The bare package is its version, and what is shipped to executors; it imports nothing itself.
    others = [each for each in from_there if not each.is_of("coordinator.zk") and each.module != "coordinator"]
    assert_none(
        [e for e in others if not (e.file.startswith("consumer/assignment/") and e.is_of("coordinator.assignors"))]
    )
    assert_none([each for each in IMPORTS if each.file == "coordinator/__init__.py"])


def test_the_coordinator_never_imports_the_consumer_but_for_its_commands_which_may_read_logs_and_segments() -> None:
    from_there = [each for each in importers("consumer") if each.file.startswith("coordinator/")]
    readers = ("consumer.logs", "consumer.segment_check")

    assert_none(
        [
            e
            for e in from_there
            if not (e.file.startswith("coordinator/cli/") and any(e.is_of(name) for name in readers))
        ]
    )


def test_the_checker_judges_the_others_and_imports_neither_them_nor_any_library() -> None:
    own = [each for each in IMPORTS if each.file.startswith("coordinator/checker/")]
    ours = ("coordinator.zk", "coordinator.checker")
    foreign = [e for e in own if not any(e.is_of(name) for name in ours) and e.top not in sys.stdlib_module_names]

    assert_none(foreign)


def test_what_both_sides_share_imports_neither_side() -> None:
    shared = [each for each in IMPORTS if each.file.startswith("coordinator/zk/")]
    ours = [each for each in shared if each.top in ("coordinator", "consumer")]

    assert_none(
        [each for each in ours if not each.is_of("coordinator.zk") and each.module != "coordinator.__version__"]
    )


@pytest.mark.parametrize(
    ("library", "place"),
    [
        ("pyspark", "consumer/spark/"),
        ("confluent_kafka", ("consumer/logs/kafka.py", "consumer/drill/kafka_")),  # drills have clients of their own
        ("kazoo", "coordinator/zk/kazoo_store.py"),
        ("pyarrow", "consumer/"),
    ],
)
def test_a_library_is_imported_in_its_place_only(library: str, place: str | tuple[str, ...]) -> None:
    assert_none([each for each in importers(library) if not each.file.startswith(place)])


def test_metrics_are_made_and_served_in_their_places_only() -> None:
    places = ("coordinator/metrics.py", "consumer/metrics.py", "coordinator/zk/serving.py")

    assert {each.file for each in importers("prometheus_client")} == set(places)


def test_time_and_threads_come_from_the_runtime() -> None:
    allowed = (
        "coordinator/zk/runtime.py",
        "coordinator/zk/kazoo_store.py",
        "coordinator/zk/ensemble",
        "coordinator/zk/java.py",
        "coordinator/drills/",
        "consumer/logs/",
        "consumer/spark/",
        "consumer/drill/",
    )

    assert_none([e for e in IMPORTS if e.top in CLOCKS_AND_THREADS and not e.file.startswith(allowed)])


def test_nothing_that_decides_imports_anything_that_acts() -> None:
    pure = (
        "coordinator/plan.py",
        "coordinator/target.py",
        "coordinator/backlog.py",
        "coordinator/offsets_reset.py",
        "coordinator/verify.py",
        "coordinator/assignors/",
        "coordinator/planning/",
        "consumer/ownership.py",
    )
    acting = ("kazoo_store", "runtime", "lease", "fenced", "ensemble")

    found = [each for each in IMPORTS if each.file.startswith(pure)]

    assert_none([each for each in found if any(f".zk.{name}" in each.module for name in acting)])


EVERY_COMMAND = "from coordinator.cli import main; [main.get_command(None, name) for name in main.list_commands(None)]"


def loaded_by(program: str) -> set[str]:
    """The modules that a process has loaded which has run `program`."""
    tells = f"{program}; import sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", tells], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(found.stdout.split())


@pytest.mark.parametrize("program", ["import coordinator.service", EVERY_COMMAND])
def test_the_coordinator_loads_neither_pyarrow_nor_pyspark(program: str) -> None:
    packages = {module.split(".")[0] for module in loaded_by(program)}

    assert packages & {"pyarrow", "pyspark", "confluent_kafka", "consumer"} == set()
    assert "coordinator" in packages


def test_a_node_loads_nothing_of_drills_and_of_the_checker() -> None:
    modules = loaded_by("from coordinator.cli import main; main.get_command(None, 'run')")

    assert "coordinator.service" in modules
    assert [name for name in modules if name.startswith(("coordinator.drills", "coordinator.checker"))] == []


def test_what_prepares_a_slot_loads_no_pyspark() -> None:
    assert "pyspark" not in loaded_by("import consumer.spark.config")


def test_a_signal_handler_sets_no_event_that_its_thread_may_just_be_waiting_for() -> None:
    handles = {
        path.relative_to(ROOT).as_posix()
        for package in ("coordinator", "consumer")
        for path in sources(package)
        if "signal.signal(" in path.read_text()
    }

    # The first is what all others use; the last two set flags, write, or raise.
    assert handles == {"coordinator/zk/runtime.py", "coordinator/drills/interrupts.py", "consumer/spark/slot.py"}


@pytest.mark.parametrize("package", ["coordinator", "consumer"])
def test_a_module_is_short_enough_to_be_read(package: str) -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in sources(package)}

    assert {name: count for name, count in lengths.items() if count > MOST_LINES} == {}


@pytest.mark.parametrize("package", ["coordinator", "consumer"])
def test_a_module_opens_with_what_it_is_for(package: str) -> None:
    silent = [
        path.name
        for path in sources(package)
        if path.read_text() and not ast.get_docstring(ast.parse(path.read_text()))
    ]

    assert silent == []


def test_only_the_paths_module_builds_paths_of_znodes() -> None:
    """A path that is spelled elsewhere goes wrong unseen when it changes."""
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.value!r}"
        for package in ("coordinator", "consumer")
        for path in sources(package)
        if path.name not in ("paths.py", "config.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(("/consumers", "/brokers/"))
        and "\n" not in node.value
    ]

    assert found == []
