"""What a drill reads in the packets of ZooKeeper's protocol.

Bodies only, without the four bytes of length. They are untrusted: a malformed one raises `BadData`.
"""

from __future__ import annotations

from coordinator.zk.wire import JuteReader

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA = 1, 2, 3, 4, 5
SYNC, CHECK, MULTI, CLOSE_SESSION = 9, 13, 14, -11
PING = -2
"""The xid of a ping and of its reply."""


def xid(body: bytes) -> int:
    """The number of a request and of its reply; -1 for a watch event, -2 for a ping."""
    return JuteReader(body).integer()


def op_code(request: bytes) -> int:
    """The op code of a request, such as `MULTI`."""
    return JuteReader(request, 4).integer()


def zxid(reply: bytes) -> int:
    """The zxid of the server's last transaction, or of a watch event's; 0 when it has none."""
    return max(0, JuteReader(reply, 4).long()) if len(reply) >= 12 else 0


def opened_ms(first_reply: bytes) -> int | None:
    """The timeout in ms of the session that was created or resumed; None when it has expired."""
    reader = JuteReader(first_reply)
    reader.integer()
    timeout_ms, session = reader.integer(), reader.long()
    return timeout_ms if session and timeout_ms > 0 else None
