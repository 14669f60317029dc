"""The schedules of `kafka_schedules.txt`, each on brokers of its own."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.support.turns import cases
from tests.unit.kafka_schedules import Schedule, variants
from tests.unit.modelled_kafka import modelled_kafka

FILE = Path(__file__).with_name("kafka_schedules.txt")
CASES = [
    pytest.param(text.removeprefix("long\n"), id=title, marks=[pytest.mark.long] if text.startswith("long\n") else [])
    for case in cases(FILE.read_text())[1]
    for title, text in variants(case.title, case.text)
]


@pytest.mark.parametrize("text", CASES)
def test_reader_of_kafka(text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with modelled_kafka() as kafka:
        Schedule(kafka, caplog=caplog).play(text)
