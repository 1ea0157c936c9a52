"""The toxics, one class each, with Toxiproxy 2.12's behaviour unless the class says otherwise.

Attributes keep the API's names and units: milliseconds for latency, jitter, delay and timeout (slicer's
delay: microseconds), kilobytes per second for rate, bytes for the sizes.
"""

from __future__ import annotations

from collections import deque

from harness.toxiproxy.connection_log import CloseCause
from harness.toxiproxy.stage import Chunk, ToxicLink

MAX_CARRIED_DELAY_S = 0.1


class NoopToxic(ToxicLink):
    """Passes all data on."""


class LatencyToxic(ToxicLink):
    """Delays each chunk by `latency` ms, plus a random whole number of ms in [-jitter, jitter - 1].

    Order is kept: a chunk never overtakes an earlier one. Connects, and an end without queued data, are not delayed.
    Two of them in a chain add up (Toxiproxy delays queued chunks too little in the second).
    """

    attribute_names = ("latency", "jitter")
    capacity_chunks = 1024

    def start(self, now_s: float) -> None:
        self.send_at_s: float | None = None

    def work(self, now_s: float) -> None:
        while self.inbox and self.output.has_room():
            if self.send_at_s is None:
                self.send_at_s = self.inbox[0].stamp_s + self._draw_delay_ms() / 1000
            if now_s < self.send_at_s:
                self.wake_s = self.send_at_s
                return
            self.send_at_s = None
            self.emit(self.inbox.popleft().data, now_s)
        self.finish_with_source()

    def release(self, now_s: float) -> None:
        if self.inbox:
            self.emit(self.inbox.popleft().data, now_s)

    def _draw_delay_ms(self) -> int:
        latency_ms, jitter_ms = self.toxic.attributes["latency"], self.toxic.attributes["jitter"]
        return latency_ms + (self.random.randrange(-jitter_ms, jitter_ms) if jitter_ms > 0 else 0)


class BandwidthToxic(ToxicLink):
    """Limits a link to `rate` KB/s (1000 bytes) by holding each chunk before it passes.

    Chunks longer than 100 ms are cut into pieces of 100 ms. Idle time gives no credit. At rate 0 all data stalls, and
    the source's end is not noticed. A negative rate is refused: it crashes Toxiproxy.
    """

    attribute_names = ("rate",)

    @classmethod
    def refusal(cls, attributes: dict[str, int]) -> str | None:
        return "rate must not be negative" if attributes["rate"] < 0 else None

    def start(self, now_s: float) -> None:
        self.last_sent_s = now_s
        self.carried_delay_s = 0.0

    def work(self, now_s: float) -> None:
        rate = self.toxic.attributes["rate"]
        while self.inbox:
            if rate == 0:
                return
            data, stamp_s = self.inbox[0]
            piece_bytes = min(len(data), rate * 100)
            # Timers fire a little late; the delay is carried over to the next piece, so the link is not slowed down.
            send_at_s = max(stamp_s, self.last_sent_s) - self.carried_delay_s + piece_bytes / (rate * 1000)
            if now_s < send_at_s:
                self.wake_s = send_at_s
                return
            if not self.output.has_room():
                return
            self.carried_delay_s = min(now_s - send_at_s, MAX_CARRIED_DELAY_S)
            self.last_sent_s = now_s
            self.inbox.popleft()
            self.emit(data[:piece_bytes], now_s)
            if piece_bytes < len(data):
                self.inbox.appendleft(Chunk(data[piece_bytes:], stamp_s))
        self.finish_with_source()

    def release(self, now_s: float) -> None:
        if self.inbox:
            self.emit(self.inbox.popleft().data, now_s)


class SlowCloseToxic(ToxicLink):
    """Passes data on, and the end `delay` ms late. An update during the delay restarts it with the new value."""

    attribute_names = ("delay",)

    def start(self, now_s: float) -> None:
        self.close_at_s: float | None = None

    def work(self, now_s: float) -> None:
        self.pass_data()
        if self.inbox or self.end_cause is None:
            return
        if self.close_at_s is None:
            self.close_at_s = now_s + self.toxic.attributes["delay"] / 1000
        if now_s < self.close_at_s:
            self.wake_s = self.close_at_s
        else:
            self.finish(self.end_cause)


class TimeoutToxic(ToxicLink):
    """Drops all data; closes the destination after `timeout` ms without data (0 or less: never).

    Each dropped chunk restarts the timeout, which also runs on idle connections. The source's end passes at once.
    Removing the toxic ends every link of its direction, even those to which it did not apply by its toxicity.
    """

    attribute_names = ("timeout",)

    def start(self, now_s: float) -> None:
        self.idle_since_s = now_s

    def work(self, now_s: float) -> None:
        if self.end_cause is not None:
            self.finish(self.end_cause)
            return
        if self.inbox:
            self.idle_since_s = self.inbox[-1].stamp_s
            self.inbox.clear()
        timeout_ms = self.toxic.attributes["timeout"]
        if timeout_ms <= 0:
            return
        close_at_s = self.idle_since_s + timeout_ms / 1000
        if now_s < close_at_s:
            self.wake_s = close_at_s
        else:
            self.finish(CloseCause.TOXIC)

    def remove(self, now_s: float) -> None:
        if not self.ended:
            self.finish(CloseCause.TOXIC)


