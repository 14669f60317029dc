"""The evidence folder of a drill, with all inputs of its verdict."""

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

from coordinator import __version__
from coordinator.zk.store import Store

from ..base.processes import REPOSITORY
from ..reports.markdown import markdown
from ..reports.page import page
from ..reports.trace import trace
from .histories import Event

MOST_ZNODES = 20_000
LIBRARIES = ("kazoo", "pyspark", "pyarrow", "confluent-kafka")


def write_json(path: Path, document: object) -> None:
    """Write one JSON document atomically."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=2) + "\n")
    temporary.replace(path)


def write_reports(folder: Path, document: Mapping[str, Any], events: Sequence[Event]) -> None:
    """Write `report.html`, `report.md` and `trace.json`."""
    (folder / "report.html").write_text(page(document, events))
    (folder / "report.md").write_text(markdown(document, events))
    (folder / "trace.json").write_text(json.dumps(trace(document, events)) + "\n")


def write_history(path: Path, events: Sequence[Event]) -> None:
    """One event a line."""
    path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))


def znodes(store: Store, roots: Sequence[str]) -> dict[str, Any]:
    """These znodes and their subtrees: path -> data as text, version, and ephemeral owner."""
    result: dict[str, Any] = {}
    pending = list(roots)
    while pending and len(result) < MOST_ZNODES:
        batch, pending = pending[:500], pending[500:]
        nodes, listings = store.get_many(batch), store.children_many(batch)
        for path, node, listing in zip(batch, nodes, listings, strict=True):
            if node is not None:
                result[path] = {
                    "data": node.data.decode("utf-8", "backslashreplace"),
                    "version": node.stat.version,
                    "ephemeral_owner": node.stat.ephemeral_owner,
                }
            base = path.rstrip("/")
            pending += [f"{base}/{name}" for name in sorted(listing.names if listing else ())]
    return dict(sorted(result.items()))


def versions(zookeeper: str) -> dict[str, str]:
    """The versions of all components."""
    result = {"zk-group-coordinator": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            result[library] = metadata.version(library)
    result["zookeeper"] = zookeeper
    with suppress(OSError, subprocess.SubprocessError):
        completed = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        )
        result["git"] = completed.stdout.strip()
    return result


def point_latest(folder: Path) -> None:
    """Point `latest` to this folder."""
    link = folder.parent / "latest"
    temporary = folder.parent / f".latest-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    temporary.replace(link)
