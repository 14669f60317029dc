"""One elected life of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from .zk.errors import EpochOver
from .zk.paths import COORDINATOR, COORDINATOR_EPOCH
from .zk.store import Store


@dataclass(frozen=True, slots=True)
class Term:
    """
    :ivar epoch: its number.
    :ivar fence: the data version of `/consumers/coordinator_epoch` that stands for it.
    """

    epoch: int
    fence: int

    def check(self, store: Store) -> None:
        """Read the fence.

        :raises EpochOver: when it has moved, or this session no longer holds the coordinator's znode.
        """
        epoch, coordinator = store.get_many([COORDINATOR_EPOCH, COORDINATOR])
        if epoch is None or epoch.stat.version != self.fence:
            raise EpochOver(f"epoch {self.epoch} is over: another coordinator was elected")
        if coordinator is None or coordinator.stat.ephemeral_owner != store.session_id:
            raise EpochOver(f"epoch {self.epoch} is over: the coordinator's znode is gone")
