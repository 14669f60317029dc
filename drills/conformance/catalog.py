"""All scenarios of the kit."""

from __future__ import annotations

from collections.abc import Mapping

from .basics import BASICS
from .definition import Scenario

SCENARIOS: Mapping[str, Scenario] = {each.name: each for each in (*BASICS,)}
