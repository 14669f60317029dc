"""Pages that are compared with the code: docs/metrics.md, security.md, strategies.md, drills.md, and zk_paths.md."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from prometheus_client import CollectorRegistry

from tests.support.drills import RUN_BY_TESTS
from tests.support.pages import page, rows, section
from tests.unit.strategies import after, by_consumer, given, member, numbered, parts
from tests.unit.test_zk_paths import NAMES, OFFER, WRITTEN
from zk_group.consumer.assignment.base import Cluster
from zk_group.consumer.assignment.consumers import ENTRY_POINTS as CLIENT_ENTRY_POINTS
from zk_group.consumer.assignment.consumers import RESERVED, named
from zk_group.consumer.assignment.metadata import ConsumerMetadata
from zk_group.consumer.metrics import ConsumerMetrics
from zk_group.coordinator.assignors import Subscriber, assigned
from zk_group.coordinator.assignors.registry import BUILT_IN, ENTRY_POINTS
from zk_group.coordinator.planning.rebalance_history import TRIGGERS
from zk_group.coordinator.term.metrics import CoordinatorMetrics
from zk_group.coordinator.zk.embedded.directory import Identities
from zk_group.coordinator.zk.errors import BadData, UsageError
from zk_group.coordinator.zk.security.access import read_credentials
from zk_group.coordinator.zk.znodes.group_state import GROUP_STATES, GroupState
from zk_group.coordinator.zk.znodes.records import STATIC, Registration, Seat, Topic
from zk_group.drills.base.settings import Settings
from zk_group.drills.runner import DRILLS
from zk_group.drills.scenarios.definition import Drill

# ---- metrics.md names every metric that is served, with its type and labels, and no other


METRICS = page("metrics.md")
REGISTRIES = {"Coordinator": CoordinatorMetrics().registry, "Consumers and slots": ConsumerMetrics().registry}


def metrics(title: str) -> list[list[str]]:
    """Name, type, labels, unit, meaning and another cell of each metric below a heading."""
    return [[cells[0].strip("`"), *cells[1:]] for cells in rows(section(METRICS, title)) if "`zk_group_" in cells[0]]


def served(registry: CollectorRegistry) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name, as in a query, -> type and labels. (`collect` shows labels only where there is a series.)"""
    collectors: list[Any] = list(registry._collector_to_names)
    made = [one for one in collectors if hasattr(one, "_labelnames")]
    described = [family for one in collectors if one not in made for family in one.describe()]
    return {
        family._name + ("_total" if family._type == "counter" else ""): (family._type, tuple(family._labelnames))
        for family in made
    } | {family.name: (family.type, tuple(family._labelnames)) for family in described}


@pytest.mark.parametrize("title", sorted(REGISTRIES))
def test_the_page_lists_every_metric_with_its_type_and_labels_and_no_other(title: str) -> None:
    listed = [(name, (kind, tuple(re.findall(r"`(\w+)`", labels)))) for name, kind, labels, *_ in metrics(title)]

    assert dict(listed) == served(REGISTRIES[title])
    assert len(listed) == len(dict(listed))
    for name, kind, _, unit, _, _ in metrics(title):  # as Prometheus recommends
        assert (unit == "seconds") == name.removesuffix("_total").endswith("_seconds"), name
        assert (kind == "counter") == name.endswith("_total"), name
        assert kind != "histogram" or name.endswith("_seconds"), name


def test_the_page_names_every_value_that_a_label_may_have() -> None:
    named = set(re.findall(r"`([\w-]+)`", section(METRICS, "Coordinator")))

    assert set(TRIGGERS) - named == set()
    assert set(GROUP_STATES) - named == set()
    assert {"taken", "put_off", "failed", "completed", "replaced", "stop-fetcher", "start-fetcher"} - named == set()


def test_alerts_query_existing_metrics_and_have_a_remedy() -> None:
    known = {name for registry in REGISTRIES.values() for name in served(registry)}
    alerts = section(METRICS, "Alerts")
    rules = re.findall(r"- alert: (\w+)\n\s+expr: (.*)\n(?:\s+for: \w+\n)?\s+annotations:\n\s+do: \S", alerts)

    assert len(rules) == alerts.count("alert:") >= 8
    for alert, expression in rules:
        asked = set(re.findall(r"zk_group_\w+", expression))
        assert asked, alert
        assert asked <= known, alert


