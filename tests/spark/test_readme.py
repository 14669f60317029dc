"""The README's example, as it is written: the commands one after the other, then the program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
WAITS_S = 20
"""How long the program waits for its query."""


def in_place(text: str, zk: str, folder: Path) -> str:
    """The example's own ensemble and folders replaced by the test's."""
    patient = text.replace(f"awaitTermination({WAITS_S})", f"awaitTermination({WAITS_S * 3})")
    return patient.replace("127.0.0.1:22181/try", zk).replace("/tmp/try", str(folder / "try"))


def test_the_example_of_the_readme_counts_every_record(zk: str, tmp_path: Path) -> None:
    block = README.split("\n## An example\n")[1].split("\n\n")[1]
    lines = [line.strip() for line in block.splitlines()]
    commands = [line for line in lines if line.startswith(("export", "zk-", "seq", "python"))]
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "example.py").write_text(in_place(program, zk, tmp_path))
    script = in_place("\n".join(["set -e", "trap 'kill $(jobs -p)' EXIT", *commands]), zk, tmp_path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert len(commands) == len(lines) - 2, "all but the environment and the ensemble"

    with (
        (tmp_path / "stderr").open("wb") as stderr,
        subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        ) as example,
    ):
        try:
            said, _ = example.communicate(timeout=250)
        finally:
            if example.poll() is None:
                os.killpg(example.pid, signal.SIGKILL)

    counts = [dict(re.findall(r"^\| +(\d+)\| *(\d+)\|$", batch, re.MULTILINE)) for batch in said.split("Batch:")]
    assert example.returncode == 0, (tmp_path / "stderr").read_text()[-3000:]
    assert sum(map(int, counts[-1].values())) == 100_000, said[-3000:]
