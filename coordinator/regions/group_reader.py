"""Reading a group's consistent region in a turn of the group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from ..planning.snapshot import ChannelView, Member, RegionView
from ..planning.target import is_live
from ..term.reading import Findings
from ..zk.errors import BadData
from ..zk.security.policy import AclPolicy
from ..zk.store import DENIED, Node, Store
from ..zk.znodes.cuts import GroupCut, read_cut
from ..zk.znodes.group_state import GroupState
from ..zk.znodes.json_fields import readable
from ..zk.znodes.paths import ACL_POLICY, GroupPaths, RegionPaths
from ..zk.znodes.regions import CONSUMERS, ENDS, INITIAL, Checkpoint, Region


class GroupRegionReader:
    """Reads for one group and one epoch.

    :param age_s: seconds since a key was first seen.
    :param bound: the region that a group is bound to; empty without one.
    :ivar held_for: the checkpoint that a generation waits for; 0 without one.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        problems: Findings,
        age_s: Callable[..., float],
        bound: Callable[[str], str],
    ) -> None:
        self._store = store
        self._group = group
        self._problems = problems
        self._age_s = age_s
        self._bound = bound
        self._cut: tuple[str, int, GroupCut] = "", INITIAL, GroupCut()
        self.held_for = 0

    def read(
        self, state: GroupState, members: Mapping[str, Member], channels: Mapping[str, ChannelView]
    ) -> RegionView | None:
        """The region that the group is bound to, else the one that its oldest member registers for."""
        # A group with a target records its region in it; the regions are asked only for a new or lost group.
        if state.region is not None:
            return replace(self._view(state.region.name), has_initial=False)
        name = "" if state.target else self._bound(self._group)
        view = self._view(name) if name else None
        if view is not None and (view.is_unreadable or (view.record and self._group in view.record.groups)):
            return view
        offered = [
            (not is_live(member, channels.get(name)), member.czxid, member.registration.region.name)
            for name, member in members.items()
            if member.registration is not None and member.registration.region is not None
        ]
        if not offered:
            return None
        named = min(offered)[2]
        return replace(self._view(named), refusal=self._refusal(named))

    def _refusal(self, region: str) -> str:
        """Why the access policy refuses the group's binding: in a region each group may harm the others."""
        path = GroupPaths(self._group).acl
        top, own = self._store.get_many([ACL_POLICY, path])
        if top is None or top.data == DENIED:  # in a secured chroot this coordinator could not bind it either
            return ""
        is_secure: bool | None = None  # unknown while the chroot's policy is malformed: then as the group's says,
        with suppress(BadData):  # without which a secured chroot lets no member register
            is_secure = AclPolicy.parse(ACL_POLICY, top.data).is_secure
        if is_secure is False:
            return ""
        try:
            of_group = AclPolicy.parse(path, own.data) if own is not None else AclPolicy()
        except BadData as error:
            return str(error)
        if region in of_group.regions or not (is_secure or of_group.is_secure):
            return ""
        remedy = f"zk-coordinator acl members {self._group} --members ID --regions {region}"
        return f"group {self._group} may not be bound to consistent region {region}: an operator permits it by {remedy}"

    def _view(self, name: str) -> RegionView:
        paths = RegionPaths(name)
        node = self._store.get(paths.root)
        record = self._parsed(paths.root, node) if node is not None else None
        if node is None or record is None:
            return RegionView(name, None, node.stat.version if node is not None else None)
        cut, problem = GroupCut(), ""
        try:
            cut = self._read_cut(paths, record.cut_of(self._group)) if record.kind == CONSUMERS else cut
        except BadData as error:
            problem = str(error)
        has_initial = False
        if self._group not in record.groups:
            has_initial = self._store.get(paths.initial_of_group(self._group)) is not None
        return RegionView(
            name,
            record,
            node.stat.version,
            cut.sources,
            cut.names,
            held_for=self.held_for,
            held_s=self._age_s("held", str(self.held_for)) if self.held_for else 0.0,
            has_initial=has_initial,
            problem=problem,
        )

    def with_checkpoint(self, view: RegionView, sequence: int) -> RegionView:
        """`view` with the contents of a checkpoint that is aborted."""
        path = RegionPaths(view.name).checkpoint(sequence)
        node, listing = self._store.get(path), self._store.children(path)
        ends = frozenset(ENDS).intersection(listing.names if listing is not None else ())
        if node is None:
            return replace(view, open_ends=ends)
        return replace(view, open_data=node.data, open_since_ms=_since_ms(node), open_ends=ends)

    def _parsed(self, path: str, node: Node) -> Region | None:
        try:
            return Region.parse(path, node.data)
        except BadData as error:
            self._problems.report(path, str(error))
            return None

    def _read_cut(self, paths: RegionPaths, sequence: int) -> GroupCut:
        if self._cut[:2] != (paths.region, sequence):
            cut = read_cut(self._store, paths, sequence, self._group) if sequence != INITIAL else GroupCut()
            self._cut = paths.region, sequence, cut
        return self._cut[2]


def _since_ms(checkpoint: Node) -> int:
    """When the checkpoint began; for an unreadable one, when its znode was created."""
    begun = readable(Checkpoint.parse, "a checkpoint", checkpoint)
    return begun.since_ms if begun is not None else checkpoint.stat.mtime_ms
