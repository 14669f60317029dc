"""The offset of a streaming source, as it stands in a query's checkpoint. It tells everything that a restart needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.zk.fields import Fields
from coordinator.zk.names import checked_name


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Everything up to one segment.

    :ivar czxid: the transaction that created the newest segment included; it rises in the order of the seals.
    :ivar root: the czxid of the segments znode, which tells one ensemble, or life of a group, from another.
    :ivar query: the query's name.
    :ivar segment: that segment's name, whose number is one below the next one's; empty when none is included.
    :ivar begun: the czxid of the query's initial offset, which no checkpoint has: where the first batch begins.
    :ivar checkpoint: the checkpoint of the group's region at which it is (`alignCheckpoints`); 0 for none.
    """

    czxid: int
    root: int
    query: str
    segment: str = ""
    begun: int = 0
    checkpoint: int = 0

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> SourceOffset:
        """
        :raises BadData: when a checkpoint has something else.
        :raises UsageError: when its query has no name.
        """
        fields = Fields.parse("the checkpoint's offset", json.dumps(dict(values)).encode())
        return cls(
            fields.number("czxid"),
            fields.number("root"),
            checked_name("query", fields.text("query")),
            fields.text("segment", ""),
            fields.number("begun", 0),
            fields.number("checkpoint", 0),
        )

    def to_dict(self) -> dict[str, Any]:
        """As Spark writes it; the same offset always gives the same text."""
        return {
            "version": 1,
            "czxid": self.czxid,
            "root": self.root,
            "query": self.query,
            "segment": self.segment,
            "begun": self.begun,
            **({"checkpoint": self.checkpoint} if self.checkpoint else {}),
        }
