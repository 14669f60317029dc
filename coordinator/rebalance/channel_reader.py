"""Reading the channels of a group's members: each one's commands before its data."""

from __future__ import annotations

from collections.abc import Sequence

from ..planning.snapshot import ChannelView, SentCommand
from ..term.bad_data import Findings
from ..term.reading import FirstSeen, ParsedRecords
from ..zk.store import Node, Store, Watch
from ..zk.znodes.paths import COMMAND_PREFIX, GroupPaths, sequence
from ..zk.znodes.records import Command, parsed_channel


class ChannelReader:
    """Reads the channels of one group in one term.

    :param on_acknowledge: watch callback, called when a channel's commands change.
    """

    def __init__(
        self,
        store: Store,
        paths: GroupPaths,
        problems: Findings,
        memory: FirstSeen,
        records: ParsedRecords,
        on_acknowledge: Watch,
    ) -> None:
        self._store = store
        self._paths = paths
        self._problems = problems
        self._memory = memory
        self._records = records
        self._on_acknowledge = on_acknowledge

    def read(self) -> dict[str, ChannelView]:
        """One read returns a channel's data and the number of its commands: enough for a channel without commands.

        The others are read again after their commands. Only they are watched: a watch takes a request for each channel,
        and a channel without commands has none to acknowledge.
        """
        listing = self._store.children(self._paths.channels)
        names = sorted(self._problems.usable(self._paths.channels, listing.names if listing else ()))
        nodes = dict(zip(names, self._store.get_many([self._paths.channel(name) for name in names]), strict=True))
        busy = [name for name, node in nodes.items() if node is not None and node.stat.children]
        sent = self._sent(busy)
        nodes |= zip(busy, self._store.get_many([self._paths.channel(name) for name in busy]), strict=True)
        return {name: self._view(name, node, sent.get(name, ())) for name, node in nodes.items() if node is not None}

    def _view(self, name: str, node: Node, commands: Sequence[SentCommand]) -> ChannelView:
        channel = self._records.parsed(self._paths.channel(name), node, parsed_channel)
        idle_s = self._memory.age_s("channel", name, str(node.stat.mzxid))
        return ChannelView(name, node.stat.version, channel, tuple(commands), idle_s, written_ms=node.stat.mtime_ms)

    def _sent(self, consumers: Sequence[str]) -> dict[str, list[SentCommand]]:
        listings = self.watch(consumers)
        return self._commands([(name, sent) for name, names in listings.items() for sent in names])

    def watch(self, consumers: Sequence[str]) -> dict[str, list[str]]:
        """The command names in the channels of `consumers`; `on_acknowledge` is called when they change."""
        paths = [self._paths.channel(name) for name in consumers]
        listings = self._store.children_many(paths, watch=self._on_acknowledge)
        return {
            name: listing.names if listing and not listing.denied else []  # its data is denied, too, and reported
            for name, listing in zip(consumers, listings, strict=True)
        }

    def _commands(self, pairs: Sequence[tuple[str, str]]) -> dict[str, list[SentCommand]]:
        known = sorted(pairs, key=lambda pair: (pair[0], sequence(pair[1]) or 0, pair[1]))
        paths = [self._paths.command(consumer, name) for consumer, name in known]
        found: dict[str, list[SentCommand]] = {}
        for (consumer, name), path, node in zip(known, paths, self._store.get_many(paths), strict=True):
            if node is None:
                continue  # acknowledged since it was listed
            command = self._records.parsed(path, node, Command.parse)
            if sequence(name) is None or not name.startswith(COMMAND_PREFIX):
                command = None
            age_s = self._memory.age_s("command", consumer, name, str(node.stat.czxid))
            found.setdefault(consumer, []).append(SentCommand(name, command, age_s))
        return found
