"""Whether tests run where everything that they need is installed for them."""

from __future__ import annotations

import os


def in_ci() -> bool:
    """Whether what cannot run is an error."""
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")
