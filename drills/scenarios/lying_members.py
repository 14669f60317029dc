"""Drills on a group that a member lies to."""

from __future__ import annotations

from collections.abc import Callable

from ..base.lies import LIES
from ..testbed.testbed import Stage
from .definition import Drill
from .promises import GIVEN_UP, given_up_s

LIAR = "liar"
KEEPS = "keeps-what-was-stopped"
"""It is sent a stop-fetcher when another member joins."""

SHORT = ("acknowledges-only", KEEPS)
DRILLED = (*SHORT, "longest-lease", "scribbles")
"""The others are drawn in the simulation."""


def _told(lie: str) -> Callable[[Stage], None]:
    """The member lies until it is evicted, or for as long as an eviction may take."""

    def run(stage: Stage) -> None:
        process = stage.start_lying_member(LIAR, lie)
        if lie == KEEPS:
            stage.wait_settled({*stage.slots(), LIAR})
        stage.fault("member-lies", process=process.who, lie=lie)
        if lie == KEEPS:
            stage.start_slot(stage.settings.slots)
        if process.wait(given_up_s(stage.bounds)) is None:
            stage.terminate(LIAR)
        else:
            del stage.processes[LIAR]
            stage.gone(process, "evicted")
        stage.wait_settled(stage.slots())

    return run


LYING_MEMBERS = tuple(
    Drill(
        name=f"member-lies-{lie}",
        title=f"A member that lies: {lie.replace('-', ' ')}",
        proves="A member that breaks the protocol holds up only its own partitions, until the eviction clock ends.",
        hypothesis="All partitions are fetched within max_poll_interval + lease + 1.5 s; every record comes once.",
        fault=f"a member joins: {does}",
        run=_told(lie),
        promises=(GIVEN_UP,),
        is_short=lie in SHORT,
    )
    for lie, does in LIES.items()
    if lie in DRILLED
)
