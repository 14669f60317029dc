"""Options, printing and errors of `zk-coordinator`; they stand in `coordinator.zk.cli`, for both sides."""

from __future__ import annotations

from coordinator.zk.cli import (
    JSON,
    TABLE,
    Cli,
    brokers_option,
    opened,
    output_option,
    print_json,
    print_rows,
    printable,
    report,
    zk_option,
)

__all__ = [
    "JSON",
    "TABLE",
    "Cli",
    "brokers_option",
    "opened",
    "output_option",
    "print_json",
    "print_rows",
    "printable",
    "report",
    "zk_option",
]
