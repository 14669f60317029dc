"""Whatever is done to the modelled ZooKeeper: what it promises its clients, it keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.property.effort import effort
from tests.simulation.alone import Alone
from tests.simulation.links import LinkRequest
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.store import SimStore
from zk_group.coordinator.zk.errors import OutcomeUnknown, SessionLost, StoreError, ZooKeeperUnreachable
from zk_group.coordinator.zk.store import Create, SetData

CLIENTS = 5
LASTS_S = 40.0
CALM_S = 30.0
SEEDS = range(effort(5).max_examples)

KINDS = {
    *("cut", "lag", "leader-change", "server-pause", "server-stop", "zookeeper-stop"),
    *("drop-connection", "expire", "late-watch", "lose-reply", "lose-request", "lose-watch", "slow"),
}


Fault = tuple[Callable[[], object], Callable[[], object] | None]
"""What is done, and what undoes it a while later."""


class Client:
    """A process that counts up a znode of its own, and looks at everybody's."""

    def __init__(self, storm: Storm, number: int, process: SimulatedProcess) -> None:
        self._storm = storm
        self._path = f"/{number}"
        self.number = number
        self.process = process
        self.store: SimStore | None = None

    def run(self) -> None:
        """Work, with one session after the other."""
        while True:
            try:
                self.store = self._storm.world.ensemble.open(self.process, 8.0)
            except ZooKeeperUnreachable:
                self._storm.seen["unreachable"] += 1
                continue
            self._storm.look_on(self.store)
            try:
                self._work(self.store)
            except SessionLost:
                self._storm.seen["lost"] += 1
                self.store.close()

    def _work(self, store: SimStore) -> None:
        storm, random = self._storm, self._storm.world.scheduler.random
        while True:
            try:
                if random.random() < 0.4:
                    self._write(store)
                else:
                    self._look(store)
                storm.seen["ok"] += 1
            except SessionLost:
                raise
            except StoreError as error:
                storm.seen[type(error).__name__] += 1
            storm.world.scheduler.park("a moment", random.random() * 0.05)

    def _write(self, store: SimStore) -> None:
        """Count up by compare-and-set; what is not known is looked up after a sync, and stays as it is then."""
        storm = self._storm
        node = store.get(self._path)
        if node is None:
            return
        value = int(node.data) + 1
        operations = [SetData(self._path, b"%d" % value, node.stat.version), SetData("/all", b"")]
        try:
            store.commit(operations)
        except OutcomeUnknown:
            storm.seen["OutcomeUnknown"] += 1
            store.sync()
            found = store.get(self._path)
            assert found is not None
            if self.process.life == storm.clients[self.number].process.life:
                storm.settled[self.number] = max(storm.settled[self.number], int(found.data))
            return
        storm.settled[self.number] = max(storm.settled[self.number], value)

    def _look(self, store: SimStore) -> None:
        """After a sync, nothing is missed that had been answered before it."""
        settled = list(self._storm.settled)
        store.sync()
        nodes = store.get_many([f"/{number}" for number in range(CLIENTS)], lambda path: None)
        for least, node in zip(settled, nodes, strict=True):
            assert node is None or int(node.data) >= least, "a sync did not show what had been answered before"


