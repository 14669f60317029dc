"""docs/security.md has what an ensemble needs as the embedded one has it; what it says of files is refused so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.zk.embedded.directory import Identities
from coordinator.zk.errors import UsageError
from coordinator.zk.security.access import read_credentials

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()


def test_page_has_the_lines_of_zoo_cfg_that_the_embedded_ensemble_has(tmp_path: Path) -> None:
    lines = dict(re.findall(r"^    ([\w.]+)=(\S+)$", PAGE, re.MULTILINE))
    wanted = Identities(tmp_path, tls=True, auth=True).server_lines()

    assert {name: lines.get(name) for name in wanted if not name.endswith(".location")} == {
        name: value for name, value in wanted.items() if not name.endswith(".location")
    }
    assert lines.keys() >= {"secureClientPort", *wanted}


def test_page_has_the_server_side_of_sasl_as_the_embedded_ensemble_has_it(tmp_path: Path) -> None:
    Identities(tmp_path, tls=False, auth=True).create()
    made = (tmp_path / "identities" / "server.jaas").read_text()

    section = PAGE[PAGE.index("    Server {") :]
    assert [line.strip() for line in section.splitlines()[:2]] == [line.strip() for line in made.splitlines()[:2]]
    assert 'user_team-a="' in section and 'user_team-a="' in made


def test_credentials_file_of_the_page_is_read_and_refused_with_other_modes(tmp_path: Path) -> None:
    (line,) = re.findall(r"^    (sasl:.+)$", PAGE, re.MULTILINE)
    file = tmp_path / "zookeeper.auth"
    file.write_text(line + "\n")
    file.chmod(0o600)
    assert read_credentials(file).sasl == ("team-a", "PASSWORD")

    file.chmod(0o644)
    with pytest.raises(UsageError, match="may be read by others"):
        read_credentials(file)
