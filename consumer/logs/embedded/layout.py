"""Paths of the embedded log: `[log_dir]/[topic]/[topic id]/[partition]/[first offset].arrow`."""

from __future__ import annotations

import re
from pathlib import Path

from coordinator.zk.znodes.names import checked_name

SUFFIX = ".arrow"
PARTS_OF_A_FILE = 4
"""Topic, topic id, partition, file."""
_NAME = re.compile(r"\d{20}\.arrow")


def topic_folder(log_dir: Path, topic: str, topic_id: str) -> Path:
    """The folder of one topic.

    :raises UsageError: when `topic` or `topic_id` is not a valid name, and might lead outside.
    """
    return log_dir / checked_name("topic", topic) / checked_name("topic id", topic_id)


def file_name(first: int) -> str:
    """The name of the file whose first record has offset `first`; names sort as offsets do."""
    return f"{first:020d}{SUFFIX}"


def first_offset(name: str) -> int | None:
    """The inverse of `file_name`, None for any other name."""
    return int(name[: -len(SUFFIX)]) if _NAME.fullmatch(name) else None
