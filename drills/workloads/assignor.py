"""The drills' client assignor: a built-in strategy, which misbehaves on the leader while the gate is shut.

It is offered by an entry point, like a third party's assignor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path

from consumer.assignment.base import Assignment, ClientAssignor, Cluster
from consumer.assignment.consumers import ENTRY_POINTS, named
from coordinator.zk.errors import UsageError

from .process import HangGate, emit

NAME = "drill"
HANGS = "hangs"
RAISES = "raises"

installed: DrillAssignor | None = None
"""The target of the entry point, after `install`."""


class DrillAssignor(ClientAssignor):
    """Assigns as `strategy` does.

    :param misbehaves: the behaviour of `assign` while the gate is shut: `hangs` until it is open, or `raises`.
    :param state_bytes: size of each member's state; large states split an answer into several transactions.
    """

    name = NAME

    def __init__(self, strategy: ClientAssignor, gate: HangGate, misbehaves: str, state_bytes: int = 0) -> None:
        self.is_cooperative = strategy.is_cooperative
        self._strategy = strategy
        self._gate = gate
        self._misbehaves = misbehaves
        self._state = bytes(state_bytes)

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> Mapping[str, Assignment]:
        """See `ClientAssignor`.

        :raises RuntimeError: when it misbehaves so.
        """
        if not self._gate.is_open:
            emit("misbehaves", how=self._misbehaves)
            if self._misbehaves == RAISES:
                raise RuntimeError("the drill requested a failure")
            self._gate.pass_through()
        assignments = self._strategy.assign(cluster, metadata)
        return {consumer: replace(one, member_state=self._state) for consumer, one in assignments.items()}


def install(strategy: str, gate: HangGate, misbehaves: str, state_bytes: int = 0) -> None:
    """Install the assignor `drill` in this process, as a package would.

    :param strategy: the strategy while the gate is open.  :param state_bytes: size of each member's state.
    :raises UsageError: when the strategy or the misbehaviour is unknown.
    """
    global installed
    if misbehaves not in (HANGS, RAISES):
        raise UsageError(f"misbehaves must be {HANGS} or {RAISES}, not {misbehaves!r}")
    (builtin,) = named([strategy])
    installed = DrillAssignor(builtin, gate, misbehaves, state_bytes)
    sys.meta_path.append(_Package)


class _Package(Distribution):
    """The metadata of a package without a folder; the class is its finder, too, which finds no module."""

    FILES = {  # noqa: RUF012
        "METADATA": "Metadata-Version: 2.1\nName: zk-group-drill-assignor\nVersion: 0\n",
        "entry_points.txt": f"[{ENTRY_POINTS}]\n{NAME} = {__name__}:installed\n",
    }

    def read_text(self, filename: str) -> str | None:
        return self.FILES.get(filename)

    def locate_file(self, path: object) -> Path:
        return Path(__file__).parent / str(path)

    @classmethod
    def find_distributions(cls, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        return [cls()]

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        """See `importlib.abc.MetaPathFinder`."""
