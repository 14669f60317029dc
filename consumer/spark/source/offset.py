"""The offset of a streaming source, as in a query's checkpoint. It contains everything that a restart needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.zk.znodes.json_fields import Fields
from coordinator.zk.znodes.names import checked_name


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """All records up to one segment.

    :ivar czxid: the transaction that created the newest segment included; it rises in the order of the seals.
    :ivar root: the czxid of the segments znode, which differs between ensembles and lives of a group.
    :ivar query: the query's name.
    :ivar segment: that segment's name, with a number one below the next one's; empty when none is included.
    :ivar begun: the czxid of the query's initial offset, which is in no checkpoint: where the first batch begins.
    :ivar checkpoint: the checkpoint of the group's region at this offset (`alignCheckpoints`); 0 for none.
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
        :raises BadData: when the checkpoint's offset is invalid.
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
        """Spark's form; the same offset always gives the same text."""
        return {
            "version": 1,
            "czxid": self.czxid,
            "root": self.root,
            "query": self.query,
            "segment": self.segment,
            "begun": self.begun,
            **({"checkpoint": self.checkpoint} if self.checkpoint else {}),
        }
