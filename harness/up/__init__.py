"""`steelyard up`: a running environment with a control API, statistics, and a live view."""
