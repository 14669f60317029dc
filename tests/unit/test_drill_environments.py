"""Where a drill runs: containers, servers of others, their faults and credentials."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.made_drill import happened
from zk_group.coordinator.zk.errors import UsageError, ZooKeeperUnreachable
from zk_group.coordinator.zk.security.access import AUTH_VARIABLE, ZooKeeperAccess, digest_identity, read_credentials
from zk_group.drills.base.processes import own_environment
from zk_group.drills.base.settings import Settings
from zk_group.drills.environments import containers, external
from zk_group.drills.environments.base import COORDINATOR, MEMBER, OPERATOR, ROLES, DrillAccess
from zk_group.drills.environments.containers import Containers, EngineError
from zk_group.drills.environments.external import External
from zk_group.drills.evidence.files import granted_otherwise
from zk_group.drills.runner import DRILLS, DrillOptions

# ---- containers, and their removal after any error


Answer = Callable[[str], str]
"""Output of a command, by its arguments; it may raise."""


def answering(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[str]:
    """An engine; returns the commands sent to it."""
    heard: list[str] = []

    def run(_containers: Containers, *command: str, **_: object) -> str:
        words = " ".join(command)
        heard.append(words)
        return answer(words)

    monkeypatch.setattr(containers, "_compose_command", lambda: ("docker", "compose"))
    monkeypatch.setattr(Containers, "_run", run)
    return heard


def test_no_two_runs_with_one_pid_have_one_compose_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = answering(monkeypatch, lambda _: "")
    first, second = Containers(tmp_path), Containers(tmp_path)

    assert first.project != second.project
    assert asked == []


@pytest.mark.parametrize("refused", ["docker ps", "docker unpause"])
def test_containers_are_removed_though_paused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: str) -> None:
    def answer(words: str) -> str:
        if words.startswith(refused):
            raise EngineError(refused)
        return "one two" if words.startswith("docker ps") else ""

    asked = answering(monkeypatch, answer)

    Containers(tmp_path).__exit__()

    assert asked[-1].endswith("down -v --remove-orphans")
    assert len(asked) == (2 if refused == "docker ps" else 4)


def test_first_error_is_raised_and_a_failed_removal_is_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(words: str) -> str:
        raise EngineError("the first" if words.endswith("up -d") else "another")

    answering(monkeypatch, answer)
    made = Containers(tmp_path)

    with pytest.raises(EngineError, match="the first"), made:
        raise AssertionError("it does not start")

    assert caplog.messages == [f"Compose project {made.project} is not removed: another"]


def test_container_without_a_network_is_reconnected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = answering(monkeypatch, lambda words: "created" if words.startswith("docker inspect") else "id")

    Containers(tmp_path).heal()

    assert sum(words.startswith("docker network connect --alias") for words in asked) == 3
    assert sum(words.startswith("docker start") for words in asked) == 3


@pytest.mark.long
def test_unresponsive_engine_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(containers, "_compose_command", lambda: ("docker", "compose"))
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexec sleep 60\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    with pytest.raises(EngineError, match="docker kill one: it did not end within 1 s"):
        Containers(tmp_path)._run("docker", "kill", "one", timeout_s=1.0)


# ---- an external ensemble: `--zk`, bounds granted by the servers, and refused drills


Servers = Callable[..., None]


class NoStore:
    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Servers with configurable answers."""

    def answer(least_ms: int, most_ms: int, conf: str = "", version: str = "3.9.5") -> None:
        words = {"conf": conf, "srvr": f"Zookeeper version: {version}-abc, built on" if version else ""}
        monkeypatch.setattr(
            external, "granted_ms", lambda address, asked_ms, tls: min(max(asked_ms, least_ms), most_ms)
        )
        monkeypatch.setattr(external, "four_letter_word", lambda host, port, word="srvr", access=None: words[word])
        monkeypatch.setattr(external, "open_kazoo", lambda *arguments, **options: NoStore())

    return answer


CONF = "clientPort=2181\ntickTime=250\nmaxClientCnxns=60\n"


@pytest.mark.parametrize(
    ("least_ms", "most_ms", "conf", "asked_ms", "tick_s", "session_ms", "source"),
    [
        (400, 60_000, CONF, 2000, 0.25, 2000, "conf"),
        (1000, 10_000, "", 1000, 0.5, 2000, ""),  # four ticks
        (400, 40_000, "", 1000, 0.2, 8000, "assumed"),
    ],
    ids=[
        "tick is read from the server",
        "unreported tick is derived from the granted sessions",
        "configured bounds give promises the shorter tick and sessions the longer",
    ],
)
def test_tick_and_session_of_an_ensemble(
    servers: Servers, least_ms: int, most_ms: int, conf: str, asked_ms: int, tick_s: float, session_ms: int, source: str
) -> None:
    servers(least_ms, most_ms, conf=conf)

    environment = External("zk1:2181", asked_ms)

    assert (environment.tick_s, environment.session_timeout_ms) == (tick_s, session_ms)
    assert source in str(environment.details["tick"])


