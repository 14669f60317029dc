"""`seats/[instance]`: a static member's seat, kept over a clean stop and a coordinator failover (KIP-345)."""

from __future__ import annotations

from dataclasses import dataclass

from .json_fields import Fields, compact
from .records import Registration


@dataclass(frozen=True, slots=True)
class Seat:
    """A static member's registration, kept while it is away.

    :ivar registration: of its last incarnation; the seat's name is its `instance_id`.
    :ivar session_timeout_ms: how long the seat is kept after the member has left.
    :ivar removed: why an operator removed the seat, else None.
    """

    registration: Registration
    session_timeout_ms: int
    removed: str | None = None

    @classmethod
    def parse(cls, where: str, data: bytes) -> Seat:
        fields = Fields.parse(where, data, most=256_000)
        return cls(
            Registration.parse(where, data),
            fields.number("session_timeout_ms", most=86_400_000),
            fields.optional_text("removed"),
        )

    def to_bytes(self) -> bytes:
        own = {"session_timeout_ms": self.session_timeout_ms, "removed": self.removed}
        return compact({**self.registration.to_json(), **own})
