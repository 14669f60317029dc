"""States of an application in a checkpoint: small ones in the contribution's znode, others in a file."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from zk_group.coordinator.zk.errors import BadData, CoordinatorError, UsageError
from zk_group.coordinator.zk.znodes.group_state import decoded, encoded
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.regions import MAX_STATE_BYTES, Contribution, StateFile

from ..logs.checked_file import refuse_compressed_stream
from ..sealing.segment_files import SegmentFolder, claim

SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("state", pa.binary())])
MEMBER = ("", -1)
"""Topic and partition of the row with the state of the member as a whole."""
SUFFIX = ".arrow"


@dataclass(frozen=True, slots=True)
class State:
    """An application's state, after exactly the records below the offsets of its partitions.

    :ivar partitions: partition -> bytes. Restored by the partition's owner after a reset.
    :ivar member: bytes of the member as a whole. Restored by the member of the same name.
    :ivar inherited: after a reset, the same of members that are gone: their successor merges them into its own.
    :ivar offsets: partition -> the offset of the next record, of every partition of the member. At a checkpoint an
        application that has not processed all that `poll` has returned sets them; the default is `poll`'s.
    """

    partitions: Mapping[TopicPartition, bytes] = field(default_factory=dict)
    member: bytes = b""
    inherited: Mapping[str, bytes] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return len(self.member) + sum(map(len, self.partitions.values()))


class StateFiles:
    """States of one region in `checkpoint_dir`, a folder or any URI that pyarrow has a file system for.

    :raises UsageError: when it is neither.
    """

    def __init__(self, checkpoint_dir: str, region: str) -> None:
        self.folder = SegmentFolder(checkpoint_dir) if checkpoint_dir else None
        self._region = region

    def put(self, state: State, name: str, chroot: str) -> tuple[dict[TopicPartition, str], str, StateFile | None]:
        """`states`, `member_state` and `file` of a contribution; a file is durable when this returns.

        :param name: of the file, if one is needed, below the region's folder: its checkpoint, a slash, and letters,
            digits and dashes.
        :param chroot: to which the region's folder must belong.
        :raises UsageError: when the states are large and there is no `checkpoint_dir`.
        :raises ForeignFolder: when the region's folder belongs to another chroot.
        :raises OSError: when the file cannot be written.
        """
        if state.nbytes <= MAX_STATE_BYTES:
            inline = {part: encoded(data) for part, data in sorted(state.partitions.items())}
            return inline, encoded(state.member) if state.member else "", None
        if self.folder is None:
            raise UsageError(
                f"the states of a checkpoint have {state.nbytes} bytes, over the {MAX_STATE_BYTES} that a znode takes: "
                "give checkpoint_dir a folder or a URI that all members share"
            )
        rows = [(*MEMBER, state.member), *((*part, data) for part, data in sorted(state.partitions.items()))]
        columns = [pa.array([row[at] for row in rows], kind.type) for at, kind in enumerate(SCHEMA)]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        data = sink.getvalue().to_pybytes()
        file = f"{self._region}/{name}{SUFFIX}"
        claim(self.folder, self._region, chroot, "checkpoint_dir")
        self.folder.write_bytes(file, data)
        return {}, "", StateFile(file, len(data), zlib.crc32(data))

    def get(self, where: str, given: Contribution, partitions: Collection[TopicPartition]) -> State:
        """The states of `partitions` in a contribution, and that of its member.

        :raises BadData: when they cannot be read, or differ from what was written.
        """
        if given.file is None:
            inline = {part: decoded(where, text) for part, text in given.states.items() if part in partitions}
            return State(inline, decoded(where, given.member_state))
        states: dict[TopicPartition, bytes] = {}
        member = b""
        for topic, partition, data in self._rows(where, given.file):
            if (topic, partition) == MEMBER:
                member = data
            elif (part := TopicPartition(topic, partition)) in partitions:
                states[part] = data
        return State(states, member)

    def _rows(self, where: str, file: StateFile) -> Iterable[tuple[str, int, bytes]]:
        if self.folder is None:
            raise BadData(f"{where} has its states in file {file.name}, and there is no checkpoint_dir")
        try:
            data = self.folder.read_bytes(file.name, file.size)
            if zlib.crc32(data) != file.crc32:
                raise BadData(f"{where}: file {file.name} is damaged: its checksum is not that of the contribution")
            reader = pa.ipc.open_stream(data)
            if not reader.schema.equals(SCHEMA):
                raise BadData(f"{where}: the columns of file {file.name} are not those of states")
            refuse_compressed_stream(data)
            table = reader.read_all()
            table.validate(full=True)
        except CoordinatorError:
            raise
        except (pa.ArrowException, OSError, ValueError, struct.error) as error:
            raise BadData(f"{where}: file {file.name} cannot be read: {error}") from error
        return zip(*(table.column(name).to_pylist() for name in SCHEMA.names), strict=True)


def own_state(state: State, positions: Mapping[TopicPartition, int]) -> State:
    """An application's state, validated, with its offsets.

    :param positions: partition -> the offset of the next record that `poll` returns, of every assigned partition.
    :raises UsageError: when it is not a `State`, has a partition that is not assigned, or has offsets of other
        partitions or beyond what `poll` has returned.
    """
    if not isinstance(state, State):
        raise UsageError(f"on_checkpoint must return a State, not {type(state).__name__}")
    for partition, data in state.partitions.items():
        if partition not in positions or not isinstance(data, bytes):
            raise UsageError(
                f"on_checkpoint gives a state of {partition!r}, which this member does not have, or no bytes"
            )
    if not isinstance(state.member, bytes):
        raise UsageError("on_checkpoint gives a member state that is no bytes")
    if not state.offsets:
        return replace(state, offsets=positions)
    for partition, position in positions.items():
        if not 0 <= state.offsets.get(partition, -1) <= position:
            raise UsageError(
                f"on_checkpoint gives offset {state.offsets.get(partition)} of {partition}, of which poll has returned "
                f"the records below {position}"
            )
    return state