# ---- security.md has what an ensemble needs as the embedded one has it; what it says of files is refused so


SECURITY = page("security.md")


def test_page_has_zoo_cfg_and_the_server_side_of_sasl_as_the_embedded_ensemble(tmp_path: Path) -> None:
    lines = dict(re.findall(r"^    ([\w.]+)=(\S+)$", SECURITY, re.MULTILINE))
    wanted = Identities(tmp_path, tls=True, auth=True).server_lines()

    assert {name: lines.get(name) for name in wanted if not name.endswith(".location")} == {
        name: value for name, value in wanted.items() if not name.endswith(".location")
    }
    assert lines.keys() >= {"secureClientPort", *wanted}
    Identities(tmp_path, tls=False, auth=True).create()
    made = (tmp_path / "identities" / "server.jaas").read_text()
    server = SECURITY[SECURITY.index("    Server {") :]
    assert [line.strip() for line in server.splitlines()[:2]] == [line.strip() for line in made.splitlines()[:2]]
    assert 'user_team-a="' in server and 'user_team-a="' in made


def test_credentials_file_of_the_page_is_read_and_refused_with_other_modes(tmp_path: Path) -> None:
    (line,) = re.findall(r"^    (sasl:.+)$", SECURITY, re.MULTILINE)
    file = tmp_path / "zookeeper.auth"
    file.write_text(line + "\n")
    file.chmod(0o600)
    assert read_credentials(file).sasl == ("team-a", "PASSWORD")

    file.chmod(0o644)
    with pytest.raises(UsageError, match="may be read by others"):
        read_credentials(file)


# ---- strategies.md: its examples equal the strategies' assignments, and its code runs


STRATEGIES = page("strategies.md")


def tables() -> Iterator[dict[str, dict[str, str]]]:
    """Each table of shares: strategy -> consumer -> text."""
    for table in re.findall(r"^\| strategy \| c1 .*\n(?:\|.*\n)+", STRATEGIES, re.MULTILINE):
        (_, *consumers), *shares = rows(table)
        yield {name.strip("`"): dict(zip(consumers, cells, strict=True)) for name, *cells in shares}


FIRST, JOINED, MIXED = tables()


@pytest.mark.parametrize("strategy", JOINED)
def test_examples_are_the_assignments_of_the_strategies(strategy: str) -> None:
    three = [member(name, "flights hotels") for name in ("c1", "c2", "c3")]
    mixed = [member("c1", "flights"), member("c2", "flights hotels"), member("c3", "flights")]
    topics = numbered("flights:3 hotels:3")
    first = given(strategy, three[:2], topics)
    joined = given(strategy, after(three, first), topics)
    alike = strategy.removeprefix("cooperative-")

    for shown, found in (
        (FIRST[alike], first),
        (JOINED[strategy], joined),
        (MIXED[alike], given(strategy, mixed, numbered("flights:3 hotels:2"))),
    ):
        assert by_consumer(found) == {consumer: parts(text) for consumer, text in shown.items()}


def test_the_page_names_every_strategy_and_the_group_of_entry_points() -> None:
    assert set(JOINED) == set(BUILT_IN)
    assert f"\n{ENTRY_POINTS} =" in STRATEGIES
    assert f"\n{CLIENT_ENTRY_POINTS} =" in STRATEGIES and RESERVED - set(BUILT_IN) == {"lag", "rack"}
    assert all(f"\n| `{name}` |" in STRATEGIES for name in RESERVED)


def ran(nth: int) -> dict[str, Any]:
    """The names that the page's `nth` example defines."""
    made: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", STRATEGIES, re.DOTALL)[nth], made)  # the page's own code
    return made


def test_strategy_of_the_page_fulfils_its_contract() -> None:
    made = ran(0)
    members = [Subscriber("a", {"t": 1}), Subscriber("b", {"t": 1, "u": 2})]

    found = assigned(made["FirstAssignor"](), members, {"t": (0, 1), "u": (0,)})

    assert found == {"a": {"a-0": parts("t:0-1")}, "b": {"b-0": parts("u:0")}}


