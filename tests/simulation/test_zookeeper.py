"""The modelled ZooKeeper where a real one is hard to get: followers that are behind or cut off, and clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from random import Random
from statistics import mean, median

import pytest

from tests.simulation.alone import Alone, Heard, alone
from tests.simulation.links import COMMIT, WIDE, LinkRequest, WideLatency
from tests.simulation.store import Loss, SimStore, is_commit, is_sync
from tests.simulation.znodes import Event, Znode
from zk_group.coordinator.zk.errors import ConnectionLost, OutcomeUnknown, Refused, SessionLost, ZooKeeperUnreachable
from zk_group.coordinator.zk.store import Create, Delete, Node, SetData

SEEDS = range(1, 13)
TICK_S = 2.0
TIMEOUT_S = 10.0


@pytest.fixture
def seed() -> int:
    return 1


@pytest.fixture
def world(seed: int) -> Iterator[Alone]:
    """Three servers; tests of many seeds say so."""
    with alone(seed) as its:
        yield its


def _data(node: Node | None) -> bytes | None:
    return node.data if node is not None else None


def _closed(world: Alone) -> list[tuple[object, object]]:
    return [(fields["session"], fields["why"]) for _, event, fields in world.told if event == "closed"]


def _until_closed(world: Alone, store: SimStore, longest_s: float = 60.0) -> float:
    """Wait until the leader has ended a session; when."""
    world.until(lambda: any(session == store.session_id for session, _ in _closed(world)), "its end", longest_s)
    return world.now


# ---- sessions


@pytest.mark.parametrize("seed", SEEDS)
def test_session_of_a_dead_client_expires_after_its_timeout_and_a_full_tick(world: Alone) -> None:
    store = world.open(TIMEOUT_S)
    world.call(lambda: store.commit([Create("/e", b"", ephemeral=True)]), store.process)
    world.wait(world.scheduler.random.random() * 30)
    died_at = world.now
    store.process.kill()

    took_s = _until_closed(world, store) - died_at

    assert TIMEOUT_S * 2 / 3 < took_s < TIMEOUT_S + 1.5 * TICK_S + 0.1
    assert world.told[-1][:2] == ("server", "closed")
    assert world.told[-1][2]["paths"] == ["/e"]
    assert world.stored("/e") is None


def test_sessions_expire_only_when_a_tick_of_the_leader_is_full() -> None:
    with alone(servers=1) as world:
        ended_at = []
        for _ in range(5):
            store = world.open(TIMEOUT_S)
            world.wait(world.scheduler.random.random() * TICK_S)
            store.process.kill()
            ended_at.append(_until_closed(world, store))

        ticks = [(at - ended_at[0]) / TICK_S for at in ended_at]
        assert all(abs(tick - round(tick)) < 0.01 for tick in ticks)


def test_who_is_paused_hears_nothing_and_then_that_the_session_is_over(world: Alone) -> None:
    store = world.open(TIMEOUT_S)
    heard = Heard(store)
    store.process.pause()

    world.wait(3 * TIMEOUT_S)
    assert _closed(world) == [(store.session_id, "expired")]
    assert heard.all == []
    store.process.resume()
    world.wait(2.0)

    assert heard.all == ["suspended", "lost", "lost"]
    with pytest.raises(SessionLost):
        world.call(lambda: store.get("/"), store.process)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_paused_for_less_than_two_thirds_of_its_timeout_keeps_its_session(world: Alone) -> None:
    store = world.open(TIMEOUT_S)
    heard = Heard(store)
    for _ in range(5):
        store.process.pause()
        world.wait(TIMEOUT_S * 0.6)
        store.process.resume()
        world.wait(TIMEOUT_S * 0.2)

    assert _closed(world) == []
    assert heard.all == []


def test_timeouts_are_granted_between_two_and_twenty_ticks(world: Alone) -> None:
    assert [world.open(timeout_s).negotiated_timeout_s for timeout_s in (1.0, 10.0, 100.0)] == [4.0, 10.0, 40.0]


def test_the_dead_too_have_their_whole_timeout_when_zookeeper_comes_back(world: Alone) -> None:
    store = world.open(TIMEOUT_S)
    store.process.kill()
    world.wait(TIMEOUT_S / 2)
    world.ensemble.stop()
    world.wait(TIMEOUT_S / 2)
    world.ensemble.start()
    back_at = world.now

    assert TIMEOUT_S < _until_closed(world, store) - back_at < TIMEOUT_S + TICK_S + 2.0


# ---- followers


def test_follower_whose_lag_is_over_answers_what_comes_later_at_once(world: Alone) -> None:
    store, follower = world.open_at(0), world.followers[0]
    follower.lag(3.0)
    assert world.took_s(store.sync, store.process) == pytest.approx(3.0, abs=0.5)
    assert world.faults["lag"] == 1
    follower.lag(6.0)
    synced = world.start(store.sync, store.process)
    world.wait(1.0)
    follower.lag(0.0)
    follower.hurry()
    world.wait(0.1)
    assert synced == [None]

    assert world.took_s(store.sync, store.process) < 0.1


def test_session_that_has_seen_less_is_let_in_before_what_a_slow_disk_delays(world: Alone) -> None:
    """A slow link delays the leader's word about it as well, as `test_ensemble_contract.py` has it."""
    store = world.open_at(1)
    world.ensemble.by_hand([Create("/a", b"old")])
    world.wait(1.0)
    assert _data(world.call(lambda: store.get("/a"), store.process)) == b"old"
    slow = world.followers[0]
    slow.lag(3.0, has_slow_disk=True)
    world.followers[1].lag(3.0)
    world.ensemble.by_hand([SetData("/a", b"new")])
    store.hosts = [slow]
    heard = Heard(store)

    world.followers[1].drop_links()

    world.wait(2.0)
    assert heard.all == ["suspended", "connected"]
    assert _data(world.call(lambda: store.get("/a"), store.process)) == b"old"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_event_of_a_watch_is_sent_before_an_answer_that_shows_what_happened(world: Alone) -> None:
    world.ensemble.by_hand([Create("/a", b"0")])
    stores = [world.open_at(place) for place in (-1, 0, 1)]
    logs = [_wire_log(store) for store in stores]
    for server in world.followers:
        server.lag(0.01)
    writer = world.open()
    for number in range(1, 20):
        for store in stores:
            world.start(lambda its=store: its.get("/a", print), store.process)  # type: ignore[misc]
            world.start(lambda its=store: its.get_many(["/a", "/b"]), store.process)  # type: ignore[misc]
        world.start(lambda n=number: writer.commit([SetData("/a", b"%d" % n)]), writer.process)  # type: ignore[misc]
        world.wait(world.scheduler.random.random() * 0.02)
    for log in logs:
        assert log.count("event") > 5
        _events_come_first(log)


