"""Embedded fault proxy: a server that speaks Toxiproxy's control API, and a client for it or the real one.

Run it with `steelyard toxiproxy`, or as a child with `python -m harness.toxiproxy`. Names, wire names, error texts
and timing are those of Toxiproxy 2.12, so a run may use either server. Deliberate differences:

- Nothing listens beyond loopback unless a particular address is named: an empty host, `0.0.0.0` and `::` mean
  127.0.0.1.
- Values that crash Toxiproxy are refused with 400: a slicer without a positive average_size or with a
  size_variation above it, a negative bandwidth rate.
- Dials to an upstream are independent: a hanging one delays neither other connections nor disable and delete.
- No call waits for a peer: adding, updating and removing a toxic returns at once even if the peer does not read. Data
  held by a removed toxic is kept and written once the peer reads. Removing a waiting reset_peer ends its wait.
- The delays of chained latency toxics add up.
- No `Logger` key. Texts of 400s and 500s differ in detail. A seed is honoured. Runtime metrics are not those of Go.
- An unusable port or configuration ends the process with one line and exit code 2.
- A request body may have 1 MiB; it is read completely before any lookup.
- `GET` and `DELETE /connections` are an extension (see `harness.toxiproxy.api`).

This package imports nothing of harness outside itself.
"""
