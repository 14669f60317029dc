"""Containers of drills, and their removal after any error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drills.environments import containers
from drills.environments.containers import Containers, EngineError

Answer = Callable[[str], str]
"""Output of a command, by its arguments; it may raise."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands sent to an engine that returns nothing."""
    return answering(monkeypatch, lambda _: "")


def answering(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[str]:
    """An engine; returns the commands sent to it."""
    heard: list[str] = []

    def run(_containers: Containers, *command: str, **_: object) -> str:
        words = " ".join(command)
        heard.append(words)
        return answer(words)

    monkeypatch.setattr(containers, "_compose_command", lambda: ("docker", "compose"))
    monkeypatch.setattr(Containers, "_run", run)
    return heard


def test_no_two_runs_have_one_compose_project_though_their_process_ids_are_equal(
    tmp_path: Path, asked: list[str]
) -> None:
    first, second = Containers(tmp_path), Containers(tmp_path)

    assert first.project != second.project
    assert asked == []


@pytest.mark.parametrize("refused", ["docker ps", "docker unpause"])
def test_containers_are_removed_though_none_can_be_unpaused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: str
) -> None:
    def answer(words: str) -> str:
        if words.startswith(refused):
            raise EngineError(refused)
        return "one two" if words.startswith("docker ps") else ""

    asked = answering(monkeypatch, answer)

    Containers(tmp_path).__exit__()

    assert asked[-1].endswith("down -v --remove-orphans")
    assert len(asked) == (2 if refused == "docker ps" else 4)


def test_first_error_is_raised_and_a_failed_removal_is_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(words: str) -> str:
        raise EngineError("the first" if words.endswith("up -d") else "another")

    answering(monkeypatch, answer)
    made = Containers(tmp_path)

    with pytest.raises(EngineError, match="the first"), made:
        raise AssertionError("it does not start")

    assert caplog.messages == [f"Compose project {made.project} is not removed: another"]


def test_container_without_a_network_is_reconnected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = answering(monkeypatch, lambda words: "created" if words.startswith("docker inspect") else "id")

    Containers(tmp_path).heal()

    assert sum(words.startswith("docker network connect --alias") for words in asked) == 3
    assert sum(words.startswith("docker start") for words in asked) == 3


@pytest.mark.long
def test_unresponsive_engine_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(containers, "_compose_command", lambda: ("docker", "compose"))
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexec sleep 60\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    with pytest.raises(EngineError, match="docker kill one: it did not end within 1 s"):
        Containers(tmp_path)._run("docker", "kill", "one", timeout_s=1.0)
