"""Metrics of the fault proxy in Prometheus' text form, as Toxiproxy's `/metrics` has them.

Toxiproxy 2.12 counts the bytes of a link when the link ends, so open connections do not count yet; sent bytes count
only if the destination accepted all of them, as far as known. Runtime metrics of any process have Toxiproxy's names;
`python_info` replaces `go_info`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""The only format: Toxiproxy ignores the Accept header, too."""


class LinkLabels(NamedTuple):
    """The labels of Toxiproxy's counters; `direction` is `upstream` or `downstream`, the addresses are texts."""

    direction: str
    listener: str
    proxy: str
    upstream: str


class Traffic(Collector):
    """Bytes of ended links, summed by labels. Those of deleted proxies stay."""

    def __init__(self) -> None:
        self._received: Counter[LinkLabels] = Counter()
        self._sent: Counter[LinkLabels] = Counter()

    def link_ended(self, labels: LinkLabels, received_bytes: int, sent_bytes: int | None) -> None:
        """Add a link: bytes read from its source, and written to its destination (None: not all were accepted)."""
        self._received[labels] += received_bytes
        if sent_bytes is not None:
            self._sent[labels] += sent_bytes

    def collect(self) -> Iterator[Metric]:
        """The two counters, with one series for each set of labels; a counter without series is left out."""
        for name, documentation, counts in (
            ("toxiproxy_proxy_received_bytes", "Bytes read from the source of ended links.", self._received),
            ("toxiproxy_proxy_sent_bytes", "Bytes written to the destination of ended links.", self._sent),
        ):
            family = CounterMetricFamily(name, documentation, labels=LinkLabels._fields)
            for labels, total_bytes in sorted(counts.items()):
                family.add_metric(labels, total_bytes)
            if counts:
                yield family


class ProxyMetrics:
    """Content of `/metrics`.

    Args:
        traffic: the counters of the proxies, or None to leave them out (`-proxy-metrics`).
        runtime: whether to include the process (`-runtime-metrics`).
    """

    def __init__(self, traffic: Traffic | None, runtime: bool) -> None:
        self._registry = CollectorRegistry()
        if runtime:
            ProcessCollector(registry=self._registry)
            GCCollector(registry=self._registry)
            PlatformCollector(registry=self._registry)
        if traffic is not None:
            self._registry.register(traffic)

    def text(self) -> str:
        """All metrics: the process first, then the proxies."""
        return generate_latest(self._registry).decode()
