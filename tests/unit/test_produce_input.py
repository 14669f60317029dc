"""Lines of JSON as records: a value keeps its numbers, and what `zk-consumer run` prints is read again."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from consumer.cli import main
from consumer.cli.output import shown_record
from consumer.cli.produce import record_of_json
from consumer.fetching.record_buffer import Record
from coordinator.zk.errors import BadData


def value_of(text: str) -> bytes | None:
    return record_of_json("line 1", f'{{"value":{text}}}'.encode()).value


@pytest.mark.parametrize(
    "text",
    [
        '{"amount":1234567890123456.78}', "1E3", "-0", "1.50", "0.1e-400", "1e400", "123456789012345678901234567890",
        "9" * 5000, '{"a":1,"a":2}', '[1.0,[-0.0,{}],{"b":[]}]', "true", "[null,false]", '{"é":"\\n"}',
    ],
)  # fmt: skip
def test_a_value_that_is_json_keeps_its_text(text: str) -> None:
    assert value_of(text) == text.encode()


def test_a_value_that_is_json_is_written_without_blanks() -> None:
    assert value_of('{ "a" : [ 1.50 , "b c" ] }') == b'{"a":[1.50,"b c"]}'


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a":-Infinity}'])
def test_a_value_that_json_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(BadData, match="line 1 has a value that JSON does not know"):
        value_of(text)


@pytest.mark.parametrize("name", ["timestamp", "partition"])
def test_a_number_of_thousands_of_digits_is_no_place_and_no_time(name: str) -> None:
    with pytest.raises(BadData, match=name):
        record_of_json("line 1", f'{{"value":1,"{name}":{"9" * 5000}}}'.encode())


def test_a_deep_value_is_refused_and_ends_nothing() -> None:
    with pytest.raises(BadData, match="line 1"):
        value_of("[" * 5000 + "]" * 5000)


def test_a_byte_order_mark_is_skipped() -> None:
    assert record_of_json("line 1", b'\xef\xbb\xbf{"value":"a"}').value == b"a"


@pytest.mark.parametrize(
    "record",
    [
        Record("t", 1, 7, 1000, 0, b"k", b"v", (("h", b"x"), ("h", b"y"), ("n", None))),
        Record("t", 0, 0, 0, 0, None, None, ()),
        Record("t", 0, 2**40, 5, 0, b"\xff", b"\xfe\x00", (("h", b"\x80"),)),
        Record("t", 0, 1, 5, 0, b"", b"", ()),
    ],
)
def test_what_run_prints_is_read_again(record: Record) -> None:
    line = json.dumps(shown_record(record)).encode()

    read = record_of_json("line 1", line, ignores_place=True)

    assert (read.key, read.value, read.timestamp_ms) == (record.key, record.value, record.timestamp_ms)
    assert (tuple(read.headers), read.partition) == (tuple(record.headers), None)
    with pytest.raises(BadData, match=r"unknown field .*--ignore-place"):
        record_of_json("line 1", line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"value_base64": "?"}', "line 1: field 'value_base64' holds what is not base64"),
        ('{"value": "a", "value_base64": "YQ=="}', "line 1 has both value and value_base64"),
        ('{"value": 1, "value_base64": "YQ=="}', "line 1 has both value and value_base64"),
        ('{"value": "a", "headers": [{"value": "x"}]}', "field 'key' must be a string"),
    ],
)
def test_base64_and_headers_that_are_none_are_refused(line: str, message: str) -> None:
    with pytest.raises(BadData, match=message):
        record_of_json("line 1", line.encode())


def test_the_place_of_a_line_without_fields_is_a_usage_error() -> None:
    words = ["produce", "t", "--ignore-place", "--zk", "127.0.0.1:1", "--log-dir", "/tmp"]

    done = CliRunner().invoke(main, words, input="")

    assert (done.exit_code, "--format jsonl" in done.output) == (2, True)
