"""Mutations as edits of the product's source, in text files: what a person would change by mistake.

    == a lost reply is an election won
    Election 4 | S4 | aimed storm | a lease looks at the coordinator's znode
    also: own znode not checked
    @ coordinator/term/elector.py
             except OutcomeUnknown:
                 self._store.sync()
    -            self._wake.set()
    -            return None

The second line has the rule, the invariants (one of them shows it), the stock profiles, and what covers it. Hunks are
as in a diff, without empty lines, and stand in their file once. `also` names a block of hunks
(`:: own znode not checked`), another mutation, or a patch in Python, that is applied too, and without which the
product is still right. Of both in one function that of the mutation counts.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.simulation.mutation import Mutation, Patch

ROOT = Path(__file__).parents[2]


def parsed(text: str, blocks: dict[str, tuple[Patch, ...]]) -> tuple[Mutation, ...]:
    """The mutations of a file.

    :param blocks: what `also` may name; gets the file's own, too.
    :raises ValueError: when a line is none of these.  :raises KeyError: when there is no such block.
    """
    found = []
    for block in _blocks(text):
        title, *lines = block
        at = next((number for number, line in enumerate(lines) if line.startswith("@ ")), len(lines))
        patches = blocks[title[3:]] = tuple(_edits(lines[at:]))
        if title.startswith(":: "):
            continue
        rule, breaks, where, covered_by = [*map(str.strip, lines[0].split("|")), ""][:4]
        also = tuple(each for name in _also(lines[1:at]) for each in blocks[name])
        found.append(
            Mutation(title[3:], rule, patches, frozenset(breaks.split()), tuple(where.split()), also, covered_by)
        )
    return tuple(found)


def _blocks(text: str) -> Iterator[list[str]]:
    block: list[str] = []
    for line in text.splitlines():
        if line.startswith(("== ", ":: ")):
            if block:
                yield block
            block = []
        elif not block:
            continue  # before the first one
        block.append(line)
    if block:
        yield block


def _also(lines: Sequence[str]) -> list[str]:
    return [name.strip() for line in lines if line.startswith("also: ") for name in line[6:].split(",")]


def _edits(lines: Sequence[str]) -> Iterator[Patch]:
    """One for each file: of two in one function the later counts."""
    hunks: dict[str, list[list[str]]] = {}
    file = ""
    for line in lines:
        if line.startswith("@"):
            file = line[2:].strip() or file
            hunks.setdefault(file, []).append([])
        elif line.strip():
            if line[0] not in " -+":
                raise ValueError(f"no line of a hunk: {line}")
            hunks[file][-1].append(line)
    for file, some in hunks.items():
        yield edited(file, *((_side(hunk, "-"), _side(hunk, "+")) for hunk in some))


def _side(hunk: Sequence[str], sign: str) -> str:
    return "".join(f"{line[1:]}\n" for line in hunk if line[0] in (" ", sign))


def edited(file: str, *hunks: tuple[str, str]) -> Patch:
    """Lines of a file are others: the functions that have them run the new ones, wherever they were imported.

    :param hunks: the lines before and after.
    """
    return lambda: _Edited(file, hunks)


class _Edited:
    def __init__(self, file: str, hunks: Sequence[tuple[str, str]]) -> None:
        self._changes = list(_changes(file, hunks))
        self._before: list[Any] = []

    def start(self) -> None:
        self._before = [getattr(owner, name) for owner, name, _ in self._changes]
        for owner, name, value in self._changes:
            setattr(owner, name, value)

    def stop(self) -> None:
        for (owner, name, _), value in zip(self._changes, self._before, strict=True):
            setattr(owner, name, value)


def _changes(file: str, hunks: Sequence[tuple[str, str]]) -> Iterator[tuple[Any, str, Any]]:
    """What is set: owner, name and value."""
    name = file.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(name if file.startswith("tests/") else f"zk_group.{name}")
    changed, places = _changed(file, hunks)
    functions = list(_functions(compile(changed, str(ROOT / file), "exec")))
    for lines in places:
        found = [code for code in functions if _has(code, lines)]
        for code in found:
            yield _function(module, code.co_qualname), "__code__", code
        for each in ast.parse(changed).body if not found else ():
            if isinstance(each, ast.Assign) and each.lineno in lines and isinstance(each.targets[0], ast.Name):
                yield module, each.targets[0].id, eval(ast.unparse(each.value), vars(module))


def _changed(file: str, hunks: Sequence[tuple[str, str]]) -> tuple[str, list[range]]:
    """A file with other lines, and which these are."""
    source, changed, places, end = (ROOT / file).read_text(), "", [], 0
    for old, _ in hunks:
        if source.count(old) != 1:
            raise LookupError(f"{file} has these lines {source.count(old)} times:\n{old}")
    for old, new in sorted(hunks, key=lambda hunk: source.index(hunk[0])):
        changed += source[end : source.index(old)]
        first, end = changed.count("\n") + 1, source.index(old) + len(old)
        places.append(range(first, first + max(1, new.count("\n"))))
        changed += new
    return changed + source[end:], places


def _functions(code: CodeType) -> Iterator[CodeType]:
    """The functions and methods of a module, without those inside them."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & inspect.CO_OPTIMIZED:
                yield each
            else:
                yield from _functions(each)


def _has(code: CodeType, lines: range) -> bool:
    own = [line for _, _, line in code.co_lines() if line]
    return min(own) <= lines[-1] and lines[0] <= max(own)


def _function(module: ModuleType, name: str) -> FunctionType:
    found: Any = module
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    found = getattr(found, "fget", None) or getattr(found, "__func__", None) or getattr(found, "func", None) or found
    return inspect.unwrap(found)  # type: ignore[no-any-return]
