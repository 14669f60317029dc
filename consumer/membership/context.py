"""What all parts of one member share: its configuration and names, the clock, the wake-up, the history, the metrics."""

from __future__ import annotations

from coordinator.zk.runtime import Event, Runtime
from coordinator.zk.znodes.paths import GroupPaths

from ..config import ConsumerConfig
from ..history import Trace
from ..metrics import Meter, unread
from .call_guard import CallGuard


class MemberContext:
    """One member, over all its incarnations.

    :ivar consumer: its name.  :ivar paths: of its group.
    :ivar wake: set when `tend` has work: by watches, session events, the keeper, the application.
    :ivar calls: guards the calls of the application.
    """

    def __init__(self, config: ConsumerConfig, runtime: Runtime, meter: Meter | None = None) -> None:
        self.config = config
        self.consumer = config.consumer
        self.runtime = runtime
        self.meter = meter or unread()
        self.paths = GroupPaths(config.group)
        self.trace = Trace(runtime, config.group, config.consumer)
        self.wake: Event = runtime.event()
        self.calls = CallGuard(runtime, self.wake)
