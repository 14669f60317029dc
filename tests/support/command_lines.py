"""Command lines and what they print, as text:

    == title of a session
    % group g                       a hand makes, removes or shows something: a method of `command_world.Hands`
    $ groups delete g               `zk-coordinator groups delete g` (or `zk-consumer ...`); `> FILE` keeps its stdout
    operator$ acl check             the same with the credentials of a party, which hands may have too
    what it prints
    ! a line on stderr
    [2]                             its exit code, when it is not 0

`…` stands for any text in a line, and alone in a line for any lines; `likewise` is what the command before printed.
`<name>` is a value with a name: `<folder>`, a party (its identity), one that a hand has named, or what stood in its
place first. A file's head has its own worlds, `NAME:` with indented lines below, for `% NAME`; its other lines are
those of every session. What lines of the head print is not looked at; they exit with 0. A JSON document has a line for
each of its rows.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from tests.support.command_world import Hands
from tests.support.parties import identity_of
from zk_group.consumer.cli import main as consumer_main
from zk_group.coordinator.cli import main as coordinator_main
from zk_group.coordinator.zk.errors import CoordinatorError

PARTIES = ("coordinator", "operator", "reader", "team-a", "team-b", "team-c", "mallory", "kafka")
LIKEWISE = "likewise\n"
_PROMPT = re.compile(r"([a-z-]*)([$%]) (.+)")
_TOKEN = re.compile(r"(…|<[a-z0-9 -]+>)")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[+\w:]*")
_OPTION = re.compile(r"([a-z_][a-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Step:
    """A line behind a prompt, and what shall be printed."""

    text: str
    expected: str

    @property
    def parts(self) -> tuple[str, str, str]:
        """The party, the prompt's last character, and the words after it."""
        found = _PROMPT.fullmatch(self.text.strip())
        assert found is not None, f"no prompt: {self.text}"
        return found[1], found[2], found[3]


def steps(text: str) -> Iterator[Step]:
    """The steps of a session."""
    assert "\n== " not in text, f"an empty line is missing before a title: {text}"
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if _PROMPT.fullmatch(line)]
    assert starts[:1] == [0], f"a session begins with a prompt: {text}"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield Step(lines[start], "".join(f"{line}\n" for line in lines[start + 1 : end]))


def in_rows(text: str) -> str:
    """A JSON document of several lines with one for each of its rows; other text as it is."""
    if text.startswith("{\n"):
        return f"{json.dumps(json.loads(text))}\n"
    return "".join(f"- {json.dumps(row)}\n" for row in json.loads(text)) if text.startswith("[\n") else text


class Player:
    """Plays the sessions of a file.

    :param common: what stands in the file's head.
    """

    def __init__(self, hands: Hands, folder: Path, common: str) -> None:
        self._hands = hands
        self._folder = folder
        self._names = {"<folder>": str(folder), **{f"<{party}>": identity_of(party) for party in PARTIES}}
        self._worlds: dict[str, list[Step]] = {}
        self._first: list[Step] = []
        into = self._first
        for line in common.splitlines():
            if line.endswith(":"):
                into = self._worlds[line.removesuffix(":")] = []
            elif line:
                (into if line.startswith(" ") else self._first).append(Step(line, ""))

    def played(self, text: str) -> str:
        """The session with what is printed now; lines that match what is printed stay as they are."""
        for step in self._first:
            self._make(step)
        before, found = "", ""
        for step in steps(text):
            printed = self._printed(step)
            is_likewise = printed == before != "" and step.expected in ("", LIKEWISE)
            found += f"{step.text}\n{LIKEWISE if is_likewise else self._kept(step.expected, self._named(printed))}"
            before = printed
        return found

    def _make(self, step: Step) -> None:
        printed = self._printed(step)
        assert not re.search(r"^\[\d+\]$", printed, re.MULTILINE), f"{step.text}\n{printed}"

    def _printed(self, step: Step) -> str:
        party, prompt, line = step.parts
        for name, value in self._names.items():
            line = line.replace(name, value)
        words = shlex.split(line)
        if prompt == "%" and words[0] in self._worlds:
            for each in self._worlds[words[0]]:
                self._make(each)
            return ""
        printed = self._run(party, words) if prompt == "$" else self._by_hand(party, words)
        self._names |= self._hands.names
        return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())

    def _named(self, text: str) -> str:
        """The text with the names of values in their place."""
        for name, value in sorted(self._names.items(), key=lambda item: -len(item[1])):
            text = text.replace(value, name)
        return text

    def _by_hand(self, party: str, words: list[str]) -> str:
        options = {found[1]: found[2] for word in words if (found := _OPTION.fullmatch(word))}
        act = getattr(self._hands, words[0].replace("-", "_"))
        try:
            with self._hands.acting(party):
                return act(*(word for word in words[1:] if not _OPTION.fullmatch(word)), **options) or ""
        except CoordinatorError as error:
            return f"! {type(error).__name__}: {error}\n"

    def _run(self, party: str, words: list[str]) -> str:
        *words, to, file = words if words[-2:-1] == [">"] else (*words, "", "")
        program, words = (consumer_main, words[1:]) if words[0] == "zk-consumer" else (coordinator_main, words)
        result = CliRunner().invoke(program, words, env=self._hands.environment(party))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        assert "Traceback" not in result.output and "secret-of" not in result.output, result.output
        if to:
            Path(self._folder, file).write_text(result.stdout)
        errors = "".join(f"! {line}\n" for line in result.stderr.splitlines())
        code = f"[{result.exit_code}]\n" if result.exit_code else ""
        return f"{'' if to else in_rows(result.stdout)}{errors}{code}"

    def _kept(self, expected: str, printed: str) -> str:
        """`expected` when it matches, else what is printed, with those lines of it that match."""
        if self._matches(expected, printed):
            return expected
        lines, found = expected.splitlines(keepends=True), []
        for line in printed.splitlines(keepends=True):
            place = next((n for n, each in enumerate(lines) if each != "…\n" and self._matches(each, line)), None)
            found.append(_TIME.sub("…", line) if place is None else lines[place])
            lines = lines if place is None else lines[place + 1 :]
        return "".join(found)

    def _matches(self, expected: str, printed: str) -> bool:
        new: list[str] = []

        def pattern(token: str) -> str:
            if token == "…":
                return ".*"
            if _TOKEN.fullmatch(token) and token not in self._names:
                new.append(token)
                return r"([\w-]+)"
            return re.escape(token)

        lines = expected.splitlines(keepends=True)
        whole = ("(?:.*\n)*" if line == "…\n" else "".join(map(pattern, _TOKEN.split(line))) for line in lines)
        found = re.fullmatch("".join(whole), printed)
        if found is not None:
            self._names |= dict(zip(new, found.groups(), strict=True))
        return found is not None
