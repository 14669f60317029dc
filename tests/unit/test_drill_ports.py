"""The ports of a drill's proxies."""

from __future__ import annotations

import pytest

from coordinator.zk.embedded.directory import Ports, choose_ports, is_free
from drills.faults import proxy
from drills.testbed.commands import Proxies


def test_proxies_of_a_process_never_choose_a_port_that_another_is_about_to_bind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = choose_ports(3, None)[0].client

    def first_free(servers: int, base_port: int | None) -> list[Ports]:
        return [next(Ports(port, port, port) for port in range(base, base + 9) if is_free(port))]

    monkeypatch.setattr(proxy, "choose_ports", first_free)
    proxies = Proxies(["127.0.0.1:1"] * 3, "", None)
    try:
        hosts = proxies.hosts("node-1").split(",")
    finally:
        proxies.close()

    assert len(set(hosts)) == 3
