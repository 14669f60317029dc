"""Log lines: the same calls as text and as JSON, with any values; and docs/logs.md against the code."""

from __future__ import annotations

import ast
import json
import logging
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.support.pages import ROOT, page
from zk_group.coordinator.zk.process.cli import log_options
from zk_group.coordinator.zk.process.log_format import RESERVED, JsonFormatter, TextFormatter, log_to_stderr, parsed
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

HOSTILE = 'c1\n2026-01-01T00:00:00.000Z INFO    x elected: node=evil\r\x1b[31m\x9b\u2028\u202e" group=h \\'


def record(message: object, *arguments: object, exc_info: Any = None) -> logging.LogRecord:
    made = logging.LogRecord("a.logger", logging.INFO, "file", 1, message, arguments, exc_info)
    made.created = 1_780_000_000.25
    return made


def as_json(message: object, *arguments: object, exc_info: Any = None) -> dict[str, Any]:
    line = JsonFormatter().format(record(message, *arguments, exc_info=exc_info))
    assert line.isascii()
    assert line.isprintable()
    found: dict[str, Any] = json.loads(line)
    return found


def as_text(message: object, *arguments: object, exc_info: Any = None) -> str:
    return TextFormatter().format(record(message, *arguments, exc_info=exc_info))


# ---- JSON


def test_the_keys_of_a_template_are_fields_and_numbers_are_numbers() -> None:
    template = "turn failed: group=%s failures=%d next_try_s=%.1f first=%s reason=a lost reply done=%d%%"
    line = as_json(template, "g", 3, 0.46, None, 5)

    assert line == {
        "ts": "2026-05-28T20:26:40.250Z",
        "level": "INFO",
        "logger": "a.logger",
        "event": "turn failed",
        "group": "g",
        "failures": 3,
        "next_try_s": 0.5,
        "first": None,
        "reason": "a lost reply",
        "done": "5%",
    }
    assert type(line["failures"]) is int


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (7, 7),
        (True, True),
        (1.25, 1.25),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        ("", ""),
        ("7", "7"),
        ("two words, key=x: y", "two words, key=x: y"),
        (TopicPartition("t", 3), "t-3"),
        (ValueError("bad: a=1"), "bad: a=1"),
        (HOSTILE, HOSTILE),
    ],
)
def test_value_of_any_kind_stays_whole(value: object, wanted: object) -> None:
    line = as_json("done: before=%s value=%s after=%s", 1, value, "end")

    assert (line["event"], line["before"], line["value"], line["after"]) == ("done", 1, wanted, "end")
    assert set(line) == {"ts", "level", "logger", "event", "before", "value", "after"}


def test_traceback_is_logged_in_a_field() -> None:
    try:
        raise ValueError("not\nthis")
    except ValueError:
        line = as_json("it broke: node=%s", "a", exc_info=sys.exc_info())

    assert line["exception"].startswith("Traceback (most recent call last):")
    assert line["exception"].endswith("ValueError: not\nthis")
    assert line["node"] == "a"


@pytest.mark.parametrize("key", RESERVED)
def test_a_key_with_the_name_of_a_lines_own_is_not_lost(key: str) -> None:
    line = as_json(f"done: {key}=%s", "mine")

    assert line[key + "_"] == "mine"
    assert line["event"] == "done"


@pytest.mark.parametrize(
    ("message", "arguments", "event"),
    [
        ("Connecting to %s(%s):%r", ("h", "::1", 1), "Connecting to h(::1):1"),
        ("Session: lost it", (), "Session: lost it"),
        ("100% sure", (), "100% sure"),
        ("%(a)s and more", ({"a": 1},), "1 and more"),
        (ValueError("no text"), (), "no text"),
        ("done: group=%s", (), "done: group=%s"),
    ],
)
def test_messages_of_other_libraries_are_events(message: object, arguments: tuple[object, ...], event: str) -> None:
    line = as_json(message, *arguments)

    assert line["event"] == event
    assert set(line) == {"ts", "level", "logger", "event"}


@pytest.mark.parametrize("arguments", [("g", "h"), ("not a number",)])
def test_log_call_with_wrong_arguments_is_logged_with_all_of_them(arguments: tuple[object, ...]) -> None:
    line = as_json("done: count=%d", *arguments)

    assert all(part in line["event"] for part in ("done: count=%d", *map(str, arguments)))


# ---- text


def test_text_is_logfmt_after_the_time_and_the_level() -> None:
    line = as_text("resigned: node=%s left_s=%.1f reason=%s held=%s", "a", 1.25, "the session ended", "")

    assert line == (
        '2026-05-28T20:26:40.250Z INFO    a.logger resigned: node=a left_s=1.2 reason="the session ended" held=""'
    )