def test_watcher_of_its_own_write_is_notified_before_the_reply(world: Alone) -> None:
    world.ensemble.by_hand([Create("/a", b"0")])
    for place in (-1, 0):
        store = world.open_at(place)
        log = _wire_log(store)
        world.call(lambda its=store: its.get("/a", print), store.process)  # type: ignore[misc]
        world.call(lambda its=store: its.commit([SetData("/a", b"1")]), store.process)  # type: ignore[misc]
        assert [line.split()[0] for line in log] == ["watched", "event", "done"]


def _wire_log(store: SimStore) -> list[str]:
    """`watched 3` for an answer with the data 3 that left a watch, `read 3` for one that left none, `done`, `event`."""
    log: list[str] = []
    on_reply, on_events = store.on_reply, store.on_events

    def reply(request: LinkRequest) -> None:
        if request.result and isinstance(request.result[0], Node):
            log.append(f"{'watched' if request.watch else 'read'} {int(request.result[0].data)}")
        elif request.kind == COMMIT:
            log.append("done")
        on_reply(request)

    def events(its: list[Event]) -> None:
        log.append("event")
        on_events([])

    store.on_reply, store.on_events = reply, events  # type: ignore[method-assign,assignment]
    return log


def _events_come_first(log: list[str]) -> None:
    watched: int | None = None
    for line in log:
        kind, _, number = line.partition(" ")
        if kind == "event":
            watched = None
            continue
        assert watched is None or int(number) == watched, f"new data before the event: {log}"
        if kind == "watched":
            watched = int(number)


