"""The page of a drill: its drawing, and the escaping of texts."""

from __future__ import annotations

import difflib
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.made_drill import (
    DRILLS,
    TWO_FETCHERS,
    begin,
    consumer,
    created,
    event,
    fetch,
    halt,
    happened,
    history,
    run,
)
from zk_group.drills.reports.drawing import Axis, picture, ticks, trace, window
from zk_group.drills.reports.facts import readable
from zk_group.drills.reports.page import markdown, page
from zk_group.drills.reports.timeline import (
    CONSUMER,
    ELECTED,
    FETCH,
    GAP,
    LEASE,
    LIFE,
    NODE,
    OVERLAP,
    PARTITION,
    PAUSE,
    Bar,
    Lane,
    LaneMark,
    gaps,
    overlaps,
    timeline_of,
)

NASTY = "<script>alert(1)</script>\"'&<b>`|*"
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Checks that elements are closed in their order, and records them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.lines: list[int] = []
        self._line, self._is_row = 0, False
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("tr", "dt"):
            self._is_row = True
            self._line += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag
        if tag in ("tr", "dd"):
            self._is_row = False

    def handle_data(self, data: str) -> None:
        tag = self.open[-1] if self.open else ""
        if data.strip() and tag not in ("script", "style"):
            self._line += not self._is_row
            self.lines.append(self._line)
            self.texts.append((tag, " ".join(data.split())))

    def words(self) -> str:
        return " ".join(text for tag, text in self.texts if tag != "title")

    def titles(self) -> list[str]:
        return [text for tag, text in self.texts if tag == "title"]

    def shown(self) -> str:
        """A line for each text or row, with a dash for the texts that are shown on a shape that is pointed at."""
        found: dict[int, list[str]] = {}
        for line, (tag, said) in zip(self.lines, self.texts, strict=True):
            found.setdefault(line, []).append(f"- {said}" if tag == "title" else said)
        return "".join(f"{' | '.join(texts)}\n" for texts in found.values())

    def of(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.elements if name in (attrs.get("class") or "").split()]


def lanes_of(events: Sequence[Any], kind: str = PARTITION) -> dict[str, Lane]:
    return {lane.name: lane for lane in timeline_of(run(), events)[0].lanes if lane.kind == kind}


def faults_of(events: Sequence[Any]) -> list[tuple[float, float, str]]:
    return [(each.start, each.end, each.label) for each in timeline_of(run(), events)[0].faults]


# ---- drawing: partitions and processes

RECREATED = {**begin(16.0, "c3#13", 0), "topics": {"t": "another"}}
CLOSED = event(17.0, "server", "closed", session=11, zxid=9, why="killed", paths=[])
RENEWED = "; ".join(
    f"{at} c1#11 lease role=consumer session=11 until={until}" for at, until in ((2, 4), (3, 6), (8, 30))
)
LEFT_ALONE = [each for each in history() if (each["event"], each["at"]) != ("begin", 15.0)]

DRAWN: dict[str, tuple[list[dict[str, Any]], dict[tuple[str, str], str]]] = {
    "abandoned partition has a standstill while its group has live members": (
        LEFT_ALONE,
        {("t-2", GAP): "10-20 no fetcher"},
    ),
    "abandoned partition of a group without members has none": (
        [*LEFT_ALONE[:-1], *happened("18 c1#11 exit why=left; 20 drill end")],
        {("t-2", GAP): ""},
    ),
    "a handover in one instant is no overlap and no standstill": (
        history("16 c1#11 halt 0; 16 c3#13 begin 0"),
        {("t-0", OVERLAP): "", ("t-0", GAP): ""},
    ),
    "recreated topic is no overlap": ([*history()[:-1], RECREATED, *happened("20 drill end")], {("t-0", OVERLAP): ""}),
    "consumer with a lapsed lease does not fetch until it is renewed": (
        history(RENEWED),
        {("t-0", FETCH): "2-6 c1, 8-20 c1", ("t-0", GAP): "6-8 no fetcher", ("c1", LEASE): "2-6, 8-20"},
    ),
    "killed session ends the bars of its partitions": (
        [*history()[:-1], CLOSED, *happened("20 drill end")],
        {("t-1", FETCH): "2-17 c1"},
    ),
    "node whose session ends is no longer the coordinator": (
        [each for each in history() if each["event"] != "exit"],
        {("node-1", ELECTED): "0.5-14 coordinator, epoch 1"},
    ),
    "restart under the same name is another incarnation on the same lane": (
        [*history()[:-1], *consumer(16.0, "c2#99", 99), *happened("20 drill end")],
        {("c2", LIFE): "1-10 c2#12, 16-20 c2#99"},
    ),
    "pause is drawn on the paused process for its duration": (
        history("16 drill fault kind=pause process=c1#11 until=18.0"),
        {("c1", PAUSE): "16-18 paused", ("c2", PAUSE): ""},
    ),
}
"""Events, and the bars of some lanes by their kind."""


