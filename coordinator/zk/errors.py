"""Every error that the project raises on purpose, as one tree.

CoordinatorError                     exit code 1
├── UsageError                       2   the user's mistake: an option, a name, a pattern
├── ZooKeeperUnreachable             4   nobody answered within the time that the caller gave
├── MissingProgram                   69  a program that is needed is not installed
├── BadData                              a znode, file or line that does not say what it must
├── StoreError                           one request to ZooKeeper did not succeed
│   ├── Retryable
│   │   ├── ConnectionLost               a read whose answer did not come: ask again
│   │   └── OutcomeUnknown               a commit whose reply was lost: `sync`, then read what became of it
│   └── Final
│       ├── Refused                      a commit that ZooKeeper refused whole; nothing of it happened
│       ├── TooLarge                     a request over the size that a server takes; never sent
│       └── SessionLost                  the session is over, and this store with it
├── Fenced                               somebody newer has taken over what this process held
│   ├── IncarnationOver                  a consumer's: its channel was ended or taken over
│   └── EpochOver                        a coordinator's: another one was elected
└── RebalanceFailed                      a group could not be rebalanced, with the reason
"""

from __future__ import annotations


class CoordinatorError(Exception):
    """Root of the tree. `exit_code` is what a command line ends with when nothing else catches it."""

    exit_code = 1


class UsageError(CoordinatorError):
    """A user's mistake; the message is one sentence that says what to do."""

    exit_code = 2


class ZooKeeperUnreachable(CoordinatorError):
    """No ZooKeeper server answered within the time given."""

    exit_code = 4


class MissingProgram(CoordinatorError):
    """A program that is needed is not installed; the message says what to install."""

    exit_code = 69


class BadData(CoordinatorError):
    """Data from outside that does not say what it must; the message names where it stands."""


class StoreError(CoordinatorError):
    """One request to ZooKeeper did not succeed."""


class Retryable(StoreError):
    """The same question may be asked again."""


class ConnectionLost(Retryable):
    """A read whose answer did not come (connection lost, or no answer in time)."""


class OutcomeUnknown(Retryable):
    """A commit whose reply did not come: it may have happened or may still happen, until a `sync` has answered."""


class Final(StoreError):
    """Asking again as it stands cannot help."""


class Refused(Final):
    """A commit that ZooKeeper refused whole.

    :ivar index: which operation of the commit was refused.
    :ivar path: that operation's path.
    :ivar reason: `bad-version`, `no-node`, `node-exists`, `not-empty` or the server's own word.
    """

    def __init__(self, index: int, path: str, reason: str) -> None:
        super().__init__(f"operation {index} on {path} was refused: {reason}")
        self.index = index
        self.path = path
        self.reason = reason


class TooLarge(Final):
    """A request over the size that a ZooKeeper server takes; it was not sent."""


class SessionLost(Final):
    """The session has ended (expired or closed); every later request on this store raises this."""


class Fenced(CoordinatorError):
    """Somebody newer has taken over what this process held."""


class IncarnationOver(Fenced):
    """A consumer's incarnation was ended: evicted, taken over under its name, or its session expired."""


class EpochOver(Fenced):
    """Another coordinator was elected; this one may write nothing more."""


class RebalanceFailed(CoordinatorError):
    """A group could not be rebalanced; the message is the reason."""
