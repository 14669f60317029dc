"""How a process connects to ZooKeeper: its credentials and certificates, from files and the environment."""

from __future__ import annotations

import os
import pickle
import ssl
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from kazoo.protocol.connection import ConnectionDropped

from tests.support.secured import MadeCA
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.streaming.fetchers.config import SlotConfig
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.process.cli import command_access, zk_config_option
from zk_group.coordinator.zk.security.access import (
    LARGEST_FILE,
    Credentials,
    ZooKeeperAccess,
    access_at_open,
    check_private,
    read_credentials,
    refusal_of,
)
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo

SECRET = "correct-horse"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "auth"
    path.touch(mode=0o600)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeCA:
    return MadeCA.make(tmp_path_factory.mktemp("made"))


# ---- the file of credentials


def test_lines_are_digests_and_one_sasl_user(file: Path) -> None:
    file.write_text("# of team a\n\ndigest:alice:one\n  sasl:bob:t:w:o  \ndigest:carol:three\n")

    assert read_credentials(file) == Credentials(("alice:one", "carol:three"), ("bob", "t:w:o"))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o601, 0o660])
def test_file_that_others_may_use_is_refused(file: Path, mode: int) -> None:
    file.write_text(f"sasl:bob:{SECRET}")
    file.chmod(mode)
    if os.getuid() == 0:
        os.chown(file, 65534, 65534)

    with pytest.raises(UsageError, match=f"zk_auth_file {file} may be read by others: chmod 600 {file}"):
        read_credentials(file)


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a file of root")
@pytest.mark.parametrize(("mode", "is_allowed"), [(0o640, True), (0o660, False), (0o644, False)])
def test_file_of_root_may_be_read_by_its_group(file: Path, mode: int, is_allowed: bool) -> None:
    file.chmod(mode)

    with nullcontext() if is_allowed else pytest.raises(UsageError, match="may be read by others"):
        check_private("zk_auth_file", file)


LINES = [SECRET, f"sasl:{SECRET}", f"sasl::{SECRET}", f"sasl:{SECRET}:", f"x509:CN=a:{SECRET}", f"Digest:bob:{SECRET}"]
NO_LINE = "is not digest:USER:PASSWORD or sasl:USER:PASSWORD"
FILES = [
    *((f"digest:alice:one\n\n{line}\n".encode(), f"^zk_auth_file FILE: line 3 {NO_LINE}$") for line in LINES),
    (f"sasl:a:{SECRET}\nsasl:b:{SECRET}\n".encode(), "line 2 is the second of sasl"),
    (b"# nothing\n", "has no line digest:USER:PASSWORD or sasl:USER:PASSWORD"),
    (f"sasl:a:{SECRET}".encode() + b"\xff", "is not UTF-8"),
    (b"#" * (LARGEST_FILE + 1), "is larger than 65536 bytes"),
]
PLACES = [
    *((f"{scheme}:bob:{SECRET}", {}, "^zk_auth_file takes the name of a file") for scheme in ("sasl", "digest")),
    (f"bob:{SECRET}", {}, "zk_auth_file names no file: it may be credentials"),
    ("", {"ZK_GROUP_ZK_AUTH": SECRET}, "^ZK_GROUP_ZK_AUTH: line 1 is not digest:"),
    ("", {"ZK_GROUP_ZK_TLS": "yes"}, "ZK_GROUP_ZK_TLS must be true or false"),
]


@contextmanager
def refused(sentence: str) -> Iterator[None]:
    """In one sentence that does not repeat the secret."""
    with pytest.raises(UsageError, match=sentence) as caught:
        yield
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown and "xff" not in shown


@pytest.mark.parametrize(("data", "reason"), FILES)
def test_unusable_file_is_refused_in_one_sentence(file: Path, data: bytes, reason: str) -> None:
    file.write_bytes(data)

    with refused(reason.replace("FILE", str(file))):
        read_credentials(file)


@pytest.mark.parametrize(("name", "environment", "reason"), PLACES)
def test_credentials_in_another_place_are_not_repeated(name: str, environment: dict[str, str], reason: str) -> None:
    """In that of the file's name, or malformed ones in the environment."""
    with refused(reason):
        access_at_open(ZooKeeperAccess(zk_auth_file=name), environment).credentials(environment)


def test_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_credentials(tmp_path / "missing")
    with pytest.raises(UsageError, match="is no file"):
        read_credentials(tmp_path)


# ---- secrets stay where they are


def test_credentials_are_neither_printed_nor_pickled() -> None:
    found = Credentials((f"alice:{SECRET}",), ("bob", SECRET))

    assert repr(found) == "Credentials(digests=['alice'], sasl=bob)"
    assert SECRET not in f"{found} {found!r} {[found]}"
    with pytest.raises(TypeError, match="credentials are not pickled"):
        pickle.dumps(found)


