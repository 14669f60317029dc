"""All strategies: built-in ones, and those of installed packages.

A package offers one by an entry point in the group `zk_group_coordinator.assignors`, with the strategy's name, that
leads to an `Assignor` or to a class of one. An unusable package never fails a node: the strategy is ignored with the
reason, and only groups that need it fail.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from coordinator.zk.znodes.names import is_name, shown

from ..zk.znodes.names import error_text
from . import Assignor
from .cooperative_sticky import CooperativeStickyAssignor
from .range import RangeAssignor
from .round_robin import RoundRobinAssignor
from .sticky import StickyAssignor

log = logging.getLogger(__name__)

ENTRY_POINTS = "zk_group_coordinator.assignors"
BUILT_IN: Mapping[str, Assignor] = MappingProxyType(
    {each.name: each for each in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())}
)


@dataclass(frozen=True, slots=True)
class Registry:
    """The usable strategies; name -> why others are unusable."""

    assignors: Mapping[str, Assignor]
    set_aside: Mapping[str, str]


def assignors() -> Mapping[str, Assignor]:
    """Name -> strategy, of all usable ones; the others are logged."""
    return registry().assignors


def registry(offered: Iterable[EntryPoint] | None = None) -> Registry:
    """Load every strategy. Call once: it searches all installed packages, and runs their code.

    :param offered: entry points; None for those of the installed packages.
    """
    by_name: dict[str, list[EntryPoint]] = {}
    for each in entry_points(group=ENTRY_POINTS) if offered is None else offered:
        by_name.setdefault(each.name, []).append(each)
    found, set_aside = dict(BUILT_IN), {}
    for name, points in sorted(by_name.items()):
        try:
            found[name] = _loaded(name, points)
        except _Unusable as reason:
            set_aside[name] = str(reason)
            where = ", ".join(sorted({point.value for point in points}))
            log.warning("ignoring unusable strategy: strategy=%s entry_point=%s reason=%s", name, where, reason)
    return Registry(MappingProxyType(found), MappingProxyType(set_aside))


class _Unusable(Exception):
    """The message is the reason, one clause."""


def _loaded(name: str, points: list[EntryPoint]) -> Assignor:
    if name in BUILT_IN:
        raise _Unusable("a built-in strategy has this name, and keeps it")
    if len({(point.value, _package(point)) for point in points}) > 1:
        packages = " and ".join(sorted({_package(point) for point in points}))
        raise _Unusable(f"several are offered under this name, by {packages}: uninstall all but one")
    if not is_name(name):
        raise _Unusable("its name is none: use 1 to 249 letters, digits, dots, underscores and dashes")
    try:
        loaded: Any = points[0].load()
        made: Any = loaded() if isinstance(loaded, type) else loaded
        return _complete(name, made)
    except _Unusable:
        raise
    except (Exception, SystemExit) as error:  # third-party code may raise anything
        raise _Unusable(f"it cannot be loaded: {error_text(error)}") from error


def _complete(name: str, made: Any) -> Assignor:
    """`made`, if it is a complete assignor."""
    if not isinstance(getattr(made, "is_eager", None), bool):
        raise _Unusable("its `is_eager` must be True or False")
    if not callable(getattr(made, "assign", None)):
        raise _Unusable("it has no method `assign`")
    if getattr(made, "name", None) != name:
        raise _Unusable(f"its `name` must be that of its entry point, not {shown(getattr(made, 'name', None))}")
    found: Assignor = made
    return found


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "a package without metadata"
