"""One sequence of requests, with a change by somebody else at every point between two of them, as model checkers do.

A play arranges a small world, runs the sequence, lets the world settle, and judges a promise. It is run once for each
point, each time in a world of its own. Most are tests with `@at_points`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol

from tests.simulation.store import SimStore
from tests.support.stores import FrontStore
from tests.support.virtual_time import HOSTS, VirtualTime
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.store import Listing, Node, Operation, Store, Watch

MOST_POINTS = 300
"""A sequence of more requests is none of a small world."""

EVENTS_S = 0.05


class Point:
    """A point in a sequence: before its request `number`, from 0; or after the last one.

    :param is_after: at once after the answer of that request, before it is used, instead; watches have fired by then.
    :ivar is_last: whether the sequence was over before.
    :ivar events_s: so long after it watches have fired.
    :ivar request: the request before (or after) which the change came.
    :ivar sessions: those of the sequence.
    """

    def __init__(self, number: int, is_after: bool = False) -> None:
        self.number = number
        self.is_after = is_after
        self.is_last = False
        self.events_s = 0.0
        self.request = "the end"
        self.sessions: list[SimStore] = []
        self._left = number
        self._happens: Callable[[], object] | None = None

    def wrap(self, store: Store) -> Store:
        """The session whose requests are the sequence's."""
        assert isinstance(store, SimStore)
        self.sessions.append(store)
        return _Pointed(store, self)

    @contextmanager
    def sequence(self, happens: Callable[[], object]) -> Iterator[None]:
        """What is asked here is the sequence, by any thread; `happens` is called once, at this point of it."""
        self._happens = happens
        yield
        if self._happens is not None:
            self._happens, self.is_last = None, True
            happens()

    @contextmanager
    def asked(self, request: str) -> Iterator[None]:
        """A request, from before it is sent until its answer has come."""
        is_here = self._happens is not None and self._left == 0
        self._left -= self._happens is not None
        if is_here and not self.is_after:
            self._come(request)
        yield
        if is_here and self.is_after:
            self._come(request)
            if self.events_s:
                ThreadRuntime().sleep(self.events_s)

    def _come(self, request: str) -> None:
        happens, self._happens, self.request = self._happens, None, request
        assert happens is not None
        happens()


class Scenery(Protocol):
    """A world with a sequence in it."""

    point: Point


# ---- changes of any sequence


def nothing(scene: Scenery) -> None:
    """The sequence alone."""


def session_ends(scene: Scenery) -> None:
    """Its newest one, where it has begun."""
    for session in scene.point.sessions[-1:]:
        session.expire()


def reply_is_lost(scene: Scenery) -> None:
    for session in scene.point.sessions[-1:]:
        session.lose_next_reply()


def reply_to_a_commit_is_lost(scene: Scenery) -> None:
    """Of the next one, where there is one left."""
    for session in scene.point.sessions[-1:]:
        session.lose_next_reply(only_commit=True)


def request_is_lost(scene: Scenery) -> None:
    for session in scene.point.sessions[-1:]:
        session.lose_next_request()


class _Pointed(FrontStore):
    """Between two requests that are sent one behind the other, a change may come as well."""

    def __init__(self, store: Store, point: Point) -> None:
        super().__init__(store)
        self._point = point

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        if watch is not None:
            return [self._got([path], watch)[0] for path in paths]
        return self._got(paths, None) if paths else []

    def _got(self, paths: Sequence[str], watch: Watch | None) -> list[Node | None]:
        with self._point.asked(f"get {' '.join(paths)}"):
            return self.behind.get_many(paths, watch)

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        found: list[Listing | None] = []
        for path in paths:
            with self._point.asked(f"list {path}"):
                found += self.behind.children_many([path], watch)
        return found

    def sync(self) -> None:
        with self._point.asked("sync"):
            self.behind.sync()

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        with self._point.asked(f"commit {' '.join(f'{type(one).__name__} {one.path}' for one in operations)}"):
            return self.behind.commit(operations)


def outcome(command: Callable[[], object]) -> CoordinatorError | None:
    """The sentence with which a command failed."""
    try:
        command()
    except CoordinatorError as error:
        return error
    return None


def at_every_point(play: Callable[[Point], object], answers: bool = True) -> int:
    """Run `play` for each point of its sequence.

    :param answers: also after each answer, before it is used.
    :returns: the number of requests of the sequence.
    :raises AssertionError: when a promise is broken, with the request.
    """
    for number in range(MOST_POINTS):
        for is_after in (False, True) if answers else (False,):
            point = Point(number, is_after)
            try:
                play(point)
            except Exception as error:
                error.add_note(f"the change came {'after' if is_after else 'before'} request {number}: {point.request}")
                raise
        if point.is_last:
            return number
    raise AssertionError(f"the sequence has over {MOST_POINTS} requests")


def at_points(over: int, answers: bool = True) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Make a test of a play: its first two parameters are the address of a ZooKeeper of its own, in a time of its own,
    and a point; the others are the test's.

    :param over: its sequence has more requests.  :param answers: see `at_every_point`.
    """

    def decorated(play: Callable[..., object]) -> Callable[..., None]:
        @wraps(play)
        def test(**given: Any) -> None:
            def run(point: Point) -> None:
                time, point.events_s = VirtualTime(point.number), EVENTS_S
                time.run(lambda: play(HOSTS, point, **given))
                assert time.crashed == []

            assert at_every_point(run, answers) > over

        signature = inspect.signature(play)
        test.__signature__ = signature.replace(parameters=[*signature.parameters.values()][2:])  # type: ignore[attr-defined]
        return test

    return decorated
