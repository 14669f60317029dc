"""Equal subscriptions: every thread gets its quota, and keeps its previous partitions within it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from coordinator.zk.znodes.partitions import TopicPartition

from .claims import Claim, Claims, by_number

Shares = dict[tuple[int, int], list[TopicPartition]]
"""(Thread's number, member's place in the order) -> its partitions; new partitions are assigned in this order."""


def evenly(threads: Sequence[int], claims: Claims, partitions: Sequence[TopicPartition]) -> Shares:
    """n partitions over t threads: n // t each, and one more for n % t of them, with minimal moves.

    Kafka's `ConstrainedAssignmentBuilder`, with quotas of threads: a member keeps up to the sum of its threads' quotas.

    :param threads: number of threads of each member, in the order of members.
    """
    quota, extra = divmod(len(partitions), sum(threads))
    claimed: list[list[TopicPartition]] = [[] for _ in threads]
    for part, claim in claims.items():
        claimed[claim.member].append(part)
    shares: Shares = {}
    for place in reversed(range(len(threads))):
        more = max(0, min(extra, threads[place], len(claimed[place]) - quota * threads[place]))
        extra -= more
        kept = _kept(sorted(claimed[place], key=by_number), claims, threads[place], quota, more)
        shares.update({(number, place): parts for number, parts in enumerate(kept)})
    shares = dict(sorted(shares.items()))
    taken = {part for parts in shares.values() for part in parts}
    _fill(shares, quota, [part for part in partitions if part not in taken])
    return shares


def _kept(
    claimed: Sequence[TopicPartition], claims: Mapping[TopicPartition, Claim], threads: int, quota: int, more: int
) -> list[list[TopicPartition]]:
    """Kept partitions of each thread of a member, `more` threads with one over the quota; on the previous thread if
    possible."""
    if threads == 1:
        return [list(claimed[: quota + more])]
    kept: list[list[TopicPartition]] = [[] for _ in range(threads)]
    loose: list[TopicPartition] = []
    for part in claimed:
        number = claims[part].thread
        (kept[number] if number >= 0 else loose).append(part)
    largest = sorted(range(threads), key=lambda number: -len(kept[number]))[:more]
    for number, parts in enumerate(kept):
        most = quota + (number in largest)
        loose += parts[most:]
        del parts[most:]
    loose.sort(key=by_number, reverse=True)
    for number, parts in enumerate(kept):
        while loose and len(parts) < quota + (number in largest):
            parts.append(loose.pop())
    return kept


def _fill(shares: Shares, quota: int, left: Sequence[TopicPartition]) -> None:
    """Assign `left`: in turn to threads below the quota, then one each to those at it."""
    below = deque(parts for parts in shares.values() if len(parts) < quota)
    ready = deque(parts for parts in shares.values() if len(parts) == quota)
    for part in left:
        parts = (below or ready).popleft()
        parts.append(part)
        if len(parts) <= quota:
            (below if len(parts) < quota else ready).append(parts)