def test_configurations_of_tasks_have_names_of_files_only(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(f"sasl:bob:{SECRET}")
    monkeypatch.setenv("ZK_GROUP_ZK_AUTH", f"digest:alice:{SECRET}")
    slots = SlotConfig("zk1", "g", pool="p", log_dir="kafka:", segments_dir="/seg", zk_auth_file=str(file), zk_tls=True)

    for config in (slots, slots.consumer_config(0), slots.consumer_config(0).kafka_place):
        assert SECRET.encode() not in pickle.dumps(config)
        assert SECRET not in repr(config)
    assert slots.consumer_config(0).access == slots.access
    assert slots.access == ZooKeeperAccess(zk_auth_file=str(file), zk_tls=True)


# ---- where values come from


def test_credentials_of_the_environment_are_used_where_no_file_is_named(file: Path) -> None:
    """A variable that was left in a shell must not make another party of a process that names its file."""
    file.write_text("sasl:bob:two")
    access, left_over = ZooKeeperAccess(zk_auth_file=str(file)), {"ZK_GROUP_ZK_AUTH": "digest:a:b\nsasl:c:d"}

    assert access.credentials({}) == access.credentials(left_over) == Credentials((), ("bob", "two"))
    assert ZooKeeperAccess().credentials(left_over) == Credentials(("a:b",), ("c", "d"))
    assert not ZooKeeperAccess().credentials({"ZK_GROUP_ZK_AUTH": " "})


def test_files_of_tls_without_tls_are_refused_before_any_connection() -> None:
    """Else credentials would be sent in the clear."""
    with pytest.raises(UsageError, match="without zk_tls: set zk_tls to true"):
        access_at_open(ZooKeeperAccess(zk_tls_ca="/ca"), {}).tls_context()
    for given in ({"zk_tls_ca": "/ca.pem"}, {"zk_tls_cert": "/c.pem", "zk_tls_key": "/k.pem"}):
        with pytest.raises(UsageError, match="given without zk_tls"):
            open_kazoo("127.0.0.1:1", 2000, 1.0, access=ZooKeeperAccess(**given))


def test_fields_with_their_defaults_are_those_of_the_environment_at_open() -> None:
    environment = {
        "ZK_GROUP_ZK_AUTH_FILE": "/a",
        "ZK_GROUP_ZK_TLS": " True",
        "ZK_GROUP_ZK_TLS_CA": "/ca",
        "ZK_GROUP_ZK_TLS_CERT": "/cert",
        "ZK_GROUP_ZK_TLS_KEY": "/key",
        "ZK_GROUP_ZK_TLS_CHECK_HOSTNAME": "false",
    }
    assert len(environment) == len(fields(ZooKeeperAccess))

    assert access_at_open(None, {}) == ZooKeeperAccess()
    tls = {"zk_tls_ca": "/ca", "zk_tls_cert": "/cert", "zk_tls_key": "/key", "zk_tls_check_hostname": False}
    everything = ZooKeeperAccess(zk_auth_file="/a", zk_tls=True, **tls)
    assert access_at_open(None, environment) == everything
    given = access_at_open(ConsumerConfig("zk1", "g", "c", zk_tls_ca="/own").access, environment)
    assert (given.zk_tls_ca, given.zk_tls_cert, given.zk_tls) == ("/own", "/cert", True)


# ---- certificates


def with_certificate(made: MadeCA, cert: Path, key: Path | None) -> ZooKeeperAccess:
    return ZooKeeperAccess(
        zk_tls=True, zk_tls_ca=str(made.file), zk_tls_cert=str(cert), zk_tls_key=str(key) if key is not None else ""
    )


def test_certificate_and_key_belong_together(made: MadeCA) -> None:
    own = made.issue("own", "own.invalid")

    assert with_certificate(made, own, own).tls_context()
    with pytest.raises(UsageError, match="belong together"):
        with_certificate(made, own, None).tls_context()


def test_servers_are_verified_with_the_given_ca_alone(made: MadeCA) -> None:
    context = ZooKeeperAccess(zk_tls=True, zk_tls_ca=str(made.file)).tls_context()

    assert context is not None and len(context.get_ca_certs()) == 1
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_key_that_others_may_read_is_refused_and_an_encrypted_one_asks_for_nothing(made: MadeCA) -> None:
    from cryptography.hazmat.primitives import serialization as pem

    own = made.issue("own", "own.invalid")
    key = pem.load_pem_private_key(own.read_bytes(), password=None)
    encrypted = own.with_name("key.pem")
    encrypted.touch(mode=0o600)
    encrypted.write_bytes(
        key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"secret"))
    )
    with pytest.raises(UsageError, match="are no certificate with its unencrypted key"):
        with_certificate(made, own, encrypted).tls_context()

    own.chmod(0o644)
    with pytest.raises(UsageError, match=f"zk_tls_key {own} may be read by others"):
        with_certificate(made, own, own).tls_context()


def test_errors_that_cause_each_other_end() -> None:
    first, second = ConnectionDropped("first"), ConnectionDropped("second")
    first.__cause__, second.__cause__ = second, first

    assert refusal_of(first) == ""


# ---- commands


@click.command()
@zk_config_option
def shown_access() -> None:
    click.echo(repr(command_access()))


def test_command_takes_its_access_from_the_environment_and_then_the_file(tmp_path: Path) -> None:
    file = tmp_path / "zk.toml"
    file.write_text('zk_tls = true\nzk_tls_ca = "/of-the-file"\n')

    done = CliRunner().invoke(
        shown_access, ["--zk-config", str(file)], env={"ZK_GROUP_ZK_TLS_CA": "/of-the-environment"}
    )
    same = CliRunner().invoke(shown_access, env={"ZK_GROUP_ZK_CONFIG": str(file)})

    assert done.output.strip() == repr(ZooKeeperAccess(zk_tls=True, zk_tls_ca="/of-the-environment"))
    assert same.output.strip() == repr(ZooKeeperAccess(zk_tls=True, zk_tls_ca="/of-the-file"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [("zk_pasword = 'x'", "has an unknown option 'zk_pasword'"), ("zk_tls = 'yes'", "zk_tls must be true or false")],
)
def test_malformed_file_of_a_command_is_a_mistake_of_usage(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "zk.toml"
    file.write_text(text)

    done = CliRunner().invoke(shown_access, ["--zk-config", str(file)])

    assert isinstance(done.exception, UsageError)
    assert reason in str(done.exception)
