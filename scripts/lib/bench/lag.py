"""`bench lag`: the distribution of a skewed backlog over consumers, by number of partitions and by lag.

All components are real: consumers in a group with a coordinator, one embedded server, and the embedded log. No consumer
commits, so the backlog is all written records. The group changes its protocol by a rolling restart, as operators do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.logs.embedded.producer import stored_batches

from .figures import machine
from .group import ThreadMember, eventually
from .poll import RECORD_BYTES, Stage

TOPIC = "skewed"


def measure(
    folder: Path, consumers: int, partitions: int, records: int, before: str, tell: Callable[[str], None]
) -> dict[str, Any]:
    """The backlog of each consumer under `before`, and under `lag`.

    :param records: of the first partition; the second has half as many, the third a third, and so on.
    """
    loaded = machine()
    sizes = [max(1, records // (number + 1)) for number in range(partitions)]
    with contextlib.ExitStack() as stack:
        stage = Stage(folder, stack)
        topic_id = stage.write(TOPIC, partitions, 0)
        for number, size in enumerate(sizes):
            stage.append(TOPIC, topic_id, number, stored_batches([b"%0*d" % (RECORD_BYTES, n) for n in range(size)]))
        readers: dict[str, ThreadMember] = {}
        stack.callback(lambda: [reader.end() for reader in readers.values()])

        def restart(name: str, protocols: tuple[str, ...]) -> None:
            if name in readers:
                readers.pop(name).end()
            log_dir = str(stage.log_dir)
            config = ConsumerConfig(stage.hosts, "g", name, log_dir=log_dir, assignment="client", protocols=protocols)
            readers[name] = ThreadMember(config, TOPIC, most=1)

        names = [f"c{number}" for number in range(consumers)]
        found = {}
        for protocols in ((before,), ("lag", before), ("lag",)):
            for name in names:
                restart(name, protocols)
            eventually(lambda: _is_whole(readers, partitions), f"{consumers} consumers hold {partitions} partitions")
            tell(f"protocols {','.join(protocols)}: {_backlogs(readers, sizes)}")
            found[protocols] = _backlogs(readers, sizes)
    shown = {"before": found[before,], "after": found["lag",]}
    return {
        "bench": "lag",
        "consumers": consumers,
        "partitions": partitions,
        "records": sum(sizes),
        "protocol_before": before,
        **{f"backlog_{name}": backlogs for name, backlogs in shown.items()},
        **{f"spread_{name}": _spread(backlogs) for name, backlogs in shown.items()},
        **loaded,
    }


def _is_whole(readers: dict[str, ThreadMember], partitions: int) -> bool:
    held = [part for reader in readers.values() for part in reader.consumer.assignment()]
    return len(held) == len(set(held)) == partitions and all(r.consumer.assignment() for r in readers.values())


def _backlogs(readers: dict[str, ThreadMember], sizes: list[int]) -> list[int]:
    """The lag of each consumer, the largest first."""
    held = [reader.consumer.assignment() for reader in readers.values()]
    return sorted((sum(sizes[part.partition] for part in parts) for parts in held), reverse=True)


def _spread(backlogs: list[int]) -> float:
    """The minimum to the maximum, relative to the mean."""
    return round((max(backlogs) - min(backlogs)) / mean(backlogs), 3)
