"""Every strategy there is: the built-in ones, and those that installed packages offer.

A package offers one by an entry point in the group `zk_group_coordinator.assignors`, which has the strategy's name and
leads to an `Assignor` or to a class that makes one. A node must not fail for a package that somebody has installed: one
that cannot be used is set aside with the reason, and only groups that need it suffer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from coordinator.zk.names import is_name, shown

from . import Assignor, told
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
    """What there is, and what is not: name -> why it was set aside."""

    assignors: Mapping[str, Assignor]
    set_aside: Mapping[str, str]


def assignors() -> Mapping[str, Assignor]:
    """Name -> strategy, of all that can be used; the others are logged."""
    return registry().assignors


def registry(offered: Iterable[EntryPoint] | None = None) -> Registry:
    """Load every strategy. Ask once: this looks through all installed packages, and runs their code.

    :param offered: entry points; those of the installed packages when not given.
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
            log.warning("strategy set aside: strategy=%s entry_point=%s reason=%s", name, where, reason)
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
    except (Exception, SystemExit) as error:  # a third party's code, whatever it does
        raise _Unusable(f"it cannot be loaded: {told(error)}") from error


def _complete(name: str, made: Any) -> Assignor:
    """`made`, if it has all that an assignor has."""
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
