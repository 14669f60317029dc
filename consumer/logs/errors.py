"""Errors of a log.

CoordinatorError
└── LogError                  a log cannot be read or written; the message names the file and the offsets
    ├── OffsetOutOfRange      the offset is before the earliest or after the latest one
    └── UnknownTopic          there is no topic of this name with this id in the log
"""

from __future__ import annotations

from coordinator.zk.errors import CoordinatorError


class LogError(CoordinatorError):
    """A log cannot be read or written; the message names the file and the offsets."""


class OffsetOutOfRange(LogError):
    """An offset before the earliest or after the latest one; the message has both."""


class UnknownTopic(LogError):
    """The log has no topic of this name with this id: it was deleted, or never written to."""
