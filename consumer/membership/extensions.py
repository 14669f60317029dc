"""What a member does besides running partitions."""

from __future__ import annotations

from typing import NamedTuple

from .client_assignment import ClientAssignment
from .contributor import Contributor, StatefulContributor


class Extensions(NamedTuple):
    """
    :ivar client: the member's part in client-side assignment, None without it.
    :ivar region: the member's part in its consistent region, None outside a region.
    """

    client: ClientAssignment | None = None
    region: Contributor | None = None

    @property
    def stateful(self) -> StatefulContributor | None:
        """`region`, when the member has a state in it."""
        return self.region if isinstance(self.region, StatefulContributor) else None

    @property
    def is_paused(self) -> bool:
        """Whether a checkpoint waits for other members."""
        return self.region is not None and self.region.is_paused

    def lost(self, reason: str) -> None:
        """The incarnation is over."""
        if self.client is not None:
            self.client.lost(reason)
        if self.region is not None:
            self.region.lost(reason)


NO_EXTENSIONS = Extensions()
