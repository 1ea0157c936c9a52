"""Observation of processes by tests."""

from __future__ import annotations

import os

import psutil


def runs(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def tree(pid: int) -> set[int]:
    """All descendants of `pid`, including zombies, which are unreaped."""
    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def group(leader: int) -> set[int]:
    """All running processes of a process group."""
    return {pid for pid in psutil.pids() if _group_of(pid) == leader and runs(pid)}


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def listening(pid: int) -> set[tuple[str, int]]:
    """Addresses on which the process listens for TCP connections."""
    sockets = psutil.Process(pid).net_connections(kind="tcp")
    return {(each.laddr.ip, each.laddr.port) for each in sockets if each.status == psutil.CONN_LISTEN and each.laddr}
