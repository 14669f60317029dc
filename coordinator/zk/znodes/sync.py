"""Client-side assignment in ZooKeeper: members' protocols, asks to a leader, its answers, and requests for another.

Seed 001: JoinGroup is the `client` field of a registration, generation metadata the ask, SyncGroup the answer below it.
The coordinator interprets neither metadata nor member state: both are base64 here, bytes for assignors only.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Annotated

from ..errors import BadData
from . import forms
from .forms import Form, Record
from .group_state import MAX_OWNED, ownership_json, read_ownership
from .json_fields import MAX_ZNODE_BYTES, Fields, compact
from .partitions import PartitionSet
from .paths import is_name
from .ranges import encode

CONSUMER = "consumer"
"""The protocol type of consumers of partitions; other types have no owners in ZooKeeper."""

CLIENT = "client"
"""`pattern` of a member with client-side assignment only: releases without it ignore the member."""

SEAT_PREFIX = "seat-"
"""With the czxid of its seat: the identity of a static member."""

MAX_METADATA_BYTES = 65_536
"""Bytes of metadata of one member, over all its protocols."""
MAX_GROUP_METADATA_BYTES = 8 << 20
MAX_MEMBER_STATE_BYTES = 65_536
MAX_ANSWER_BYTES = 16 << 20
MAX_ANSWER_PARTITIONS = 250_000
"""More partitions than fit into a group's `state`, however few bytes name them."""


_PROTOCOLS = Form(lambda fields, key, _: tuple(fields.items(key)), list).checked(
    lambda names: names and all(isinstance(name, str) and is_name(name) for name in names),
    "a list of protocol names, at least one",
)
_PREFERRED = Form(lambda fields, key, own: bool(fields.values[key]) if fields.has(key) else own, key="preferred")