@pytest.mark.parametrize("title", DRAWN)
def test_bars_of_a_lane(title: str) -> None:
    events, bars = DRAWN[title]
    lanes = {lane.name: lane for lane in timeline_of(run(), events)[0].lanes}

    def shown(name: str, kind: str) -> str:
        found = [bar for bar in lanes[name].bars if bar.kind == kind]
        notes = [f" ({bar.note})" if kind == OVERLAP else "" for bar in found]
        return ", ".join(
            f"{bar.start:g}-{bar.end:g} {bar.label}{note}".strip() for bar, note in zip(found, notes, strict=True)
        )

    assert {key: shown(*key) for key in bars} == bars


def test_faults_last_as_long_as_a_pause_and_until_a_server_returns() -> None:
    sigkill = (10.0, 10.0, "sigkill node-1")
    away = "16 server fault kind=pause-server server=2; 17 server fault kind=server-returns server=1"

    assert faults_of(history("16 drill fault kind=pause process=c1#11 until=18.0")) == [sigkill, (16, 18, "pause c1")]
    assert faults_of(history(f"{away}; 18.5 server fault kind=server-returns server=2")) == [
        sigkill,
        (16.0, 18.5, "pause-server server 2"),
    ]


def test_commands_are_marked_on_the_node_that_sent_them() -> None:
    op = created("/consumers/groups/g/channel/c1/command-0000000001", b'{"option":"stop-fetcher"}')
    events = history()
    events.insert(-1, event(14.5, "node-2#2", "commit", session=2, zxid=8, ops=[op]))

    assert lanes_of(events, NODE)["node-2"].marks == (LaneMark(14.5, "stop", note="stop-fetcher to c1"),)


def test_consumers_are_ordered_by_their_number() -> None:
    events = [each for number in (10, 9, 2) for each in consumer(1.0, f"c{number}#1", number)]

    assert list(lanes_of(events, CONSUMER)) == ["c2", "c9", "c10"]


# ---- time and place


def test_overlaps_and_gaps_of_bars() -> None:
    some = [Bar(0, 10, FETCH, "a"), Bar(4, 6, FETCH, "b"), Bar(8, 12, FETCH, "c"), Bar(15, 16, FETCH, "d")]

    assert [(bar.start, bar.end, bar.note) for bar in overlaps(some)] == [(4, 6, "a and b"), (8, 10, "a and c")]
    assert [(bar.start, bar.end) for bar in gaps(some, 20)] == [(12, 15), (16, 20)]


def test_timeline_begins_before_the_fault_and_ends_after_recovery() -> None:
    timeline, _ = timeline_of(run(), history(until=600.0))

    assert window(run(), timeline) == (8.5, 17.5)


def test_short_run_is_shown_whole_and_so_is_one_with_marks_elsewhere() -> None:
    timeline, _ = timeline_of(run(), [each for each in history() if 6 < each["at"] < 19])
    elsewhere = run(marks={"T0": {"at": 5e6}})

    assert window(run(), timeline) == (timeline.start, timeline.end)
    assert window(elsewhere, timeline_of(elsewhere, history(until=600.0))[0]) == (0.1, 600.0)


@pytest.mark.parametrize("length", [0.5, 9.0, 47.0, 600.0, 86400.0])
def test_ticks_are_round_and_far_enough_apart(length: float) -> None:
    axis = Axis(100.0, 100.0 + length, 101.0)
    found = ticks(axis)

    assert 2 <= len(found) <= 15
    assert all(math.isclose(b - a, found[1] - found[0], abs_tol=1e-6) for a, b in itertools.pairwise(found))
    assert (found[1] - found[0]) * axis.per_second >= 69


def test_two_fetchers_outside_the_usual_window_are_in_the_picture() -> None:
    timeline, _ = timeline_of(run(), history("500 c3#13 begin 0; 501 c3#13 halt 0", until=600.0))

    assert window(run(), timeline) == (0.1, 600.0)
    assert any("two fetchers" in shape.title for shape in picture(run(), timeline).shapes)


