"""A simulated world: an ensemble, nodes, applications, slots and queries, drawn from a seed, and its history."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import zk_group
from tests.property.snapshots import CooperativeRange
from tests.simulation.actors import (
    Actor,
    ApplicationActor,
    DriverActor,
    NodeActor,
    QueryActor,
    QueryCheckpoint,
    SlotTask,
)
from tests.simulation.assignors import COORDINATOR, MIXED, MadeUpFailure, Manner, Troubled, drawn_manner, installed
from tests.simulation.links import EVEN
from tests.simulation.parts import Production, SharedDisk, SimLog
from tests.simulation.profile import Profile
from tests.simulation.runtime import SimRuntime
from tests.simulation.scheduler import Scheduler, SimulatedProcess, Thread
from tests.simulation.servers import SimulatedServer
from tests.simulation.stateful import Stateful
from tests.simulation.store import SimStore
from tests.simulation.zookeeper import SimulatedEnsemble
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.membership.start_position import EARLIEST, LATEST
from zk_group.consumer.streaming.fetchers.config import SlotConfig, SlotSpec
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.coordinator.admin.regions import request
from zk_group.coordinator.assignors import Assignor
from zk_group.coordinator.assignors.registry import BUILT_IN
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.zk.errors import CoordinatorError, Refused
from zk_group.coordinator.zk.store import Create, Delete, Operation, SetData, Store
from zk_group.coordinator.zk.znodes.paths import Brokers, RegionPaths
from zk_group.coordinator.zk.znodes.records import BLACK_LIST, STATIC, WHITE_LIST, Topic
from zk_group.coordinator.zk.znodes.regions import FAILED, RESET, Region, RegionRequest

CONNECT_TIMEOUT_S = 15.0
BROKERS = Brokers("/brokers")
STRATEGIES: Mapping[str, Assignor] = {**BUILT_IN, CooperativeRange.name: CooperativeRange()}
ASSIGNORS = installed(STRATEGIES)
STATIC_MEMBERS = 0.4
"""The share of applications that are static members; slots always are."""

MOST_RECORDS = (500, 500, 500, 500, 6, 2)
"""What applications set as max_poll_records, drawn: less than what is written at once leaves some for the next poll."""

COMMITS_ITSELF = 0.2
"""The share of applications that commit automatically."""

LARGE_STATES = 0.2
"""The share of stateful applications whose states go to files."""

REGION = "r"
CHECKPOINT_INTERVAL_MS = 7000
DRAIN_TIMEOUT_MS = 4000
MENDS_S = 5.0
"""For so long after the faults an operator looks after a region that has failed."""

TIMES = frozenset({"until", "checked"})
"""Fields of events that are times of the process's own clock."""

POOL_GROUP = "pool-group"
POOL = "p"


def nothing(_: str) -> None:
    """At the points of a query that is to do nothing there but to take a moment."""


OF_THE_SERVERS = {
    "expire": "expire-session",
    "cut": "cut-server",
    "lag": "lag-server",
    "server-stop": "stop-server",
    "leader-change": "change-leader",
    "zookeeper-stop": "zookeeper-away",
    "slow": "slow-connection",
    "lose-watch": "lose-watches",
    "late-watch": "late-watches",
}
"""What the modelled servers call their faults -> what a profile calls them."""


PLAN_REFUSED = "the plan breaks an invariant"
"""In the error of a turn whose plan was not written."""


