"""Processes of this machine: state, command line, descendants."""

from __future__ import annotations

import psutil

_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_STILL = (*_DEAD, psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def command_line(pid: int) -> str:
    """The arguments of a running process, separated by spaces; empty for one that is gone, or a zombie."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def descendants(pid: int) -> list[int]:
    """The living processes below a process."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def stands_still(pid: int) -> bool:
    """Whether every thread of a process is stopped, or the process is gone.

    Linux stops one thread after the other, and shows each under its own id as it does a process.
    """
    try:
        threads = [thread.id for thread in psutil.Process(pid).threads()] if psutil.LINUX else [pid]
    except psutil.NoSuchProcess:
        return True
    return all(_status(thread) in _STILL for thread in threads)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie without threads: its command line goes before its threads do."""
    try:
        process = psutil.Process(pid)
        return process.status() in _DEAD and process.num_threads() < 2
    except psutil.NoSuchProcess:
        return True


def _status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_DEAD)