def test_client_assignor_of_the_page_uses_the_cores_that_each_member_declares() -> None:
    assignor = ran(1)["CoresAssignor"]()
    (given,) = named(["cores"], [assignor])
    topics = {"t": Topic("t", "id", tuple(range(6))), "other": Topic("other", "id", (0,))}
    metadata = {name: ConsumerMetadata({"t": 1}, user_data=cores).to_bytes() for name, cores in CORES.items()}

    found = given.assign(Cluster(topics, {}, cast(Any, SimpleNamespace(racks=None, **NOTHING))), metadata)

    assert {name: len(one.partitions) for name, one in found.items()} == {"a": 4, "b": 2}
    assert int(ConsumerMetadata.parse("", given.metadata(ConsumerMetadata({"t": 1}))).user_data) >= 1


CORES = {"a": b"8", "b": b"4"}
NOTHING = dict.fromkeys(("committed", "end_offsets", "beginning_offsets"))


# ---- drills.md, and the drills before a release in evidence.md


CATALOG = [cells for cells in rows(page("drills.md")) if cells[0].startswith("`") and len(cells) == 4]
RELEASE = section(page("evidence.md"), "Drills before a release")
DRILLED = (
    r"^\| `([a-z-]+)` \| (PASS|FAIL|INCONCLUSIVE) \| ([0-9-]{10}) \| `[0-9a-f]{7}` \| `(scripts/drill run .+)` \|$"
)
"""Of the table: a drill, its verdict, the day, the commit, the command."""
SECONDS = Settings().bounds(0.2)


@pytest.mark.parametrize("drill", DRILLS.values(), ids=DRILLS.keys())
def test_page_lists_the_action_evidence_and_promises_of_each_drill(drill: Drill) -> None:
    row = next((" | ".join(cells) for cells in CATALOG if cells[0].startswith(f"`{drill.name}`")), "")

    assert drill.fault in row
    assert drill.proves in row
    assert all(f"{promise.name}: {promise.rule}" in row for promise in drill.promises)
    assert ("(long)" in row) != drill.is_short
    assert len(CATALOG) == len(DRILLS), "it lists no other"


def test_every_drill_is_run_by_a_test_or_was_run_before_the_release() -> None:
    drilled = re.findall(DRILLED, RELEASE, re.MULTILINE)

    assert len(drilled) == RELEASE.count("\n| `"), "a row has a drill, a verdict, a day, a commit and a command"
    assert {name for name, *_ in drilled} == DRILLS.keys() - RUN_BY_TESTS
    assert all(date.fromisoformat(day) and name in command.split() for name, _, day, command in drilled)
    assert "`scripts/drill run --all --kafka`" in RELEASE
    not_passed = [name for name, verdict, *_ in drilled if verdict != "PASS"]
    assert [name for name in not_passed if f"\n`{name}`: " not in RELEASE] == [], "each has a note below the table"


@pytest.mark.parametrize("drill", DRILLS.values(), ids=DRILLS.keys())
def test_promise_depends_on_the_session_timeout_where_a_failure_must_be_detected(drill: Drill) -> None:
    longer = Settings(session_timeout_ms=4000).bounds(0.2)

    for promise in drill.promises:
        assert promise.bound(longer) >= promise.bound(SECONDS) >= 0
        assert (promise.bound(longer) > promise.bound(SECONDS)) == any(
            word in promise.rule for word in ("session timeout", "lease")
        )


def test_an_application_that_hangs_is_not_named_as_the_spark_application() -> None:
    stage = MagicMock(bounds={"poll_interval": 0.0, "lease": 0.0})
    stage.group.return_value.state.target = {}

    DRILLS["application-stops-polling"].run(stage)

    stage.start_application.assert_called_once_with("application", "between polls")


# ---- zk_paths.md has every required field, default and bound of a znode: as the code reads records without one of them


