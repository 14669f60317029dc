"""Records of a group's history as they are written and read. What a turn records is in `turns/history.txt`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from coordinator.planning.rebalance_history import history_of, in_order
from coordinator.zk.znodes.group_state import Rebalance
from tests.support.turns import snapshot_of


def test_records_of_an_older_release_are_read_with_their_replacement() -> None:
    old = {"version": 1, "epoch": 1, "trigger": "joined a", "started_ms": 10}
    data = [{**old, "generation": 13, "stopped_ms": 11, "finished_ms": 15}, {**old, "generation": 12}]
    records = [Rebalance.parse("where", json.dumps(values).encode()) for values in data]

    twelve, thirteen = in_order(records)

    assert (twelve.generation, twelve.replaced_by) == (12, 13)
    assert (thirteen.to_last_stop_ms, thirteen.to_last_start_ms, thirteen.standstill_ms) == (1, 5, None)
    assert thirteen.replaced_by is None


def test_zkcli_shows_the_durations() -> None:
    times: dict[str, Any] = {
        "stopped_ms": 120,
        "finished_ms": 150,
        "standstill_ms": 45,
        "assignment_ms": 450,
        "attempts": 3,
    }
    record = Rebalance(2, 1, "why", 100, **times)
    written = json.loads(record.to_bytes())

    assert (written["to_last_stop_ms"], written["to_last_start_ms"], written["standstill_ms"]) == (20, 50, 45)
    assert (written["assignment_ms"], written["attempts"]) == (450, 3)
    assert Rebalance.parse("where", record.to_bytes()) == record


def test_a_last_fetch_before_the_epoch_is_one_at_its_beginning() -> None:
    snapshot = replace(snapshot_of("group 5/1 Stable range\nages now=50"), silences={"a": 9_100})

    record = history_of(snapshot, replace(snapshot.state, generation=2), True, False, "", ["a"])

    assert record is not None and (record.standing_since_ms, record.silent_since_ms) == (None, 0)
