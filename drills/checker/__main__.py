"""`python -m zk_group.drills.checker`: check a history in files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from . import check_files

EXIT_HELD, EXIT_BROKEN, EXIT_USAGE, EXIT_INCONCLUSIVE = 0, 1, 2, 3

EPILOG = """exit codes: 0 every invariant held; 1 one was broken; 2 usage; 3 none was broken, but one could not be
decided that a complete history would have decided"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the named files, and print the verdicts."""
    parser = argparse.ArgumentParser(
        prog="python -m zk_group.drills.checker",
        description="Check a history against the invariants of the design; report each broken one with its reason.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="a history; several are merged by their times"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    try:
        verdicts = check_files(*options.files)
    except OSError as error:
        print(f"cannot read {error.filename}: {error.strerror}", file=sys.stderr)
        return EXIT_USAGE
    print(json.dumps(verdicts.to_json(), default=str) if options.json else verdicts.text())
    if verdicts.broken:
        return EXIT_BROKEN
    return EXIT_INCONCLUSIVE if verdicts.is_inconclusive else EXIT_HELD


if __name__ == "__main__":
    sys.exit(main())
