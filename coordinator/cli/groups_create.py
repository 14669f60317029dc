"""`zk-coordinator groups create`: create a group before its first member, with who its members may be."""

from __future__ import annotations

import click

from coordinator.admin.acl_policy import create_group
from coordinator.zk.security.policy import checked_identities

from .acl import checked_regions, members_option, regions_option
from .common import opened, zk_option


@click.command()
@click.argument("group")
@members_option
@regions_option
@zk_option
def create(group: str, members: tuple[str, ...], regions: tuple[str, ...], zk: str) -> None:
    """Create GROUP without members. In a secured chroot a group begins so; in an open one its first member makes it."""
    with opened(zk, make_chroot=True) as store:
        create_group(store, group, checked_identities("--members", members), checked_regions(regions))
    click.echo(f"Created group {group}.")