def test_a_follower_that_is_cut_off_answers_reads_while_the_session_expires(world: Alone) -> None:
    """What it shows then, and what its client hears at the end, `test_ensemble_contract.py` has."""
    store = world.open_at(0)
    cut_at = world.now
    world.ensemble.cut(world.followers[0])

    while (store.session_id, "expired") not in _closed(world) and world.now < cut_at + 3 * TIMEOUT_S:
        world.call(lambda: store.get("/"), store.process)
        world.wait(0.1)

    assert TIMEOUT_S * 2 / 3 - TICK_S / 2 < world.now - cut_at < TIMEOUT_S + TICK_S
    began = world.now
    with pytest.raises(ConnectionLost):
        world.call(store.sync, store.process)
    assert world.now - began == pytest.approx(2 * TIMEOUT_S, abs=0.1)


def test_expired_session_writes_nothing_though_its_server_does_not_know_yet(world: Alone) -> None:
    store = world.open_at(0)
    heard = Heard(store)
    world.followers[0].lag(3.0)
    world.ensemble.expire(store.session_id)

    with pytest.raises(OutcomeUnknown):
        world.call(lambda: store.commit([Create("/a")]), store.process)

    world.wait(2.0)
    assert heard.all == ["suspended", "lost", "lost"]
    assert world.stored("/a") is None


@pytest.mark.parametrize("seed", [3])
def test_client_is_refused_by_a_server_behind_its_last_seen_zxid(world: Alone) -> None:
    store = world.open_at(-1)
    world.wait(1.0)
    for server in world.followers:
        server.lag(20.0)
    for number in range(6):
        world.call(lambda n=number: store.commit([Create(f"/{n}")]), store.process)  # type: ignore[misc]
        store.drop_connection()
        world.wait(2.0)
        assert store.server is world.ensemble.leader


def test_client_cannot_connect_without_a_server(world: Alone) -> None:
    world.ensemble.stop()
    process = world.scheduler.process("p")
    with pytest.raises(ZooKeeperUnreachable):
        world.call(lambda: world.ensemble.open(process, TIMEOUT_S, 5.0), process)
    assert world.now == pytest.approx(5.0, abs=0.1)
    world.ensemble.start()
    world.wait(5.0)
    assert [event for _, event, _ in world.told] == []


# ---- what gets lost, and what comes late


def _committed_and_dropped(world: Alone, within_s: float) -> SimStore | None:
    """A session whose connection breaks so soon behind a commit; None where that has been answered by then."""
    store = world.open(TIMEOUT_S)
    outcome = world.start(lambda: store.commit([Create("/a")]), store.process)
    world.wait(within_s)
    if outcome:
        return None
    store.drop_connection()
    world.wait(0.0)
    assert isinstance(outcome[0], OutcomeUnknown)
    return store


def test_a_commit_on_a_connection_that_breaks_happens_or_not_but_not_after_a_sync() -> None:
    outcomes = []
    for seed in range(40):
        with alone(seed) as world:
            store = _committed_and_dropped(world, 0.001 * world.scheduler.random.random())
            if store is None:
                continue
            world.call(store.sync, store.process)
            happened = world.call(lambda its=store: its.get("/a"), store.process) is not None  # type: ignore[misc]
            world.wait(2 * TIMEOUT_S)
            assert (world.stored("/a") is not None) == happened
            outcomes.append(happened)
    assert 5 < sum(outcomes) < len(outcomes) - 5


