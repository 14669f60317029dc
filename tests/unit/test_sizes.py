"""Sizes of classes: a large one is split, or has its reason in a comment above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.unit.test_layout import ROOT, nodes_of

PLACES = ("consumer", "coordinator/cli", "coordinator/admin")
MOST_PARAMETERS = 6
MOST_LINES = 250
MOST_ATTRIBUTES = 20


def classes() -> Iterator[tuple[Path, ast.ClassDef, list[str]]]:
    """Every class, and the lines of its module."""
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*.py")):
            lines = path.read_text().splitlines()
            yield from ((path, node, lines) for node in nodes_of(path) if isinstance(node, ast.ClassDef))


def constructor(found: ast.ClassDef) -> ast.FunctionDef | None:
    return next((each for each in found.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)


def parameters(init: ast.FunctionDef | None) -> int:
    """Of a constructor, `self` not counted."""
    return len([*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs]) - 1 if init is not None else 0


def attributes(found: ast.ClassDef) -> set[str]:
    """The attributes assigned to `self`, and the fields of a dataclass."""
    fields = {
        each.target.id for each in found.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return fields | {
        node.attr
        for node in ast.walk(found)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def has_comment_above(node: ast.ClassDef | ast.FunctionDef, lines: list[str]) -> bool:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return lines[first - 2].lstrip().startswith("# ")


def unexplained(found: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    init = constructor(found)
    if parameters(init) > MOST_PARAMETERS and init is not None and not has_comment_above(init, lines):
        yield f"{parameters(init)} parameters"
    if has_comment_above(found, lines):
        return
    if (length := (found.end_lineno or found.lineno) - found.lineno + 1) > MOST_LINES:
        yield f"{length} lines"
    if (count := len(attributes(found))) > MOST_ATTRIBUTES:
        yield f"{count} attributes"


def test_a_large_class_has_its_reason_in_a_comment_above_it() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {what}"
        for path, node, lines in classes()
        for what in unexplained(node, lines)
    ]

    assert found == []


def test_sizes_are_those_of_the_code() -> None:
    (node,) = ast.parse(
        "class A:\n    e: int = 0\n    def __init__(self, a, *, b):\n        self.c, self.d = a, b\n"
    ).body
    assert isinstance(node, ast.ClassDef)

    assert (parameters(constructor(node)), attributes(node)) == (2, {"c", "d", "e"})
