"""Outcome of a command, derived from the data of its channel."""

from __future__ import annotations

from dataclasses import replace

from coordinator.admin.channel_watch import (
    ACKNOWLEDGED,
    COMMAND,
    GONE_UNREAD,
    REMOVED,
    WITHDRAWN,
    SeenCommand,
    ended,
    registered,
    removed,
    sent,
)
from coordinator.zk.znodes.group_state import ClientProtocols
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import (
    ASSIGN,
    ASSIGNMENT_FAILED,
    START_FETCHER,
    STOP_FETCHER,
    Channel,
    Command,
    Registration,
)

PARTS = frozenset(TopicPartition("t", number) for number in (0, 1, 2, 7))
NAME = "command-0000000004"
START = Command(START_FETCHER, 7, 3, "i1", {"c1-0": PARTS}, topics={"t": "t-1"})
SEEN = SeenCommand("c1", NAME, START, since_s=10.0)
LIVE = Channel("i1", 7, 2, "command-0000000003")


def how(channel: Channel | None, seen: SeenCommand = SEEN) -> tuple[str, str | None]:
    reported = removed(seen, channel, 1000, 10.0125)
    return reported.event, reported.note


def test_command_is_reported_with_all_its_fields() -> None:
    reported = sent(SEEN, 1000).to_json("g")

    assert reported == {
        "event": COMMAND, "at_ms": 1000, "group": "g", "consumer": "c1", "command": NAME, "option": START_FETCHER,
        "epoch": 7, "generation": 3, "incarnation": "i1", "partitions": {"t": "0-2,7"}, "took_ms": None, "note": None,
        "ask": None, "reason": None,
    }  # fmt: skip


def test_full_stop_names_no_partitions_and_an_idle_start_names_an_empty_set() -> None:
    stop = replace(SEEN, command=Command(STOP_FETCHER, 7, 3, "i1"))
    idle = replace(SEEN, command=Command(START_FETCHER, 7, 3, "i1"))

    assert sent(stop, 1).partitions is None
    assert sent(idle, 1).partitions == {}


def test_a_command_that_the_channel_names_as_the_last_one_applied_was_acknowledged() -> None:
    reported = removed(SEEN, replace(LIVE, generation=3, command=NAME), 1000, 10.0125)

    assert (reported.event, reported.took_ms, reported.note) == (ACKNOWLEDGED, 12.5, None)


def test_refused_partitions_are_reported_with_the_acknowledgement() -> None:
    refused = replace(LIVE, command=NAME, refused=frozenset([TopicPartition("t", 7)]))

    assert how(refused) == (ACKNOWLEDGED, "refused, as an owner was in the way: t(7)")


def test_acknowledgement_counts_although_the_consumer_left_afterwards() -> None:
    assert how(replace(LIVE, command=NAME, ended="left"))[0] == ACKNOWLEDGED


def test_a_command_that_the_channel_does_not_name_was_withdrawn() -> None:
    assert how(LIVE) == (WITHDRAWN, None)
    assert how(replace(LIVE, command="")) == (WITHDRAWN, None)
    assert how(replace(LIVE, ended="evicted: it hangs")) == (WITHDRAWN, "evicted: it hangs")
    assert how(replace(LIVE, incarnation="i2", command=NAME)) == (WITHDRAWN, "the channel is another incarnation's")


def test_a_command_of_an_older_epoch_was_not_applied() -> None:
    assert how(replace(LIVE, epoch=8, generation=3)) == (
        WITHDRAWN,
        "it was older than what its consumer had applied",
    )


def test_removed_command_with_an_unknown_outcome_is_not_guessed() -> None:
    assert how(None)[0] == REMOVED
    assert how(replace(LIVE, command="command-0000000009"))[0] == REMOVED


def test_command_with_a_channel_read_late_is_decided_by_their_shared_multi() -> None:
    late = replace(LIVE, generation=9, command="command-0000000009")

    assert removed(SEEN, late, 1, 11.0, with_channel=True).event == ACKNOWLEDGED
    assert removed(SEEN, late, 1, 11.0, with_channel=False).event == WITHDRAWN


def test_command_removed_before_it_was_read_is_reported_from_the_channel() -> None:
    unread = SeenCommand("c1", NAME, None, 10.0, GONE_UNREAD)
    channel = Channel("i1", 7, 3, NAME, {TopicPartition("t", 1): 5}, {"t": "t-1"})

    reported = removed(unread, channel, 1000, 10.0125)

    assert sent(unread, 1).note == GONE_UNREAD
    assert (reported.event, reported.epoch, reported.generation, reported.incarnation) == (ACKNOWLEDGED, 7, 3, "i1")
    assert reported.partitions == {"t": "1"} and reported.took_ms is None
    assert reported.note is not None and reported.note.startswith(GONE_UNREAD)


def test_command_present_before_the_start_has_no_duration() -> None:
    before = replace(SEEN, since_s=None)

    assert sent(before, 1).note == "it was there already"
    assert removed(before, LIVE, 1, 99.0).took_ms is None


def test_end_of_an_incarnation_has_a_reason() -> None:
    assert ended("c1", "i1", LIVE, 1).note == "its session ended"
    assert ended("c1", "i1", replace(LIVE, ended="left"), 1).note == "left"
    assert ended("c1", "i0", LIVE, 1).note == "another process has registered under its name"
    assert ended("c1", None, None, 1).note == "its channel cannot be read"


def test_registration_is_reported_with_its_subscription() -> None:
    assert registered("c1", Registration("i1", {"t": 2, "s": 1}, host="exec-3"), None, 1).note == (
        "host exec-3, static s:1, t:2"
    )
    assert registered("c1", None, "no JSON", 1).note == "no JSON"


def test_commands_of_client_side_assignment_name_their_ask_and_no_partitions() -> None:
    asked = replace(SEEN, command=Command(ASSIGN, 7, 3, "i1", ask="ask-0000000002"))
    failed = replace(SEEN, command=Command(ASSIGNMENT_FAILED, 7, 3, "i1", ask="ask-0000000002", reason="no data"))

    reported = [sent(each, 1).to_json("g") for each in (asked, failed)]

    assert [(each["option"], each["partitions"], each["ask"], each["reason"]) for each in reported] == [
        ("assign", None, "ask-0000000002", None),
        ("assignment-failed", None, "ask-0000000002", "no data"),
    ]


def test_answer_acknowledges_the_command_without_a_new_generation() -> None:
    asked = replace(SEEN, command=Command(ASSIGN, 7, 3, "i1", ask="ask-0000000002"))

    assert removed(asked, replace(LIVE, command=NAME), 1000, 10.5).event == ACKNOWLEDGED


def test_registration_is_reported_with_its_client_side_assignors() -> None:
    client = ClientProtocols(("lag", "sticky"), {"lag": "e30="})

    assert registered("c1", Registration("i1", {"t": 1}, host="h", client=client), None, 1).note == (
        "host h, static t:1, client-side lag, sticky"
    )
    assert registered("c1", Registration("i1", {}, "client", "h", client=client), None, 1).note == (
        "host h, client, client-side lag, sticky"
    )