class Alarm(logging.Handler):
    """Collects what the product logs with a traceback, and plans that it refused: errors that nobody expected."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0] if record.exc_info else None
        is_assignors = record.getMessage().startswith("assignor failed")
        is_liars = is_assignors and self._world.scheduler.current.process.life in self._world.liars
        if kind is not None and not issubclass(kind, MadeUpFailure) and not is_liars:
            text = logging.Formatter().formatException(record.exc_info)  # type: ignore[arg-type]
            self._world.problems.append(f"{self._world.scheduler.now:.6f} {record.getMessage()}\n{text}")
        elif PLAN_REFUSED in record.getMessage():
            self._world.problems.append(f"{self._world.scheduler.now:.6f} {record.getMessage()}")


@dataclass
class SimulatedLife:
    """A process and what runs in it.

    :ivar main: its first thread.  :ivar why: how it ended, None while it lives.
    """

    process: SimulatedProcess
    actor: Actor
    main: Thread | None = None
    why: str | None = None

    @property
    def is_alive(self) -> bool:
        return self.why is None and not self.process.is_dead


@dataclass
class SimulatedWorld:
    """One run.

    :ivar history: its events, in order.
    :ivar fired: kind of fault -> how often one really took effect.
    :ivar problems: what nobody expected, for people.
    :ivar observers: asked in turn about (event, fields) of what ZooKeeper does, until one says that it was for that.
    """

    seed: int
    profile: Profile
    verbose: Callable[[dict[str, Any]], None] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    lives: list[SimulatedLife] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.seed)
        self.scheduler.preemption = self.profile.preemption
        self.random = Random(f"world {self.seed}")
        self.ensemble = SimulatedEnsemble(
            self.scheduler, self.profile.servers, self.profile.tick_s, self._record_of_server, self.fire
        )
        self.log = SimLog(self.scheduler, self.fire)
        self.disk = SharedDisk(self.scheduler, self.fire)
        self.topics: dict[str, Topic] = {}
        self.checkpoints: dict[str, QueryCheckpoint] = {}
        self.is_calm = False
        self.stores: list[tuple[SimulatedProcess, SimStore]] = []
        self.observers: list[Callable[[str, dict[str, Any]], bool]] = []
        self.habits = Random(f"members {self.seed}")  # apart, so that the seeds drawn before still tell their story
        self.common = self.habits.choice(sorted(STRATEGIES))
        self.starts = Random(f"starts {self.seed}")
        self.sides = Random(f"sides {self.seed}")
        self.polls = Random(f"polls {self.seed}")
        self.manners: dict[str, Manner] = {}
        self.liars: set[str] = set()
        self.regional = Random(f"regions {self.seed}")
        self.in_region: dict[str, bool] = {}
        self.pool_starts = self.starts.choice(self.profile.starts)
        self._topic_ids = 0
        self.disks = Random(f"disks {self.seed}")
        self.gaps = Random(f"gaps {self.seed}")
        self.has_gaps = self.gaps.random() < self.profile.gaps
        self.out_of_range = self.gaps.choice((EARLIEST, EARLIEST, LATEST)) if self.has_gaps else EARLIEST
        self.unions: dict[str, int] = {}
        self.held_back: set[str] = set()
        self.beside = Random(f"beside {self.seed}")

    # ---- the history

    def record(self, who: str, event: str, fields: dict[str, Any]) -> None:
        """Put an event into the history."""
        entry = {"at": round(self.scheduler.now, 6), "who": who, "event": event, **fields}
        self.history.append(entry)
        if self.verbose is not None:
            self.verbose(entry)

    def _record_of_process(self, process: SimulatedProcess, event: str, fields: dict[str, Any]) -> None:
        for name in TIMES.intersection(fields):
            fields[name] = round((fields[name] - process.clock_offset) / process.clock_rate, 6)
        self.record(process.life, event, fields)

    def _record_of_server(self, who: str, event: str, fields: dict[str, Any]) -> None:
        self.record(who, event, fields)
        any(observer(event, fields) for observer in tuple(self.observers))

    def fire(self, kind: str) -> None:
        """A fault has taken effect."""
        self.fired[OF_THE_SERVERS.get(kind, kind)] += 1

    # ---- processes

    def start(self, actor: Actor, name: str) -> SimulatedLife:
        """A new process under `name`."""
        process = self.scheduler.process(name)
        process.clock_rate = 1 + self.random.uniform(-0.01, 0.01)
        process.clock_offset = self.random.uniform(0, 100_000)
        life = SimulatedLife(process, actor)
        self.lives.append(life)
        process.observers.append(lambda: self.note_crash(life) if process.is_dead else None)
        runtime = SimRuntime(self.scheduler, process, self._record_of_process)

        def main() -> None:
            self.record(process.life, "start", {"kind": actor.kind, **actor.names()})
            try:
                why = actor.run(runtime, lambda: self._open(process))
            except CoordinatorError as error:
                why = f"error: {error}"
            if not process.is_dead:
                life.why = why
                self.record(process.life, "exit", {"why": why})
                process.kill()

        life.main = self.scheduler.spawn(process, main, "main")
        return life

    def _open(self, process: SimulatedProcess) -> Store:
        store = self.ensemble.open(process, self.profile.session_timeout_ms / 1000, CONNECT_TIMEOUT_S)
        self.stores = [(owner, other) for owner, other in self.stores if not other.lost and not owner.is_dead]
        self.stores.append((process, store))
        return store

    def stores_of(self, process: SimulatedProcess) -> list[SimStore]:
        """The sessions that a process has open."""
        return [store for owner, store in self.stores if owner is process and not store.lost]

    def crash(self, life: SimulatedLife) -> None:
        """The process ends without a word."""
        if life.is_alive:
            life.process.kill()
            self.note_crash(life)

    def note_crash(self, life: SimulatedLife) -> None:
        """A process that crashed, now or before, is over."""
        if life.why is None:
            life.why = "killed"
            self.record(life.process.life, "exit", {"why": "killed"})

    def alive(self, *kinds: str) -> list[SimulatedLife]:
        """Processes that live, of these kinds."""
        return [life for life in self.lives if life.is_alive and (not kinds or life.actor.kind in kinds)]

    def of_name(self, name: str) -> SimulatedLife | None:
        """The newest process under a name."""
        return next((life for life in reversed(self.lives) if life.process.name == name), None)

    def run_tool(self, action: Callable[[Store, int], object]) -> None:
        """An admin command, in a process of its own."""
        process = self.scheduler.process("tool")
        runtime = SimRuntime(self.scheduler, process, self._record_of_process)

        def main() -> None:
            with suppress(CoordinatorError):  # as its user sees it, who tries again or not
                store = self._open(process)
                try:
                    action(store, runtime.wall_ms())
                finally:
                    store.close()
            process.kill()

        self.scheduler.spawn(process, main, "main")

    # ---- what there is to begin with

    def populate(self) -> None:
        """Topics, nodes, groups, a pool and a query, in an order and with delays that are drawn."""
        self.by_hand(*(Create(path) for path in ("/brokers", "/brokers/topics")))
        for number in range(self.profile.topics):
            self.make_topic(f"t{number}")
        starts: list[Callable[[], object]] = [
            *(lambda n=n: self.start_node(n) for n in range(self.profile.nodes)),
            *(
                lambda g=g, n=n: self.start_application(f"g{g}", f"c{n}")
                for g in range(self.profile.groups)
                for n in range(g, self.profile.consumers, self.profile.groups)
            ),
        ]
        if self.profile.slots:
            starts += [self.start_driver, self.start_query]
            starts += [lambda n=n: self.start_slot(n) for n in range(self.profile.slots)]  # type: ignore[misc]
        for start in starts:
            self.scheduler.after(self.random.uniform(0, 2), start)

    def start_node(self, number: int) -> SimulatedLife:
        """A coordinator service."""
        config = CoordinatorConfig(
            zk="model",
            node=f"node-{number}",
            history_dir="model",
            session_timeout_ms=self.profile.session_timeout_ms,
            rebalance_handlers=self.profile.handlers,
            sweep_interval_ms=self.profile.sweep_interval_ms,
            channel_retention_ms=self.profile.retention_ms,
            query_retention_ms=15_000,
            segment_retention_ms=0,
            assignment_timeout_ms=self.profile.assignment_timeout_ms,
            checkpoint_interval_ms=CHECKPOINT_INTERVAL_MS,
            drain_timeout_ms=DRAIN_TIMEOUT_MS,
            checkpoints_kept=3,
            max_consecutive_resets=2,
            max_backlog_segments=200,
            backlog_interval_ms=2000,
        )
        return self.start(NodeActor(config, self.disk, STRATEGIES), f"node-{number}")

    def start_application(self, group: str, name: str) -> SimulatedLife:
        """An application with a consumer."""
        config = ConsumerConfig(
            zk="model",
            group=group,
            consumer=f"{group}-{name}",
            group_instance_id=f"{group}-{name}" if self.habits.random() < STATIC_MEMBERS else "",
            log_dir="model",
            protocols=self._protocols(),
            start_position=self.starts.choice(self.profile.starts),
            session_timeout_ms=self.profile.session_timeout_ms,
            max_poll_interval_ms=self.random.choice(self.profile.poll_intervals_ms),
            max_poll_records=self.polls.choice(MOST_RECORDS),
            enable_auto_commit=self.polls.random() < COMMITS_ITSELF,
            auto_commit_interval_ms=1000,
            offsets_interval_ms=5000,
        )
        app = ApplicationActor(
            config,
            self.drawn_subscription(self.random),
            self.log,
            self.random.choice((0.1, 0.3, 0.6)),
            self.random.choice((1, 3)),
        )
        if self.profile.led:
            self._take_side(group, app)
        if self.profile.regions and self._is_in_region(group):
            app = self._stateful(app)
        return self.start(app, f"{group}-{name}")

    def _is_in_region(self, group: str) -> bool:
        """Whether a group is in the world's consistent region: half of those that come when there is one are."""
        if group not in self.in_region:
            share = max(0.5, self.profile.regions) if any(self.in_region.values()) else self.profile.regions
            self.in_region[group] = self.regional.random() < share
        return self.in_region[group]

    def _stateful(self, app: ApplicationActor) -> Stateful:
        """The same application, with a state in memory."""
        slowness = self.regional.choice((0, 0, 1, 3))
        padding = 6000 if self.regional.random() < LARGE_STATES else 0
        config = replace(app.config, region=REGION, checkpoint_dir=self.disk.url, enable_auto_commit=False)
        return Stateful(
            config, app.subscription, app.log, app.work_s, app.commit_every,
            assignors=app.assignors, troubles=app.troubles, padding=padding, slowness=slowness,
        )  # fmt: skip

    def _take_side(self, group: str, app: ApplicationActor) -> None:
        """Whether the member leaves the assignment to the coordinator, may decide it itself, or both."""
        if group not in self.manners:
            self.manners[group] = drawn_manner(self.sides, self.profile.led, sorted(ASSIGNORS))
        manner = self.manners[group]
        if not manner.common:
            return
        side = self.sides.choice(manner.among) if manner.side == MIXED else manner.side
        config = app.config
        others = self.sides.sample(sorted(ASSIGNORS.keys() - {manner.common}), self.sides.randint(0, 1))
        names = self.sides.sample([manner.common, *others], len(others) + 1)
        has_state, rack = self.sides.random() < 0.4, self.sides.choice(("", "r1"))
        app.config = replace(config, assignment=side, client_rack=rack)
        if side != COORDINATOR:
            made = [Troubled(self, group, config.consumer, app.troubles, ASSIGNORS[each]) for each in names]
            for each in made:
                each.state = b"state for " if has_state else b""
            app.assignors = made

    def _protocols(self) -> tuple[str, ...]:
        """One that all have, and others: what most prefer changes with who is there."""
        others = self.habits.sample(sorted(STRATEGIES.keys() - {self.common}), self.habits.randint(0, 2))
        return tuple(self.habits.sample([self.common, *others], len(others) + 1))

    def drawn_subscription(self, random: Random) -> Subscription:
        """What somebody subscribes to."""
        names = sorted(self.topics) or ["t0"]
        lot = random.random()
        if lot < 0.15:
            return Subscription({".*": 1}, WHITE_LIST)
        if lot < 0.25:
            return Subscription({"t9.*": 1}, BLACK_LIST)
        some = random.sample(names, random.randint(1, len(names)))
        return Subscription({name: random.randint(1, 2) for name in sorted(some)}, STATIC)

    def slot_config(self) -> SlotConfig:
        """The pool's configuration."""
        return SlotConfig(
            zk="model",
            group=POOL_GROUP,
            pool=POOL,
            log_dir="model",
            protocols=(self.common,),
            start_position=self.pool_starts,
            segments_dir=self.disk.url,
            slots=max(1, self.profile.slots),
            session_timeout_ms=self.profile.session_timeout_ms,
            max_poll_interval_ms=max(self.profile.poll_intervals_ms),
            offsets_interval_ms=5000,
            seal_interval_ms=400,
            driver_gone_ms=20_000,
            auto_offset_reset=self.out_of_range,
        )

    def start_driver(self) -> SimulatedLife:
        """What the pool's driver keeps in ZooKeeper. A restart under the name has the same run: slots stay."""
        return self.start(DriverActor(self.slot_config(), self.disk, "run-1"), "driver")

    def start_slot(self, number: int) -> SimulatedLife:
        """A Spark task with a slot."""
        topics = {name: 1 for name in sorted(self.topics)[: max(1, len(self.topics) - 1)]} or {"t0": 1}
        spec = SlotSpec(self.slot_config(), Subscription(topics, STATIC), number, "run-1", zk_group.__version__)
        return self.start(SlotTask(spec, self.log, self.disk), f"slot-{number}")

    def start_query(
        self, name: str = "q", checkpoint: QueryCheckpoint | None = None, is_strict: bool = True
    ) -> SimulatedLife:
        """A streaming query, from its checkpoint where it has one.

        :param is_strict: without it, it delivers what is left of lost records.
        """
        held = checkpoint or self.checkpoints.get(name) or QueryCheckpoint(name)
        self.checkpoints[name] = held
        config = SourceConfig(
            zk="model",
            group=POOL_GROUP,
            query=name,
            session_timeout_ms=self.profile.session_timeout_ms,
            zk_wait_ms=30_000,
            fail_on_data_loss=is_strict,
        )
        actor = QueryActor(config, held, self.disk, 1.0)
        if self.has_gaps:
            actor.plans = self.unions.setdefault(name, self.gaps.choice((1, 2)))
            actor.at_point = nothing
        life = self.start(actor, f"query-{name}")
        actor.life = life.process.life
        return life

    # ---- topics, as a broker or an operator writes them

    def by_hand(self, *operations: Operation) -> bool:
        """Commit as somebody at zkCli; whether ZooKeeper took it."""
        if self.ensemble.leader is None:
            return False
        try:
            self.ensemble.by_hand(operations)
        except Refused:
            return False
        return True

    def children(self, path: str) -> list[str]:
        """The names below a znode, as the leader has them."""
        leader = self.ensemble.leader
        return sorted(leader.tree.names(path)) if leader is not None else []

    def followers(self) -> list[SimulatedServer]:
        """The servers that do not lead."""
        return [server for server in self.ensemble.servers if server is not self.ensemble.leader]

    def make_topic(self, name: str) -> bool:
        """Create a topic under a new id."""
        self._topic_ids += 1
        count = self.random.randint(*self.profile.partitions)
        topic = Topic(name, f"id-{name}-{self._topic_ids}", tuple(range(count)))
        if not self.by_hand(Create(BROKERS.topic(name), topic.to_bytes())):
            return False
        self.topics[name] = topic
        rate = self.random.choice((0.0, 1.0, 1.0, 3.0)) * self.profile.records_per_s
        self.log.topics[name, topic.id] = Production(self.scheduler.now, rate, self.random.random())
        return True

    def grow_topic(self, name: str) -> bool:
        """Add a partition or two."""
        before = self.topics[name]
        count = len(before.partitions) + self.random.randint(1, 2)
        topic = Topic(name, before.id, tuple(range(count)))
        if not self.by_hand(SetData(BROKERS.topic(name), topic.to_bytes())):
            return False
        self.topics[name] = topic
        return True

    def remove_topic(self, name: str) -> bool:
        """Delete a topic with its records."""
        if not self.by_hand(Delete(BROKERS.topic(name))):
            return False
        self.log.topics.pop((name, self.topics.pop(name).id), None)
        return True

    # ---- the end of the faults

    def be_calm(self) -> None:
        """Everything that was done to the world is over; who is needed is started again."""
        self.is_calm = True
        self.ensemble.start()
        self.ensemble.latency = EVEN
        for server in self.ensemble.servers:
            self.ensemble.heal(server)
            server.lag(0.0)
        for _, store in self.stores:
            store.lose_watches = store.late_watches_s = 0.0
            store.lose_nothing()
        self.log.hanging.clear()
        for life in list(self.lives):
            life.process.crash_at = life.process.pause_at = 0
            life.process.resume()
            if isinstance(life.actor, ApplicationActor):
                life.actor.troubles.be_calm()
            if isinstance(life.actor, Stateful):
                life.actor.asks.clear()
        if self.profile.regions:
            self.mend_region()
        needed: dict[str, Callable[[], object]] = {
            **{f"node-{number}": partial(self.start_node, number) for number in range(self.profile.nodes)},
            **({"driver": self.start_driver} if self.profile.slots else {}),
            **{f"slot-{number}": partial(self.start_slot, number) for number in range(self.profile.slots)},
        }
        for name, start in needed.items():
            newest = self.of_name(name)
            if newest is None or not newest.is_alive:
                start()

    def say_states(self) -> None:
        """At the end: what every stateful application is."""
        for life in self.alive("consumer"):
            if isinstance(life.actor, Stateful):
                life.actor.record_state("state")

    def mend_region(self) -> None:
        """An operator resets a region that has failed; should nobody answer, again."""
        leader = self.ensemble.leader
        node = leader.tree.get(RegionPaths(REGION).root) if leader is not None else None
        if node is not None and Region.parse(REGION, node.data).state == FAILED:
            self.run_tool(lambda store, _: request(store, REGION, RegionRequest(RESET, "operator", "it failed")))
        if self.scheduler.now < self.profile.calm_at + MENDS_S:
            self.scheduler.after(1.0, self.mend_region)

    def stuck(self) -> list[str]:
        """Members that live and do nothing: processes; names of those that lie, whose channel is judged as a hand's."""
        stuck = [life for life in self.alive("consumer", "liar") if life.actor.is_stuck]
        return [life.process.name if life.actor.kind == "liar" else life.process.life for life in stuck]

    def broken(self) -> list[str]:
        """Consumers that live and whose assignors fail for good."""
        apps = [life.actor for life in self.alive("consumer") if isinstance(life.actor, ApplicationActor)]
        return [app.config.consumer for app in apps if app.troubles.is_broken]
