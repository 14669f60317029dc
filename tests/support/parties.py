"""The parties of a secured chroot in tests: an identity of the scheme digest for each, and its file of credentials."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from zk_group.coordinator.cli import main
from zk_group.coordinator.zk.security.access import ZooKeeperAccess, digest_identity, identities_of
from zk_group.coordinator.zk.security.policy import ALL, WORLD, AclPolicy
from zk_group.coordinator.zk.session.kazoo_store import KazooStore, open_kazoo
from zk_group.coordinator.zk.store import Acl, AclEntry

SECURE = ("--acl", "secure")
OPEN = ("--acl", "open")


def identity_of(name: str) -> str:
    """The identity of a party."""
    return digest_identity(f"{name}:secret-of-{name}")


def owned_by(name: str, others: int = 0) -> Acl:
    """Every right for a party, and some for everybody else."""
    owner = AclEntry(ALL, identity_of(name))
    return (owner, AclEntry(others, WORLD)) if others else (owner,)


class Parties:
    """Every name is a party: `operator`, `coordinator`, `reader`, the members `team-a` of a group."""

    def __init__(self, zk: str, folder: Path) -> None:
        self.zk = zk
        self._folder = folder

    def file(self, name: str) -> str:
        """Its `zk_auth_file`."""
        path = self._folder / f"{name}.auth"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(f"digest:{name}:secret-of-{name}\n")
        return str(path)

    def access(self, name: str) -> ZooKeeperAccess:
        return ZooKeeperAccess(zk_auth_file=self.file(name))

    def identity(self, name: str) -> str:
        (found,) = identities_of(self.access(name))
        return found

    def policy(self, is_secure: bool) -> AclPolicy:
        """That with a coordinator, an operator and a reader."""
        one = [(self.identity(name),) for name in ("coordinator", "operator", "reader")]
        return AclPolicy(is_secure=is_secure, coordinators=one[0], operators=one[1], readers=one[2])

    def session(self, name: str) -> KazooStore:
        """An open session; without credentials for the empty name."""
        return open_kazoo(self.zk, 10_000, access=self.access(name) if name else None)

    def run(self, name: str, *arguments: str) -> Result:
        """`zk-coordinator` with its credentials; any exit code."""
        environment = {"ZK_GROUP_ZK_AUTH_FILE": self.file(name) if name else None}
        result = CliRunner().invoke(main, [*arguments, "--zk", self.zk], env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output and "secret-of" not in result.output
        return result

    def run_ok(self, name: str, *arguments: str) -> str:
        """The same, which must succeed; what it printed."""
        result = self.run(name, *arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def applies(self, *options: str, execute: bool = True) -> Result:
        """`acl apply` of the operator's, with everybody named."""
        named = ["--coordinators", self.identity("coordinator"), "--operators", self.identity("operator")]
        named += ["--readers", self.identity("reader")]
        return self.run("operator", "acl", "apply", *named, *options, *(["--execute"] if execute else []))

    def names(self, group: str, *members: str, regions: tuple[str, ...] = ()) -> None:
        """`acl members` of a group that exists."""
        options = [part for one in members for part in ("--members", self.identity(one))]
        options += [part for one in regions for part in ("--regions", one)]
        self.run_ok("operator", "acl", "members", group, *options)

    def deviations(self) -> str:
        """What `acl check` finds, empty when nothing."""
        result = self.run("operator", "acl", "check")
        assert result.exit_code in (0, 5), result.output
        return result.stdout.partition("PATH ")[2] if result.exit_code else ""
