"""What can go wrong with a log.

CoordinatorError
└── LogError                  a log cannot be read or written; the message names the file and the offsets
    ├── OffsetOutOfRange      no record will ever be at this offset, or the log does not reach it yet
    └── UnknownTopic          there is no topic of this name with this id in the log
"""

from __future__ import annotations

from coordinator.zk.errors import CoordinatorError


class LogError(CoordinatorError):
    """A log cannot be read or written as it stands; the message names the file and the offsets concerned."""


class OffsetOutOfRange(LogError):
    """An offset before the earliest or after the latest one; the message says which those are."""


class UnknownTopic(LogError):
    """The log holds no topic of this name with this id: it was deleted, or nothing was ever written to it."""
