"""The steps of docs/security.md from an open chroot to a secured one and back, while a group runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.zk.embedded.ensemble import Ensemble
from coordinator.zk.security.access import environment_of
from coordinator.zk.session.kazoo_store import open_kazoo
from tests.support.clients import fresh_chroot
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World

ROOT = Path(__file__).parents[2]
SECTION = "\n## From an open chroot in use to a secured one\n"


@pytest.mark.real_zookeeper("it is about ACLs")
def test_commands_of_the_page_secure_a_chroot_in_use_and_open_it_again(sasl_server: Ensemble) -> None:
    section = (ROOT / "docs/security.md").read_text().split(SECTION)[1].split("\n## ")[0]
    commands = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    assert len(commands) == 8
    zk, access = fresh_chroot(sasl_server.hosts), sasl_server.identities.access
    environment = {**os.environ, **environment_of(access("operator")), "ZK_GROUP_ZK": zk}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    world, log = World(zk, open_kazoo(zk, 30_000, access=access("operator"))), MemoryLog(100)
    try:
        node = world.coordinator(zk_auth_file=access("coordinator").zk_auth_file)
        world.topic("t", 2)
        one = world.consumer("orders", "c1", {"t": 1}, log=log, zk_auth_file=access("team-a").zk_auth_file)
        generation = world.stable("orders", 1).generation

        for command in commands:
            done = subprocess.run(
                ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            log.end += 100
            eventually(lambda: len(one.polled) == 2 * log.end, 15, f"the group reads on after {command}")
            if command == "zk-coordinator acl check":
                assert "acl: secure" in done.stdout and "members of orders: sasl:team-a" in done.stdout

        assert (world.stable("orders", 1).generation, one.error) == (generation, None)
        assert node.term is not None and node.term.epoch == 1
    finally:
        world.close()
