"""Whether a node is at work: elected with its lease, or standing by with a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator.service import CoordinatorService, _Session
from coordinator.term.config import CoordinatorConfig
from coordinator.zk.store import SessionState, StateListener
from tests.unit.manual import ManualRuntime


class Session:
    """The parts of a store that are looked at."""

    negotiated_timeout_s = 10.0

    def __init__(self) -> None:
        self.lost = False
        self.tell: StateListener = lambda state: None

    def add_listener(self, listener: StateListener) -> None:
        self.tell = listener


def a_node(runtime: ManualRuntime) -> CoordinatorService:
    def unopened() -> Any:
        raise AssertionError

    return CoordinatorService(CoordinatorConfig("z:1"), unopened, runtime, {})


def test_a_node_stands_by_while_its_session_lives() -> None:
    node, store = a_node(runtime := ManualRuntime()), Session()
    assert node.unhealthy() == "no session with ZooKeeper"
    made: Any = store
    node._session = _Session(made, runtime)
    assert node.unhealthy() == ""

    store.tell(SessionState.SUSPENDED)
    runtime.now += 9
    assert node.unhealthy() == ""
    runtime.now += 2
    assert node.unhealthy() == "the session with ZooKeeper is over"
    store.tell(SessionState.CONNECTED)
    assert node.unhealthy() == ""
    store.lost = True
    assert node.unhealthy() == "the session with ZooKeeper is over"


def test_an_elected_node_is_at_work_while_it_holds_its_lease() -> None:
    node, lease = a_node(ManualRuntime()), SimpleNamespace(is_held=True)
    term: Any = SimpleNamespace(lease=lease)
    node.term = term
    assert node.unhealthy() == ""

    lease.is_held = False

    assert node.unhealthy() == "elected, and its lease has expired"
