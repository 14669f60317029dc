"""One whole history in which every invariant holds, with everything in it; and points at which a test may spoil it.

Group `g` has slots that seal, and a query; group `h` plain consumers with a wildcard. One node fails and the other
takes over, a consumer hangs and is evicted, one loses its name to a newer process, hands scribble, a topic is
recreated.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

from coordinator.zk.store import Check, Create, Delete, SetData
from coordinator.zk.znodes.group_state import PREPARING, GroupState
from coordinator.zk.znodes.paths import Brokers, GroupPaths
from coordinator.zk.znodes.records import BLACK_LIST, WHITE_LIST
from coordinator.zk.znodes.segments import Query
from tests.support.made_histories import Happening, Made, Shares, Story, parted

G, H = GroupPaths("g"), GroupPaths("h")
CALM_AT, END_AT = 70.0, 110.0


class StoryHistory(Story):
    """The story, up to its end."""

    def __init__(self, point: str = "", happening: Happening | None = None) -> None:
        super().__init__(point, happening)
        self.go_through(
            self.found, self.read, self.commit_plainly, self.fail_over, self.join, self.evict, self.come_back,
            self.take_over, self.scribble, self.make_anew, self.calm_down,
        )  # fmt: skip

    def assigned(self, group: str, shares: Shares) -> Made:
        members = {name: self.lives[name].channel.incarnation for name in sorted(shares)}
        text = json.dumps([group, members, sorted(self.ids.items()), len(self.events)])
        target = {name: {f"{name}-0": dict(share)} for name, share in shares.items()}
        return self.event("assignment", self.coordinator, group=group, strategy="range", input=text, target=target)

    def turn(self, group: str, shares: Shares, *operations: Any, **more: Any) -> Made:
        """A turn that begins a generation."""
        self.assigned(group, shares)
        return self.fenced(group, self.rebalance(group, shares, **more), *operations)

    # ---- chapters

    def found(self) -> None:
        self.node("a#1")
        self.node("b#1")
        self.elect("a#1")
        self.topic("flights", "T1", 4)
        self.topic("cities-1", "C1", 2)
        self.to(1.0)
        for name in ("s0", "s1"):
            self.register(self.consumer(f"{name}#1", "g"), f"{name}-a")
        self.fenced("g", GroupState(epoch=1))
        shares = {"s0": {"flights": "0-1"}, "s1": {"flights": "2-3"}}
        self.assigned("g", shares)
        self.states["g"] = self.rebalance("g", shares)
        self.fenced("g", self.states["g"], *(self.start(name, share) for name, share in shares.items()))
        self.point("started")
        self.obey("s0")
        self.obey("s1")
        self.stable("g")
        self.point("stable")

    def read(self) -> None:
        self.to(2.0)
        self.seal("s0", 100, 0, 1)
        self.seal("s1", 80, 2)
        self.point("sealed")
        self.query("q#1", "g", "q", "r1", 0, ephemeral=True)
        first = self.batch("q#1", "g", "q", "r1", 0, 0)
        self.commit("q#1", SetData(G.queries, b""), Delete(G.query("q")), Create(G.query("q"), self.data_of("r1", 0)))
        self.to(3.0)
        self.seal("s0", 10, 0)
        self.seal("s1", 20, 2, 3)
        self.point("queried")
        second = self.batch("q#1", "g", "q", "r1", 1, first["upto"])
        self.finished("q#1", "g", "q", "r1", first["upto"])
        self.point("finished")
        self.collect("g", first["upto"])
        # The same batch once more, from the same checkpoint, in a new run.
        self.query("q#1", "g", "q", "r2", first["upto"])
        self.event("batch", "q#1", **{**_fields(second), "run": "r2"})
        self.finished("q#1", "g", "q", "r2", second["upto"])
        self.collect("g", second["upto"])
        self.point("collected")

    def data_of(self, run: str, finished: int) -> bytes:
        return Query(run, finished, 0).to_bytes()

    def commit_plainly(self) -> None:
        self.to(4.0)
        life = self.consumer("c1#1", "h", "consumer")
        self.register(life, "c1-a", subscription={"cities-.*": 1}, pattern=WHITE_LIST)
        self.fenced("h", GroupState(epoch=1))
        share = {"cities-1": "0-1"}
        self.assigned("h", {"c1": share})
        self.states["h"] = self.rebalance("h", {"c1": share})
        self.fenced("h", self.states["h"], self.start("c1", share))
        self.obey("c1")
        self.stable("h")
        self.advance("c1", 7, 0, 1, topic="cities-1")
        self.point("plain")
        self.to(5.0)
        self.topic("cities-1", "C1", 3)
        share = {"cities-1": "0-2"}
        self.states["h"] = self.rebalance("h", {"c1": share})
        self.fenced("h", self.states["h"], self.start("c1", share))
        self.obey("c1")
        self.stable("h")
        self.advance("c1", 5, 2, topic="cities-1")
        self.point("grown")

    def fail_over(self) -> None:
        self.to(8.0)
        self.die("a#1")
        self.to(10.0)
        self.seal("s0", 30, 1)
        self.to(14.0)
        self.close("a#1")
        self.elect("b#1")
        self.point("failed over")

    def join(self) -> None:
        self.to(15.0)
        self.register(self.consumer("s2#1", "g"), "s2-a")
        shares = {"s0": {"flights": "0-1"}, "s1": {"flights": "2"}, "s2": {"flights": "3"}}
        state = replace(self.rebalance("g", shares), state=PREPARING)
        self.assigned("g", shares)
        self.states["g"] = state
        self.fenced("g", state, self.stop("s1", {"flights": "3"}))
        self.point("stop sent")
        self.obey("s1")
        self.point("stop obeyed")
        self.fenced("g", replace(state, state="CompletingRebalance"), self.start("s2", shares["s2"]))
        self.point("start sent")
        self.obey("s2")
        self.stable("g")
        self.seal("s2", 40, 3)
        self.point("joined")

    def evict(self) -> None:
        self.to(20.0)
        self.event("fault", "server", kind="hang", process="s1#1", until=45.0)
        self.register(self.consumer("s3#1", "g"), "s3-a")
        shares = {
            "s0": {"flights": "0"}, "s1": {"flights": "1"}, "s2": {"flights": "3"}, "s3": {"flights": "2"},
        }  # fmt: skip
        state = self.states["g"] = replace(self.rebalance("g", shares), state=PREPARING)
        self.assigned("g", shares)
        self.fenced("g", state, self.stop("s0", {"flights": "1"}), self.stop("s1"))
        self.obey("s0")
        self.point("stuck")
        self.to(22.0)
        self.join_h()
        self.to(29.0)
        stuck = self.lives["s1"]
        mark = self.mark(stuck)
        command = self.command_of("s1")
        del self.roles["s1#1"]
        ended = self.end_of(stuck, "evicted: it carried out no command")
        shares = {"s0": {"flights": "0"}, "s2": {"flights": "3"}, "s3": {"flights": "1-2"}}
        self.assigned("g", shares)
        self.states["g"] = self.rebalance("g", shares, marks=(mark,))
        start = self.start("s3", {"flights": "1"})
        ids = Delete(G.id("s1"))
        self.fenced("g", self.states["g"], *ended, ids, Delete(command), start)
        self.obey("s3")
        self.point("evicted")
        self.to(33.5)
        self.fenced("g", replace(self.states["g"], marks=()), self.start("s3", shares["s3"]))
        self.obey("s3")
        self.stable("g")
        self.point("handed on, unsealed")
        self.seal("s3", 15, 1, 2)
        self.point("handed on")

    def join_h(self) -> None:
        """Another group is rebalanced while the consumer hangs."""
        life = self.consumer("c2#1", "h", "consumer")
        self.register(life, "c2-a", subscription={"flights": 1}, pattern=BLACK_LIST)
        shares = {"c1": {"cities-1": "0-1"}, "c2": {"cities-1": "2"}}
        state = self.states["h"] = replace(self.rebalance("h", shares), state=PREPARING)
        self.assigned("h", shares)
        self.fenced("h", state, self.stop("c1", {"cities-1": "2"}))
        self.obey("c1")
        self.fenced("h", replace(state, state="CompletingRebalance"), self.start("c2", shares["c2"]))
        self.obey("c2")
        self.stable("h")
        self.advance("c2", 9, 2, topic="cities-1")

    def come_back(self) -> None:
        self.to(45.0)
        life = self.lives["s1"]
        self.halt(life, parted({"flights": "2"}), "lost")
        self.event("over", "s1#1", group="g", consumer="s1", incarnation="s1-a", why="evicted")
        self.register(life, "s1-b")
        shares = {"s0": {"flights": "0"}, "s1": {"flights": "1"}, "s2": {"flights": "3"}, "s3": {"flights": "2"}}
        state = self.states["g"] = replace(self.rebalance("g", shares), state=PREPARING)
        self.assigned("g", shares)
        self.fenced("g", state, self.stop("s3", {"flights": "1"}))
        self.obey("s3")
        self.fenced("g", replace(state, state="CompletingRebalance"), self.start("s1", shares["s1"]))
        self.obey("s1")
        self.stable("g")
        self.seal("s1", 5, 1)
        self.point("returned")

    def take_over(self) -> None:
        self.to(50.0)
        old = self.lives["s2"]
        self.fetch("s2", 3, 3)
        self.register(self.consumer("s2#2", "g"), "s2-b")
        share = {"flights": "3"}
        shares = {"s0": {"flights": "0"}, "s1": {"flights": "1"}, "s2": share, "s3": {"flights": "2"}}
        self.turn("g", shares, self.start("s2", share, generation=self.states["g"].generation + 1))
        self.obey("s2")
        self.stable("g")
        self.seal("s2", 12, 3)
        self.halt(old, frozenset(old.channel.running), "lost")
        self.event("exit", "s2#1", why="fenced")
        self.close("s2#1", "closed")
        self.point("taken over")

    def scribble(self) -> None:
        self.to(55.0)
        self.hand(SetData(G.offset("flights", 0), b"what?"))
        self.hand(Create(f"{G.channel('s0')}/command-0000000099", b"{}"))
        self.commit(self.coordinator, Check("/consumers/coordinator_epoch", self.fence), Delete(self.command_of("s0")))
        self.seal("s0", 6, 0)
        self.hand(SetData(H.channel("c2"), b"{"))
        life = self.lives["c2"]
        self.halt(life, frozenset(life.channel.running), "lost")
        self.close("c2#1", "closed")
        life.channel = replace(life.channel, running={})
        self.session("c2#1")
        self.register(life, "c2-b", subscription={"flights": 1}, pattern=BLACK_LIST)
        shares = {"c1": {"cities-1": "0-1"}, "c2": {"cities-1": "2"}}
        start = self.start("c2", shares["c2"], generation=self.states["h"].generation + 1)
        self.turn("h", shares, start)
        self.obey("c2")
        self.stable("h")
        self.advance("c2", 4, 2, topic="cities-1")
        self.point("scribbled")

    def make_anew(self) -> None:
        self.to(60.0)
        self.hand(Delete(Brokers().topic("cities-1")))
        self.topic("cities-1", "C2", 2)
        shares = {"c1": {"cities-1": "0"}, "c2": {"cities-1": "1"}}
        state = self.states["h"] = replace(self.rebalance("h", shares), state=PREPARING)
        self.assigned("h", shares)
        self.fenced("h", state, self.stop("c1"), self.stop("c2"))
        self.obey("c1")
        self.obey("c2")
        starts = [self.start(name, share) for name, share in shares.items()]
        self.fenced("h", replace(state, state="CompletingRebalance"), *starts)
        self.point("starts of the recreated topic")
        self.obey("c1")
        self.obey("c2")
        self.stable("h")
        self.advance("c1", 2, 0, topic="cities-1")
        self.point("recreated")
        self.to(65.0)
        self.leave("c2")
        share = {"cities-1": "0-1"}
        self.turn("h", {"c1": share}, self.start("c1", share, generation=self.states["h"].generation + 1))
        self.obey("c1")
        self.stable("h")
        self.point("left")

    def calm_down(self) -> None:
        self.to(CALM_AT)
        self.point("before calm")
        self.event("calm", "server", stuck=[])
        self.point("calm")
        self.to(80.0)
        self.seal("s0", 10, 0)
        self.batch("q#1", "g", "q", "r2", 2, self.finished_by("q"))
        self.point("late")
        self.to(88.0)
        self.commit(self.coordinator, Check("/consumers/coordinator_epoch", self.fence), Delete(H.channel("c2")))
        self.point("collecting")
        self.to(END_AT)
        self.event("end", "server")

    def finished_by(self, query: str) -> int:
        finished: int = json.loads(self.tree[G.query(query)][0])["finished"]
        return finished


story = StoryHistory.made


def _fields(event: Made) -> Made:
    return deepcopy({name: value for name, value in event.items() if name not in ("at", "who", "event")})