def test_a_commit_may_happen_after_its_sender_has_heard_that_its_outcome_is_unknown() -> None:
    late = 0
    for seed in range(60):
        with alone(seed) as world:
            assert _committed_and_dropped(world, 0.0001)
            before = world.stored("/a")
            world.wait(1.0)
            late += before is None and world.stored("/a") is not None
    assert late > 5


def test_a_commit_that_is_late_is_not_done_behind_an_election() -> None:
    """Its server has closed every connection by then: the packet finds none."""
    done = 0
    for seed in range(60):
        with alone(seed) as world:
            store = world.open_at(seed % 2 - 1, TIMEOUT_S)
            away = world.followers[1]
            away.stop()
            store.hosts = [away]  # no other connection, which would forbid it as well
            store.delay_next_commit()
            world.start(lambda its=store: its.commit([Create("/a")]), store.process)  # type: ignore[misc]
            world.wait(0.002)
            assert world.ensemble.change_leader()
            world.wait(0.9 * TIMEOUT_S)
            made = world.stored("/a")
            assert made is None or made.stat.czxid >> 32 == 1, "the first epoch"
            world.ensemble.by_hand([Create("/b")])
            assert world.leader.tree.zxid >> 32 == 2, "the one behind it"
            done += made is not None
    assert done > 5


@pytest.mark.parametrize("kind", ["lose-request", "lose-reply"])
def test_a_sync_behind_a_lost_reply_is_lost_too_and_no_other_request(world: Alone, kind: str) -> None:
    store = world.open()
    store.lose(Loss("lose-reply", is_commit, lambda: store.lose(Loss(kind, is_sync))))
    world.call(store.sync, store.process)
    with pytest.raises(OutcomeUnknown):
        world.call(lambda: store.commit([Create("/a")]), store.process)

    world.call(lambda: store.get("/a"), store.process)
    with pytest.raises(ConnectionLost):
        world.call(store.sync, store.process)

    assert world.faults == Counter(("lose-reply", kind))
    world.call(store.sync, store.process)


def test_nothing_that_was_sent_behind_a_lost_request_is_answered() -> None:
    for seed in range(40):
        with alone(seed) as world:
            store = world.open()
            store.slow(0.05, world.now + 60.0)
            store.lose_next_request()
            outcomes = [world.start(store.sync, store.process) for _ in range(2)]
            world.wait(1.0)
            assert [type(outcome[0]) for outcome in outcomes] == [ConnectionLost, ConnectionLost]


def test_a_watch_whose_event_is_lost_never_fires(world: Alone) -> None:
    store = world.open()
    heard = Heard(store)
    store.lose_watches = 1.0
    world.call(lambda: store.get("/a", heard.watch()), store.process)
    world.ensemble.by_hand([Create("/a")])
    world.wait(5.0)
    assert heard.all == []
    assert world.faults == {"lose-watch": 1}

    store.lose_watches = 0.0
    world.call(lambda: store.get("/a", heard.watch()), store.process)
    world.ensemble.by_hand([SetData("/a", b"")])
    world.wait(1.0)
    assert heard.all == ["w /a"]


@pytest.mark.parametrize("seed", [2])
def test_what_comes_behind_a_late_event_is_late_too(world: Alone) -> None:
    store = world.open_at(-1)
    heard = Heard(store)
    world.call(lambda: store.get("/a", heard.watch()), store.process)
    store.late_watches_s = 5.0
    world.ensemble.by_hand([Create("/a")])
    assert world.took_s(lambda: store.get("/a"), store.process) > 0.1
    assert heard.all == ["w /a"]
    assert world.faults == {"late-watch": 1}


