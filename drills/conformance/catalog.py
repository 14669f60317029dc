"""All scenarios of the kit."""

from __future__ import annotations

from collections.abc import Mapping

from .basics import BASICS
from .commands import COMMANDS
from .definition import Scenario
from .faults import FAULTS
from .members import MEMBERS
from .topics import TOPICS

SCENARIOS: Mapping[str, Scenario] = {each.name: each for each in (*BASICS, *MEMBERS, *FAULTS, *COMMANDS, *TOPICS)}
