"""Where the members of a test's group begin, when the test is about something else."""

from __future__ import annotations

from consumer.membership.start_position import EARLIEST, StartRule, Starts
from tests.support.memlog import MemoryLog

AT_THE_BEGINNING = Starts(MemoryLog(), StartRule(None, EARLIEST))
from_the_beginning = AT_THE_BEGINNING.find
