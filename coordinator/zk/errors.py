"""Every error that the project raises on purpose, as one tree.

CoordinatorError                     exit code 1
├── UsageError                       2   the user's mistake: an option, a name, a pattern
├── ZooKeeperUnreachable             4   no server answered within the caller's timeout
├── MissingProgram                   69  a required program is not installed
├── BadData                              an invalid znode, file or line
├── StoreError                           one failed request to ZooKeeper
│   ├── Retryable
│   │   ├── ConnectionLost               a read without an answer: retry
│   │   └── OutcomeUnknown               a commit whose reply was lost: `sync`, then read its effect
│   ├── AccessDenied             77      a znode whose ACL refuses to read it: BadData too
│   ├── NotAuthorized            77  an ACL refuses this client
│   │   └── AuthenticationFailed 78  TLS or credentials: a server and this client refuse each other
│   └── Final
│       ├── Refused                      a commit that ZooKeeper refused; none of it took effect
│       │   └── WriteDenied          77  a znode whose ACL refuses to write it: NotAuthorized too
│       ├── TooLarge                     a request over the server's size limit; never sent
│       └── SessionLost                  the session is over, and this store too
├── Fenced                               a newer process has taken over
│   ├── IncarnationOver                  of a consumer: its channel was ended or taken over
│   └── EpochOver                        of a coordinator: another one was elected
└── RebalanceFailed                      a group that could not be rebalanced, with the reason
"""

from __future__ import annotations


class CoordinatorError(Exception):
    """Root of the tree. `exit_code` is the exit code of a command that raises it."""

    exit_code = 1


class UsageError(CoordinatorError):
    """A user's mistake; the message is one sentence with the remedy."""

    exit_code = 2


class ZooKeeperUnreachable(CoordinatorError):
    """No ZooKeeper server answered within the timeout."""

    exit_code = 4


class MissingProgram(CoordinatorError):
    """A required program is not installed; the message names the package to install."""

    exit_code = 69


class BadData(CoordinatorError):
    """Invalid data from outside; the message names its location."""


class StoreError(CoordinatorError):
    """One request to ZooKeeper failed."""


class AccessDenied(StoreError, BadData):
    """A znode whose ACL refuses to read it or to list its children: bad data of that znode.

    :ivar path: the znode.
    """

    exit_code = 77

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} may not be read: its ACL refuses")
        self.path = path


GRANT = "check the credentials (zk_auth_file, or a client certificate), and the ACLs by zk-coordinator acl check"
"""What to do about a refusal by an ACL."""


class NotAuthorized(StoreError):
    """ZooKeeper refuses this client by an ACL. Starting again does not help."""

    exit_code = 77


class AuthenticationFailed(NotAuthorized):
    """A server and this client refuse each other: by a certificate, by credentials, or only one of them has TLS."""

    exit_code = 78


class Retryable(StoreError):
    """The same request may be sent again."""


class ConnectionLost(Retryable):
    """A read without an answer (connection lost, or timeout)."""


class OutcomeUnknown(Retryable):
    """A commit whose reply was lost: it may take effect, until a `sync` has been answered."""


class Final(StoreError):
    """A retry of the same request cannot succeed."""


class Refused(Final):
    """A commit that ZooKeeper refused.

    :ivar index: index of the refused operation.
    :ivar path: its path.
    :ivar reason: `bad-version`, `no-node`, `node-exists`, `not-empty`, `no-auth` or the server's own error name.
    """

    def __init__(self, index: int, path: str, reason: str) -> None:
        super().__init__(f"operation {index} on {path} was refused: {reason}")
        self.index = index
        self.path = path
        self.reason = reason


class WriteDenied(Refused, NotAuthorized):
    """A commit that the ACL of a znode, or of its parent, refused.

    :ivar missing: the party whose identity this client lacks; empty when unknown.
    """

    def __init__(self, index: int, path: str, missing: str = "") -> None:
        super().__init__(index, path, "no-auth")
        self.missing = missing

    def __str__(self) -> str:
        why = f"this client has no identity of {self.missing}, " if self.missing else ""
        return f"the ACL of {self.path}, or of its parent, refuses to write it: {why}{GRANT}"


class TooLarge(Final):
    """A request over a ZooKeeper server's size limit; it was not sent."""


class SessionLost(Final):
    """The session has ended (expired or closed); every later request on this store raises this."""


class Fenced(CoordinatorError):
    """A newer process has taken over."""


class IncarnationOver(Fenced):
    """A consumer's incarnation was ended: evicted, taken over under its name, or its session expired."""


class EpochOver(Fenced):
    """Another coordinator was elected; this one may write nothing more."""


class RebalanceFailed(CoordinatorError):
    """A group could not be rebalanced; the message is the reason."""
