"""Ways to break the product, each of which the simulation must find.

A mutation patches the product while a run lasts, and re-opens one hole: the twelve of the draft, and those that the
design's fences, and the rules of client-side assignment and of consistent regions close. It names what the checker is
to say, and the stock profiles in which the hole shows soonest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import zk_group.consumer.membership.member
import zk_group.consumer.membership.offsets
import zk_group.consumer.membership.registration
import zk_group.coordinator.rebalance.rebalancer
from tests.simulation.edits import parsed
from tests.simulation.mutation import Mutation, Patch, apply, constant
from zk_group.consumer.membership.claims import chunks

_BLOCKS = {
    "steps are small": (
        constant(zk_group.consumer.membership.member, "chunks", partial(chunks, size=1)),
        constant(zk_group.consumer.membership.offsets, "PARTITIONS_A_STEP", 2),
        constant(zk_group.coordinator.rebalance.rebalancer, "PARTITIONS_A_STEP", 2),
    ),
    "take-overs are small": (constant(zk_group.consumer.membership.registration, "PARTITIONS_A_STEP", 2),),
}
"""What would hide a mutation, and is no edit: a command over two partitions is a large one."""

_AREAS = (
    "hiding", "holes", "fences", "election", "rebalance", "eviction", "life", "lies", "gaps", "seals", "assignment",
    "regions",
)  # fmt: skip
"""The text files, by area; a later one may name what an earlier one has."""

_TEXTS = [Path(__file__).with_name(f"{area}.txt").read_text() for area in _AREAS]
MUTATIONS: Mapping[str, Mutation] = {each.name: each for text in _TEXTS for each in parsed(text, _BLOCKS)}


def slip(name: str, *also: Patch) -> Callable[[], None]:
    """Breaks the product by a mutation, for as long as this process lasts."""
    return lambda: apply(*also, *MUTATIONS[name].patches)