class ResetPeerToxic(ToxicLink):
    """On the first chunk or end: drops it, waits `timeout` ms, then closes both sides. Idle links stay open.

    The peers see a reset only if the toxic existed when the connection was opened (`ProxiedConnection` then sets
    linger 0); otherwise an ordinary end. An update does not change a wait in progress; a removal ends it and closes at
    once (Toxiproxy makes the call wait instead).
    """

    attribute_names = ("timeout",)
    reset_at_s: float | None = None

    def work(self, now_s: float) -> None:
        if self.reset_at_s is None:
            if not self.inbox and self.end_cause is None:
                return
            # The chunks stay in the inbox, so the source is not read during the wait.
            self.reset_at_s = now_s + self.toxic.attributes["timeout"] / 1000
        if now_s < self.reset_at_s:
            self.wake_s = self.reset_at_s
        else:
            self.finish(CloseCause.RESET)

    def interrupt(self, now_s: float) -> None:
        if self.reset_at_s is None:
            super().interrupt(now_s)

    def remove(self, now_s: float) -> None:
        if self.reset_at_s is None:
            super().remove(now_s)
        elif not self.ended:
            self.finish(CloseCause.RESET)


class SlicerToxic(ToxicLink):
    """Cuts each chunk into pieces of `average_size` ± `size_variation` bytes.

    After each piece, including the last, it waits `delay` microseconds. Values that crash Toxiproxy are refused: an
    average that is not positive, or a variation larger than the average.
    """

    attribute_names = ("average_size", "size_variation", "delay")

    @classmethod
    def refusal(cls, attributes: dict[str, int]) -> str | None:
        if attributes["average_size"] <= 0:
            return "average_size must be positive"
        if attributes["size_variation"] > attributes["average_size"]:
            return "size_variation must not be larger than average_size"
        return None

    def start(self, now_s: float) -> None:
        self.pieces: deque[bytes] = deque()
        self.next_piece_at_s = now_s

    def work(self, now_s: float) -> None:
        while self.pieces or self.inbox:
            if now_s < self.next_piece_at_s:
                self.wake_s = self.next_piece_at_s
                return
            if not self.output.has_room():
                return
            if not self.pieces:
                self._slice(self.inbox.popleft().data)
            self.emit(self.pieces.popleft(), now_s)
            self.next_piece_at_s = now_s + self.toxic.attributes["delay"] / 1_000_000
        if now_s < self.next_piece_at_s and self.end_cause is not None:
            self.wake_s = self.next_piece_at_s
        else:
            self.finish_with_source()

    def release(self, now_s: float) -> None:
        if self.pieces:
            self.emit(b"".join(self.pieces), now_s)

    def _slice(self, data: bytes) -> None:
        """Halve `data`, near the middle, until each piece is within the variation of the average."""
        average_bytes, variation_bytes = (
            self.toxic.attributes["average_size"],
            self.toxic.attributes["size_variation"],
        )
        limit_bytes = max(1, average_bytes + variation_bytes)
        remaining = [data]
        while remaining:
            piece = remaining.pop()
            if len(piece) <= limit_bytes:
                self.pieces.append(piece)
                continue
            middle = len(piece) // 2
            if variation_bytes > 0:
                middle += self.random.randrange(-variation_bytes, variation_bytes)
            middle = min(max(middle, 1), len(piece) - 1)
            remaining += [piece[middle:], piece[:middle]]


class LimitDataToxic(ToxicLink):
    """Closes the destination once exactly `bytes` bytes have passed on this link.

    The count survives updates. With 0 the first chunk closes it. A limit lowered below the count applies at the next
    chunk. Bytes that passed while the toxic did not apply to the link do not count.
    """

    attribute_names = ("bytes",)
    passed_bytes: int = 0

    def work(self, now_s: float) -> None:
        while self.inbox and self.output.has_room():
            data, stamp_s = self.inbox.popleft()
            allowed = data[: max(0, self.toxic.attributes["bytes"] - self.passed_bytes)]
            if allowed:
                self.emit(allowed, stamp_s)
                self.passed_bytes += len(allowed)
            if self.passed_bytes >= self.toxic.attributes["bytes"]:
                self.finish(CloseCause.TOXIC)
                return
        self.finish_with_source()


TOXIC_TYPES: dict[str, type[ToxicLink]] = {
    "noop": NoopToxic,
    "latency": LatencyToxic,
    "bandwidth": BandwidthToxic,
    "slow_close": SlowCloseToxic,
    "timeout": TimeoutToxic,
    "reset_peer": ResetPeerToxic,
    "slicer": SlicerToxic,
    "limit_data": LimitDataToxic,
}
