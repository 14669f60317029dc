"""One thread of control at a time, in virtual time, in an order that is drawn from a seed.

Threads are greenlets. One runs until it parks itself at a seam (a request to the store, a lock, a queue, a sleep); then
the hub takes another that is ready, drawn by lot, and when none is, moves the clock to the next timer. Computing takes
no virtual time. Nothing here reads a real clock or another source of randomness, so a seed stands for one history.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any

import greenlet

MOST_SWITCHES_AN_INSTANT = 50_000
"""More than this without the clock moving is a livelock."""

OURS = ("simulation/scheduler.py", "simulation/runtime.py")
STARTED_MS = 1_700_000_000_000

LONGEST_FOR_A_LOCK_S = 600.0
"""No thread of a running process waits this long for a lock but in a deadlock."""


class SimulationFailure(BaseException):
    """The run cannot go on; the message says why, and where every thread stands.

    Not an `Exception`: the code that is simulated lives on after those, as it should.
    """


class ProcessCrashed(greenlet.GreenletExit):  # type: ignore[misc]  # greenlet has no types
    """Thrown into the threads of a process that has crashed: nothing that they do from now on has an effect."""


@dataclass(slots=True)
class Timer:
    """A call that is due at a moment of virtual time, unless it is cancelled."""

    call: Callable[[], object]
    is_cancelled: bool = False


@dataclass(eq=False, repr=False)
class SimulatedProcess:
    """A process of the simulated world: its threads crash together, stand still together, and share a clock.

    :ivar name: its name; a restart under the same name is another process.
    :ivar life: `name#number`, which no other process has: `who` in the history.
    :ivar clock_rate: seconds of its clock in a second of virtual time.
    :ivar operations: seams that its threads have passed.
    :ivar crash_at: it crashes when it passes this many, 0 for never.
    :ivar pause_at: likewise, it is paused.
    :ivar held: threads that run only once it goes on.
    :ivar observers: called when it has been paused, resumed (behind all that it then receives) or killed.
    """

    _scheduler: Scheduler
    name: str
    life: str
    clock_rate: float = 1.0
    clock_offset: float = 0.0
    is_dead: bool = False
    is_paused: bool = False
    operations: int = 0
    crash_at: int = 0
    pause_at: int = 0
    threads: list[Thread] = field(default_factory=list)
    observers: list[Callable[[], None]] = field(default_factory=list)
    held: list[Thread] = field(default_factory=list)
    _inbox: list[Callable[[], None]] = field(default_factory=list)

    def clock(self) -> float:
        """Its monotonic clock, in its own seconds."""
        return self.clock_offset + self._scheduler.now * self.clock_rate

    def virtual_s(self, own_s: float) -> float:
        """Seconds of virtual time that `own_s` of its seconds take."""
        return own_s / self.clock_rate

    def pause(self) -> None:
        """Stand still, as after SIGSTOP: no thread runs, nothing is received, time goes by."""
        if not self.is_paused:
            self.is_paused = True
            self.changed()

    def resume(self) -> None:
        """Go on."""
        if self.is_dead or not self.is_paused:
            return
        self.is_paused = False
        held, self.held = self.held, []
        inbox, self._inbox = self._inbox, []
        for call in inbox:
            call()
        for thread in held:
            self._scheduler.make_ready(thread)
        self.changed()

    def changed(self) -> None:
        """Tell the observers."""
        for observer in tuple(self.observers):
            observer()

    def receive(self, call: Callable[[], None]) -> None:
        """Do `call` as something that reaches the process from outside: later while it is paused, never once dead."""
        if self.is_dead:
            return
        if self.is_paused:
            self._inbox.append(call)
        else:
            call()

    def kill(self) -> None:
        """Crash: no thread has another effect on anything."""
        self._scheduler.kill(self)


@dataclass(slots=True, eq=False, repr=False)
class Thread:
    """A thread of control of a process. Also the runtime's `Task`.

    :ivar waits_for: why it is parked, for people.
    """

    _scheduler: Scheduler
    process: SimulatedProcess
    function: InitVar[Callable[[], None]]
    name: str
    is_over: bool = False
    is_parked: bool = False
    waits_for: str = "its start"
    since: float = field(init=False)
    joiners: list[Thread] = field(default_factory=list)
    greenlet: Any = field(init=False)
    _timer: Timer | None = None
    _result: bool = True

    def __post_init__(self, function: Callable[[], None]) -> None:
        scheduler = self._scheduler
        self.since = scheduler.now
        self.greenlet = greenlet.greenlet(lambda: scheduler.body(self, function), scheduler.hub)

    def on_timeout(self) -> None:
        """It has waited for long enough."""
        self._timer = None
        self._scheduler.unpark(self, False)

    def join(self, timeout: float | None = None) -> None:
        """See `Task`."""
        if not self.is_over:
            self.joiners.append(self._scheduler.current)
            own_s = None if timeout is None else self.process.virtual_s(timeout)
            self._scheduler.park(f"the end of {self.name}", own_s)

    def is_alive(self) -> bool:
        """See `Task`."""
        return not self.is_over

    def where(self) -> str:
        """Its position, for people."""
        state = "over" if self.is_over else f"waits for {self.waits_for} since {self.since:.6f}"
        frame = self.greenlet.gr_frame
        stack = traceback.extract_stack(frame) if frame is not None else []
        lines = [
            f"      {each.filename}:{each.lineno} {each.name}" for each in stack if not each.filename.endswith(OURS)
        ]
        return "\n".join([f"    {self.process.life} {self.name}: {state}", *lines[-8:]])


class Scheduler:
    """The hub, the clock and the lots.

    :ivar now: virtual seconds since the start.
    :ivar started_ms: what wall clocks say when virtual time begins.
    :ivar random: the only source of chance.
    :ivar crashed: what threads died of that nobody expected.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._lot = self.random.random
        self.now = 0.0
        self.started_ms = STARTED_MS
        self.hub = greenlet.getcurrent()
        self._to_hub = self.hub.switch
        self.switches = 0
        self.preemption = 0.02
        self.threads: list[Thread] = []
        self.crashed: list[str] = []
        self._ready: list[Thread] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer_number = 0
        self._current: Thread | None = None
        self._lives: dict[str, int] = {}

    # ---- what exists

    def process(self, name: str) -> SimulatedProcess:
        """A new process under `name`."""
        self._lives[name] = self._lives.get(name, 0) + 1
        return SimulatedProcess(self, name, f"{name}#{self._lives[name]}")

    def spawn(self, process: SimulatedProcess, function: Callable[[], None], name: str) -> Thread:
        """A new thread, which runs as soon as it is drawn."""
        thread = Thread(self, process, function, name)
        process.threads.append(thread)
        self.threads.append(thread)
        self.make_ready(thread)
        return thread

    def after(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Call `call` from the hub in `delay_s` seconds; it must not park."""
        timer = Timer(call)
        self._timer_number = number = self._timer_number + 1
        heappush(self._timers, (self.now + delay_s if delay_s > 0.0 else self.now, number, timer))
        return timer

    def wall_ms(self) -> int:
        """What wall clocks say."""
        return self.started_ms + int(self.now * 1000)

    # ---- what threads call

    @property
    def current(self) -> Thread:
        """The thread that runs now."""
        if self._current is None:
            raise SimulationFailure("the hub itself cannot wait: use a thread")
        return self._current

    def park(self, waits_for: str, timeout_s: float | None = None) -> bool:
        """Wait for `unpark`, `timeout_s` virtual seconds at most; what `unpark` said, False when the time was over.

        :raises Killed: when the process has crashed.
        """
        thread = self._current or self.current
        process = thread.process
        if process.is_dead:
            raise ProcessCrashed
        thread.is_parked = True
        thread.waits_for = waits_for
        thread.since = self.now
        if timeout_s is not None:
            thread._timer = self.after(timeout_s, thread.on_timeout)
        self._to_hub()
        if process.is_dead:
            raise ProcessCrashed
        return thread._result

    def unpark(self, thread: Thread, result: bool = True) -> None:
        """Let a parked thread go on; for one that is not parked, nothing."""
        if not thread.is_parked:
            return
        thread.is_parked = False
        thread._result = result
        if thread._timer is not None:
            thread._timer.is_cancelled = True
            thread._timer = None
        self.make_ready(thread)

    def seam(self) -> None:
        """A place where the running thread may lose its turn, and its process may crash or stop."""
        thread = self._current
        if thread is None:
            return
        process = thread.process
        process.operations += 1
        if process.operations == process.crash_at:
            self.kill(process)
        if process.is_dead:
            raise ProcessCrashed
        if process.operations == process.pause_at:
            process.pause()
            self.give_way()  # it is held until the process goes on
        elif self._lot() < self.preemption:
            self.give_way()

    def give_way(self) -> None:
        """Let others that are ready go first, perhaps."""
        thread = self.current
        thread.waits_for, thread.since = "its turn", self.now
        self.make_ready(thread)
        self._to_hub()
        if thread.process.is_dead:
            raise ProcessCrashed

    def make_ready(self, thread: Thread) -> None:
        """Put a thread among those that may be drawn."""
        if thread.process.is_paused:
            thread.process.held.append(thread)
        else:
            self._ready.append(thread)

    # ---- the hub

    def run(self, until: float) -> None:
        """Let the world go on until the clock says `until`.

        :raises SimulationFailure: when it cannot.
        """
        moved_at = self.switches
        ready, timers = self._ready, self._timers
        while True:
            if ready:
                self._switch_to(self._drawn() if len(ready) > 1 else ready.pop())
                if self.switches - moved_at > MOST_SWITCHES_AN_INSTANT:
                    raise SimulationFailure(
                        f"livelock at {self.now:.6f}: nothing waits for time to pass\n{self.where()}"
                    )
                continue
            if not timers:
                if all(thread.is_over for thread in self.threads):
                    self.now = until
                    return
                raise SimulationFailure(f"deadlock at {self.now:.6f}: nobody will ever go on\n{self.where()}")
            when = timers[0][0]
            if when > until:
                self.now = until
                return
            timer = heappop(timers)[2]
            if timer.is_cancelled:
                continue
            if when > self.now:
                self.now, moved_at = when, self.switches
            timer.call()

    def _drawn(self) -> Thread:
        ready = self._ready
        index = int(self._lot() * len(ready))
        ready[index], ready[-1] = ready[-1], ready[index]
        return ready.pop()

    def _switch_to(self, thread: Thread) -> None:
        if thread.is_over:
            return
        if thread.process.is_paused:
            thread.process.held.append(thread)
            return
        self.switches += 1
        self._current = thread
        thread.greenlet.switch()
        self._current = None

    def body(self, thread: Thread, function: Callable[[], None]) -> None:
        """What a thread runs."""
        try:
            if not thread.process.is_dead:
                function()
        except ProcessCrashed:
            pass
        except Exception:  # noqa: BLE001  whatever it is, it is a finding
            self.crashed.append(f"{self.now:.6f} {thread.process.life} {thread.name}\n{traceback.format_exc()}")
        thread.is_over = True
        for joiner in thread.joiners:
            self.unpark(joiner)

    def kill(self, process: SimulatedProcess) -> None:
        """See `Process.kill`. May be called by one of its own threads, which dies at its next seam."""
        if process.is_dead:
            return
        process.is_dead = True
        process.changed()
        for thread in process.threads:
            if thread is not self._current:
                self.after(0.0, lambda thread=thread: self.throw(thread))  # type: ignore[misc]

    def throw(self, thread: Thread, error: BaseException | None = None) -> None:
        """Let a thread that waits go on with an error, that of a crash when none is given. Called by the hub."""
        if not thread.is_over:
            thread.is_parked = False
            self._current = thread
            thread.greenlet.throw(error or ProcessCrashed())
            self._current = None

    def close(self) -> None:
        """End every thread, so that none is left to the garbage collector, which would end it who knows when."""
        for thread in self.threads:
            thread.process.is_dead = True
        for thread in self.threads:
            self.throw(thread)
        self._timers.clear()
        self._ready.clear()

    def where(self) -> str:
        """Every thread's position."""
        return "\n".join(thread.where() for thread in self.threads if not thread.is_over)