@pytest.mark.parametrize("message", ["done: name=%s and=%s", "said %s, %s"])
def test_no_value_can_forge_a_line_or_a_key(message: str) -> None:
    line = as_text(message, HOSTILE, HOSTILE)

    assert line.isprintable()
    if "=" in message:
        bare = re.sub(r'"(?:\\.|[^"\\])*"', "", line)
        assert re.findall(r"(\w+)=", bare) == ["name", "and"]


def test_no_exception_can_forge_a_line() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        first, *trace = as_text("it broke: node=%s", "a", exc_info=sys.exc_info()).split("\n")

    assert first.endswith("it broke: node=a")
    assert len(trace) > 3
    assert all(part.startswith("    ") and part.isprintable() for part in trace)


# ---- both


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s3://key:se+cr=et@bucket/a", "s3://***@bucket/a"),
        ("at s3://b/x?region=eu&secret_key=abc&x=1 now", "at s3://b/x?region=eu&secret_key=***&x=1 now"),
        ("file:///a/b@c", "file:///a/b@c"),
        ("mail a@b", "mail a@b"),
    ],
)
def test_password_in_a_url_is_not_logged(text: str, wanted: str) -> None:
    assert as_json("done: dir=%s", text)["dir"] == wanted
    assert as_json(f"said {text}")["event"] == f"said {wanted}"
    assert wanted in as_text("done: dir=%s", text)
    assert wanted in as_text("said %s", text)


def printing(*arguments: str, **env: str) -> list[str]:
    """The stderr of a command with the options of both sides that logs one line of each level."""

    @click.command()
    @log_options
    def command(log_level: str, log_format: str) -> None:
        log_to_stderr(log_level, log_format)
        log = logging.getLogger("coordinator.x")
        log.debug("looked: at=%s", "a b")
        log.info("done: at=%s", "a b")

    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        result = CliRunner().invoke(command, list(arguments), env=env)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert result.exit_code == 0, result.output
    return result.stderr.splitlines()


def test_options_set_log_format_and_level_from_command_line_and_environment() -> None:
    (text,) = printing()
    (line,) = printing("--log-format", "json")
    lines = printing(ZK_GROUP_LOG_FORMAT="json", ZK_GROUP_LOG_LEVEL="debug")

    assert text.endswith(' INFO    coordinator.x done: at="a b"')
    assert json.loads(line)["at"] == "a b"
    assert [json.loads(line)["event"] for line in lines] == ["looked", "done"]


# ---- the page and the code


@cache
def calls() -> list[tuple[str, ast.Call, str]]:
    """Every call of a logger in the sources: its place, the call, and its level."""
    return list(_calls())


def _calls() -> Iterator[tuple[str, ast.Call, str]]:
    for package in ("coordinator", "consumer", "drills"):
        texts = [(path, path.read_text()) for path in sorted((ROOT / package).rglob("*.py"))]
        for path, source in ((path, text) for path, text in texts if "log." in text):
            for node in ast.walk(ast.parse(source)):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id == "log"
                ):
                    level = "error" if node.func.attr == "exception" else node.func.attr
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node, level


def template_of(call: ast.Call) -> Any:
    message = call.args[0] if call.args else None
    return parsed(message.value) if isinstance(message, ast.Constant) and isinstance(message.value, str) else None


def test_every_log_call_has_an_event_and_one_argument_per_key() -> None:
    wrong = [
        where
        for where, call, _ in calls()
        if (template := template_of(call)) is None
        or len(call.args) - 1 != template.arguments
        or len({field.key for field in template.fields}) != len(template.fields)
        or {field.key for field in template.fields} & set(RESERVED)
    ]

    assert wrong == [], "write `event: key=%s other=%d`, with no argument in the event"


def test_the_page_lists_every_event_with_its_keys_and_levels_and_no_other() -> None:
    keys: dict[str, set[str]] = defaultdict(set)
    levels: dict[str, set[str]] = defaultdict(set)
    for _, call, level in calls():
        template = template_of(call)
        keys[template.event].add(", ".join(f"`{field.key}`" for field in template.fields))
        levels[template.event].add(level)
    order = ["debug", "info", "warning", "error"]
    wanted = {
        f"| `{event}` | {', '.join(sorted(levels[event], key=order.index))} |{' ' * bool(some)}{some} |"
        for event in keys
        for some in keys[event]
    }

    listed = re.findall(
        r"^(\| `[^`]+` \| (?:debug|info|warning|error)[^|]*\|[^|]*\|) \S", page("logs.md"), re.MULTILINE
    )

    assert sorted(set(listed) - wanted) == [], "these rows are of no call in the code"
    assert sorted(wanted - set(listed)) == [], "these rows are missing in docs/logs.md (one event, one set of keys)"
    assert len(listed) == len(set(listed))
