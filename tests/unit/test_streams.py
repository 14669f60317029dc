"""A command whose stdout or stdin is closed, or whose stdout has a full disk, ends with one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "zk_group.coordinator.cli --help",
    "zk_group.coordinator.cli drill list",
    "zk_group.consumer.cli run --help",
)

pytestmark = pytest.mark.long


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"], autouse=True)
def buffering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", request.param)


def ended(command: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a shell's command, in which `python` is this one."""
    words = ["bash", "-c", command.replace("python", sys.executable)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("place", "reason"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
def test_lost_output_of_a_command_is_one_sentence_and_exit_code_1(command: str, place: str, reason: str) -> None:
    assert ended(f"python -m {command} {place}") == (1, "", f"error: standard output cannot be written: {reason}\n")


def test_an_input_that_cannot_be_read_is_one_sentence() -> None:
    read = (
        "import sys; from zk_group.consumer.cli.produce import lines; "
        "from zk_group.coordinator.zk.process.cli import exit_code_of; "
        "sys.exit(exit_code_of(lambda: list(lines(sys.stdin.fileno(), 1)) and 0))"
    )

    code, _, said = ended(f"python -c '{read}' <&-")

    assert (code, said) == (1, "error: the input cannot be read: Bad file descriptor\n")


def test_a_socket_never_gets_the_number_of_a_closed_standard_stream() -> None:
    opened = (
        "import socket, sys; from zk_group.coordinator.zk.process.cli import exit_code_of; "
        "sys.exit(exit_code_of(lambda: socket.socket().fileno()))"
    )

    assert ended(f"python -c '{opened}' <&- >&- 2>&-")[0] > 2


def test_output_is_dropped_after_it_was_lost_once() -> None:
    command = (
        "import click, sys\n"
        "from zk_group.coordinator.zk.process.cli import exit_code_of\n"
        "def run():\n"
        "    try:\n"
        "        click.echo(1)\n"
        "    finally:\n"
        "        click.echo(2)\n"
        "sys.exit(exit_code_of(run))"
    )

    code, _, said = ended(f"python -c '{command}' >/dev/full")

    assert (code, said.count("\n")) == (1, 1)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    assert ended("python -m zk_group.coordinator.cli --help | true")[1:] == ("", "")
