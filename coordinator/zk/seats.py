"""`seats/[instance]`: a static member's seat, which outlives a clean stop and a coordinator's failover (KIP-345)."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import Fields, compact
from .records import Registration


@dataclass(frozen=True, slots=True)
class Seat:
    """What a static member wants, also while it is away.

    :ivar registration: of the member's last life; its `instance_id` is the seat's name.
    :ivar session_timeout_ms: for so long after it has left the seat is kept for it.
    :ivar removed: why somebody has taken the seat away by hand, None while it stands.
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
