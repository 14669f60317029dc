"""A made history of a group in a consistent region: checkpoints, a reset, a member that joins, up to its calm end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.support.history_words import tell
from tests.support.made_histories import Happening, Made, MadeLife, Shares, Story
from zk_group.coordinator.zk.store import Check, Create, Delete, Operation
from zk_group.coordinator.zk.znodes.group_state import GroupState
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths, RegionPaths
from zk_group.coordinator.zk.znodes.records import DRAIN, Command, OffsetRecord, OwnerRecord
from zk_group.coordinator.zk.znodes.regions import (
    ABORTED,
    COMPLETED,
    RESETTING,
    RUNNING,
    Checkpoint,
    CheckpointEnd,
    Contribution,
    GroupRegion,
    Order,
    Progress,
    Region,
    RegionMembership,
)
from zk_group.drills.checker.replay.sketches import NOTHING, Sketch, of_range

G, R = GroupPaths("g"), RegionPaths("r")
TOPIC = "flights"
Key = tuple[str, str, int]


class MadeState:
    """The state of a member's application: of each partition, and as a member."""

    def __init__(self) -> None:
        self.states: dict[int, Sketch] = {}
        self.member: dict[Key, Sketch] = {}
        self.next: dict[int, int] = {}
        self.checkpoint = 0


