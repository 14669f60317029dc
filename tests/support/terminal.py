"""A command on a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def on_terminal(*arguments: str, columns: int = 80, env: Mapping[str, str] | None = None) -> str:
    """What `python ARGUMENTS` prints on it, with its colours; stderr too."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment |= {"TERM": "xterm-256color", "PYTHONPATH": str(REPOSITORY), **(env or {})}
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True) as process:
        os.close(slave)
        printed = b""
        while True:
            try:
                more = os.read(master, 65_536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            printed += more
        os.close(master)
        assert process.wait(30) == 0, printed.decode()
    return printed.decode().replace("\r\n", "\n")
