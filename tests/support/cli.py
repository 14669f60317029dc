"""The command line `zk-coordinator` in the test's own process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from zk_group.coordinator.cli import main


def run(zk: str, *args: str) -> Result:
    """Run it; any exit code."""
    return CliRunner().invoke(main, [*args, "--zk", zk])


def run_ok(zk: str, *args: str) -> Result:
    """Run it; it must succeed."""
    result = run(zk, *args)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def run_json(zk: str, *args: str) -> Any:
    """Run it with `-o json`; the document that it prints."""
    return json.loads(run_ok(zk, *args, "-o", "json").stdout)
