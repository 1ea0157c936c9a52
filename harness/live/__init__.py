"""Real time: processes, sockets, faults, load, calibration and the collection of evidence.

The only package that runs balancers. Every process it starts is reaped on success, failure, Ctrl-C and crash; nothing
listens on an address other than 127.0.0.1.
"""
