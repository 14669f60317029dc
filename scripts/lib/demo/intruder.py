"""The demo's intruder: clients without rights that try to read and change znodes of the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from zk_group.coordinator.zk.embedded.directory import Identities
from zk_group.coordinator.zk.errors import Refused, WriteDenied
from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import DENIED, AclStore, Create, Delete, SetData, Store
from zk_group.coordinator.zk.wire import OPEN_ACL
from zk_group.coordinator.zk.znodes.paths import ACL_POLICY, CONSUMERS, COORDINATOR, COORDINATOR_EPOCH, GroupPaths

ALL_READ: Final = frozenset({CONSUMERS, COORDINATOR, COORDINATOR_EPOCH})
"""Znodes that everybody may read: they name no group."""
SESSION_MS: Final = 10_000
MOST_CHILDREN: Final = 2
"""Children to try below each znode."""


class Intruder:
    """Three clients: one without an identity, one of another group, and a reader, which may only read.

    :param zk: the secured chroot.
    :ivar tried: number of operations.  :ivar refused: number of refusals by ZooKeeper.
    :ivar succeeded: the others, as `team-b set /consumers/...`.
    """

    def __init__(self, zk: str, identities: Identities) -> None:
        unknown = replace(identities.access("team-b"), zk_auth_file="", zk_tls_cert="", zk_tls_key="")
        self._zk = zk
        self._clients = {
            "no identity": unknown,
            "team-b": identities.access("team-b"),
            "reader": identities.access("reader"),
        }
        self.tried = self.refused = 0
        self.succeeded: list[str] = []

    def try_all(self, operator: Store, group: str) -> None:
        """Try every operation, with each client, on the existing znodes."""
        paths = list(_paths(operator, group))
        for name, access in self._clients.items():
            self._try(name, access, paths)

    def _try(self, name: str, access: ZooKeeperAccess, paths: Sequence[str]) -> None:
        store = open_kazoo(self._zk, SESSION_MS, make_chroot=False, access=access)
        try:
            for path in paths:
                node = store.get(path)
                if node is None:
                    continue  # the group has removed it meanwhile
                if name != "reader" and path not in ALL_READ:
                    self._note(f"{name} get {path}", node.data == DENIED)
                for verb, act in _writes(store, path):
                    if (is_refused := _is_refused(act)) is not None:
                        self._note(f"{name} {verb} {path}", is_refused)
        finally:
            store.close()

    def _note(self, what: str, is_refused: bool) -> None:
        self.tried += 1
        self.refused += is_refused
        if not is_refused:
            self.succeeded.append(what)


def _writes(store: AclStore, path: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """The creation has an ACL: without one this client would refuse it itself."""
    yield "set", lambda: store.commit([SetData(path, b"{}")])
    yield "create below", lambda: store.commit([Create(f"{path}/intruder", b"{}", acl=OPEN_ACL)])
    yield "delete", lambda: store.commit([Delete(path)])
    yield "set the ACL of", lambda: store.set_acl(path, OPEN_ACL)


def _is_refused(act: Callable[[], object]) -> bool | None:
    """None when the group has removed the znode meanwhile."""
    try:
        return None if act() is False else False
    except WriteDenied:
        return True
    except Refused as refused:  # for another reason it would have been admitted
        return None if refused.reason == "no-node" else False


def _paths(operator: Store, group: str) -> Iterator[str]:
    """The coordinator's znodes, and those of the group, of each parent some children."""
    yield from (CONSUMERS, ACL_POLICY, COORDINATOR, COORDINATOR_EPOCH)
    level = [GroupPaths(group).root]
    while level:
        yield from level
        listings = operator.children_many(level)
        level = [
            f"{path}/{name}"
            for path, listing in zip(level, listings, strict=True)
            for name in sorted(listing.names if listing else ())[
                : None if path.endswith(f"/{group}") else MOST_CHILDREN
            ]
        ]
