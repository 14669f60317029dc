"""The connect string that `--zk` takes: parsed, or refused in one sentence with an example."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner
from kazoo.hosts import collect_hosts

from consumer.cli import main as consumer_main
from consumer.config import ConsumerConfig
from consumer.spark.source.options import SourceConfig
from coordinator.cli import main
from coordinator.term.config import CoordinatorConfig
from coordinator.zk.errors import UsageError
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.values import checked_hosts, parsed_hosts


@pytest.mark.parametrize(
    ("hosts", "addresses", "chroot"),
    [
        ("zk1:2181", [("zk1", 2181)], ""),
        ("zk1,zk2:2182/groups", [("zk1", 2181), ("zk2", 2182)], "/groups"),
        ("zk1:2181,zk2:2182/team/test", [("zk1", 2181), ("zk2", 2182)], "/team/test"),
        ("zk1:2181/", [("zk1", 2181)], ""),
        ("zk1:2181//a//b/", [("zk1", 2181)], "/a/b"),
        ("[::1]:2181", [("::1", 2181)], ""),
        ("[::1]", [("::1", 2181)], ""),
        (" zk1:2181 , zk2:2182 /groups \n", [("zk1", 2181), ("zk2", 2182)], "/groups"),
    ],
)
def test_zk_option_names_servers_and_an_optional_chroot(
    hosts: str, addresses: list[tuple[str, int]], chroot: str
) -> None:
    assert parsed_hosts(hosts) == (addresses, chroot)


@pytest.mark.parametrize("hosts", ["zk1, zk2:2182 /a/b/ ", "[::1],zk1"])
def test_session_gets_the_same_servers_without_blanks(hosts: str) -> None:
    checked = checked_hosts(hosts)

    assert " " not in checked and parsed_hosts(checked) == parsed_hosts(hosts)
    assert collect_hosts(checked) == (list(parsed_hosts(hosts)[0]), parsed_hosts(hosts)[1] or None)


MALFORMED = [
    "", " ", "zk1:", ":2181", "zk1:0", "zk1:abc", "zk1:65536", "zk1:2181,", "/groups",
    "zk1:2181/a/../b", "zk1:2181/zookeeper/x", "user@zk1:2181", "zk1:2181/a\nb", "zk1:99999999999",
    "zk1:2181/x,zk2:2181/x", "zk1:2181/x,zk2:2181", "zk1:2181, ", "zk 1:2181", "http://zk1:2181", "::1", ",", "zk1 zk2",
]  # fmt: skip


@pytest.mark.parametrize("hosts", MALFORMED)
@pytest.mark.parametrize(
    "build",
    [
        parsed_hosts,
        lambda hosts: open_kazoo(hosts, 1000),
        lambda hosts: ConsumerConfig(hosts, "g", "c1"),
        lambda hosts: CoordinatorConfig(hosts, "a"),
        lambda hosts: SourceConfig(hosts, "g"),
    ],
    ids=["parsed", "session", "consumer", "node", "source"],
)
def test_value_without_servers_is_refused_in_one_sentence(build: Callable[[str], object], hosts: str) -> None:
    with pytest.raises(UsageError) as refused:
        build(hosts)

    assert "--zk" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("hosts", ["", "/groups", "zk1:abc"])
def test_commands_refuse_it_as_a_usage_error_without_an_exceptions_text(hosts: str) -> None:
    for command, words in (
        (main, ["status"]),
        (main, ["run", "--node", "a"]),
        (consumer_main, ["run", "--group", "g", "--topics", "t", "--log-dir", "/tmp"]),
    ):
        done = CliRunner().invoke(command, [*words, "--zk", hosts])

        assert done.exit_code == 2
        assert "as in --zk zk1:2181,zk2:2181/groups" in done.output
        assert "Error(" not in done.output
