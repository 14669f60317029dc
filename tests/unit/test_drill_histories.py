"""Authors of transactions in a drill's history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coordinator.zk.znodes.group_state import GroupState
from drills.checker import check
from drills.evidence.files import merged_history, with_strangers
from tests.support.made_histories import BOUNDS

NODE, DRILL, NOBODYS = 1, 2, 255
STATE = {"op": "set", "path": "/consumers/groups/g/state", "data": GroupState().to_bytes().decode(), "version": 3}


def commit(session: int, who: str = "hand") -> dict[str, Any]:
    return {"at": 3.0, "who": who, "event": "commit", "session": session, "zxid": 9, "ops": [STATE]}


def test_history_begins_with_its_run_though_zookeeper_has_earlier_transactions(tmp_path: Path) -> None:
    zookeeper, drill = tmp_path / "zookeeper.jsonl", tmp_path / "drill.jsonl"
    zookeeper.write_text("".join(json.dumps({**commit(NODE), "at": at}) + "\n" for at in (1.0, 3.0, 9.0)))
    begun = {"at": 2.0, "who": "server", "event": "run", "version": 1, "seed": 1, "profile": "drill", "bounds": BOUNDS}
    frame = [begun, {"at": 8.0, "who": "server", "event": "end"}]
    drill.write_text("".join(json.dumps(event) + "\n" for event in frame))

    events, problems = merged_history([zookeeper, drill])

    assert [(event["at"], event["event"]) for event in events] == [(2.0, "run"), (3.0, "commit"), (8.0, "end")]
    assert problems == []


def test_writes_of_the_drill_are_manual_and_those_of_processes_have_their_name() -> None:
    events = [commit(NODE, "node-1#1"), commit(DRILL)]

    assert with_strangers(events, {NODE, DRILL}) == events


def test_unreported_session_is_a_stranger() -> None:
    closed = {"at": 4.0, "who": "hand", "event": "closed", "session": NOBODYS, "zxid": 10, "why": "closed", "paths": []}

    commits, closes = with_strangers([commit(NOBODYS), closed], {NODE, DRILL})

    assert commits["who"] == "stranger#ff"
    assert closes is closed


def test_unknown_session_writing_as_coordinator_breaks_s4_unlike_a_manual_edit() -> None:
    [stranger] = with_strangers([commit(NOBODYS)], {NODE, DRILL})

    assert [verdict.invariant for verdict in check([stranger]).broken] == ["S4"]
    assert not check([commit(DRILL)]).broken
