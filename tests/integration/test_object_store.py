"""Segments on an object store: written whole or not at all, read, collected and swept."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from tests.support.object_store import CREDENTIALS, object_store
from tests.support.region import CountingRegion
from tests.support.sealed import batches, records_in
from zk_group.consumer.errors import ForeignFolder, SegmentError
from zk_group.consumer.sealing.segment_files import SegmentFolder, claim, segment_file
from zk_group.consumer.streaming.source.rewind import PROVIDER, PROVIDERS, CheckpointFiles
from zk_group.consumer.streaming.source.segment_index import SourceOffset
from zk_group.coordinator.zk.errors import UsageError

pytestmark = pytest.mark.real_zookeeper("the object store is a process")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store() as uri:
        yield uri


@pytest.fixture
def folder(bucket: str, monkeypatch: pytest.MonkeyPatch) -> SegmentFolder:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return SegmentFolder(bucket)


def test_a_spark_checkpoint_there_is_set_back_by_hadoops_name_for_it(folder: SegmentFolder, bucket: str) -> None:
    end = json.dumps(SourceOffset(7, 1, "q", "segment-0000000000").to_dict())
    for number in range(3):
        folder.write_bytes(
            f"spark/offsets/{number}", f'v1\n{{"conf":{{"{PROVIDER}":"{PROVIDERS[0]}"}}}}\n{end}'.encode()
        )
        folder.write_bytes(f"spark/commits/{number}", b"v1\n{}")
        folder.write_bytes(f"spark/state/0/1/{number + 1}.delta", b"x")
    location = bucket.replace("s3:", "s3a:").replace("/segments?", "/segments/spark?")
    files = CheckpointFiles(location)
    assert (files.newest, files.finished, files.offset(1).czxid) == (2, [0, 1, 2], 7)
    files.check(1)

    files.remove(files.later(1))

    after = CheckpointFiles(location)
    assert (after.newest, after.finished, after.later(1)) == (1, [0, 1], [])
    after.check(1)


def test_a_segment_is_written_read_listed_and_removed(folder: SegmentFolder, bucket: str) -> None:
    file = segment_file("written", "c", "abc", 1)
    size = folder.write(file, batches(0, 0, 10))
    assert folder.url == bucket
    assert folder.sizes([file, segment_file("written", "c", "abc", 2)]) == [size, None]
    (found,) = folder.list("written")
    assert found.file == file and abs(found.modified_s - time.time()) < 600, "a sweep goes by its age"
    assert pa.Table.from_batches(records_in(SegmentFolder(folder.url), file, size, 10)).num_rows == 10
    folder.remove(file)
    folder.remove(file)
    assert folder.list("written") == []
    assert folder.list("nothing") == []


def test_a_folder_of_the_store_belongs_to_the_first_chroot_that_claims_it(folder: SegmentFolder) -> None:
    claim(folder, "claimed", "1f-195", "segments_dir")
    claim(folder, "claimed", "1f-195", "segments_dir")

    with pytest.raises(ForeignFolder, match="folder bucket/segments/claimed belongs to another chroot"):
        claim(folder, "claimed", "2a-195", "segments_dir")
    assert folder.list("claimed") == []


def test_file_that_is_missing_or_of_another_size_is_reported(folder: SegmentFolder) -> None:
    file = segment_file("said", "c", "abc", 1)
    with pytest.raises(SegmentError, match="is missing"):
        list(records_in(folder, file, 10, 10))
    size = folder.write(file, batches(0, 0, 10))
    with pytest.raises(SegmentError, match=f"has {size} bytes and should have {size - 1}"):
        list(records_in(folder, file, size - 1, 10))


def test_file_of_a_failed_write_is_removed(folder: SegmentFolder) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(0, 0, 10)
        raise OSError("the records end here")

    with pytest.raises(OSError, match="the records end here"):
        folder.write(segment_file("broken", "c", "abc", 1), broken())
    assert folder.list("broken") == []


def test_a_file_is_one_object_and_no_folders_are_made(folder: SegmentFolder, bucket: str) -> None:
    file = segment_file("objects", "c", "abc", 1)
    folder.write(file, batches(0, 0, 10))
    address = parse_qs(urlsplit(bucket).query)["endpoint_override"][0]
    with urllib.request.urlopen(f"http://{address}/bucket?list-type=2&prefix=segments/objects") as answer:
        assert re.findall("<Key>(.*?)</Key>", answer.read().decode()) == [f"segments/{file}"]


@pytest.mark.parametrize(
    "place",
    [
        "s3://key:word@bucket/x",
        "s3://key:wo/rd@bucket/x",
        "abfs://:word@account.dfs.core.windows.net/x",
        "s3://bucket/x?secret_key=word",
        "abfs://account/x?sas_token=word",
    ],
)
def test_a_uri_with_credentials_is_refused_and_not_repeated(place: str) -> None:
    with pytest.raises(UsageError, match="segments_dir has credentials") as refused:
        SegmentFolder(place)
    assert "word" not in str(refused.value)


def test_states_of_a_consistent_region_are_stored_on_an_object_store(folder: SegmentFolder, r: CountingRegion) -> None:
    one = r.joins("c1", checkpoint_dir=folder.url)
    one.padding = b"x" * 10_000
    given = r.given(r.checkpoint())["g~c1"]
    assert given.file is not None and not given.states
    one.vanish()

    two = r.joins("c2", checkpoint_dir=folder.url)

    assert two.resets[-1] == r.now.sequence > 0
