"""All strategies: built-in ones, and those of installed packages.

A package offers a strategy by an entry point in the group `zk_group_coordinator.assignors`, with the strategy's name,
that leads to an `Assignor` or to its class. An unusable package never fails a node: the strategy is ignored with the
reason, and only groups that need it fail.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, NamedTuple

from ..zk.znodes.paths import error_text, is_name, shown
from . import Assignor, RangeAssignor, RoundRobinAssignor
from .sticky import CooperativeStickyAssignor, StickyAssignor

log = logging.getLogger(__name__)

ENTRY_POINTS = "zk_group_coordinator.assignors"
BUILT_IN: Mapping[str, Assignor] = MappingProxyType(
    {each.name: each for each in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())}
)

NAME_RULE = "use 1 to 249 letters, digits, dots, underscores and dashes"


class Kind(NamedTuple):
    """A kind of strategies offered by packages.

    :ivar entry_points: the group of their entry points.  :ivar reserved: names that no package can override.
    :ivar flag: an attribute that each has, True or False.  :ivar several: the reason, of the packages with one name.
    """

    entry_points: str
    reserved: Collection[str]
    flag: str
    methods: Sequence[str]
    several: str


STRATEGIES = Kind(ENTRY_POINTS, BUILT_IN, "is_eager", ["assign"], "several are offered under this name, by {}")


def assignors(offered: Iterable[EntryPoint] | None = None) -> Mapping[str, Assignor]:
    """Name -> strategy, of all usable ones; the others are logged. Runs the code of installed packages: call once.

    :param offered: entry points; None for those of the installed packages.
    """
    usable, unusable = load_offered(STRATEGIES, offered)
    for name, (where, reason) in unusable.items():
        log.warning("ignoring unusable strategy: strategy=%s entry_point=%s reason=%s", name, where, reason)
    return MappingProxyType({**BUILT_IN, **usable})


class Unusable(Exception):
    """The message is the reason, one clause."""


def load_offered(kind: Kind, offered: Iterable[EntryPoint] | None) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """Name -> the packages' offer; unusable name -> its entry points, and the reason. Runs their code.

    :param offered: entry points; None for those of the installed packages.
    """
    by_name: dict[str, list[EntryPoint]] = {}
    for each in entry_points(group=kind.entry_points) if offered is None else offered:
        by_name.setdefault(each.name, []).append(each)
    usable, unusable = {}, {}
    for name, points in sorted(by_name.items()):
        try:
            usable[name] = _loaded(kind, name, points)
        except Unusable as reason:
            unusable[name] = ", ".join(sorted({point.value for point in points})), str(reason)
    return usable, unusable


def _loaded(kind: Kind, name: str, points: list[EntryPoint]) -> Any:
    if name in kind.reserved:
        raise Unusable("a built-in strategy has this name, and keeps it")
    packages = sorted({point.dist.name if point.dist else "a package without metadata" for point in points})
    if len({point.value for point in points}) > 1 or len(packages) > 1:
        raise Unusable(f"{kind.several.format(' and '.join(packages))}: uninstall all but one")
    if not is_name(name):
        raise Unusable(f"its name is none: {NAME_RULE}")
    try:
        loaded: Any = points[0].load()
        return complete(kind, name, loaded() if isinstance(loaded, type) else loaded)
    except Unusable:
        raise
    except (Exception, SystemExit) as error:  # third-party code may raise anything
        raise Unusable(f"it cannot be loaded: {error_text(error)}") from error


def complete(kind: Kind, name: str, made: Any) -> Any:
    """
    :returns: `made`.
    :raises Unusable: when it is no complete one of its kind.
    """
    if not isinstance(getattr(made, kind.flag, None), bool):
        raise Unusable(f"its `{kind.flag}` must be True or False")
    for method in kind.methods:
        if not callable(getattr(made, method, None)):
            raise Unusable(f"it has no method `{method}`")
    if getattr(made, "name", None) != name:
        raise Unusable(f"its `name` must be that of its entry point, not {shown(getattr(made, 'name', None))}")
    return made
