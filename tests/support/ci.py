"""Whether tests run where everything that they need is installed for them, and of which commit."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path


def in_ci() -> bool:
    """Whether what cannot run is an error."""
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


@cache
def number_of_commit() -> int:
    """From the commit's tree, so that each looks at other cases, and the same one always at the same. 0 without git."""
    git = subprocess.run(
        ["git", "rev-parse", "HEAD^{tree}"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return int(git.stdout[:8] or "0", 16) if git.returncode == 0 else 0