@dataclass(frozen=True, slots=True)
class ClientProtocols(Record):
    """`client` in `ids/[consumer]`: a member's protocols, and its metadata for each.

    :ivar protocols: in order of preference.
    :ivar metadata: protocol -> base64 of the member's metadata for it.
    :ivar is_preferred: whether the member prefers client-side assignment to the coordinator's strategies.
    :ivar rejoins: raised by a member to request a rebalance without another change (Kafka's `enforceRebalance`).
    :ivar digest: of the whole field as read, later releases' fields included: a new digest is a rejoin.
    """

    FIRST = ("protocol_type",)

    protocols: Annotated[tuple[str, ...], _PROTOCOLS]
    metadata: Annotated[Mapping[str, str], forms.TEXTS._replace(write=dict)] = field(default_factory=dict)
    protocol_type: Annotated[str, forms.text(250)] = CONSUMER
    is_preferred: Annotated[bool, _PREFERRED.optional] = True
    rejoins: Annotated[int, forms.count().optional] = 0
    digest: str = ""

    @classmethod
    def read(cls, fields: Fields) -> ClientProtocols:
        """
        :raises BadData: when the field exists and cannot be read.
        """
        canonical = json.dumps(fields.values, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:16]
        return replace(super(ClientProtocols, cls).read(fields), digest=digest)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of metadata over all protocols."""
        return sum(map(decoded_bytes, self.metadata.values()))


@dataclass(frozen=True, slots=True)
class AskMember(Record):
    """A member as an ask lists it.

    :ivar identity: its incarnation, or for a static member its seat: a bounce keeps the identity.
    :ivar digest: of its `client` field.
    :ivar lease_ms: how long it may continue after its last heartbeat.
    """

    identity: Annotated[str, forms.text(64)]
    digest: Annotated[str, forms.text(64).named("metadata")]
    lease_ms: Annotated[int, forms.number()] = 0

    @property
    def is_seat(self) -> bool:
        """Whether it is a static member."""
        return self.identity.startswith(SEAT_PREFIX)


@dataclass(frozen=True, slots=True)
class Ask(Record):
    """`sync/ask-[number]`: a request to one leader for an assignment.

    :ivar incarnation: of the leader; a new incarnation was not asked.
    :ivar attempt: 1 for the first since the last adoption, one more after each failure.
    :ivar members: consumer -> the member as of the ask.
    :ivar reason: its trigger.
    :ivar since_ms: wall clock, for people.
    :ivar outdated: preceding asks in a row whose answer was for outdated topics.
    """

    FIRST = (
        "protocol_type", "protocol", "leader", "incarnation", "attempt", "reason", "since_ms", "outdated",
    )  # fmt: skip

    protocol: Annotated[str, forms.text(250)]
    leader: Annotated[str, forms.text(250)]
    incarnation: Annotated[str, forms.text(64, "")]
    members: Annotated[Mapping[str, AskMember], forms.named(AskMember)]
    protocol_type: Annotated[str, forms.text(250)] = CONSUMER
    attempt: Annotated[int, forms.count()] = 1
    reason: Annotated[str, forms.text()] = ""
    since_ms: Annotated[int, forms.number()] = 0
    outdated: Annotated[int, forms.count().optional] = 0


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """`sync/ask-[number]/member-[consumer]`: the leader's assignment for one member.

    :ivar threads: thread -> partitions; empty for another protocol type.
    :ivar member_state: base64 of the assignor's opaque bytes.
    :ivar protocol: the assignor's; empty when the leader omits it: then the ask's.
    """

    threads: Mapping[str, PartitionSet] = field(default_factory=dict)
    member_state: str = ""
    protocol: str = ""

    @classmethod
    def parse(cls, where: str, data: bytes, most: int = MAX_OWNED) -> MemberAnswer:
        """
        :param most: maximum number of partitions.
        """
        fields = Fields.parse(where, data)
        return cls(
            read_ownership(fields, most),
            fields.text("member_state", "", most=MAX_ZNODE_BYTES),
            fields.text("protocol", "", most=250),
        )

    def to_bytes(self) -> bytes:
        state = {"member_state": self.member_state} if self.member_state else {}
        protocol = {"protocol": self.protocol} if self.protocol else {}
        return compact({**protocol, "ownershipMap": ownership_json(self.threads), **state})


_MEMBERS = Form(lambda fields, key, _: tuple(sorted(set(fields.strings(key)))), sorted)
_RANGES = Form(
    lambda fields, key, _: fields.partitions(key, most=MAX_ANSWER_PARTITIONS),
    lambda topics: {topic: encode(numbers) for topic, numbers in sorted(topics.items())},
)


@dataclass(frozen=True, slots=True)
class Answer(Record):
    """`sync/ask-[number]/answer`: the leader's final answer to an ask.

    :ivar members: the members with an entry.
    :ivar topics: topic -> id, of the assigned topics.
    :ivar partitions: topic -> its partitions at that time.
    :ivar is_cooperative: whether members keep running unrevoked partitions while others stop.
    :ivar error: why there is no assignment, else None.
    """

    members: Annotated[tuple[str, ...], _MEMBERS] = ()
    topics: Annotated[Mapping[str, str], forms.TEXTS] = field(default_factory=dict)
    partitions: Annotated[Mapping[str, Set[int]], _RANGES] = field(default_factory=dict)
    is_cooperative: Annotated[bool, forms.FLAG.named("cooperative")] = False
    error: Annotated[str | None, forms.optional_text()] = None


@dataclass(frozen=True, slots=True)
class SyncRequest(Record):
    """`sync_request`: a leader's request for another ask."""

    by: Annotated[str, forms.text(250)] = ""
    incarnation: Annotated[str, forms.text(64)] = ""
    reason: Annotated[str, forms.text(1000)] = ""


def encoded(data: bytes) -> str:
    """Opaque bytes as base64 of a znode."""
    return b64encode(data).decode()


def decoded_bytes(text: str) -> int:
    """Number of bytes of a base64 text."""
    return len(text) * 3 // 4 - text.endswith("=") - text.endswith("==")


def decoded(where: str, text: str) -> bytes:
    """
    :raises BadData: when `text` is not base64.
    """
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadData(f"{where} holds what is not base64") from error
