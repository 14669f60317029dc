"""`zk-coordinator groups delete`: delete unused groups."""

from __future__ import annotations

import click

from coordinator.admin.delete_group import Removable, Removed, delete_group, removable
from coordinator.admin.groups import Reading, chosen_groups
from coordinator.zk.errors import CoordinatorError, SessionLost
from coordinator.zk.process.cli import JSON, opened, output_option, print_json, print_rows, printable, zk_option

FAILED = 1
DRY_RUN = ("GROUP", "ZNODES", "OFFSETS", "SEGMENTS", "BYTES", "ERROR")


@click.command()
@click.argument("names", metavar="GROUP...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="All unused groups.")
@click.option("--dry-run", is_flag=True, help="Delete nothing: show what would be, and what would be refused.")
@zk_option
@output_option
def delete(names: tuple[str, ...], all_groups: bool, dry_run: bool, zk: str, output: str) -> int:
    """Delete each GROUP: its offsets, its history, and its sealed segments with their files.

    A group is refused while consumers are registered, a static member's seat is kept, an evicted consumer's lease may
    run, a fetcher pool runs, or a query reads it.
    """
    done: dict[str, Removed] = {}
    would: dict[str, Removable] = {}
    failed: dict[str, str] = {}
    with opened(zk) as store:
        for group in chosen_groups(Reading(store), names, all_groups):
            try:
                if dry_run:
                    would[group] = removable(store, group)
                else:
                    done[group] = delete_group(store, group)
            except SessionLost:
                raise
            except CoordinatorError as error:
                failed[group] = str(error)
    if dry_run:
        _print_dry_run(would, failed, output)
    elif output == JSON:
        documents = [_document(group, done.get(group), failed.get(group)) for group in (*done, *failed)]
        print_json(sorted(documents, key=lambda each: str(each["group"])))
    else:
        _print(done, failed)
    for group, removed in done.items():
        if removed.elsewhere:
            note = f"{removed.elsewhere} segment files of group {group} cannot be reached from this host"
            click.echo(f"{note}: a fetcher pool of that group removes them, or an operator", err=True)
    return FAILED if failed else 0


def _print_dry_run(would: dict[str, Removable], failed: dict[str, str], output: str) -> None:
    rows: list[tuple[object, ...]] = [
        (group, each.znodes, each.offsets, each.segments, each.size, None) for group, each in would.items()
    ]
    rows += [(group, None, None, None, None, error) for group, error in failed.items()]
    print_rows(DRY_RUN, sorted(rows, key=lambda row: str(row[0])), output)
    click.echo("nothing was deleted: this was a dry run, delete without --dry-run", err=True)


def _document(group: str, removed: Removed | None, error: str | None) -> dict[str, object]:
    return {"group": group, "deleted": removed is not None, "znodes": removed.znodes if removed else 0, "error": error}


def _print(done: dict[str, Removed], failed: dict[str, str]) -> None:
    named = ", ".join(f"'{group}'" for group in done)
    if not failed:
        click.echo(f"Deletion of requested consumer groups ({named}) was successful.")
        return
    click.echo("Error: Deletion of some consumer groups failed:")
    for group, error in failed.items():
        click.echo(printable(f"* Group '{group}' could not be deleted due to: {error}"))
    if done:
        click.echo(f"\nThese consumer groups were deleted successfully: {named}")
