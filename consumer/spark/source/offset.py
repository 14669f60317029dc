"""The offset of a streaming source, as in a query's checkpoint. It contains everything that a restart needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.zk.znodes.json_fields import Fields, by_partition
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import checked_name

MAX_OFFSET_BYTES = 16 << 20
"""An offset of 10,000 partitions has some 190 kB."""

Ends = Mapping[TopicPartition, tuple[str, int]]
"""Partition -> topic id and the offset after the last one delivered."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """All records up to one segment.

    :ivar czxid: the transaction that created the newest segment included; it rises in the order of the seals.
    :ivar root: the czxid of the segments znode, which differs between ensembles and lives of a group.
    :ivar query: the query's name.
    :ivar segment: that segment's name, with a number one below the next one's; empty when none is included.
    :ivar begun: the czxid of the query's initial offset, which is in no checkpoint: where the first batch begins.
    :ivar checkpoint: the checkpoint of the group's region at this offset (`alignCheckpoints`); 0 for none.
    :ivar ends: of each partition that the query has delivered records of.
    :ivar began: the zxid at which the query's first run registered; 0 in offsets of earlier releases.
    :ivar registered: the same of the run that chose this offset.
    :ivar first: the first segment of the batch that ends here, where it is the query's first one.
    """

    czxid: int
    root: int
    query: str
    segment: str = ""
    begun: int = 0
    checkpoint: int = 0
    ends: Ends = field(default_factory=dict, repr=False, hash=False)
    began: int = field(default=0, compare=False)
    registered: int = field(default=0, compare=False)
    first: str = field(default="", compare=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> SourceOffset:
        """
        :raises BadData: when the checkpoint's offset is invalid.
        :raises UsageError: when its query has no name.
        """
        fields = Fields("the checkpoint's offset", values)
        return cls(
            fields.number("czxid"),
            fields.number("root"),
            checked_name("query", fields.text("query")),
            fields.text("segment", ""),
            fields.number("begun", 0),
            fields.number("checkpoint", 0),
            fields.value("ends", _ends, "an object topic id -> topic -> partition -> offset") or {},
            fields.number("began", 0),
            fields.number("registered", 0),
            fields.text("first", ""),
        )

    def to_dict(self) -> dict[str, Any]:
        """Spark's form; the same offset always gives the same text."""
        ends: dict[str, dict[str, dict[str, int]]] = {}
        for (topic, partition), (topic_id, end) in sorted(self.ends.items()):
            ends.setdefault(topic_id, {}).setdefault(topic, {})[str(partition)] = end
        return {
            "version": 1,
            "czxid": self.czxid,
            "root": self.root,
            "query": self.query,
            "segment": self.segment,
            "begun": self.begun,
            **({"checkpoint": self.checkpoint} if self.checkpoint else {}),
            **({"ends": ends} if ends else {}),
            **({"began": self.began} if self.began else {}),
            **({"registered": self.registered} if self.registered else {}),
            **({"first": self.first} if self.first else {}),
        }


def _ends(value: Any) -> Ends:
    """Of an object topic id -> topic -> partition -> offset."""
    if not isinstance(value, dict):
        raise ValueError
    return {
        partition: (topic_id, end)
        for topic_id, topics in value.items()
        for partition, end in by_partition(topics, _end).items()
    }


def _end(value: object) -> int:
    if type(value) is int and 0 <= value < 2**63:
        return value
    raise ValueError
