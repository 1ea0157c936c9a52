"""Evidence of a run: the history, its binary records, and its time series."""
