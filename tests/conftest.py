"""Real ZooKeeper servers for the tests: started once for a session, stopped whatever happens."""

from __future__ import annotations

import gc
import logging
import resource
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.ci import number_of_commit
from tests.support.clients import fresh_chroot
from tests.support.kafka import Kafka, a_kafka
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig

SERVER_FIXTURES = {"zookeeper", "zk", "ensemble3", "kafka", "sasl_server"}
QUIET_FIXTURES = {"quiet_set", "kafka_drill"}
ALONE = ("tests/drills/", "tests/docker/")
"""Its files are one worker's: a drill measures times, and runs beside no other one."""
BESIDE = ("tests/drills/test_conformance.py", "tests/drills/test_drills_bite.py")
"""They measure no time."""
SHARED = ("spark: SparkSession", "kafka: Kafka", "sasl_server: Ensemble")
"""Parameters for which a process starts a cluster, a broker or a server once: files with one are one worker's."""
ONE_BY_ONE = "tests/simulation/"
"""Its tests share nothing and some take long."""

PARTS = 8
SLOWEST_FILES = 30

sys.modules |= dict.fromkeys(("coordinator", "consumer", "drills"))  # type: ignore[arg-type]
"""The names of the folders beside `tests` are no modules: a class of one would not be that of `zk_group`."""

settings.register_profile(
    "a busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("a busy machine")


gc.set_threshold(100_000)  # by default a tenth of the time goes into what lives to the end: the collected tests


def pytest_collection_finish() -> None:
    """They are no garbage."""
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="another order of what happens in tests in virtual time")
    parser.addoption(
        "--rewrite", action="store_true", help="the expected side of turns and commands as text becomes what is found"
    )


class Failures:
    """Names each failure as it happens, with the command that repeats it: the workers' output is dots."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            seed = f" --seed {self._config.getoption('seed')}" if self._config.getoption("seed") else ""
            terminal.ensure_newline()
            terminal.write_line(f"repeat: scripts/test {shlex.quote(report.nodeid)}{seed}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """A shell lets what it runs in the background ignore SIGINT, and children inherit that: tests send it to theirs."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Whoever terminates the tests ends them in order, with all that they have started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config.pluginmanager.register(Failures(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whatever asks for a server is marked `integration`, in whichever folder it stands."""
    part = number_of_commit() % PARTS
    for item in items:
        is_virtual = item.get_closest_marker("virtual_time") is not None
        if SERVER_FIXTURES & set(getattr(item, "fixturenames", ())) and not is_virtual:
            item.add_marker(pytest.mark.integration)
        if item.path.parent.name == "docker":
            item.add_marker(pytest.mark.full("each environment"))
        if item.get_closest_marker("rotates") is not None and crc32(item.name.encode()) % PARTS != part:
            item.add_marker(pytest.mark.full("the other parts"))
        if QUIET_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.quiet)


@cache
def scope_of(file: str) -> str:
    """What one worker runs on end: a file, all drills, or all files with one of `SHARED`."""
    if file.startswith(ALONE) and file not in BESIDE:
        return "drills"
    text = Path(__file__).parents[1].joinpath(file).read_text()
    return next((parameter for parameter in SHARED if parameter in text), file)


class Queue(LoadScopeScheduling):
    """One queue for all workers of pytest-xdist, in the order of collection: a scope at a time, or a single test."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file.startswith(ONE_BY_ONE) else scope_of(file)

    def _reschedule(self, node: Any) -> None:
        if node in self.registered_collections:  # one in a crashed worker's place has to collect first
            super()._reschedule(node)
            if not self.workqueue:
                node.shutdown()  # after what it has: it begins its last test when it knows what follows

    def remove_node(self, node: Any) -> str | None:
        """What is left of a crashed worker's tests goes to others, without the test that it crashed in.

        pytest-xdist hands out completed tests, too, and waits for them.
        """
        units = self.assigned_work.pop(node)
        left = [test for unit in units.values() for test, is_completed in unit.items() if not is_completed]
        for scope, unit in units.items():
            if rest := {test: False for test in unit if test in left[1:]}:
                self.workqueue[scope] = rest
        for other in self.assigned_work:
            self._reschedule(other)
        return next(iter(left), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Queue:
    return Queue(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The processor's time, that of each folder, and of the slowest files."""
    spent = [sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    terminalreporter.write_line(f"CPU time: {spent[0]:.0f} s here, {spent[1]:.0f} s in processes that were waited for")
    folders: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folders["/".join(report.nodeid.split("/")[:2])] += report.duration
                files[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("time by folder, and of the slowest files, in all workers")
    for name, seconds in (*folders.most_common(), *files.most_common(SLOWEST_FILES)):
        terminalreporter.write_line(f"{seconds:8.1f} s  {name}")


@pytest.fixture(autouse=True)
def _level_of_the_log() -> Iterator[None]:
    """Services set it for their process, which here is that of the tests after them."""
    root = logging.getLogger()
    level = root.level
    yield
    if root.level != level:  # it empties the cache of every logger
        root.setLevel(level)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """One server that stands alone. Sessions of 0.4 s and more; nothing is synced to disk."""
    config = EnsembleConfig(servers=1, tick_ms=200, durable=False)
    with Ensemble(tmp_path_factory.mktemp("zookeeper"), config) as ensemble:
        yield ensemble


@pytest.fixture(scope="session")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """One server that clients may authenticate to by SASL."""
    config = EnsembleConfig(servers=1, tick_ms=200, durable=False, auth=True)
    with Ensemble(tmp_path_factory.mktemp("sasl"), config) as ensemble:
        yield ensemble


@pytest.fixture(scope="session")
def kafka(zookeeper: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One broker in ZooKeeper mode for the whole session, in a chroot of its own."""
    with a_kafka(tmp_path_factory.mktemp("kafka"), fresh_chroot(zookeeper.hosts)) as kafka:
        yield kafka


@pytest.fixture
def zk(zookeeper: Ensemble) -> str:
    """A connect string whose chroot exists, is empty, and is this test's alone."""
    return fresh_chroot(zookeeper.hosts)


@pytest.fixture(scope="session")
def running_ensemble3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three servers for the whole session. Tests ask for `ensemble3`."""
    with Ensemble(tmp_path_factory.mktemp("ensemble3"), EnsembleConfig(servers=3, durable=False)) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble3(running_ensemble3: Ensemble) -> Ensemble:
    """Three servers (the same for the whole session), whole again at the start of each test."""
    for server in running_ensemble3.servers:
        server.resume()
    running_ensemble3.start()
    running_ensemble3.wait_healthy()
    return running_ensemble3
