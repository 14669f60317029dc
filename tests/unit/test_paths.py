"""Every path, as documented in the README and `zk_paths.md`."""

from __future__ import annotations

import pytest

from coordinator.zk.znodes import paths
from coordinator.zk.znodes.paths import Brokers, GroupPaths, sequence

G = GroupPaths("flights")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (paths.COORDINATOR, "/consumers/coordinator"),
        (paths.COORDINATOR_EPOCH, "/consumers/coordinator_epoch"),
        (Brokers().topics, "/brokers/topics"),
        (Brokers().topic("t"), "/brokers/topics/t"),
        (Brokers("/kafka/brokers").topic("t"), "/kafka/brokers/topics/t"),
        (Brokers().ids, "/brokers/ids"),
        (Brokers("/kafka/brokers").id("0"), "/kafka/brokers/ids/0"),
        (G.state, "/consumers/groups/flights/state"),
        (G.rebalance(12), "/consumers/groups/flights/history/rebalance-0000000012"),
        (G.id("c1"), "/consumers/groups/flights/ids/c1"),
        (G.channel("c1"), "/consumers/groups/flights/channel/c1"),
        (G.command("c1", "command-0000000001"), "/consumers/groups/flights/channel/c1/command-0000000001"),
        (G.command_prefix("c1"), "/consumers/groups/flights/channel/c1/command-"),
        (G.owner("t", 3), "/consumers/groups/flights/owners/t/3"),
        (G.offset("t", 3), "/consumers/groups/flights/offsets/t/3"),
        (G.segment("segment-0000000001"), "/consumers/groups/flights/segments/segment-0000000001"),
        (G.segment_prefix, "/consumers/groups/flights/segments/segment-"),
        (G.query("q"), "/consumers/groups/flights/queries/q"),
    ],
)
def test_path_is_the_documented_one(path: str, expected: str) -> None:
    assert path == expected


@pytest.mark.parametrize(
    ("path", "parents"),
    [
        (G.owner("t", 3), (G.owners, G.owners_of("t"))),
        (G.offset("t", 3), (G.offsets, G.offsets_of("t"))),
        (G.rebalance(12), (G.history,)),
        (G.segment("segment-0000000001"), (G.segments,)),
        (G.state, ()),
        (G.command("c1", "command-0000000001"), ()),
        (G.owners, ()),
        (paths.COORDINATOR, ()),
        ("/brokers/topics/t/owners/x", ()),
    ],
)
def test_parents_of_owners_offsets_history_and_segments_are_known(path: str, parents: tuple[str, ...]) -> None:
    assert paths.parents_of(path) == parents


@pytest.mark.parametrize("number", [1, 10**10 - 1, 10**10, 2**52, 2**53 - 1])
def test_every_number_that_a_coordinator_counts_is_read_from_the_name_it_is_given(number: int) -> None:
    def name(path: str) -> str:
        return path.rpartition("/")[2]

    assert paths.history_generation(name(G.rebalance(number))) == number
    assert paths.checkpoint_number(name(paths.RegionPaths("r").checkpoint(number))) == number
    assert paths.ask_number(paths.ask_name(number)) == number


@pytest.mark.parametrize("digits", ["1", "00000000001", "-0000000001", "", "9" * 19, "000000000a", "\uff10000000001"])
def test_other_names_have_no_number(digits: str) -> None:
    assert paths.history_generation(f"rebalance-{digits}") == 0
    assert paths.checkpoint_number(f"checkpoint-{digits}") == 0
    assert paths.checkpoint_number(f"rebalance-{1:010d}") == 0


def test_parents_of_a_group_are_in_order_of_creation() -> None:
    made = set("/")
    for path in G.skeleton:
        assert (path.rsplit("/", 1)[0] or "/") in made
        made.add(path)
    for path in (G.id("c"), G.channel("c"), G.owners_of("t"), G.offsets_of("t"), G.segment("s"), G.query("q")):
        assert path.rsplit("/", 1)[0] in made
    assert G.rebalance(1).rsplit("/", 1)[0] in made


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("command-0000000000", 0),
        ("command-0000000012", 12),
        ("segment-2147483647", 2**31 - 1),
        ("segment--2147483648", -(2**31)),
    ],
)
def test_the_number_that_zookeeper_appended_is_read(name: str, number: int) -> None:
    assert sequence(name) == number


@pytest.mark.parametrize(
    "name",
    ["", "command", "command-", "command-1", "command-00000000001", "command-000000000x", "command-" + "\u0661" * 10],
)
def test_a_name_that_zookeeper_did_not_number_has_no_number(name: str) -> None:
    assert sequence(name) is None
