"""`zk_group.coordinator` and `zk_group.consumer`: the packages `coordinator` and `consumer` under a name of their own.

Both names are the same modules: `zk_group.consumer.errors is consumer.errors`, whichever is imported first. With
`zk_group` a user's own `consumer.py` or `coordinator.py` hides nothing: the plain name is theirs then, in this process
and in Spark's executors, and the modules of these packages import each other by `zk_group`.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

HELD = ("coordinator", "consumer")
_PLACES = [*__path__, *(os.path.dirname(place) for place in __path__)]  # noqa: PTH120  may be in a zip
"""The packages are beside this one; as sent to executors, in it: there the plain names stay free for the user's own."""


def _spec(top: str) -> ModuleSpec:
    """Where a held package is, under its name in here.

    :raises ModuleNotFoundError: when it is not there.
    """
    name = f"{__name__}.{top}"
    spec = PathFinder.find_spec(name, _PLACES)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}: {top} is not installed beside zk_group", name=name)
    return spec


def _is_ours(top: str, found: object) -> bool:
    """Whether a module or a spec with the plain name is the held package."""
    own = _spec(top).submodule_search_locations or ()
    spec = found if isinstance(found, ModuleSpec) else getattr(found, "__spec__", None)
    places = spec.submodule_search_locations if spec is not None else None
    return [*map(os.path.realpath, own)] == [*map(os.path.realpath, places or ())]


_PLAIN = frozenset(top for top in HELD if top in sys.modules and _is_ours(top, sys.modules[top]))
"""Packages that were imported by their plain names before: those are the modules' own, `zk_group` is the alias."""


class _Finder(MetaPathFinder):
    """Finds the held packages under both names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        if fullname.endswith(".__main__"):  # run once, by `python -m`
            return None
        if fullname.startswith(f"{__name__}."):
            plain = fullname.removeprefix(f"{__name__}.")
            top, _, below = plain.partition(".")
            if top not in HELD:
                return None
            if top in _PLAIN:
                return ModuleSpec(fullname, _Alias(plain))
            spec = PathFinder.find_spec(fullname, path) if below else _spec(top)
            if spec is not None and spec.loader is not None:
                spec.loader = _Own(spec.loader)
            return spec
        top, _, below = fullname.partition(".")
        if top not in HELD or top in _PLAIN:
            return None
        if below:
            is_alias = sys.modules.get(top) is sys.modules.get(f"{__name__}.{top}")
        else:
            found = PathFinder.find_spec(top)
            is_alias = found is None or _is_ours(top, found)  # else it is the user's own
        return ModuleSpec(fullname, _Alias(f"{__name__}.{fullname}")) if is_alias else None


class _Alias(Loader):
    """Another name of a module.

    :param name: the module's own name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See `Loader`."""
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """See `Loader`. It has been executed; its spec, which the import has replaced, is its own again."""
        module.__spec__ = self._spec


class _Own(Loader):
    """Loads a module whose imports of `coordinator` and `consumer` are those of `zk_group`.

    :param loader: of its file.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See `Loader`."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """See `Loader`. An import statement calls the `__import__` of its module's builtins."""
        module.__dict__["__builtins__"] = _BUILTINS
        self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # while it is being copied
            raise AttributeError(name)
        return getattr(self._loader, name)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """`__import__`, to which a held package's plain name is its name in here."""
    top = name.partition(".")[0]
    if level or top not in HELD:
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    inner = f"{__name__}.{name}"
    found = builtins.__import__(inner, globals, locals, fromlist or (), 0)
    return found if fromlist else sys.modules[f"{__name__}.{top}"]


_BUILTINS = {**vars(builtins), "__import__": _import}

sys.meta_path.insert(0, _Finder())
