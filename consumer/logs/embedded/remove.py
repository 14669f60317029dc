"""Removing a topic's data from the embedded log."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from ..errors import LogError
from .layout import topic_folder


def remove_topic(log_dir: Path, topic: str, topic_id: str) -> bool:
    """Remove the data of one topic; returns whether there was any.

    It disappears for readers and producers at once, before its files are removed one by one.

    :raises LogError: when it cannot be removed.
    """
    folder = topic_folder(log_dir, topic, topic_id)
    doomed = folder.parent / f".removed-{topic_id}-{uuid.uuid4().hex[:8]}"
    try:
        folder.rename(doomed)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LogError(f"cannot remove {folder}: {error.strerror}") from error
    try:
        shutil.rmtree(doomed)
    except OSError as error:
        raise LogError(f"cannot remove {doomed}, which was {folder}: {error.strerror}") from error
    for left in folder.parent.glob(".removed-*"):  # left by a process that died in between
        shutil.rmtree(left, ignore_errors=True)
    _remove_if_empty(folder.parent)
    return True


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # the topic exists under another id
