"""What a consumer may raise besides `coordinator.zk.errors`.

CoordinatorError
├── Fenced
│   └── IncarnationOver
│       ├── ChannelGone      its channel was removed or overwritten, as only a hand does
│       └── Superseded       a newer process has the name: this one must not come back under it
├── CommitFailed             a commit came too late: the partitions are somebody else's by now
└── SegmentError             a sealed segment is missing, damaged or was collected
"""

from __future__ import annotations

from coordinator.zk.errors import CoordinatorError, IncarnationOver


class Superseded(IncarnationOver):
    """A newer process has registered under this consumer's name."""


class ChannelGone(IncarnationOver):
    """The channel was removed or overwritten. What it said ran has owners that go only with the session."""


class CommitFailed(CoordinatorError):
    """Offsets were not committed: the partitions are somebody else's by now; or nobody answered whether they were."""


class SegmentError(CoordinatorError):
    """A sealed segment cannot be read; the message names it and its offsets."""
