"""Stories as text: what is done to a bench, step by step, and what comes of each step.

    == a newer run of a query fences the older     a title: the id of the test
    # comments say why
    seal 10 5; old reads                           the bench's step `seal`, with words and options (key=value): numbers,
      s0 s1                                        `True` and `False` are such; and its step `reads`, of what is `old`.
    new resumes old; new plans again               What comes of the steps is below, indented: what they return, or the
      s0 s1                                        error that one raises; one raised before is `likewise`

`--rewrite` writes what comes of the steps now into the file: review the difference.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from _pytest.mark import ParameterSet

from tests.support.turns import cases, file_of

WORDS = {"True": True, "False": False}


class Bench(Protocol):
    """Its public methods are the steps.

    :ivar errors: those that a step may raise.
    """

    errors: tuple[type[Exception], ...]

    def shown(self, text: str) -> str:
        """What a step returned, or an error's text, without what differs from run to run."""


def stories(file: Path) -> list[ParameterSet]:
    """The titles of a file's stories, as parameters of a test."""
    titles = [case.title for case in cases(file.read_text())[1]]
    assert titles and len(titles) == len(set(titles)), "titles are unique"
    return [pytest.param(title, id=title) for title in titles]


def play(request: pytest.FixtureRequest, file: Path, title: str, bench: Bench, is_joined: bool = False) -> None:
    """Take the steps of a story, and compare what comes of them, or write it; joined: on one line, between bars."""
    head, some = cases(file.read_text())
    texts = {case.title: case.text for case in some}
    found = "".join(f"{line}\n" for line in _played(texts[title], bench, is_joined))
    if request.config.getoption("--rewrite"):
        file.write_text(file_of(head, {**texts, title: found}.items()))
    else:
        assert found == texts[title]


def _played(text: str, bench: Bench, is_joined: bool) -> Iterator[str]:
    """The lines of a story, each with what comes of its steps."""
    errors: set[str] = set()
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        yield line
        outcomes = [each for step in line.split(";") if not line.startswith("#") for each in _come(step, bench, errors)]
        if is_joined and len(joined := "  " + " | ".join(outcomes)) <= 120:
            outcomes = [joined.strip()] if outcomes else []
        yield from (f"  {each}" for each in outcomes)


def _come(step: str, bench: Bench, errors: set[str]) -> Iterator[str]:
    try:
        yield from map(bench.shown, take(bench, shlex.split(step)))
    except bench.errors as error:
        found = bench.shown(f"{type(error).__name__}: {error}")
        yield "likewise" if found in errors else found
        errors.add(found)


def take(bench: Bench, words: list[str]) -> list[str]:
    """Take a step; what it returns, as lines."""
    verb = words.pop(0 if hasattr(bench, words[0]) else 1)
    options = {key: _value(text) for key, _, text in (word.partition("=") for word in words if "=" in word)}
    found = getattr(bench, verb)(*(_value(word) for word in words if "=" not in word), **options)
    return [] if found is None else [found] if isinstance(found, str) else found


def _value(word: str) -> Any:
    if word in WORDS:
        return WORDS[word]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return word


def statements(line: str) -> Iterator[list[str]]:
    """The words of each statement of a line, which semicolons separate; # is a comment."""
    words = shlex.shlex(line, posix=True, punctuation_chars=";")
    words.whitespace_split = True
    found: list[str] = []
    for word in (*words, ";"):
        if word == ";" and found:
            yield found
        found = [] if word == ";" else [*found, word]


def split(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The plain ones, and options as key=value."""
    return [word for word in words if "=" not in word], dict(word.split("=", 1) for word in words if "=" in word)
