"""The README's example, as it is written: the commands one after the other, then the program."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zk_group.coordinator.zk.embedded.directory import choose_ports
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, has_ensemble

pytestmark = [pytest.mark.full("applications, as users run them"), pytest.mark.timeout(500)]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RECORDS = 100_000

PROGRAM = "python example.py"

ALL_COUNTED = f"""awk -F '|' '/Batch:/ {{n = 0}} /^[|] *[0-9]/ {{n += $3}} END {{exit n != {RECORDS}}}'"""
"""Whether the last table in a file has every record."""


def in_place(text: str, hosts: str, folder: Path) -> str:
    """The example's own port and folders replaced by the test's; what reads without end ends with the last record."""
    for its, mine in (
        ("127.0.0.1:22181", hosts),
        ("22181", hosts.partition(":")[2]),
        ("/tmp/try", str(folder / "try")),
        ("scripts/ensemble start", f"{ROOT}/scripts/ensemble start --dir {folder}/zookeeper"),
        ("scripts/ensemble stop", f"{ROOT}/scripts/ensemble stop --dir {folder}/zookeeper"),
        ("flights:2", f"flights:2 --max-records {RECORDS} > {folder}/g2"),
    ):
        text = text.replace(its, mine)
    return text


def indented(text: str) -> list[str]:
    """The commands that it shows, without the remarks beside them."""
    return [line.partition(" #")[0].strip() for line in text.splitlines() if line.startswith("    ")]


def test_the_example_of_the_readme_counts_every_record_each_time_it_runs(tmp_path: Path) -> None:
    example = README.split("\n## An example\n")[1].split("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", example, re.DOTALL)
    before, after = example.split(f"```python\n{program}```")
    end = re.findall(r"`([^`]+)`", after.split("\nThe end: ")[1])
    activate, *commands = [*indented(before), *indented(after), *end]
    assert (activate, len(commands), end) == (". .venv/bin/activate", 10, ["kill %1", "scripts/ensemble stop"])
    started = commands.index(f"{PROGRAM} &")
    commands[started : started + 1] = [
        f"{PROGRAM} > first_run &",
        f"until {ALL_COUNTED} first_run; do kill -0 %2; sleep 0.2; done",
    ]
    commands[-2:-2] = ["wait %2", PROGRAM]
    hosts = f"127.0.0.1:{choose_ports(1, None)[0].client}"
    (tmp_path / "example.py").write_text(in_place(program, hosts, tmp_path))
    script = in_place("\n".join(["set -e", *commands[:-1], "wait %1", commands[-1]]), hosts, tmp_path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

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
        ) as running,
    ):
        try:
            said, _ = running.communicate(timeout=400)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
            if has_ensemble(tmp_path / "zookeeper"):
                Ensemble.load(tmp_path / "zookeeper").stop()

    assert running.returncode == 0, (tmp_path / "stderr").read_text()[-3000:]
    for shown in ((tmp_path / "first_run").read_text(), said):
        counts = [dict(re.findall(r"^\| +(\d+)\| *(\d+)\|$", batch, re.MULTILINE)) for batch in shown.split("Batch:")]
        assert sum(map(int, counts[-1].values())) == RECORDS, shown[-3000:]
        assert min(map(int, counts[-1].values())) > RECORDS / 5, "each of four partitions has about as many"
        assert re.search(r"^<FetcherPool example of group g, slots: 2 \w+>$", shown, re.MULTILINE), shown[-3000:]
    lags = re.findall(r"^g +flights +\d +(\d+) +(\d+) +0 +example-slot-[01] ", said, re.MULTILINE)
    assert sum(int(end) for offset, end in lags if offset == end) == RECORDS, said[-3000:]
    without_spark = [json.loads(line) for line in (tmp_path / "g2").read_text().splitlines()]
    assert len({(each["partition"], each["offset"]) for each in without_spark}) == len(without_spark) == RECORDS