def test_labels_never_touch_each_other_and_stay_inside() -> None:
    timeline, _ = timeline_of(run(), many(30))
    inside = [shape for shape in picture(run(), timeline).shapes if shape.kind.startswith("in ")]

    assert len(inside) > 10
    for y in {shape.y for shape in inside}:
        ends = sorted((shape.x, shape.x + 6 * len(shape.text)) for shape in inside if shape.y == y)
        assert all(end <= x for (_, end), (x, _) in itertools.pairwise([*ends, (1152.0, 0.0)]))


# ---- the page


def shown(drill: str) -> str:
    """The texts of a drill's page; of the one that failed, what differs from the one that passed."""
    found = Page(page(*DRILLS[drill])).shown()
    if drill != "failed":
        return found
    return "".join(difflib.unified_diff(shown("passed").splitlines(True), found.splitlines(True), "passed", drill, n=1))


@pytest.mark.parametrize("drill", DRILLS)
def test_texts_of_the_page_are_those_in_drill_reports(drill: str, request: pytest.FixtureRequest) -> None:
    """`--rewrite` writes what is found into the files: review the difference."""
    found, file = shown(drill), Path(__file__).with_name("drill_reports") / f"{drill}.txt"

    if request.config.getoption("--rewrite"):
        file.write_text(found)
    assert found == file.read_text()


def test_each_verdict_has_a_shape_of_its_own() -> None:
    pages = {name: Page(page(run(verdict=name), history())) for name in ("PASS", "FAIL", "INCONCLUSIVE")}

    assert len({found.of("shape")[0]["d"] for found in pages.values()}) == 3
    assert all(name in (attrs["class"] or "") for name, found in pages.items() for attrs in found.of("verdict")[:1])


def test_a_gap_is_drawn_between_the_bars_of_its_partition() -> None:
    shapes = picture(run(), timeline_of(run(), history())[0]).shapes
    gap = next(shape for shape in shapes if shape.title.startswith("t-2 has no fetcher"))
    before, after = (shape for shape in shapes if shape.title.startswith("t-2 is fetched") and shape.y == gap.y)

    assert (before.x + before.width, gap.x + gap.width) == pytest.approx((gap.x, after.x))


def test_overlap_is_framed() -> None:
    framed = [len(Page(page(run(), events)).of("overlap")) for events in (history(), history(TWO_FETCHERS))]

    assert framed[0] < framed[1]


def everywhere(value: Any, nasty: str) -> Any:
    """The same with every text replaced."""
    if isinstance(value, dict):
        return {key: everywhere(each, nasty) for key, each in value.items()}
    if isinstance(value, list):
        return [everywhere(each, nasty) for each in value]
    return nasty if isinstance(value, str) else value


def hostile_history() -> list[dict[str, Any]]:
    kept = ("at", "event", "role")
    nasty = []
    for each in history():
        each = {key: value if key in kept else everywhere(value, NASTY) for key, value in each.items()}
        for key in ("partitions", "topics"):
            if key in each:
                each[key] = {NASTY: next(iter(each[key].values()))}
        nasty.append({**each, "who": f"{NASTY}#{len(nasty)}"})
    return nasty


def test_every_text_from_outside_is_escaped() -> None:
    events = hostile_history()
    assert readable(events)[1] == 0
    nasty = everywhere(run(), NASTY)
    nasty["numbers"][NASTY] = NASTY
    nasty["invariants"] = {
        name: {**each, "outcome": "broken", "witness": events} for name, each in run()["invariants"].items()
    }
    nasty["invariants"][NASTY] = {"outcome": NASTY, "sentence": NASTY}
    for verdict in ("FAIL", NASTY):
        text = page({**nasty, "verdict": verdict, "configuration": {NASTY: NASTY}}, events)

        found = Page(text)
        assert "<script" not in text
        assert "<b>`" not in text
        assert "alert(1)" in found.words()
        assert not any(name.startswith("on") for _, attrs in found.elements for name in attrs)
        assert not any("alert" in name for _, attrs in found.elements for name in attrs)


