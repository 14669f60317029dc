"""Lines of text that say what happens: statements between semicolons, each of words as a shell has them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator


def statements(line: str) -> Iterator[list[str]]:
    """The words of each; # is a comment."""
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