def test_a_slow_connection_is_slow_for_as_long_as_was_said(world: Alone) -> None:
    store = world.open()
    store.slow(1.0, world.now + 10.0)
    assert world.took_s(lambda: [store.get("/") for _ in range(5)], store.process) > 1.0
    world.wait(10.0)
    assert world.took_s(lambda: [store.get("/") for _ in range(5)], store.process) < 0.1
    assert world.faults == {"slow": 1}


def test_what_a_slow_connection_held_up_comes_when_it_is_quick_again(world: Alone) -> None:
    store = world.open()
    store.slow(1000.0, world.now + 2.0)
    assert world.took_s(lambda: store.get("/"), store.process) == pytest.approx(2.0, abs=0.1)


def test_a_connection_that_is_so_slow_that_pings_are_late_breaks(world: Alone) -> None:
    store = world.open()
    heard = Heard(store)
    store.slow(1000.0, world.now + 2 * TIMEOUT_S)
    began = world.now
    with pytest.raises(ConnectionLost):
        world.call(lambda: store.get("/"), store.process)
    assert TIMEOUT_S / 3 < world.now - began < TIMEOUT_S * 2 / 3 + 0.1
    world.wait(0.1)
    assert heard.all == ["suspended"]


@pytest.mark.parametrize(("cut_s", "is_heard"), [(1.5, False), (2.1, True)])
def test_commit_whose_slow_answer_is_cut_happened_and_is_unknown(world: Alone, cut_s: float, is_heard: bool) -> None:
    store = world.open()
    store.slow_next_commit(reply_s=2.0, cut_s=cut_s)
    began = world.now

    with nullcontext() if is_heard else pytest.raises(OutcomeUnknown):
        world.call(lambda: store.commit([Create("/a")]), store.process)

    assert world.now - began == pytest.approx(2.0 if is_heard else 1.5, abs=0.05)
    assert world.faults["slow-then-cut"] == 1
    assert world.call(lambda: store.get("/a"), store.process) is not None


def test_wide_latencies_are_skewed_and_differ_from_connection_to_connection() -> None:
    random = Random(1)
    connections = [[one.hop_s() for _ in range(200)] for one in (WideLatency(random) for _ in range(200))]

    hops = sorted(hop for each in connections for hop in each)
    middles = [median(each) for each in connections]
    assert mean(hops) > 5 * median(hops)
    assert max(middles) > 50 * min(middles)
    stalls = sum(hop >= 0.2 for hop in hops) / len(hops)
    assert 0.008 < stalls < 0.05


@pytest.mark.parametrize("seed", [3])
def test_on_a_connection_of_wide_latency_nothing_overtakes_anything(world: Alone) -> None:
    world.ensemble.latency = WIDE
    link = world.open(timeout_s=40.0)._link
    arrived: list[int] = []
    assert link is not None and link.latency is not None
    for number in range(300):
        link.deliver(partial(arrived.append, number), 0.0)
    world.wait(60.0)

    assert arrived == list(range(300))


# ---- reading


def test_a_znode_that_appears_while_it_is_read_is_seen_or_its_watch_fires() -> None:
    outcomes = set()
    for seed in range(60):
        with alone(seed) as world:
            store, writer = world.open(), world.open()
            heard = Heard(store)
            read = world.start(lambda its=store, w=heard: its.get("/a", w.watch()), store.process)  # type: ignore[misc]
            world.wait(world.scheduler.random.random() * 0.003)
            world.start(lambda its=writer: its.commit([Create("/a")]), writer.process)  # type: ignore[misc]
            world.wait(1.0)
            assert (read[0] is None) == (heard.all == ["w /a"])
            outcomes.add(read[0] is None)
    assert outcomes == {True, False}


