"""Real time: processes, sockets, faults, load, calibration and the collection of evidence.

The only package that runs balancers. Everything it starts is reaped, on success, failure, Ctrl-C and crash; nothing
listens beyond 127.0.0.1.
"""
