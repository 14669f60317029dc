"""The table of access control in zk_paths.md: what each party may do with each znode."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.support.pages import ROOT, rows

ALL: Final = "all"
READERS: Final = "readers"
NONE: Final = "none"
HEADER: Final = ["znode", "C", "M", "read by others", "created by", "written by", "removed by"]


class AccessRow(NamedTuple):
    """A row; letters are zkCli's, parties `C` and `M`."""

    coordinators: str
    members: str
    others: str
    created_by: str
    written_by: str
    removed_by: str


def access_table() -> dict[str, AccessRow]:
    """Path -> its row, in the order of the page."""
    text = (ROOT / "zk_paths.md").read_text().split("\n### The table\n")[1].split("\n### ")[0]
    header, *found = rows(text)
    assert header == HEADER
    return {path.strip("`"): AccessRow(*cells) for path, *cells in found}
