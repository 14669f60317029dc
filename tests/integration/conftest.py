"""What most of these tests start from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinator.zk.embedded.ensemble import Ensemble
from drills.faults.proxy import Proxy
from tests.support.event_group import EventGroup
from tests.support.hand import ManualStage, a_stage
from tests.support.world import World, a_world


@pytest.fixture
def world(zk: str) -> Iterator[World]:
    """Coordinators and consumers in threads."""
    with a_world(zk) as world:
        yield world


@pytest.fixture
def stage(world: World) -> Iterator[ManualStage]:
    """Coordinators and consumers whose every move the test makes, in the same chroot as `world`."""
    with a_stage(world.zk) as stage:
        yield stage


@pytest.fixture
def zookeeper_proxy(zookeeper: Ensemble) -> Iterator[Proxy]:
    """A proxy in front of the server that `world` uses; whatever it held back flows again before `world` closes."""
    with Proxy(zookeeper.hosts) as proxy:
        yield proxy


@pytest.fixture
def group(world: World, tmp_path: Path) -> Iterator[EventGroup]:
    """A topic that is written to, and no process yet. What was started is ended at the end, all at once."""
    with ExitStack() as processes:
        group = EventGroup(world, tmp_path, processes)
        yield group
        group.terminate()
