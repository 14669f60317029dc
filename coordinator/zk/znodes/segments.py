"""The znodes between fetchers and Spark: sealed segments, progress of queries, and pools."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from . import forms
from .forms import Form, Record
from .json_fields import MAX_NUMBER, Fields, only
from .partitions import CAUSE, Discontinuities, Discontinuity, TopicPartition, nested
from .paths import is_name

SEAL_INTERVAL_MS = 200
"""Default milliseconds between a fetcher's seals."""

MAX_SEGMENT_BYTES = 1_000_000
"""A server's maximum: every committed seal can be read."""

QUERY_ABSENCE_S = 600.0
"""How long the coordinator counts a query, as last read, after its ephemeral znode went with its session."""


class SealedRange(NamedTuple):
    """Offsets from `first` up to, not including, `next` of one partition of the topic with that id."""

    topic: str
    topic_id: str
    partition: int
    first: int
    next: int


class Missing(NamedTuple):
    """Offsets of a sealed range without a record: in Kafka transaction markers, aborted and compacted records."""

    topic: str
    partition: int
    offsets: int


_NO_PATH = re.compile("[\0\ud800-\udfff]")
"""Forbidden in a path of a file system: NUL, and halves of characters."""


_FOLDER = forms.text().checked(lambda name: not _NO_PATH.search(name), "a folder or a URL")
_FILE = forms.text(1024).checked(
    lambda name: not name.startswith("/") and all(map(is_name, name.split("/"))), "a path below the segments folder"
)


_count = only(lambda value: type(value) is int and 0 < value <= MAX_NUMBER)


def _missing(fields: Fields, key: str, _: object) -> tuple[Missing, ...]:
    counts = fields.by_partition(key, _count, "number of offsets")
    return tuple(Missing(*partition, count) for partition, count in counts.items())


def _range(value: object) -> tuple[int, int]:
    match value:
        case [int(first), int(following)] if 0 <= first <= following <= MAX_NUMBER and bool not in map(type, value):
            return first, following
    raise ValueError


def _sealed_ranges(fields: Fields, key: str, _: object) -> tuple[SealedRange, ...]:
    ids, ranges = fields.texts("topics"), fields.by_partition(key, _range, "[first, next]")
    if not all(topic in ids for topic, _ in ranges):
        raise fields.bad("topics", "the ids of all topics in `ranges`")
    return tuple(SealedRange(topic, ids[topic], number, *pair) for (topic, number), pair in ranges.items())


_RANGES = Form(
    _sealed_ranges,
    lambda ranges: nested({TopicPartition(item.topic, item.partition): [item.first, item.next] for item in ranges}),
)
_MISSING = Form(
    _missing, lambda missing: nested({TopicPartition(item.topic, item.partition): item.offsets for item in missing})
)


@dataclass(frozen=True, slots=True)
class Segment(Record):
    """`segments/segment-[seq]`: one sealed file.

    :ivar file: its path below the segments folder.
    :ivar rows: its number of records.
    :ivar size: its bytes.
    :ivar missing: of ranges with offsets without a record.
    :ivar discontinuities: of ranges that do not continue the partition's last one.
    """

    MOST_BYTES = MAX_SEGMENT_BYTES

    file: Annotated[str, _FILE]
    segments_dir: Annotated[str, _FOLDER]
    rows: Annotated[int, forms.number()]
    size: Annotated[int, forms.number().named("bytes")]
    ranges: Annotated[tuple[SealedRange, ...], _RANGES]
    consumer: Annotated[str, forms.text(250)]
    incarnation: Annotated[str, forms.text(64)]
    generation: Annotated[int, forms.count()]
    missing: Annotated[tuple[Missing, ...], _MISSING.optional] = ()
    discontinuities: Annotated[Discontinuities, forms.partition_map(Discontinuity.read, CAUSE).optional] = field(
        default_factory=dict
    )

    def to_json(self) -> dict[str, Any]:
        """Its fields; the ids of the topics stand beside the ranges."""
        written = Record.to_json(self)
        first = {key: written.pop(key) for key in ("file", "segments_dir", "rows", "bytes", "ranges")}
        return {**first, "topics": {item.topic: item.topic_id for item in self.ranges}, **written}


_INTERVAL = Form(lambda fields, key, _: fields.number(key, least=1) if fields.has(key) else None)


@dataclass(frozen=True, slots=True)
class SegmentsRecord(Record):
    """The data of `segments`: the coordinator's instructions to a group's fetchers and queries.

    :ivar collected: the czxid up to which segments have been collected.
    :ivar paused: why fetchers shall neither fetch nor seal, else None.
    :ivar seal_interval_ms: minimum seal interval of the group's fetchers, None for no minimum.
    """

    MAY_BE_EMPTY = True

    collected: Annotated[int, forms.number()] = 0
    paused: Annotated[str | None, Form(lambda fields, key, _: fields.optional_text(key) or None)] = None
    seal_interval_ms: Annotated[int | None, _INTERVAL] = None


_DONE = Form(lambda fields, key, _: fields.number(key, 0) > 0, int, "done")


@dataclass(frozen=True, slots=True)
class Rewind(Record):
    """`rewind` in a query's znode: its Spark checkpoint is set back, and no run may begin anywhere else.

    :ivar checkpoint: as in the offset at which the next run begins, as is `czxid`.
    :ivar is_done: whether the Spark checkpoint's files have been set back, too: no run begins before.
    """

    checkpoint: Annotated[int, forms.count(0)]
    czxid: Annotated[int, forms.number()]
    is_done: Annotated[bool, _DONE] = False


@dataclass(frozen=True, slots=True)
class Query(Record):
    """`queries/[query]`: progress of a Spark query.

    :ivar run: one run of the query; a newer one fences an older.
    :ivar finished: the czxid of the last segment that it will not read again; 0 for none.
    :ivar seen_ms: the driver's wall clock at its last heartbeat, for people.
    :ivar expired_ms: when the coordinator expired it; 0 while it counts.
    :ivar rewind: the required start of the next run; None where its Spark checkpoint decides.
    """

    run: Annotated[str, forms.text(64)]
    finished: Annotated[int, forms.number(0)]
    seen_ms: Annotated[int, forms.number(0)]
    expired_ms: Annotated[int, forms.number().optional] = 0
    rewind: Annotated[Rewind | None, forms.inner(Rewind).optional] = None


@dataclass(frozen=True, slots=True)
class Pool(Record):
    """`pools/[pool]`, an ephemeral of the Spark driver's session: the number of slots that run.

    :ivar slots: slots with a smaller number run; 0 stops all of them.
    :ivar run: one run of the pool; a newer one under the same name ends an older.
    """

    slots: Annotated[int, forms.number(most=10_000)]
    run: Annotated[str, forms.text(64)]


def slot_name(pool: str, number: int) -> str:
    """The consumer of a pool's slot."""
    return f"{pool}-slot-{number}"


def local_file(group: str, segment: Segment) -> Path | None:
    """A segment's file on a local file system; None on an object store.

    Also None for a file without a fetcher's file name: a znode must not remove any other.
    """
    root = Path(segment.segments_dir.removeprefix("file://"))
    stem = f"{group}/{segment.consumer}/{segment.incarnation}-"
    number = segment.file.removeprefix(stem).removesuffix(".arrow")
    is_own = segment.file == f"{stem}{number}.arrow" and len(number) == 10 and number.isascii() and number.isdigit()
    return root / segment.file if is_own and root.is_absolute() else None
