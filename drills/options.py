"""The options of `drill run`, and the selection of drills."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from coordinator.zk.errors import UsageError
from coordinator.zk.security.access import ZooKeeperAccess, access_at_open
from drills.base.settings import Settings
from drills.environments.base import BROKER, DrillAccess, Embedded
from drills.environments.containers import Containers
from drills.environments.external import External, NamedGroup
from drills.scenarios.consumers import CONSUMERS, LYING_MEMBERS, SPARK
from drills.scenarios.coordinators import COORDINATORS, LEADERS
from drills.scenarios.definition import Drill
from drills.scenarios.ensembles import CHANGES, ENSEMBLES, KAFKA
from drills.scenarios.regions import REGIONS

_ALL = (
    *COORDINATORS, *CONSUMERS, *LEADERS, *REGIONS, *LYING_MEMBERS, *ENSEMBLES, *CHANGES, *SPARK, *KAFKA,
)  # fmt: skip
DRILLS: dict[str, Drill] = {drill.name: drill for drill in _ALL}
"""Every drill, by name."""

DEFAULTS = Settings()
MOST_SERVERS = 3


class ChosenDrills(NamedTuple):
    """The drills to run, and a message for each that the ensemble does not support."""

    drills: list[Drill]
    left_out: list[str]


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """Validated options.

    :ivar names: the drills; empty where `short` or `is_all` chooses them.
    :ivar servers: size of the embedded ensemble.
    :ivar kafka: whether `short` and `is_all` include the drills on a Kafka broker.
    :ivar is_secured: whether znodes have ACLs, and embedded servers TLS and SASL.
    :ivar zk: the operator's ensemble.  :ivar group: a group there.  :ivar execute: False for a dry run on it.
    :ivar access: how its servers are reached.
    :ivar settings: before the drill and the ensemble adjust them.
    :ivar repeat: runs of each drill.  :ivar seed: of the first run.
    :ivar runs: the folder of the evidence.  :ivar keep: whether records and segments stay in it.
    :raises UsageError: when options exclude each other.
    """

    names: tuple[str, ...] = ()
    short: bool = False
    is_all: bool = False
    servers: int = MOST_SERVERS
    kafka: bool = False
    in_docker: bool = False
    is_secured: bool = False
    zk: str | None = None
    group: str | None = None
    execute: bool = False
    repeat: int = 1
    seed: int = 1
    access: ZooKeeperAccess | None = None
    settings: Settings = DEFAULTS
    runs: Path = field(default_factory=lambda: Path("runs"))
    is_json: bool = False
    keep: bool = False

    def __post_init__(self) -> None:
        if self.in_docker and self.zk is not None:
            raise UsageError("--docker and --zk are mutually exclusive")
        if self.in_docker and self.is_secured:
            raise UsageError("--docker and --secure are mutually exclusive: the servers in containers have no TLS")
        if self.group is not None and self.is_secured:
            raise UsageError("--group and --secure are mutually exclusive: the ACLs of the path of --zk are yours")
        if (self.group is not None and self.zk is None) or (self.execute and self.group is None):
            raise UsageError("--group needs --zk, and --execute needs --group")
        if self.keep and self.group is not None:
            raise UsageError("--keep cannot be used with --group: the next run refuses an existing group")
        if self.keep and self.is_secured and self.zk is not None:
            raise UsageError("--keep cannot be used with --zk and --secure: the kept znodes could not be removed later")
        if sum((bool(self.names), self.short, self.is_all)) != 1:
            raise UsageError("name the drills to run, or give one of --short and --all (see: drill list)")

    @property
    def kind(self) -> type[Embedded | Containers | External]:
        """The type of the ensemble."""
        if self.zk is not None:
            return External
        return Containers if self.in_docker else Embedded

    def external(self) -> External | None:
        """The operator's ensemble; None without `zk`.

        :raises UsageError: when `zk` or `group` is malformed.
        :raises ZooKeeperUnreachable: when no server answers.
        :raises AuthenticationFailed: when a server and this machine refuse each other.
        """
        if self.zk is None:
            return None
        access = DrillAccess(access_at_open(self.access), os.environ, self.is_secured)
        if self.group is None:
            return External(self.zk, self.settings.session_timeout_ms, access)
        return NamedGroup(self.zk, self.settings.session_timeout_ms, self.group, access)

    def chosen(self) -> ChosenDrills:
        """The drills to run. `short` and `is_all` skip what the ensemble does not support.

        :raises UsageError: when the ensemble does not support a named drill, or is too small.
        """
        kind = self.kind
        has_broker = kind is not External and not self.is_secured and (self.kafka or bool(self.names))
        can = kind.can | {BROKER} if has_broker else kind.can
        every = named(self.names) if self.names else [one for one in DRILLS.values() if one.is_short or self.is_all]
        servers = MOST_SERVERS if kind is External else self.servers
        too_few = [one.name for one in every if one.servers > servers]
        if too_few:
            raise UsageError(f"{too_few[0]} needs an ensemble of three: use --servers 3")
        lacks = {one.name: lack for one in every if (lack := one.lacks(can))}
        lacking = {name: f"{name} needs {lack}: {self._instead(lack, can)}" for name, lack in lacks.items()}
        if lacking and self.names:
            raise UsageError(next(iter(lacking.values())))
        return ChosenDrills([one for one in every if one.name not in lacking], list(lacking.values()))

    def _instead(self, lack: str, can: frozenset[str]) -> str:
        """A hint: the option of an ensemble that supports the operation."""
        if not can:
            return "no broker is started with --zk" if lack == BROKER else "the servers of --zk are not touched"
        if lack == BROKER and self.is_secured:
            return "no broker is started with --secure"
        return "use --kafka" if lack == BROKER else "use --docker"


def named(names: Sequence[str]) -> list[Drill]:
    """The drills with these names.

    :raises UsageError: when a drill does not exist.
    """
    unknown = [name for name in names if name not in DRILLS]
    if unknown:
        raise UsageError(f"unknown drill {unknown[0]!r}; known drills: {', '.join(DRILLS)}")
    return [DRILLS[name] for name in names]