class Storm:
    """Clients, and everything that can happen to them and to the servers.

    :ivar settled: for each client a value of its znode that it knows to have been reached.
    """

    def __init__(self, seed: int) -> None:
        self.world = Alone(seed)
        self.seen: Counter[str] = Counter()
        self.settled = [0] * CLIENTS
        self.world.ensemble.by_hand([Create("/all"), *(Create(f"/{number}", b"0") for number in range(CLIENTS))])
        self.clients: list[Client] = []
        for number in range(CLIENTS):
            self.clients.append(self._start(number))

    def _start(self, number: int) -> Client:
        process = self.world.scheduler.process(f"c{number}")
        client = Client(self, number, process)
        self.world.scheduler.spawn(process, client.run, "main")
        return client

    def look_on(self, store: SimStore) -> None:
        """Whether its answers come in the order of what was asked, and never from further back than the one before."""
        expected = store.on_reply
        last: list[int] = [0]
        order = store._sent

        def reply(request: LinkRequest) -> None:
            assert order[0] is request, "answers come in the order of the requests"
            assert request.zxid >= last[0], "nobody goes back in time"
            last[0] = request.zxid
            expected(request)

        store.on_reply = reply  # type: ignore[method-assign]

    def blow(self) -> None:
        """Let time go by with faults."""
        while self.world.now < LASTS_S:
            self.world.wait(0.2)
            if self.world.scheduler.random.random() < 0.3:
                self._fault()

    def _fault(self) -> None:
        random = self.world.scheduler.random
        client = random.choice(self.clients)
        lasts_s = random.random() * 12
        on_a_client = self._on_a_client(client, lasts_s)
        do, undo = random.choice(random.choice([self._on_a_server(), on_a_client, on_a_client]))
        do()
        if undo is not None:
            self.world.scheduler.after(lasts_s, undo)

    def _on_a_server(self) -> list[Fault]:
        ensemble, random = self.world.ensemble, self.world.scheduler.random
        server = random.choice(ensemble.servers)
        return [
            (lambda: ensemble.cut(server, random.choice([None, 4.0])), lambda: ensemble.heal(server)),
            (server.stop, server.start),
            (server.pause, server.resume),
            (lambda: server.lag(random.choice([0.0, 0.1, 2.0]), random.choice([False, True])), None),
            (ensemble.stop, ensemble.start),
            (ensemble.change_leader, None),
        ]

    def _on_a_client(self, client: Client, lasts_s: float) -> list[Fault]:
        world, random, store = self.world, self.world.scheduler.random, client.store
        faults: list[Fault] = [
            (client.process.pause, client.process.resume),
            (lambda: self._restart(client), None),
        ]
        if store is not None:
            faults += [
                (store.drop_connection, None),
                (lambda: store.lose_next_request(random.random() < 0.5), None),
                (lambda: store.lose_next_reply(random.random() < 0.5), None),
                (lambda: store.slow(random.random() * 3, world.now + lasts_s), None),
                (lambda: world.ensemble.expire(store.session_id), None),
                (lambda: setattr(store, "late_watches_s", random.choice([0.0, 0.5])), None),
                (lambda: setattr(store, "lose_watches", random.choice([0.0, 0.3])), None),
            ]
        return faults

    def _restart(self, client: Client) -> None:
        client.process.kill()
        self.clients[client.number] = self._start(client.number)

    def calm_down(self) -> None:
        """Undo all of it, and let things settle."""
        ensemble = self.world.ensemble
        for server in ensemble.servers:
            server.start()
            server.resume()
            ensemble.heal(server)
            server.lag(0.0)
        for client in self.clients:
            client.process.resume()
        self.world.wait(CALM_S)


def _storm(seed: int) -> Storm:
    storm = Storm(seed)
    try:
        storm.blow()
        storm.calm_down()
        _ends_well(storm)
    finally:
        storm.world.scheduler.close()
    return storm


def _ends_well(storm: Storm) -> None:
    ensemble = storm.world.ensemble
    before = storm.seen["ok"]
    storm.world.wait(1.0)
    assert storm.seen["ok"] > before + 10 * CLIENTS, "everybody works again"
    for client in storm.clients:
        assert client.store is not None and client.store.session is not None
        assert client.store.session.is_heard and not client.store.lost
        client.process.kill()
    storm.world.wait(1.0)
    for server in ensemble.servers:
        server.catch_up()  # one that is not asked does not take the trouble
    contents = [{path: znode.node for path, znode in server.tree.nodes.items()} for server in ensemble.servers]
    assert contents[0] == contents[1] == contents[2]
    assert _replayed(storm) == {path: node.data.decode() for path, node in contents[0].items() if path != "/"}


def _replayed(storm: Storm) -> dict[str, str]:
    """What the history says that there is."""
    tree: dict[str, str] = {}
    zxid = 0
    for _, event, fields in storm.world.told:
        if "zxid" in fields:
            assert fields["zxid"] > zxid
            zxid = fields["zxid"]
        for path in fields["paths"] if event == "closed" else ():
            del tree[path]
        for op in fields["ops"] if event == "commit" else ():
            if op["op"] == "delete":
                del tree[op["path"]]
            elif op["op"] != "check":
                tree[op["path"]] = op["data"]
    return tree


@pytest.mark.parametrize("seed", SEEDS)
def test_in_any_storm_what_is_promised_is_kept(seed: int) -> None:
    storm = _storm(seed)

    assert storm.seen["ok"] > 1000
    assert sum(storm.world.faults.values()) > 10


def test_every_kind_of_fault_has_an_effect_in_some_storm() -> None:
    faults: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for seed in range(4):
        storm = _storm(100 + seed)
        faults += storm.world.faults
        seen += storm.seen
    assert set(faults) == KINDS
    assert {"lost", "OutcomeUnknown", "ConnectionLost"} <= set(seen)
