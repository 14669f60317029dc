"""Packets are parsed from bytes, and malformed bytes are refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from coordinator.zk.errors import BadData
from coordinator.zk.store import Check, Create, Delete, SetData
from drills.faults import packets
from drills.faults.packets import CREATE, CREATE2, SET_DATA, Head, Opened, OperationResult, Part, ReadZnode, WatchEvent
from tests.support import made_packets

REQUEST = made_packets.multi(
    7,
    [
        Create("/é", b"\xff", ephemeral=True),
        Create("/b/c-", sequential=True),
        SetData("/a", b"x", 3),
        Delete("/d"),
        Check("/e", 9),
    ],
)
REPLY = made_packets.reply(
    7,
    99,
    0,
    made_packets.result(CREATE, made_packets.text("/é"))
    + made_packets.result(CREATE2, made_packets.text("/b/c-0000000004") + made_packets.stat(version=0))
    + made_packets.result(SET_DATA, made_packets.stat(version=4))
    + made_packets.result(2)
    + made_packets.result(13)
    + made_packets.DONE,
)
EVENT = made_packets.event(0x100000002, "deleted", "/a")
READ = made_packets.reply(3, 50, 0, made_packets.text("data") + made_packets.stat(mzxid=41, version=2, owner=77))


def test_multi_is_parsed_into_its_operations() -> None:
    assert (packets.xid(REQUEST), packets.op_code(REQUEST)) == (7, packets.MULTI)
    assert packets.parts_of(REQUEST) == (
        Part("create", "/é", "\\xff", ephemeral=True),
        Part("create", "/b/c-", "", sequential=True),
        Part("set", "/a", "x", 3),
        Part("delete", "/d"),
        Part("check", "/e", None, 9),
    )


def test_reply_to_a_multi_has_the_resulting_paths_and_versions() -> None:
    assert packets.head(REPLY) == Head(7, 99, 0)
    assert packets.results_of(REQUEST, REPLY) == (
        OperationResult("/é"), OperationResult("/b/c-0000000004", 0), OperationResult("", 4), OperationResult(),
        OperationResult(),
    )  # fmt: skip


@pytest.mark.parametrize(
    "reply",
    [
        made_packets.reply(7, 99, -101),
        made_packets.reply(7, 99, 0, made_packets.result(-1, struct.pack(">i", -103)) + made_packets.DONE),
    ],
    ids=["in its head", "in a part"],
)
def test_a_refused_multi_has_no_results(reply: bytes) -> None:
    assert packets.results_of(REQUEST, reply) is None


@pytest.mark.parametrize(
    ("code", "body", "part"),
    [
        (
            1,
            made_packets.text("/") + made_packets.text("x") + struct.pack(">ii", 0, 3),
            Part("create", "/", "x", -1, True, True),
        ),
        (15, made_packets.text("/a") + made_packets.text("") + struct.pack(">ii", 0, 0), Part("create", "/a", "")),
        (5, made_packets.text("/a") + made_packets.text("x") + struct.pack(">i", 2), Part("set", "/a", "x", 2)),
        (2, made_packets.text("/a") + struct.pack(">i", -1), Part("delete", "/a")),
    ],
)  # fmt: skip
def test_single_operation_is_parsed_as_one_part(code: int, body: bytes, part: Part) -> None:
    assert packets.parts_of(struct.pack(">ii", 1, code) + body) == (part,)


def test_close_request_and_its_reply_have_no_body() -> None:
    assert packets.parts_of(made_packets.close(4)) == ()
    assert packets.results_of(made_packets.close(4), made_packets.reply(4, 12)) == ()


def test_connect_reply_has_a_session_unless_the_session_has_ended() -> None:
    assert packets.opened(made_packets.connected(0x1234, 4000)) == Opened(0x1234, 4000)
    assert packets.opened(made_packets.connected(0, 0)) is None


def test_watch_event_has_its_zxid_unless_it_concerns_no_znode_data() -> None:
    assert packets.watch_event_of(EVENT) == WatchEvent(0x100000002, "deleted", "/a")
    assert packets.watch_event_of(made_packets.event(-1, "created", "/a")) == WatchEvent(-1, "created", "/a")
    assert packets.watch_event_of(made_packets.event(5, "children", "/a")) is None


def test_read_has_the_zxid_of_the_data_that_it_returned() -> None:
    assert packets.asked_path(made_packets.get(3, "/a")) == "/a"
    assert packets.found(READ) == ReadZnode("data", 41, 2, 77)
    assert packets.found(made_packets.reply(3, 50, -101)) is None


PARSERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "request": (packets.parts_of, REQUEST),
    "reply": (lambda body: packets.results_of(REQUEST, body), REPLY),
    "event": (packets.watch_event_of, EVENT),
    "read": (packets.found, READ),
    "session": (packets.opened, made_packets.connected(1, 2)[:16]),
}


@pytest.mark.parametrize(("parse", "packet"), PARSERS.values(), ids=PARSERS.keys())
def test_a_packet_that_is_cut_short_is_refused_wherever_it_is_cut(
    parse: Callable[[bytes], object], packet: bytes
) -> None:
    for length in range(len(packet)):
        with pytest.raises(BadData):
            parse(packet[:length])


@pytest.mark.parametrize(("parse", "packet"), PARSERS.values(), ids=PARSERS.keys())
def test_packet_with_arbitrary_bytes_is_read_or_refused(parse: Callable[[bytes], object], packet: bytes) -> None:
    chance = random.Random(1)
    refused = 0
    for _ in range(3000):
        spoilt = bytearray(packet)
        for _ in range(chance.randrange(1, 5)):
            spoilt[chance.randrange(len(spoilt))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            parse(bytes(spoilt))
        except BadData:
            refused += 1

    assert refused > 0 or parse is packets.opened
