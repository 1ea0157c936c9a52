"""Metrics of the fault proxy in Prometheus' text form, as Toxiproxy's `/metrics` has them.

Toxiproxy 2.12 counts the bytes of a link when the link ends, so open connections do not count yet; sent bytes count
only if the destination accepted all of them, as far as known. Runtime metrics of any process have Toxiproxy's names;
`python_info` replaces `go_info`.
"""

from __future__ import annotations

import gc
import platform
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import psutil

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class LinkLabels(NamedTuple):
    """The labels of Toxiproxy's counters; `direction` is `upstream` or `downstream`, the addresses are texts."""

    direction: str
    listener: str
    proxy: str
    upstream: str


class Traffic:
    """Bytes of ended links, summed by labels. Those of deleted proxies stay."""

    def __init__(self) -> None:
        self._received: Counter[LinkLabels] = Counter()
        self._sent: Counter[LinkLabels] = Counter()

    def link_ended(self, labels: LinkLabels, received_bytes: int, sent_bytes: int | None) -> None:
        """Add a link: bytes read from its source, and written to its destination (None: not all were accepted)."""
        self._received[labels] += received_bytes
        if sent_bytes is not None:
            self._sent[labels] += sent_bytes

    def lines(self) -> Iterator[str]:
        """The two counters, with one series for each set of labels."""
        for name, help_text, counts in (
            ("toxiproxy_proxy_received_bytes_total", "Bytes read from the source of ended links.", self._received),
            ("toxiproxy_proxy_sent_bytes_total", "Bytes written to the destination of ended links.", self._sent),
        ):
            if counts:
                yield from _metric(name, "counter", help_text)
            for labels, total_bytes in sorted(counts.items()):
                yield f"{name}{_label_set(labels._asdict())} {total_bytes}"


class ProxyMetrics:
    """Content of `/metrics`.

    Args:
        traffic: the counters of the proxies, or None to leave them out (`-proxy-metrics`).
        runtime: whether to include the process (`-runtime-metrics`).
    """

    def __init__(self, traffic: Traffic | None, runtime: bool) -> None:
        self._traffic = traffic
        self._runtime = runtime
        self._start_s = time.time()

    def text(self) -> str:
        """All metrics, sorted by name as Toxiproxy has them."""
        lines = list(self._process_lines()) if self._runtime else []
        if self._traffic is not None:
            lines += self._traffic.lines()
        return "".join(f"{line}\n" for line in lines)

    def _process_lines(self) -> Iterator[str]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        process = psutil.Process()
        memory = process.memory_info()
        values = [
            ("process_cpu_seconds_total", "counter", "User and system CPU time.", usage.ru_utime + usage.ru_stime),
            (
                "process_max_fds",
                "gauge",
                "How many file descriptors may be open.",
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            ),
            ("process_open_fds", "gauge", "File descriptors that are open.", process.num_fds()),
            ("process_resident_memory_bytes", "gauge", "Resident memory.", memory.rss),
            ("process_virtual_memory_bytes", "gauge", "Virtual memory.", memory.vms),
            ("process_start_time_seconds", "gauge", "When it started, since the epoch.", self._start_s),
        ]
        for name, kind, help_text, value in sorted(values):
            yield from _metric(name, kind, help_text)
            yield f"{name} {value}"
        yield from _metric("python_gc_collections_total", "counter", "Collections by generation.")
        for generation, counts in enumerate(gc.get_stats()):
            yield f"python_gc_collections_total{_label_set({'generation': str(generation)})} {counts['collections']}"
        yield from _metric("python_info", "gauge", "The interpreter.")
        info = {"implementation": sys.implementation.name, "version": platform.python_version()}
        yield f"python_info{_label_set(info)} 1"


def _metric(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"


def _label_set(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value.translate(ESCAPES)}"' for name, value in labels.items()) + "}"
