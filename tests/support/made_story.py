"""One whole history in which every invariant holds, with everything in it; and points at which a test may spoil it.

Group `g` has slots that seal, and a query; group `h` plain consumers with a wildcard. One node fails and the other
takes over, a consumer hangs and is evicted, one loses its name to a newer process, hands scribble, a topic is
recreated: the lines of `made_story.txt`.
"""

from __future__ import annotations

import json

from tests.support.history_words import tell
from tests.support.made_histories import Happening, Story
from zk_group.coordinator.zk.znodes.paths import GroupPaths

G = GroupPaths("g")


class StoryHistory(Story):
    """The story, up to its end."""

    def __init__(self, point: str = "", happening: Happening | None = None) -> None:
        super().__init__(point, happening)
        tell(self, __file__)

    def finished_by(self, query: str) -> int:
        finished: int = json.loads(self.tree[G.query(query)][0])["finished"]
        return finished


story = StoryHistory.made