def test_promises_are_derived_from_the_granted_session_timeout(servers: Servers) -> None:
    servers(4000, 40_000)

    environment = External("zk1:2181/x", 2000)
    settings = environment.adjust(Settings())

    assert settings.session_timeout_ms == 8000
    assert settings.max_poll_interval_ms > 2 * settings.session_timeout_ms
    assert settings.bounds(environment.tick_s)["session_timeout"] == 8.0
    assert environment.chroot_of("now").startswith("/x/zk-group-drill-")


@pytest.mark.parametrize(
    ("least_ms", "version", "reason"),
    [(400, "3.8.4", r"3\.9 or newer"), (400, "3.6.0", r"3\.9 or newer"), (30_000, "3.9.5", "minSessionTimeout")],
    ids=["3.8.4 has no zxids in watch events", "3.6.0 neither", "session timeouts over the limit"],
)
def test_servers_no_drill_can_use_are_refused(servers: Servers, least_ms: int, version: str, reason: str) -> None:
    servers(least_ms, 10 * least_ms, version=version)

    with pytest.raises(UsageError, match=reason):
        External("zk1:2181", 2000)


@pytest.mark.long
def test_unresponsive_ensemble_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "granted_ms", lambda address, asked_ms, tls: None)

    with pytest.raises(ZooKeeperUnreachable):
        External("zk1:2181", 2000)


A_4, STRANGER_3 = "a#5 was granted a session of 4 s, not 2", "session 0x1f was granted a session of 3 s, not 2"


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ("1 a#5 session timeout=4.0; 2 b#6 session timeout=2.0; 3 hand session timeout=30.0", [A_4]),
        (
            "1 a#5 session session=1 timeout=4.0 asked=2.0; 2 a#5 session session=2 timeout=2.0 asked=2.0; "
            "3 hand session session=31 timeout=3.0 asked=2.0; 4 hand session session=4 timeout=5.0 asked=4.0; "
            "5 hand session session=5 timeout=20.0 asked=30.0",
            [A_4, STRANGER_3],
        ),
    ],
    ids=["another session of a process", "of an earlier and of a silent process"],
)
def test_session_granted_otherwise_makes_a_run_inconclusive(events: str, found: list[str]) -> None:
    assert granted_otherwise(happened(events), 2.0) == found


# ---- the faults that an environment permits


NO_ROOM = "zookeeper-leader-cut-off needs servers that can be cut off from each other: use --docker"
OWN = "zk1:2181/test"


def test_drills_that_cannot_run_in_the_environment_are_skipped_and_reported() -> None:
    chosen, left_out = DrillOptions(is_all=True, kafka=True).chosen()

    assert set(DRILLS) - {one.name for one in chosen} == {"zookeeper-leader-cut-off"}
    assert left_out == [NO_ROOM]


def test_every_drill_can_run_in_containers() -> None:
    options = DrillOptions(is_all=True, kafka=True, in_docker=True)

    assert options.chosen() == (list(DRILLS.values()), [])


def test_drills_with_faults_on_servers_are_skipped_where_servers_are_off_limits() -> None:
    chosen, left_out = DrillOptions(is_all=True, zk=OWN).chosen()

    assert {name for name in DRILLS if name.startswith(("zookeeper-", "kafka-"))} == {
        sentence.split()[0] for sentence in left_out
    }
    assert not any(one.needs for one in chosen)


@pytest.mark.parametrize(("short", "is_all"), [(True, False), (False, True)])
def test_drills_on_kafka_are_skipped_and_reported_without_a_broker(short: bool, is_all: bool) -> None:
    without, left_out = DrillOptions(short=short, is_all=is_all, in_docker=True).chosen()
    with_broker, _ = DrillOptions(short=short, is_all=is_all, in_docker=True, kafka=True).chosen()

    assert left_out == ["kafka-broker-sigkill needs a Kafka broker: use --kafka"]
    assert [*without, DRILLS["kafka-broker-sigkill"]] == with_broker


