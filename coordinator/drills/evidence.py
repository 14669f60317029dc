"""What is left of a drill: a folder with everything that its verdict was decided from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import __version__
from ..zk.store import Store
from .histories import Event
from .processes import REPOSITORY
from .reports.markdown import markdown
from .reports.page import page

MOST_ZNODES = 20_000
LIBRARIES = ("kazoo", "pyspark", "pyarrow", "confluent-kafka")


def write_json(path: Path, document: object) -> None:
    """One JSON document, whole or not there."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=2) + "\n")
    temporary.replace(path)


def write_reports(folder: Path, document: Mapping[str, Any], events: Sequence[Event]) -> None:
    """The page and the text for people."""
    (folder / "report.html").write_text(page(document, events))
    (folder / "report.md").write_text(markdown(document, events))


def write_history(path: Path, events: Sequence[Event]) -> None:
    """One event a line."""
    path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))


def znodes(store: Store, roots: Sequence[str]) -> dict[str, Any]:
    """These znodes and every one below them: path -> data as text, version, and the session that it is ephemeral of."""
    found: dict[str, Any] = {}
    left = list(roots)
    while left and len(found) < MOST_ZNODES:
        some, left = left[:500], left[500:]
        nodes, listings = store.get_many(some), store.children_many(some)
        for path, node, listing in zip(some, nodes, listings, strict=True):
            if node is not None:
                found[path] = {
                    "data": node.data.decode("utf-8", "backslashreplace"),
                    "version": node.stat.version,
                    "ephemeral_owner": node.stat.ephemeral_owner,
                }
            base = path.rstrip("/")
            left += [f"{base}/{name}" for name in sorted(listing.names if listing else ())]
    return dict(sorted(found.items()))


def versions(zookeeper: str) -> dict[str, str]:
    """Of everything that took part."""
    found = {"zk-group-coordinator": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library)
    found["zookeeper"] = zookeeper
    with suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        )
        found["git"] = asked.stdout.strip()
    return found


def point_latest(folder: Path) -> None:
    """Let `latest` beside it name this folder."""
    link = folder.parent / "latest"
    temporary = folder.parent / f".latest-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    temporary.replace(link)