@pytest.mark.parametrize("has_watch", [False, True])
def test_znodes_are_of_one_moment_when_they_are_read_together_without_a_watch(has_watch: bool) -> None:
    with alone(5) as world:
        world.ensemble.splitting = 1.0
        world.ensemble.by_hand([Create("/a", b"0"), Create("/b", b"0")])
        store, writer = world.open(), world.open()
        watch = Heard(store).watch() if has_watch else None
        torn = 0
        for number in range(1, 150):
            data = b"%d" % number
            world.start(lambda d=data: writer.commit([SetData("/a", d), SetData("/b", d)]), writer.process)  # type: ignore[misc]
            read = world.call(lambda: store.get_many(["/a", "/b"], watch), store.process)
            torn += _data(read[0]) != _data(read[1])
    assert (torn > 0) == has_watch, "with a watch, others write in between"


def test_children_come_in_any_order(world: Alone) -> None:
    store = world.open()
    names = [f"n{number:02}" for number in range(12)]
    world.ensemble.by_hand([Create("/a"), Create("/b")])
    world.ensemble.by_hand([Create(f"/a/{name}") for name in names])
    world.ensemble.by_hand([Create(f"/b/{name}") for name in names[:3]])
    world.wait(1.0)
    for path, few in (("/a", names), ("/b", names[:3])):
        orders = set()
        for _ in range(20):
            listing = world.call(lambda p=path: store.children(p), store.process)  # type: ignore[misc]
            assert listing is not None and sorted(listing.names) == few
            orders.add(tuple(listing.names))
        assert len(orders) > 3


def test_after_the_largest_sequence_number_the_same_one_comes_again() -> None:
    """As ZooKeeper 3.9.5 does: only within one multi, the numbers go on, with the smallest negative one."""
    with alone(servers=1) as world:
        world.ensemble.by_hand([Create("/q")])
        server = world.ensemble.servers[0]
        server.tree.nodes["/q"] = Znode(server.tree.nodes["/q"].node, 2**31 - 2)
        item = Create("/q/n-", sequential=True)

        assert world.ensemble.by_hand([item]) == ["/q/n-2147483646"]
        assert world.ensemble.by_hand([item, item]) == ["/q/n-2147483647", "/q/n--2147483648"]
        with pytest.raises(Refused) as refused:
            world.ensemble.by_hand([item])
        assert refused.value.reason == "node-exists"
        world.ensemble.by_hand([Delete("/q/n-2147483647")])
        assert world.ensemble.by_hand([item]) == ["/q/n-2147483647"]


# ---- the history


def test_the_history_has_every_transaction_in_order(world: Alone) -> None:
    store = world.open()
    world.call(lambda: store.commit([Create("/a", b"\xff1"), Create("/a/n-", sequential=True)]), store.process)
    world.call(lambda: store.commit([SetData("/a", b"2", 0), Create("/e", ephemeral=True)]), store.process)
    store.lose_next_reply()
    with pytest.raises(OutcomeUnknown):
        world.call(lambda: store.commit([Delete("/a/n-0000000000")]), store.process)
    world.wait(1.0)
    with pytest.raises(Refused):
        world.ensemble.by_hand([Create("/a")])
    world.call(store.close, store.process)

    assert [(who, event) for who, event, _ in world.told] == [
        ("p#1", "session"),
        ("p#1", "commit"),
        ("p#1", "commit"),
        ("p#1", "commit"),
        ("hand", "session"),
        ("p#1", "closed"),
    ]
    fields = [fields for _, _, fields in world.told]
    assert fields[0] == {"session": store.session_id, "timeout": 10.0}
    assert fields[1]["ops"] == [
        {"op": "create", "path": "/a", "data": "\\xff1", "ephemeral": False},
        {"op": "create", "path": "/a/n-0000000000", "data": "", "ephemeral": False},
    ]
    assert fields[2]["ops"][0] == {"op": "set", "path": "/a", "data": "2", "version": 1}
    assert fields[3]["ops"] == [{"op": "delete", "path": "/a/n-0000000000"}]
    assert (fields[5]["session"], fields[5]["why"], fields[5]["paths"]) == (store.session_id, "closed", ["/e"])
    zxids = [its["zxid"] for its in fields if "zxid" in its]
    assert zxids == sorted(zxids)