class RegionGroup(Story):
    """Group `g` in region `r`: m0 and m1 share a topic, and contribute to checkpoint 1; m2 joins, and the region is
    reset to checkpoint 2; then it is calm.

    :ivar region: its record.  :ivar cuts: checkpoint -> name -> contribution, with what the member's application has.
    """

    def __init__(self, point: str = "", happening: Happening | None = None) -> None:
        super().__init__(point, happening)
        bounds = {"hold": 10.0, "reset_timeout": 5.0, "checkpoint_interval": 12.0, "drain_timeout": 4.0}
        self.events[0]["bounds"].update(bounds)
        self.region = Region(groups=("g",), reset=0)
        self.held: dict[str, MadeState] = {}
        self.cuts: dict[int, dict[str, tuple[Contribution, dict[Key, Sketch]]]] = {}
        tell(self, __file__)

    # ---- the coordinator

    def member(self, name: str, life: int = 1) -> MadeLife:
        """A process of a stateful application registers."""
        found = self.consumer(f"{name}#{life}", "g", "consumer")
        self.events[-2]["region"] = "r"
        self.register(found, f"{name}-{life}", subscription={TOPIC: 1}, region=RegionMembership("r"))
        return found

    def root(self, region: Region) -> Operation:
        """The region's own znode as it becomes."""
        self.region = region
        return self.put(R.root, region.to_bytes())

    def after_reset(self) -> Region:
        return replace(self.region, state=RESETTING, reset=self.region.reset + 1, open=0)

    def generation(self, shares: Shares, *operations: Operation) -> Made:
        """The state of a new generation, and the region's reset with it."""
        state = self.bound(self.rebalance("g", shares))
        return self.fenced("g", state, *operations)

    def bound(self, state: GroupState, ready: int = 0) -> GroupState:
        return replace(state, region=GroupRegion("r", ready))

    def reset_to(self, shares: Shares) -> None:
        """A generation: running members stop, and all are started from the cut."""
        self.generation(shares, self.root(self.after_reset()))
        for name in shares:
            life = self.lives[name]
            if life.channel.running:
                self.fenced("g", self.states["g"], self.stop(name, region=Order(self.region.reset)))
                self.obey_stop(name)
        self.start_all(shares)

    def obey_stop(self, name: str) -> Made:
        life = self.lives[name]
        life.channel = replace(life.channel, region=Progress(drained=(life.channel.region or Progress()).drained))
        return self.obey(name)

    def order(self, name: str) -> Order:
        """Where a member begins, and whose state it is given besides."""
        cut = self.cuts.get(self.region.sequence, {})
        target = self.states["g"].target
        gone = tuple(sorted(set(cut) - target.keys())) if name == min(target) else ()
        return Order(self.region.reset, self.region.sequence, tuple(sorted(cut)), gone)

    def start_all(self, shares: Shares) -> None:
        starts = [self.start(name, share, region=self.order(name)) for name, share in shares.items()]
        self.fenced("g", self.states["g"], *starts)

    def run(self) -> Made:
        """Every member has its state back: the group is Stable, and the region is Running."""
        self.stable("g", region=GroupRegion("r", self.region.reset))
        return self.coordinate(self.root(replace(self.region, state=RUNNING)))

    def coordinate(self, *operations: Operation) -> Made:
        """A multi of the region's turn."""
        return self.commit(self.coordinator, *operations)

    def leaves_seat(self, name: str) -> Made:
        """A static member leaves and keeps its seat; the group continues without it."""
        made = self.leave(name)
        away = GroupRegion("r", self.region.reset, (name,))
        self.fenced("g", replace(self.states["g"], region=away))
        return made

    def begin_checkpoint(self, participants: Mapping[str, str] | None = None) -> int:
        """A checkpoint begins, and every member is sent `drain`."""
        number, target = self.region.next_sequence, self.states["g"].target
        some = {name: one.incarnation for name, one in target.items()} if participants is None else participants
        bound = self.states["g"].region
        away = {"g": bound.away} if bound is not None and bound.away else {}
        some = {name: life for name, life in some.items() if name not in away.get("g", ())}
        made = Checkpoint("periodic", self.region.reset, self.region.sequence, {"g": some}, away=away)
        opened = replace(self.region, open=number, next_sequence=number + 1)
        self.coordinate(self.root(opened), Create(R.checkpoint(number), made.to_bytes()))
        sent = [
            Command(DRAIN, self.epoch, self.states["g"].generation, life, region=Order(self.region.reset, number))
            for life in some.values()
        ]
        commands = [
            Create(G.command_prefix(name), command.to_bytes(), sequential=True)
            for name, command in zip(some, sent, strict=True)
        ]
        self.fenced("g", self.states["g"], *commands)
        self.cuts[number] = {}
        return number

    def checkpoint(self, *names: str) -> int:
        """A checkpoint to which these contribute."""
        number = self.begin_checkpoint()
        for name in names:
            self.contribute(name, number)
        return number

    def complete(self) -> Made:
        """The open checkpoint is complete, and is the region's last one."""
        number = self.region.open
        after = replace(self.region, open=0, sequence=number)
        return self.coordinate(self.root(after), Create(R.end(number, COMPLETED), CheckpointEnd().to_bytes()))

    def abort(self) -> Made:
        number = self.region.open
        aborted = Create(R.end(number, ABORTED), CheckpointEnd().to_bytes())
        return self.coordinate(self.root(replace(self.region, open=0)), aborted)

    # ---- members

    def claim(self, name: str) -> Made:
        """A member applies its start; the command stays."""
        life, path = self.lives[name], self.command_of(name)
        command = Command.parse(path, self.tree[path][0].encode())
        reset = command.region.reset if command.region is not None else 0
        parts = sorted(command.started)
        drained = life.channel.region.drained if life.channel.region is not None else 0
        claimed = replace(
            life.channel, epoch=command.epoch, generation=command.generation, command=path.rpartition("/")[2],
            running=dict.fromkeys(parts), topics=command.topics, region=Progress(reset, 0, drained),
        )  # fmt: skip
        owner = OwnerRecord(f"{name}-0", name, claimed.incarnation, claimed.generation).to_bytes()
        return self.set_channel(life, claimed, *(Create(G.owner(*part), owner, ephemeral=True) for part in parts))

    def initial(self, name: str, number: int, offset: int = 0) -> Made:
        """Where the group begins with a partition is recorded."""
        data = OffsetRecord(offset, self.ids[TOPIC], 0).to_bytes()
        return self.commit(self.lives[name].who, self.put(R.initial_offset("g", TOPIC, number), data))

    def restore(self, name: str, is_recorded: bool = True, **more: Any) -> None:
        """A member applies its start, and its application has its state back."""
        self.claim(name)
        life, held = self.lives[name], MadeState()
        self.held[name] = held
        held.checkpoint = self.region.sequence
        cut = self.cuts.get(held.checkpoint, {})
        for part in sorted(life.channel.running):
            given = next((one for one, _ in cut.values() if part in one.offsets), None)
            held.next[part.partition] = given.offsets[part] if given is not None else 0
            held.states[part.partition] = of_range(0, held.next[part.partition])
            if R.initial_offset("g", TOPIC, part.partition) not in self.tree and is_recorded:
                self.initial(name, part.partition)
        for other in (name, *self.order(name).inherited):
            for key, sketch in cut[other][1].items() if other in cut else ():
                held.member[key] = held.member.get(key, NOTHING).plus(sketch)
        for number, offset in held.next.items():
            self.begin(life, [TopicPartition(TOPIC, number)], at=offset)
        self.say("restored", name, **more)
        self.ready(name)

    def ready(self, name: str) -> Made:
        """A member reports its restored state: its start is removed."""
        life = self.lives[name]
        progress = life.channel.region or Progress()
        after = replace(life.channel, region=replace(progress, ready=progress.reset))
        return self.set_channel(life, after, Delete(G.command(name, life.channel.command)))

    def say(self, event: str, name: str, **more: Any) -> Made:
        """An application reports its kind."""
        life, held = self.lives[name], self.held[name]
        progress = life.channel.region or Progress()
        said = {
            "reset": progress.reset,
            "checkpoint": held.checkpoint,
            "states": [{"topic": TOPIC, "partition": number, **each.to_json()} for number, each in held.states.items()],
            "member": [
                {"topic": topic, "topic_id": topic_id, "partition": number, **each.to_json()}
                for (topic, topic_id, number), each in held.member.items()
            ],
        }
        return self.event(
            event, life.who, group="g", consumer=name, incarnation=life.channel.incarnation, **{**said, **more}
        )

    def take(self, name: str, number: int, count: int, at: int | None = None) -> Made:
        """An application takes records in, at its position or `at` another offset."""
        life, held = self.lives[name], self.held[name]
        first = held.next[number] if at is None else at
        some, key = of_range(first, first + count), (TOPIC, self.ids[TOPIC], number)
        held.next[number] = first + count
        held.states[number] = held.states[number].plus(some)
        held.member[key] = held.member.get(key, NOTHING).plus(some)
        item = {"topic": TOPIC, "topic_id": self.ids[TOPIC], "partition": number, "first": first, "next": first + count}
        return self.event(
            "taken", life.who, group="g", consumer=name, incarnation=life.channel.incarnation, ranges=[item]
        )

    def contribution(self, name: str) -> Contribution:
        life, held = self.lives[name], self.held[name]
        offsets = {TopicPartition(TOPIC, number): offset for number, offset in held.next.items()}
        progress = life.channel.region or Progress()
        return Contribution(life.channel.incarnation, progress.reset, offsets, life.channel.topics)

    def contribute(self, name: str, number: int) -> Made:
        """A member's states are taken, and it contributes."""
        life, held = self.lives[name], self.held[name]
        held.checkpoint = number
        self.say("saved", name)
        given = self.contribution(name)
        self.cuts[number][name] = given, dict(held.member)
        path = self.command_of(name)
        progress = replace(life.channel.region or Progress(), drained=number)
        after = replace(life.channel, running=dict(given.offsets), command=path.rpartition("/")[2], region=progress)
        checked = Check(R.checkpoint(number), self.tree[R.checkpoint(number)][1])
        return self.set_channel(
            life, after, checked, Create(R.contribution(number, "g", name), given.to_bytes()), Delete(path)
        )

    def moves(self, name: str, number: int, offset: int) -> Made:
        """A member writes another offset into its channel."""
        life = self.lives[name]
        moved = {**life.channel.running, TopicPartition(TOPIC, number): offset}
        return self.set_channel(life, replace(life.channel, running=moved))


region_story = RegionGroup.made
