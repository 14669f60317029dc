"""`zk-coordinator acl`: the access policy of a chroot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import click

from zk_group.coordinator.admin import acl as admin
from zk_group.coordinator.zk.errors import AccessDenied, BadData, UsageError
from zk_group.coordinator.zk.process import cli
from zk_group.coordinator.zk.process.cli import echo_alarm
from zk_group.coordinator.zk.security.access import identities_of
from zk_group.coordinator.zk.security.policy import CLOSED, OPEN, SECURE, AclPolicy, checked_identities, letters_of
from zk_group.coordinator.zk.store import Acl, AclEntry, AclStore
from zk_group.coordinator.zk.znodes.paths import Brokers, is_name, shown

from .watching import UNHEALTHY

DEVIATIONS = ("PATH", "ACL", "EXPECTED", "MEANING")
members_option = click.option("--members", multiple=True, metavar="ID", help="Identity of the group's members; repeat.")
regions_option = click.option(
    "--regions", multiple=True, metavar="REGION", help="Consistent region that the group may be bound to; repeat."
)


@click.group(cls=cli.Cli)
def acl() -> None:
    """Who may use the znodes: identities as ZooKeeper's, digest:USER:HASH, sasl:USER, x509:SUBJECT."""


@acl.command()
@cli.zk_config_option
@cli.output_option
def identity(output: str) -> None:
    """Print the identities of this client's credentials, as ACLs have them."""
    identities = identities_of(cli.command_access())
    if not identities:
        raise UsageError("there are no credentials: name a zk_auth_file in --zk-config, or set ZK_GROUP_ZK_AUTH")
    if output == cli.JSON:
        cli.print_json(list(identities))
    else:
        click.echo("\n".join(map(cli.printable, identities)))


@acl.command("check")
@cli.zk_option
@cli.brokers_option
@cli.output_option
def check_(zk: str, brokers: Brokers, output: str) -> int:
    """Print the policy, and every znode whose ACL deviates from it, with the effect; exits 5 when one does."""
    with cli.opened(zk) as store:
        policy, groups = admin.read_policy(store), admin.group_policies(store)
        deviations = list(admin.check(store, brokers))
    if output == cli.JSON:
        members = {group: list(each.members) if each else [] for group, each in groups.items()}
        regions = {group: list(each.regions) for group, each in groups.items() if each and each.regions}
        listed = [(each.path, _texts(each.found), _texts(each.expected), each.meaning) for each in deviations]
        document = {"policy": _policy_json(policy), "groups": members, "regions": regions}
        cli.print_json({**document, "deviations": cli.row_objects(DEVIATIONS, listed)})
    else:
        _print_policy(policy, groups)
        if deviations:
            rows = [(each.path, _sorted(each.found), _sorted(each.expected), each.meaning) for each in deviations]
            cli.print_rows(DEVIATIONS, rows, output)
    return UNHEALTHY if deviations else 0


@acl.command("apply")
@click.option("--acl", "mode", type=click.Choice([OPEN, SECURE]), help="[default: as before]")
@click.option("--acl-read", type=click.Choice([OPEN, CLOSED]), help="Whether anybody may read. [default: as before]")
@click.option("--coordinators", multiple=True, metavar="ID", help="Identity of the nodes; repeat. [default: as before]")
@click.option("--operators", multiple=True, metavar="ID", help="Of operators, this client's among them; repeat.")
@click.option("--readers", multiple=True, metavar="ID", help="Of readers, where reading is closed; repeat.")
@click.option("--execute", is_flag=True, help="Without it nothing is changed: what would be is shown.")
@cli.zk_option
@cli.brokers_option
def apply_(
    mode: str | None,
    acl_read: str | None,
    coordinators: tuple[str, ...],
    operators: tuple[str, ...],
    readers: tuple[str, ...],
    execute: bool,
    zk: str,
    brokers: Brokers,
) -> int:
    """Set the policy, and the ACLs of all znodes by it, while groups run; exits 5 when some could not be set.

    First with --acl open and the identities, then the members of each group (acl members), then --acl secure.
    """
    with cli.opened(zk, make_chroot=execute) as store:
        try:
            before = admin.read_policy(store)
        except AccessDenied:
            raise
        except BadData as error:  # it does not matter where the options say all of the next one
            if not (mode and coordinators and operators):
                raise BadData(f"{error}; with --acl, --coordinators and --operators it is written again") from error
            before = AclPolicy()
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
        admin.checked_size("the new policy", policy)
        if not execute:
            _print_changes(store, policy, brokers)
            return 0
        count, refused = admin.apply(store, policy, brokers)
    click.echo(f"{count} ACLs set; the chroot is {SECURE if policy.is_secure else OPEN}")
    if refused:
        echo_alarm(f"{len(refused)} znodes have an ACL that this client may not set, see acl check", "red")
    return UNHEALTHY if refused else 0


@acl.command()
@click.argument("group")
@members_option
@regions_option
@click.option("--no-regions", is_flag=True, help="No consistent region; without it and --regions those of before.")
@cli.zk_option
def members(group: str, members: tuple[str, ...], regions: tuple[str, ...], no_regions: bool, zk: str) -> None:
    """Set the members' identities of an existing GROUP. Run acl apply after it in a secured chroot."""
    if regions and no_regions:
        raise UsageError("give --regions or --no-regions, not both")
    permitted = checked_regions(regions) if regions or no_regions else None
    with cli.opened(zk) as store:
        admin.set_members(store, group, checked_identities("--members", members), permitted)


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
        click.echo(cli.printable(f"{name}: {value if isinstance(value, str) else ', '.join(value) or '-'}"))
    for group, each in groups.items():
        click.echo(cli.printable(f"members of {group}: {', '.join(each.members) if each else '-'}"))
        if each is not None and each.regions:
            click.echo(cli.printable(f"regions of {group}: {', '.join(each.regions)}"))


def _print_changes(store: AclStore, policy: AclPolicy, brokers: Brokers) -> None:
    """The preview of `apply` with `policy`, and the reasons for a refusal."""
    groups = admin.group_policies(store)
    _print_policy(policy, groups)
    count = sum(1 for _ in admin.deviations(store, policy, brokers))
    click.echo(f"{count} znodes deviate from it, and would be set")
    if policy.is_secure and (empty := admin.groups_without_members(groups)):
        echo_alarm(f"groups without members, which is refused: {', '.join(empty)}", "yellow")
    if policy.is_secure and (outside := admin.groups_outside_their_region(store, groups)):
        named = ", ".join(f"{group} ({region})" for group, region in outside)
        echo_alarm(f"groups whose consistent region their policy does not permit, which is refused: {named}", "yellow")
    own = identities_of(cli.command_access())
    if not set(own) & set(policy.operators) and not any(one.startswith("x509:") for one in policy.operators):
        echo_alarm(f"this client ({', '.join(own) or 'no credentials'}) is none of the operators: refused", "yellow")
    click.echo("nothing was changed: this was a dry run, repeat with --execute", err=True)


def _policy_json(policy: AclPolicy) -> dict[str, str | list[str]]:
    """The fields of the chroot's policy: the others are a group's."""
    return {name: value for name, value in policy.to_json().items() if name not in ("members", "regions")}


def _texts(acl: Iterable[AclEntry]) -> list[str]:
    return [f"{one.identity}:{letters_of(one.permissions)}" for one in acl]


def _sorted(acl: Acl) -> str:
    return ",".join(_texts(sorted(acl, key=lambda each: each.identity)))
