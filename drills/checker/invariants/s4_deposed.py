"""S4: writes of a deposed coordinator."""

from __future__ import annotations

from ..replay.commits import SERVER, Changed, Commit
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import CHECKPOINT, END, ROOT
from .base import Invariant, SessionLeases

ONLY_A_COORDINATOR = Changed.STATE | Changed.SENT | Changed.HISTORY
"""Written by coordinators only: writes without an election are violations, too."""


class Deposed(Invariant):
    """No write of a coordinator of epoch e appears after the bump to e + 1.

    By effect, in the order of zxid: once a session has raised the epoch, all writes of nodes below groups and regions
    are its own, until another one raises the epoch. State, commands, history, and regions with the begin and the end of
    their checkpoints are written by coordinators only (and manually). Each election has an epoch above that of the one
    before; where the epoch's znode was edited manually since, above those of all groups' states. No coordinator's lease
    outlasts its session (`SessionLeases`). A coordinator reads the pauses before its first turn: it does not write the
    state of a group paused since before its election.
    """

    name = "S4"
    sentence = "Nothing that a coordinator of epoch e writes appears after the bump to e + 1."
    wants = Changed.ANYTHING

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._session: object = None
        self._elector = ""
        self._bump: Event | None = None
        self._epoch: int | None = None
        self._bumps: dict[object, Event] = {}
        self._is_edited = False
        SessionLeases(self, "coordinator", unjudged=2)

    def on_commit(self, commit: Commit) -> None:
        mask = commit.mask
        self._is_edited |= bool(mask & Changed.EPOCH) and commit.by_hand
        if mask & Changed.EPOCH and not commit.by_hand:
            self._judge_epoch(commit)
            self.judged += self._bump is not None  # from now on a coordinator is deposed
            self._session, self._elector = commit.session, commit.who
            self._bump, self._epoch = commit.event, self.world.epoch
            self._bumps[commit.session] = commit.event
            return
        if commit.session == self._session and commit.who == self._elector:
            self._judge_paused(commit)
            return
        if not mask & (Changed.IN_GROUP | Changed.REGION) or commit.by_hand or commit.who == SERVER:
            return
        is_region = any(change.what in (ROOT, CHECKPOINT, END) for change in commit.regions)
        if mask & ONLY_A_COORDINATOR or is_region or self.world.process(commit.who).is_node:
            self._report(commit)

    def _judge_epoch(self, commit: Commit) -> None:
        epoch = self.world.epoch
        known = [(self._epoch, self._bump)] if self._epoch is not None and self._bump is not None else []
        if self._is_edited:
            views = [group.state for group in self.world.groups.values() if group.state is not None]
            known = [(view.data.epoch, view.written) for view in views if view.data is not None and not view.by_hand]
        self._is_edited = False
        last, since = max(known, key=lambda one: one[0], default=(0, None))
        if epoch is not None and epoch <= last:
            why = f"{commit.who} was elected at {commit.moment} with epoch {epoch}, after epoch {last}"
            self.broken_by(commit, why, since)

    def _judge_paused(self, commit: Commit) -> None:
        for group, _, _ in commit.states:
            pause = self.world.conditions.paused_by(group.name)
            if pause is not None and self._bump is not None and pause["zxid"] < self._bump["zxid"]:
                why = f"{commit.who} took a turn of {group} at {commit.moment}, which was paused at"
                why = f"{why} {moment(pause['at'])}, before the election at {moment(self._bump['at'])}"
                self.broken_by(commit, why, pause, self._bump)

    def _report(self, commit: Commit) -> None:
        if self._bump is None:
            why = f"{commit.who} wrote what only a coordinator writes at {commit.moment}, before any election"
            self.broken(why, commit.event)
            return
        why = f"{commit.who} wrote as a coordinator at {commit.moment}, after {self._elector} raised the epoch to"
        why = f"{why} {self._epoch} at {moment(self._bump['at'])}"
        self.broken_by(commit, why, self._bumps.get(commit.session), self._bump)