def test_no_broker_is_started_beside_a_secured_ensemble() -> None:
    _, left_out = DrillOptions(is_all=True, kafka=True, is_secured=True).chosen()

    assert left_out == [NO_ROOM, "kafka-broker-sigkill needs a Kafka broker: no broker is started with --secure"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"names": ("zookeeper-leader-cut-off",)}, NO_ROOM),
        (
            {"names": ("kafka-broker-sigkill",), "zk": OWN},
            "kafka-broker-sigkill needs a Kafka broker: no broker is started with --zk",
        ),
        ({"is_all": True, "in_docker": True, "zk": OWN}, "--docker and --zk are mutually exclusive"),
        (
            {"is_all": True, "in_docker": True, "is_secured": True},
            "--docker and --secure are mutually exclusive: the servers in containers have no TLS",
        ),
        (
            {"is_all": True, "zk": OWN, "group": "g", "is_secured": True},
            "--group and --secure are mutually exclusive: the ACLs of the path of --zk are yours",
        ),
        (
            {"is_all": True, "zk": OWN, "keep": True, "is_secured": True},
            "--keep cannot be used with --zk and --secure: the kept znodes could not be removed later",
        ),
        ({"is_all": True, "group": "g"}, "--group needs --zk, and --execute needs --group"),
        ({"is_all": True, "zk": OWN, "execute": True}, "--group needs --zk, and --execute needs --group"),
        ({"is_all": True, "short": True}, "name the drills to run, or give one of --short and --all (see: drill list)"),
        ({}, "name the drills to run, or give one of --short and --all (see: drill list)"),
    ],
)
def test_options_that_exclude_each_other_or_a_drill_are_an_error(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as mistake:
        DrillOptions(**options).chosen()  # type: ignore[arg-type]

    assert str(mistake.value) == sentence


# ---- how a drill and its processes authenticate: files for each kind of process, and nothing of them anywhere else


GIVEN = {AUTH_VARIABLE: "sasl:drill:s3cret\ndigest:team:t0psecret"}
TLS = ZooKeeperAccess(zk_tls=True, zk_tls_ca="ca.pem")


def test_every_process_authenticates_with_what_the_drill_was_given(tmp_path: Path) -> None:
    access = DrillAccess(TLS, GIVEN)

    with access.in_force(tmp_path / "access"):
        for role in ROLES:
            found = access.behind_proxy(role).credentials({})
            assert (found.sasl, found.digests) == (("drill", "s3cret"), ("team:t0psecret",))
            assert access.acl_ids(role) == ("sasl:drill", digest_identity("team:t0psecret"))


def test_roles_have_digest_identities_of_their_own_beside_the_given_user(tmp_path: Path) -> None:
    access = DrillAccess(TLS, GIVEN, has_roles=True)

    with access.in_force(tmp_path / "access"):
        found = {role: read_credentials(tmp_path / "access" / f"{role}.auth") for role in ROLES}

    assert {each.sasl for each in found.values()} == {("drill", "s3cret")}
    assert len({each.digests[0] for each in found.values()}) == len(ROLES)
    assert [role for role, each in found.items() if "team:t0psecret" in each.digests] == [OPERATOR]
    for role, each in found.items():
        assert access.acl_ids(role) == tuple(map(digest_identity, each.digests))


def test_tls_is_on_the_way_to_servers_and_not_on_the_way_to_a_proxy(tmp_path: Path) -> None:
    access = DrillAccess(TLS, GIVEN)

    with access.in_force(tmp_path / "access"):
        assert access.to_servers(OPERATOR).zk_tls and access.tls.zk_tls
        assert list(access.environment(COORDINATOR)) == ["ZK_GROUP_ZK_AUTH_FILE"]


def test_only_the_owner_may_read_the_files_and_they_are_removed_at_the_end(tmp_path: Path) -> None:
    access, folder = DrillAccess(TLS, GIVEN), tmp_path / "access"

    with access.in_force(folder):
        assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}
        assert len(list(folder.iterdir())) == len(ROLES)

    assert list(folder.iterdir()) == []


def test_no_process_inherits_what_the_drill_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AUTH_VARIABLE, "sasl:drill:s3cret")
    monkeypatch.setenv("ZK_GROUP_ZK_TLS", "true")
    access = DrillAccess(TLS, os.environ)

    with access.in_force(tmp_path / "access"):
        assert not [name for name in os.environ if name.startswith("ZK_GROUP_ZK_")]
        assert "s3cret" not in str(access.environment(MEMBER))

    assert os.environ["ZK_GROUP_ZK_TLS"] == "true"
    assert not [name for name in own_environment() if name.startswith("ZK_GROUP_")]


def test_without_credentials_there_are_no_files_and_no_variables(tmp_path: Path) -> None:
    access = DrillAccess()

    with access.in_force(tmp_path / "access"):
        assert access.environment(MEMBER) == {}
        assert access.to_servers(MEMBER) == ZooKeeperAccess()

    assert list(tmp_path.iterdir()) == []


def test_report_names_the_schemes_and_no_secret() -> None:
    assert DrillAccess(TLS, GIVEN).described == "TLS, sasl, digest"
    assert DrillAccess().described == "none"


def test_malformed_credentials_are_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="line 1 is not"):
        DrillAccess(TLS, {AUTH_VARIABLE: "s3cret"})