def test_the_page_names_no_external_resource_and_its_policy_forbids_one() -> None:
    text = page(run(), history())
    found = Page(text)

    assert re.findall(r"(?i)https?:|//[a-z]|@import|url\((?!#)", text.replace("http-equiv", "")) == []
    assert not any(name in attrs for _, attrs in found.elements for name in ("src", "href", "xlink:href", "style"))
    policy = next(attrs["content"] or "" for tag, attrs in found.elements if attrs.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_the_same_run_gives_the_same_page_byte_for_byte() -> None:
    again = json.loads(json.dumps([run(), history()]))

    assert page(run(), history()) == page(*again)


def strange() -> Iterator[tuple[str, dict[str, Any]]]:
    """The run with each of its values, also nested ones, replaced."""
    for odd in (None, [[]], {"T0": 5}, "x", -1, 10**400, math.nan, math.inf):
        for key, value in run().items():
            yield f"{key}={odd!r:.20}", run(**{key: odd})
            if isinstance(value, dict) and odd in (None, "x", 10**400):
                for inner in value:
                    yield f"{key}.{inner}={odd!r:.20}", run(**{key: {**value, inner: odd}})


@pytest.mark.long
def test_run_with_arbitrary_values_gives_a_page_and_a_report() -> None:
    events = [each for each in history() if each["event"] in ("run", "fault", "calm", "end")]
    for name, odd in strange():
        try:
            page(odd, events)
            markdown(odd, events)
        except Exception as error:
            raise AssertionError(name) from error


def test_unreadable_events_are_ignored_and_counted() -> None:
    odd: list[Any] = [
        5,
        None,
        {"at": 3},
        event(math.inf, "a#1", "end"),
        event(4.0, "c1#11", "begin"),
        {**begin(5.0, "x", 1), "at": "5"},
    ]

    found = Page(page(run(), [*history(), *odd]))

    assert "6 events could not be read" in found.words()
    assert "t-2 has no fetcher, 0 s to +5 s (5 s)" in found.titles()


def test_a_history_cut_off_anywhere_gives_a_page() -> None:
    events = history()

    for length in range(0, len(events), 3):
        Page(page(run(), events[:length]))


def many(count: int) -> list[dict[str, Any]]:
    """Partitions that move between consumers for a second, and a continuous flow of records."""
    events = history()[:-1]
    for number in range(count):
        at = 16 + number / count
        who = ("c1#11", "c3#13")[number % 2]
        events += [begin(at, who, 7), fetch(at + 0.1 / count, who, 7, 0, 1), halt(at + 0.2 / count, who, 7)]
    return [*events, event(117.0, "drill", "end")]


@pytest.mark.long
def test_long_history_does_not_lengthen_the_page() -> None:
    short, long = len(page(run(), many(1_000))), len(page(run(), many(4_000)))

    assert long < 100_000
    assert long < 1.1 * short


def test_only_changed_partitions_are_drawn_when_there_are_very_many() -> None:
    events = history()
    events[10:10] = [begin(2.5, "c1#11", *range(100, 400))]

    timeline, _ = timeline_of(run(), events)
    drawn = [lane.name for lane in timeline.lanes if lane.kind == PARTITION]

    assert len(drawn) == 160
    assert {"t-2", "t-3"} <= set(drawn)
    assert timeline.left_out == {PARTITION: 144}
    assert "144 partitions more with fewer changes, not drawn" in Page(page(run(), events)).words()


# ---- the trace


def test_trace_has_the_bars_and_marks_of_the_picture_in_microseconds() -> None:
    found = trace(run(), history())["traceEvents"]
    names = {each["pid"]: each["args"]["name"] for each in found if each["name"] == "process_name"}
    spans = {
        (names[each["pid"]], each["name"], each["ts"], each["dur"], each["args"]["what"])
        for each in found
        if each["ph"] == "X"
    }

    assert ("g t-2", "no fetcher", 9_900_000, 5_000_000, "t-2 has no fetcher, 0 s to +5 s (5 s)") in spans
    assert {"Faults", "ZooKeeper", "node-1", "g c1"} <= set(names.values())
    assert [each["ts"] for each in found if each["name"].startswith("node-2#2 was elected")] == [14_000_000]


def test_fetchers_of_one_partition_at_once_are_separate_threads_of_the_trace() -> None:
    found = trace(run(), history(TWO_FETCHERS))["traceEvents"]

    pid = next(each["pid"] for each in found if each["args"].get("name") == "g t-0")
    threads = {each["name"]: each["tid"] for each in found if each["pid"] == pid and each["ph"] == "X"}
    assert set(threads) == {"c1", "c3", "two fetchers"}
    assert len(set(threads.values())) == 3


@pytest.mark.parametrize("events", [[], hostile_history()])
def test_trace_of_any_history_is_json(events: list[dict[str, Any]]) -> None:
    assert json.loads(json.dumps(trace({}, events), allow_nan=False))["traceEvents"]
