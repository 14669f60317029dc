"""A consumer group's part of a complete checkpoint of its region."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import BadData
from ..store import Store
from .partitions import TopicPartition
from .paths import RegionPaths, contribution_name
from .regions import Checkpoint, Contribution

CONTRIBUTIONS_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class GroupCut:
    """A group's part of a complete checkpoint, which never changes.

    :ivar sources: partition -> the name of its contribution.  :ivar names: of all contributions.
    """

    sources: Mapping[TopicPartition, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def read_cut(store: Store, paths: RegionPaths, sequence: int, group: str) -> GroupCut:
    """Read a group's part of a complete checkpoint: its participants' contributions, then copies from the cut before.

    Other znodes below the checkpoint are ignored.

    :raises BadData: when the checkpoint, or a contribution, cannot be read.
    """
    prefix = contribution_name(group, "")
    node, listing = store.get(paths.checkpoint(sequence)), store.children(paths.checkpoint(sequence))
    if node is None or listing is None:
        raise BadData(f"{paths.checkpoint(sequence)} is missing")
    checkpoint = Checkpoint.parse(paths.checkpoint(sequence), node.data)
    participants = checkpoint.participants.get(group)
    contributors = [name[len(prefix) :] for name in listing.names if name.startswith(prefix)]
    if missing := sorted((participants or {}).keys() - set(contributors)):
        raise BadData(f"{paths.contribution(sequence, group, missing[0])} is missing")
    copied = checkpoint.away.get(group, ())
    known = [
        name for name in contributors if participants is None or "~" in name or name in participants or name in copied
    ]
    names = sorted(known, key=lambda name: ("~" not in name, name))
    sources: dict[TopicPartition, str] = {}
    found: list[str] = []
    for first in range(0, len(names), CONTRIBUTIONS_AT_ONCE):
        batch = names[first : first + CONTRIBUTIONS_AT_ONCE]
        batch_paths = [paths.contribution(sequence, group, name) for name in batch]
        for name, path, node in zip(batch, batch_paths, store.get_many(batch_paths), strict=True):
            if node is None:
                raise BadData(f"{path} is missing")
            sources |= dict.fromkeys(Contribution.parse(path, node.data).offsets, name)
            found.append(name)
    return GroupCut(sources, tuple(sorted(found)))
