"""docs/metrics.md names every metric that is served, with its type and labels, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from consumer.metrics import ConsumerMetrics
from coordinator.planning.rebalance_history import TRIGGERS
from coordinator.term.metrics import CoordinatorMetrics
from coordinator.zk.znodes.group_state import GROUP_STATES

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
ROW = re.compile(r"^\| `(zk_group_\w+)` \| (\w+) \|([^|]*)\|([^|]*)\| (.+?) \|([^|]*)\|$", re.MULTILINE)
REGISTRIES = {"Coordinator": CoordinatorMetrics().registry, "Consumers and slots": ConsumerMetrics().registry}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


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
    rows = ROW.findall(section(title))

    listed = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, *_ in rows}

    assert listed == served(REGISTRIES[title])
    assert len(rows) == len(listed)


@pytest.mark.parametrize("title", sorted(REGISTRIES))
def test_names_end_with_their_unit_as_prometheus_recommends(title: str) -> None:
    for name, kind, _, unit, _, _ in ROW.findall(section(title)):
        assert (unit.strip() == "seconds") == name.removesuffix("_total").endswith("_seconds"), name
        assert (kind == "counter") == name.endswith("_total"), name
        assert kind != "histogram" or name.endswith("_seconds"), name


def test_the_page_names_every_value_that_a_label_may_have() -> None:
    named = set(re.findall(r"`([\w-]+)`", section("Coordinator")))

    assert set(TRIGGERS) - named == set()
    assert set(GROUP_STATES) - named == set()
    assert {"taken", "put_off", "failed", "completed", "replaced", "stop-fetcher", "start-fetcher"} - named == set()


def test_alerts_query_existing_metrics_and_have_a_remedy() -> None:
    known = {name for registry in REGISTRIES.values() for name in served(registry)}
    rules = re.findall(
        r"- alert: (\w+)\n\s+expr: (.*)\n(?:\s+for: \w+\n)?\s+annotations:\n\s+do: \S", section("Alerts")
    )

    assert len(rules) == section("Alerts").count("alert:") >= 8
    for alert, expression in rules:
        asked = set(re.findall(r"zk_group_\w+", expression))
        assert asked, alert
        assert asked <= known, alert
