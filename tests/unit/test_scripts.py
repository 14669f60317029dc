"""What holds for every shell script of the repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A reader that leaves before its writer is done: the writer gets SIGPIPE now and then, and pipefail fails the script.
LEAVES_EARLY = re.compile(r"(?<!\|)\|(?!\|) *(head\b|grep +-[A-Za-z]*[qm]|sed +[^|]*\dq\b)")


def shell_scripts() -> list[Path]:
    folders = (ROOT / "scripts", ROOT / "tests", ROOT / ".ci")
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix in ("", ".sh")]
    return [path for path in files if path.read_bytes().startswith((b"#!/usr/bin/env bash", b"# shellcheck"))]


def test_no_script_under_pipefail_reads_only_the_beginning_of_a_pipe() -> None:
    scripts = [path for path in shell_scripts() if "pipefail" in path.read_text()]
    assert len(scripts) >= 6
    early = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in scripts
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if LEAVES_EARLY.search(line)
    ]
    assert early == []
