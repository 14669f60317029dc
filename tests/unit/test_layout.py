"""Imports between folders: the lines of the layout, compared with the source tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 600
CLOCKS_AND_THREADS = {"threading", "queue", "time", "concurrent", "multiprocessing", "asyncio", "sched"}


class Import(NamedTuple):
    """An import statement; `module` is absolute, in `zk_group` where that is not said."""

    file: str
    line: int
    module: str

    @property
    def top(self) -> str:
        return self.module.split(".")[0]


@cache
def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a module, itself first."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports_of(path: Path) -> Iterator[Import]:
    """Every import at any place; `from a import b` also counts as an import of `a.b`, which it may be."""
    file = path.relative_to(ROOT).as_posix()
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name.removeprefix("zk_group.")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}".removeprefix("zk_group.") for alias in node.names]
            yield from (Import(file, node.lineno, name) for name in names)


PACKAGES = ("coordinator", "consumer", "drills")

CONSUMER_BASE = ("consumer.config", "consumer.errors", "consumer.metrics")
"""Modules at the root of `consumer` that every room of it uses."""

ZK = "coordinator.zk.**"
RECORDS = ("coordinator.zk", "coordinator.zk.znodes")

MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "coordinator.zk": (),
    "coordinator.zk.znodes": ("coordinator.zk",),
    "coordinator.zk.security": (*RECORDS,),
    "coordinator.zk.session": ("coordinator.zk", "coordinator.zk.security"),
    "coordinator.zk.embedded": ("coordinator.zk", "coordinator.zk.security"),
    "coordinator.zk.process": (*RECORDS, "coordinator.zk.security", "coordinator.zk.session"),
    "coordinator.assignors": (*RECORDS,),
    "coordinator.planning": ("coordinator.assignors", *RECORDS),
    "coordinator.term": ("coordinator.planning", ZK),
    "coordinator.regions": ("coordinator.term", "coordinator.planning", ZK),
    "coordinator.retention": ("coordinator.term", "coordinator.planning", ZK),
    "coordinator.listeners": ("coordinator.regions", "coordinator.term", "coordinator.planning", ZK),
    "coordinator.rebalance": (
        "coordinator.regions", "coordinator.term", "coordinator.planning", "coordinator.assignors", ZK,
    ),
    "coordinator.service": (
        "coordinator.rebalance", "coordinator.listeners", "coordinator.retention", "coordinator.term",
        "coordinator.planning", "coordinator.assignors", ZK,
    ),
    "coordinator.admin": ("coordinator.planning", ZK),
    "coordinator.cli": (
        "coordinator.service", "coordinator.admin", "coordinator.term", ZK, "consumer.logs.**",
        "consumer.sealing.segment_check",
    ),
    "consumer.config": (
        "consumer.errors", "consumer.membership.start_position", "consumer.fetching.poll_order", "consumer.logs", ZK,
    ),
    "consumer.errors": (ZK,),
    "consumer.metrics": (ZK,),
    "consumer.logs": ("consumer.logs.**", *RECORDS),
    "consumer.logs.embedded": ("consumer.errors", "consumer.logs", *RECORDS),
    "consumer.logs.kafka": ("consumer.logs", ZK),
    "consumer.membership": (*CONSUMER_BASE, "consumer.logs", ZK),
    "consumer.fetching": (*CONSUMER_BASE, "consumer.membership", "consumer.logs", ZK),
    "consumer.sealing": (*CONSUMER_BASE, "consumer.fetching", "consumer.membership", "consumer.logs", ZK),
    "consumer.assignment": (*CONSUMER_BASE, "consumer.membership", "consumer.logs", "coordinator.assignors", ZK),
    "consumer.operator": ("consumer", "consumer.**", ZK),
    "consumer": ("consumer.**", ZK),
    "consumer.spark": ("consumer.streaming.**",),
    "consumer.streaming": ("consumer.streaming.**", "consumer.**", ZK),
    "consumer.streaming.fetchers": ("consumer.**", ZK),
    "consumer.streaming.source": ("consumer.**", ZK),
    "consumer.cli": ("consumer.**", ZK),
    "drills.checker": ("drills.checker.**", *RECORDS),
    "drills.checker.replay": (*RECORDS,),
    "drills.checker.invariants": ("drills.checker.replay", *RECORDS),
    "drills.base": (ZK,),
    "drills.faults": ("drills.base", ZK),
    "drills.environments": ("drills.faults", "drills.base", ZK),
    "drills.reports": ("drills.checker.**",),
    "drills.evidence": (
        "drills.reports", "drills.checker.**", "drills.environments", "drills.faults", "drills.base",
        "coordinator.admin", ZK,
    ),
    "drills.testbed": (
        "drills.evidence", "drills.environments", "drills.faults", "drills.base", "coordinator.admin", ZK,
    ),
    "drills.scenarios": ("drills.**", "coordinator.admin", ZK),
    "drills.conformance": (
        "drills.testbed", "drills.evidence", "drills.checker.**", "drills.environments", "drills.faults", "drills.base",
        "consumer.logs.embedded", "coordinator.admin", ZK,
    ),
    "drills.workloads": ("drills.checker.replay.sketches", "consumer.**", "consumer", ZK),
    "drills": ("drills.**", "coordinator.cli", ZK),
}  # fmt: skip
"""Folder (or module at a package's root) -> other modules that it imports; `a.**` is all below `a`, and `a`.

All in `zk_group`.
"""

STRANGERS = (
    ("consumer.streaming.fetchers", "consumer.streaming.source"),
    ("consumer.streaming.source", "consumer.streaming.fetchers"),
    ("consumer.operator", "consumer.streaming"),
    ("consumer.operator", "consumer.cli"),
    ("consumer", "consumer.streaming"),
    ("consumer", "consumer.cli"),
    ("consumer.streaming", "consumer.cli"),
    ("drills.scenarios", "drills.cli"),
    ("drills.scenarios", "drills.runner"),
    ("drills.scenarios", "drills.workloads"),
    ("drills.scenarios", "drills.conformance"),
)
"""Importer and folder that it must not import, despite a `**` in `MAY_IMPORT`."""


@cache
def imports() -> list[Import]:
    return [found for package in PACKAGES for path in sources(package) for found in imports_of(path)]


def shown(found: list[Import]) -> str:
    return "\n".join(f"{each.file}:{each.line} imports {each.module}" for each in found)


def assert_none(found: list[Import]) -> None:
    assert not found, shown(found)


def room_of(file: str) -> str:
    """The entry of `MAY_IMPORT` that a file is of: its own, else that of its folder, or the nearest above."""
    parts = file.removesuffix(".py").split("/")
    while ".".join(parts) not in MAY_IMPORT:
        parts.pop()
    return ".".join(parts)


def is_module(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def module_of(each: Import) -> str:
    """The module that an import names: the last part may be a name in it."""
    return each.module if is_module(each.module) else each.module.rpartition(".")[0]


def is_allowed(each: Import) -> bool:
    room, module = room_of(each.file), module_of(each)
    if any(room == of and (module == other or module.startswith(f"{other}.")) for of, other in STRANGERS):
        return False
    target = room_of(f"{module.replace('.', '/')}.py") if module not in PACKAGES else module
    if target == room:
        return True
    for allowed in MAY_IMPORT[room]:
        below = allowed.removesuffix(".**")
        if allowed != below and (module == below or module.startswith(f"{below}.")):
            return True
        if allowed in (module, target):
            return True
    return False


def test_a_folder_imports_only_those_below_it() -> None:
    ours = [each for each in imports() if each.top in PACKAGES]

    assert len(ours) > 1000
    assert_none([each for each in ours if not is_allowed(each)])


def test_every_folder_has_its_line_in_the_layout_and_every_line_its_folder() -> None:
    folders = {path.parent.relative_to(ROOT).as_posix().replace("/", ".") for p in PACKAGES for path in sources(p)}

    assert sorted(folder for folder in folders - {"coordinator"} if folder not in MAY_IMPORT) == []
    assert [room for room in MAY_IMPORT if not is_module(room)] == []


def test_the_package_imports_nothing_and_holds_its_folders_by_links() -> None:
    held = {path.name: path.readlink().as_posix() for path in (ROOT / "zk_group").iterdir() if path.is_symlink()}

    assert [*imports_of(ROOT / "zk_group" / "__init__.py")] == []
    assert held == {package: f"../{package}" for package in PACKAGES}


PLAIN = re.compile(
    r"""^\s*(?:from|import)\ (NAME)\b(?=[\w.]*(?:\ import\b|\s*$))   # a statement
    | (?:-m\ |["'](?:from\ |import\ )?)((?:NAME)\.\w+)             # a command, or a string""".replace(
        "NAME", "|".join(PACKAGES)
    ),
    re.X,
)
"""A folder's name as that of a module."""
OWN_MODULES = (
    "tests/support/users_application.py",
    "tests/spark/test_users_own_modules.py",
    "tests/unit/test_layout.py",
)
"""Files with names of a user's own modules, or of rooms."""


def test_nothing_imports_a_folder_by_its_plain_name() -> None:
    """At the repository's root that would be a second copy of each module."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = {name: ROOT / name for name in tracked if Path(name).suffix in (".py", ".md", ".sh", ".txt", "")}
    found = [
        f"{name}:{number}: {line}"
        for name, path in texts.items()
        if name not in OWN_MODULES and path.is_file()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(each[1] or is_module(each[2]) for each in PLAIN.finditer(line))
    ]

    assert found == []


def test_the_checker_imports_no_library() -> None:
    own = [each for each in imports() if each.file.startswith("drills/checker/")]

    assert_none([each for each in own if each.top not in PACKAGES and each.top not in sys.stdlib_module_names])


@pytest.mark.parametrize(
    ("library", "place"),
    [
        ("pyspark", ("consumer/streaming/", "drills/workloads/spark_")),
        (
            "confluent_kafka",
            (
                "consumer/logs/kafka/client.py",
                "consumer/logs/kafka/requests.py",
                "drills/workloads/kafka_",
                "coordinator/zk/embedded/kafka_client.py",
            ),
        ),  # drills, and trials, have clients of their own
        ("kazoo", ("coordinator/zk/session/kazoo_client.py", "coordinator/zk/session/kazoo_store.py")),
        ("re2", "coordinator/zk/znodes/topic_filter.py"),
        ("jinja2", "drills/reports/page.py"),
        ("psutil", ("coordinator/zk/embedded/ensemble.py", "drills/")),
        ("pyarrow", ("consumer/", "drills/workloads/")),
        (
            "prometheus_client",
            ("coordinator/term/metrics.py", "consumer/metrics.py", "coordinator/zk/process/metrics_server.py"),
        ),
        ("drills", "drills/"),
    ],
)
def test_a_library_is_imported_in_its_place_only(library: str, place: str | tuple[str, ...]) -> None:
    found = [each for each in imports() if each.top == library]
    places = (place,) if isinstance(place, str) else place

    assert [each for each in places if not any(one.file.startswith(each) for one in found)] == []
    assert_none([each for each in found if not each.file.startswith(place)])


def test_time_and_threads_come_from_the_runtime() -> None:
    allowed = (
        "coordinator/zk/runtime.py",
        "coordinator/zk/session/kazoo_client.py",
        "coordinator/zk/session/kazoo_store.py",
        "coordinator/zk/embedded/",
        "drills/",
        "consumer/logs/",
        "consumer/streaming/",
        "drills/workloads/",
    )

    assert_none([e for e in imports() if e.top in CLOCKS_AND_THREADS and not e.file.startswith(allowed)])


def test_deciding_modules_import_no_acting_ones() -> None:
    pure = (
        "coordinator/planning/plan.py",
        "coordinator/planning/target.py",
        "coordinator/planning/backpressure.py",
        "coordinator/admin/reset_offsets.py",
        "coordinator/admin/verify.py",
        "coordinator/assignors/",
        "coordinator/planning/",
        "coordinator/rebalance/pacing.py",
        "consumer/membership/claims.py",
    )
    acting = ("kazoo_client", "kazoo_store", "runtime", "lease", "update", "embedded")

    found = [each for each in imports() if each.file.startswith(pure)]

    assert_none([each for each in found if any(f".zk.{name}" in each.module for name in acting)])


EVERY_COMMAND = (
    "from zk_group.coordinator.cli import main; [main.get_command(None, name) for name in main.list_commands(None)]"
)


LOADS = {
    "coordinator": ("import zk_group.coordinator.service", "coordinator", "pyarrow pyspark confluent_kafka consumer"),
    "every command of it": (EVERY_COMMAND, "coordinator", "pyarrow pyspark confluent_kafka consumer"),
    "the driver's data source": (
        "import zk_group.consumer.streaming.source.data_source", "pyspark", "prometheus_client confluent_kafka",
    ),
    "base class of a package's assignor": (
        "import zk_group.consumer.assignment.base", "consumer", "pyarrow numpy kazoo confluent_kafka",
    ),
    "a node": (
        "from zk_group.coordinator.cli import main; main.get_command(None, 'run')", "coordinator.service", "drills",
    ),
    "preparation of slots": ("import zk_group.consumer.streaming.fetchers.config", "consumer", "pyspark re2"),
    "rewind of a query": ("import zk_group.consumer.cli.rewind", "consumer", "pyspark re2"),
}  # fmt: skip
"""A program, a module that it loads, and packages that it does not."""


@pytest.mark.long
@pytest.mark.parametrize(("program", "loaded", "others"), LOADS.values(), ids=LOADS)
def test_a_part_of_the_product_does_not_load_the_libraries_of_others(program: str, loaded: str, others: str) -> None:
    listing = f"{program}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", listing], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = [name.removeprefix("zk_group.") for name in done.stdout.split()]

    assert loaded in modules
    assert {module.split(".")[0] for module in modules} & set(others.split()) == set()


def test_signal_handler_sets_no_event_that_its_thread_may_be_waiting_for() -> None:
    handles = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in sources(package)
        if "signal.signal(" in path.read_text()
    }

    # The first is used by all others; the last two set flags, write, or raise.
    assert handles == {"coordinator/zk/runtime.py", "drills/base/processes.py", "consumer/streaming/fetchers/slot.py"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_is_short_enough_to_be_read(package: str) -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in sources(package)}

    assert {name: count for name, count in lengths.items() if count > MOST_LINES} == {}


MOST_CLASS_LINES, MOST_PARAMETERS, MOST_ATTRIBUTES = 250, 6, 20
ONLY_FIELDS = {"Snapshot", "CoordinatorConfig", "GroupView"}
"""Records, which may have more."""
REASON = re.compile(r"\s*# Large: \w")
"""The comment above a larger class, or above its `__init__`, that names the reason."""


def attributes_of(found: ast.ClassDef) -> set[str]:
    """The attributes that the class assigns to `self`, and the fields of a dataclass."""
    fields = {
        each.target.id for each in found.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    stored = (node for node in ast.walk(found) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    assigned = {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}
    return assigned | (fields if found.name not in ONLY_FIELDS else set())


def constructor_of(found: ast.ClassDef) -> ast.FunctionDef | None:
    return next((each for each in found.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)


def is_large(found: ast.ClassDef) -> bool:
    constructor = constructor_of(found)
    parameters = (
        [*constructor.args.posonlyargs, *constructor.args.args[1:], *constructor.args.kwonlyargs]
        if constructor is not None
        else []
    )
    lines = (found.end_lineno or 0) - found.lineno + 1
    return len(parameters) > MOST_PARAMETERS or lines > MOST_CLASS_LINES or len(attributes_of(found)) > MOST_ATTRIBUTES


def has_reason(found: ast.ClassDef, lines: list[str]) -> bool:
    heads = [each for each in (found, constructor_of(found)) if each is not None]
    firsts = [min([each.lineno, *(decorator.lineno for decorator in each.decorator_list)]) for each in heads]
    return any(REASON.match(lines[first - 2]) for first in firsts if first > 1)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_class_is_small_or_a_comment_above_it_names_the_reason(package: str) -> None:
    """A reason beside a class that has become small is removed with it."""
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {node.name}": (is_large(node), has_reason(node, lines))
        for path in sources(package)
        for lines in [path.read_text().splitlines()]
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
    }

    assert {name for name, (is_over, has) in found.items() if is_over != has} == set()
    assert any(is_over for is_over, _ in found.values())


IMPORTS = re.compile(r"(?:^|\. |\n)Imports ([^\n]+(?:\n[^\n]+)*)")
"""The sentence of a folder's docstring about its imports."""


def is_listed(room: str, name: str) -> bool:
    """Whether `MAY_IMPORT` allows a package, or a part of it, that a folder's docstring names relative to any above."""
    above = room.split(".")
    names = [".".join([*above[:count], name]) for count in range(len(above) + 1)]
    return any(
        full == each or each.startswith(f"{full}.") or (each.endswith(".**") and full.startswith(each[:-2]))
        for full in names
        if is_module(full)
        for each in MAY_IMPORT.get(room, PACKAGES)
    )


FOLDERS = [path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.parent.relative_to(ROOT).as_posix())
def test_docstring_of_a_folder_names_its_imports(path: Path) -> None:
    """A sentence "Imports ..."; each package that it names before "but", "except" or a semicolon is in `MAY_IMPORT`."""
    room = ".".join(path.parent.relative_to(ROOT).parts)
    found = IMPORTS.search(ast.get_docstring(ast.parse(path.read_text())) or "")

    assert found is not None
    named = re.findall(r"`([\w.]+)`", re.split(r";|\bbut\b|\bexcept\b|\bnothing\b", found[1])[0])
    assert [name for name in named if not is_listed(room, name)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_module_begins_with_a_docstring(package: str) -> None:
    modules = {path.name: nodes_of(path)[0] for path in sources(package) if path.read_text()}
    silent = [name for name, tree in modules.items() if isinstance(tree, ast.Module) and not ast.get_docstring(tree)]

    assert silent == []


def test_every_file_that_is_no_module_is_in_the_wheel() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    data = setup["options.package_data"]
    files = [path for package in PACKAGES for path in (ROOT / "zk_group" / package).rglob("*") if path.is_file()]
    others = [path for path in files if path.suffix not in (".py", ".pyc") and path.name != "py.typed"]
    patterns = [f"{package.replace('.', '/')}/{pattern}" for package, text in data.items() for pattern in text.split()]

    assert others != []
    assert [path for path in others if not any(path.match(pattern) for pattern in patterns)] == []


def test_only_the_paths_module_builds_paths_of_znodes() -> None:
    """A path spelled elsewhere is missed when it changes."""
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.value!r}"
        for package in PACKAGES
        for path in sources(package)
        if path.name not in ("paths.py", "config.py")
        for node in nodes_of(path)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(("/consumers", "/brokers/"))
        and "\n" not in node.value
    ]

    assert found == []


def test_names_of_tests_are_sentences_under_80_characters() -> None:
    names = re.findall(r"def (test_\w+)", "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py")))

    assert len(names) > 2000
    assert [name for name in names if len(name) >= 80] == []
