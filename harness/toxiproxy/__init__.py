"""Embedded fault proxy: a server that speaks Toxiproxy's control API, and a client for it or the real one.

Run it with `steelyard toxiproxy`, or as a child with `python -m harness.toxiproxy`. Names, wire names, error texts
and timing are those of Toxiproxy 2.12, so a run may use either server. The differences are deliberate:

- Nothing listens beyond loopback unless a particular address is named: an empty host, `0.0.0.0` and `::` mean
  127.0.0.1.
- Values that crash Toxiproxy are refused with 400: a slicer without a positive average_size or with a
  size_variation above it, a negative bandwidth rate.
- Each dial to an upstream stands alone: one that hangs holds up neither other connections nor disable and delete.
- No call waits for a peer: adding, updating and removing a toxic returns at once even if nobody reads. What a
  removed toxic held is kept and written when the reader comes back. A reset_peer in its wait is cut short.
- The delays of chained latency toxics add up.
- No `Logger` key. Texts of 400s and 500s differ in detail. A seed works. The runtime metrics are not those of Go.
- A port or configuration that will not do ends the process with one line and exit code 2.
- A request may be 1 MiB of body; the whole of it is read before anything is looked up.
- `GET` and `DELETE /connections` are an extension (see `harness.toxiproxy.api`).

This package imports nothing of harness outside itself.
"""