TEXT = section(page("../zk_paths.md"), "Missing fields and bounds")
REQUIRED, BOUNDS = TEXT.split("\nBounds ")
PLAIN = Registration("i", {"t": 2}, STATIC, protocols=("sticky",), max_poll_interval_ms=2, client=OFFER)
RECORDS = [each for each in WRITTEN if not each[0].startswith("/brokers")] + [
    ("ids/[consumer]", PLAIN),
    ("seats/[instance]", Seat(PLAIN, 1)),
]
Keys = tuple[Any, ...]


def read(record: Any, values: Any) -> Any:
    """The values of a record as the code reads it.

    :raises BadData: when it cannot.
    """
    return json.loads(type(record).parse("a znode", json.dumps(values).encode()).to_bytes())


def paths_of(value: Any, above: Keys = ()) -> Iterator[Keys]:
    """The paths of all fields in a record's values."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        if isinstance(value, dict) and key not in NAMES | {"version"}:
            yield (*above, key)
        yield from paths_of(each, (*above, key))


def name_of(path: Keys) -> str:
    return ".".join(key for key in path if isinstance(key, str) and key not in NAMES)


def without(values: Any, path: Keys) -> Any:
    copied = json.loads(json.dumps(values))
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return copied


def at(values: Any, path: Keys) -> Any:
    """The value at a path; None where the record leaves it out."""
    for key in path:
        if isinstance(values, dict) and key not in values:
            return None
        values = values[key]
    return values


def as_read() -> tuple[dict[str, set[str]], dict[str, dict[str, Any]]]:
    """Section -> its required fields, and those with a default that is not the empty value of its type."""
    required: defaultdict[str, set[str]] = defaultdict(set)
    defaults: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    has_default: defaultdict[str, set[str]] = defaultdict(set)
    for title, record in RECORDS:
        values = json.loads(record.to_bytes())
        for path in paths_of(values):
            try:
                default = at(read(record, without(values, path)), path)
            except BadData:
                required[title].add(name_of(path))
                continue
            has_default[title].add(name_of(path))
            if default:
                defaults[title][name_of(path)] = default
    for title, names in has_default.items():
        required[title] -= names
    return {title: names for title, names in required.items() if names}, dict(defaults)


def table() -> tuple[dict[str, set[str]], dict[str, dict[str, Any]]]:
    """The same from the document."""
    required, defaults = {}, {}
    for title, needed, others in list(rows(REQUIRED))[1:]:
        names = set(re.findall(r"`([a-z0-9_.]+)`", re.sub(r"\(.*?\)|;.*", "", needed)))
        found = {name: json.loads(value) for name, value in re.findall(r"`([\w.]+)` = `([^`]+)`", others)}
        if "those of `ids/[consumer]`" in needed:
            names |= required["ids/[consumer]"]
            found |= defaults["ids/[consumer]"]
        required[title.strip("`")], defaults[title.strip("`")] = names, found
    return {t: names for t, names in required.items() if names}, {t: some for t, some in defaults.items() if some}


@pytest.mark.parametrize("what", [0, 1], ids=["required fields", "defaults"])
def test_fields_of_the_document_are_those_of_the_code(what: int) -> None:
    assert table()[what] == as_read()[what]


@pytest.mark.parametrize(("title", "field", "least", "most"), list(rows(BOUNDS))[1:])
def test_bounds_of_the_document_are_the_last_that_are_read(title: str, field: str, least: str, most: str) -> None:
    title, field = title.strip("`"), field.strip("`")
    record = next(record for name, record in RECORDS if name == title)
    values = json.loads(record.to_bytes())
    low, high = (int(text.replace(",", "")) for text in (least, most))

    def is_read(number: int) -> bool:
        try:
            read(record, {**values, field: "x" * number if isinstance(values[field], str) else number})
        except BadData:
            return False
        return True

    assert (is_read(low), is_read(high), is_read(high + 1)) == (True, True, False)
    assert low == 0 or not is_read(low - 1)


def test_grants_in_a_state_of_an_earlier_release_are_passed_over_and_not_written() -> None:
    data = GroupState(generation=3).to_bytes()[:-1] + b',"granted":{"c1":{"incarnation":7,"partitions":"all"}}}'

    state = GroupState.parse("state", data)

    assert state == GroupState(generation=3)
    assert b"granted" not in state.to_bytes()
