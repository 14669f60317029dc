"""Removing a topic's data from the embedded log."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from coordinator.zk import below

from ..errors import LogError
from .layout import topic_folder

REMOVED_PREFIX = ".removed-"


def remove_topic(log_dir: Path, topic: str, topic_id: str) -> bool:
    """Remove the data of one topic; returns whether there was any.

    It disappears for readers and producers at once, before its files are removed one by one.

    :raises LogError: when it cannot be removed.
    """
    folder = topic_folder(log_dir, topic, topic_id)
    doomed = f"{REMOVED_PREFIX}{topic_id}-{uuid.uuid4().hex[:8]}"
    try:
        with below.opened_folder(log_dir, [topic]) as parent:
            try:
                os.rename(topic_id, doomed, src_dir_fd=parent, dst_dir_fd=parent)
            except FileNotFoundError:
                return False
            try:
                shutil.rmtree(doomed, dir_fd=parent)
            except OSError as error:
                reason = f"cannot remove {folder.parent / doomed}, which was {folder}: {error.strerror}"
                raise LogError(reason) from error
            for left in os.listdir(parent):  # noqa: PTH208  by its descriptor
                if left.startswith(REMOVED_PREFIX):  # left by a process that died in between
                    shutil.rmtree(left, ignore_errors=True, dir_fd=parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LogError(f"cannot remove {folder}: {error.strerror}") from error
    _remove_if_empty(folder.parent)
    return True


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # the topic exists under another id
