"""The lanes of a run as a Chrome trace, for a close look in Perfetto or in `chrome://tracing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .drawing import described
from .facts import mapping, moment
from .lanes import FETCH
from .timeline import timeline_of


def trace(run: Mapping[str, Any], events: Sequence[Any]) -> dict[str, Any]:
    """The trace: a process for each lane, and a thread for each kind of its bars, and for each fetcher.

    Times are microseconds from the start of the history; `args` has them from the fault, in words.

    :param run: the content of run.json; all fields are optional.  :param events: the history's events, in their order.
    """
    timeline, _ = timeline_of(mapping(run), events)
    found: list[dict[str, Any]] = []

    def micros(at: float) -> int:
        return round((at - timeline.start) * 1e6)

    def named(what: str, pid: int, tid: int, name: str) -> None:
        found.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}})

    for pid, lane in enumerate(timeline.lanes, 1):
        named("process_name", pid, 0, f"{lane.group} {lane.name}".strip())
        found.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        threads: dict[str, int] = {}
        for bar in lane.bars:
            thread = f"{bar.kind} {bar.label}" if bar.kind == FETCH else bar.kind
            if thread not in threads:
                threads[thread] = len(threads) + 1
                named("thread_name", pid, threads[thread], thread)
            place = {"pid": pid, "tid": threads[thread], "ts": micros(bar.start)}
            args = {"what": described(lane, bar, timeline.zero)}
            what = {"name": bar.label or bar.kind, "cat": bar.kind, "args": args}
            found.append({"ph": "X", "dur": micros(bar.end) - micros(bar.start), **place, **what})
        for mark in lane.marks:
            what = {"name": mark.note or mark.kind, "cat": mark.kind, "args": {"at": moment(mark.at, timeline.zero)}}
            found.append({"ph": "i", "s": "p", "pid": pid, "tid": 0, "ts": micros(mark.at), **what})
    return {"displayTimeUnit": "ms", "traceEvents": found}
