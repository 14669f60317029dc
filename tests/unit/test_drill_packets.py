"""Packets are parsed from bytes, and malformed bytes are refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from coordinator.zk.errors import BadData
from drills.faults import proxy
from drills.faults.proxy import MULTI
from tests.support import made_packets

REQUEST = struct.pack(">ii", 7, MULTI) + made_packets.DONE


def test_request_has_its_number_and_its_op_code() -> None:
    assert (proxy.xid(REQUEST), proxy.op_code(REQUEST)) == (7, MULTI)


@pytest.mark.parametrize(
    ("reply", "zxid"),
    [
        (made_packets.reply(7, 0x100000002), 0x100000002),
        (made_packets.reply(-1, -1), 0),
        (made_packets.reply(7, 99)[:11], 0),
    ],
    ids=["of a server", "of an event before 3.9", "cut short"],
)
def test_reply_shows_its_servers_progress_if_it_has_any(reply: bytes, zxid: int) -> None:
    assert proxy.zxid(reply) == zxid


def test_connect_reply_has_a_timeout_unless_the_session_has_ended() -> None:
    assert proxy.opened_ms(made_packets.connected(0x1234, 4000)) == 4000
    assert proxy.opened_ms(made_packets.connected(0, 0)) is None


@pytest.mark.parametrize(
    ("parse", "packet"),
    [
        (proxy.xid, REQUEST[:4]),
        (proxy.op_code, REQUEST[:8]),
        (proxy.opened_ms, made_packets.connected(1, 2)[:16]),
    ],
)
def test_a_packet_that_is_cut_short_is_refused_wherever_it_is_cut(
    parse: Callable[[bytes], object], packet: bytes
) -> None:
    for length in range(len(packet)):
        with pytest.raises(BadData):
            parse(packet[:length])
