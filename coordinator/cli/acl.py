"""`zk-coordinator acl`: who may use the znodes of a chroot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import click

from coordinator.admin.acl import Deviation, apply, check, group_policies, read_policy, set_members
from coordinator.zk.errors import UsageError
from coordinator.zk.security.access import identities_of
from coordinator.zk.security.policy import CLOSED, OPEN, SECURE, AclPolicy, checked_identities
from coordinator.zk.security.rights import letters_of
from coordinator.zk.store import Acl
from coordinator.zk.znodes.names import is_name, shown
from coordinator.zk.znodes.paths import Brokers

from .common import (
    JSON,
    UNHEALTHY,
    Cli,
    brokers_option,
    command_access,
    opened,
    output_option,
    print_json,
    print_rows,
    printable,
    zk_config_option,
    zk_option,
)

DEVIATIONS = ("PATH", "ACL", "EXPECTED", "MEANING")
members_option = click.option("--members", multiple=True, metavar="ID", help="Identity of the group's members; repeat.")
regions_option = click.option(
    "--regions", multiple=True, metavar="REGION", help="Consistent region that the group may be bound to; repeat."
)


@click.group(cls=Cli)
def acl() -> None:
    """Who may use the znodes: identities as ZooKeeper's, digest:USER:HASH, sasl:USER, x509:SUBJECT."""


@acl.command()
@zk_config_option
@output_option
def identity(output: str) -> None:
    """Print the identities of this client's credentials, as ACLs have them."""
    found = identities_of(command_access())
    if not found:
        raise UsageError("there are no credentials: name a zk_auth_file in --zk-config, or set ZK_GROUP_ZK_AUTH")
    if output == JSON:
        print_json(list(found))
    else:
        click.echo("\n".join(map(printable, found)))


@acl.command("check")
@zk_option
@brokers_option
@output_option
@click.pass_context
def check_(context: click.Context, zk: str, brokers: Brokers, output: str) -> None:
    """Print the policy, and every znode whose ACL deviates from it, with what that means; exits 5 when one does."""
    with opened(zk) as store:
        policy, groups = read_policy(store), group_policies(store)
        found = list(check(store, brokers))
    if output == JSON:
        print_json(
            {
                "policy": _policy_json(policy),
                "groups": {group: list(each.members) if each else [] for group, each in groups.items()},
                "deviations": [_deviation_json(each) for each in found],
            }
        )
    else:
        _print_policy(policy, groups)
        if found:
            rows = [(each.path, _text(each.found), _text(each.expected), each.meaning) for each in found]
            print_rows(DEVIATIONS, rows, output)
    context.exit(UNHEALTHY if found else 0)


@acl.command("apply")
@click.option("--acl", "mode", type=click.Choice([OPEN, SECURE]), help="[default: as before]")
@click.option("--acl-read", type=click.Choice([OPEN, CLOSED]), help="Whether anybody may read. [default: as before]")
@click.option("--coordinators", multiple=True, metavar="ID", help="Identity of the nodes; repeat. [default: as before]")
@click.option("--operators", multiple=True, metavar="ID", help="Of operators, this client's among them; repeat.")
@click.option("--readers", multiple=True, metavar="ID", help="Of readers, where reading is closed; repeat.")
@click.option("--execute", is_flag=True, help="Without it nothing is changed: what would be is shown.")
@zk_option
@brokers_option
def apply_(
    mode: str | None,
    acl_read: str | None,
    coordinators: tuple[str, ...],
    operators: tuple[str, ...],
    readers: tuple[str, ...],
    execute: bool,
    zk: str,
    brokers: Brokers,
) -> None:
    """Set the policy, and the ACLs of all znodes by it, while groups run.

    First with --acl open and the identities, then the members of each group (acl members), then --acl secure.
    """
    with opened(zk, make_chroot=execute) as store:
        before = read_policy(store)
        policy = replace(
            before,
            is_secure=before.is_secure if mode is None else mode == SECURE,
            is_read_open=before.is_read_open if acl_read is None else acl_read == OPEN,
            coordinators=checked_identities("--coordinators", coordinators) or before.coordinators,
            operators=checked_identities("--operators", operators) or before.operators,
            readers=checked_identities("--readers", readers) or before.readers,
        )
        if not policy.coordinators or not policy.operators:
            raise UsageError("name the identities of --coordinators and --operators")
        AclPolicy.parse("the new policy", policy.to_bytes())
        if not execute:
            groups = group_policies(store)
            _print_policy(policy, groups)
            _warn(groups, policy)
            click.echo("nothing was changed: this was a dry run, repeat with --execute", err=True)
            return
        count = apply(store, policy, brokers)
    click.echo(f"{count} ACLs set; the chroot is {SECURE if policy.is_secure else OPEN}")


@acl.command()
@click.argument("group")
@members_option
@regions_option
@zk_option
def members(group: str, members: tuple[str, ...], regions: tuple[str, ...], zk: str) -> None:
    """Set who may be a member of GROUP, which exists. Run acl apply after it in a secured chroot."""
    with opened(zk) as store:
        set_members(store, group, checked_identities("--members", members), checked_regions(regions))


def checked_regions(regions: tuple[str, ...]) -> tuple[str, ...]:
    """The names of `--regions`.

    :raises UsageError: when one is no name.
    """
    for region in regions:
        if not is_name(region):
            raise UsageError(f"--regions: {shown(region)} is no name of a region")
    return regions


def _print_policy(policy: AclPolicy, groups: Mapping[str, AclPolicy | None]) -> None:
    for name, value in _policy_json(policy).items():
        click.echo(printable(f"{name}: {value if isinstance(value, str) else ', '.join(value) or '-'}"))
    for group, each in groups.items():
        click.echo(printable(f"members of {group}: {', '.join(each.members) if each else '-'}"))


def _warn(groups: Mapping[str, AclPolicy | None], policy: AclPolicy) -> None:
    nameless = [group for group, found in groups.items() if found is None or not found.members]
    if policy.is_secure and nameless:
        click.echo(f"groups without members in the policy: {', '.join(nameless)}", err=True)


def _policy_json(policy: AclPolicy) -> dict[str, str | list[str]]:
    return {
        "acl": SECURE if policy.is_secure else OPEN,
        "acl_read": OPEN if policy.is_read_open else CLOSED,
        "coordinators": list(policy.coordinators),
        "operators": list(policy.operators),
        "readers": list(policy.readers),
    }


def _deviation_json(deviation: Deviation) -> dict[str, object]:
    return {
        "path": deviation.path,
        "acl": [f"{one.identity}:{letters_of(one.permissions)}" for one in deviation.found],
        "expected": [f"{one.identity}:{letters_of(one.permissions)}" for one in deviation.expected],
        "meaning": deviation.meaning,
    }


def _text(acl: Acl) -> str:
    return ",".join(
        f"{one.identity}:{letters_of(one.permissions)}" for one in sorted(acl, key=lambda each: each.identity)
    )
