"""Search a model, and print what was found; 1 with a violation. `README.md` beside this file has examples."""

from __future__ import annotations

import sys

from . import client_assignment, lease, region, slots
from .search import configured

MODELS = {"client_assignment": client_assignment, "region": region, "slots": slots, "lease": lease}
BY_ITSELF = {"storm": client_assignment.storm, "crashloop": client_assignment.crash_loop}
"""What shows that a rule of client-side assignment is needed, other than a search."""


def main(model: str, *words: str) -> int:
    if rounds := BY_ITSELF.get(words[0] if words else ""):
        print("in rounds", rounds(configured(client_assignment.Config, words)))
        return 0
    result = MODELS[model].run(configured(MODELS[model].Config, words))
    print(result.report(" ".join(words)))
    return 1 if result.violation else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
