"""A secured chroot of an embedded ensemble, for the demo and for benchmarks."""

from __future__ import annotations

from coordinator.admin.acl import apply, create_group
from coordinator.zk.embedded.directory import Identities
from coordinator.zk.security.policy import AclPolicy
from coordinator.zk.store import AclStore
from coordinator.zk.znodes.paths import Brokers


def secure(store: AclStore, identities: Identities, groups: dict[str, str]) -> None:
    """Secure the chroot, closed for reading; create the groups.

    :param store: of the identity `operator`.
    :param groups: group -> the identity of its members.
    """
    coordinators, operators, readers = (
        (identities.zookeeper_id(name),) for name in ("coordinator", "operator", "reader")
    )
    apply(store, AclPolicy(True, False, coordinators, operators, readers), Brokers())
    for group, member in groups.items():
        create_group(store, group, (identities.zookeeper_id(member),), ())
