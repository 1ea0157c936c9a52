"""What a run left behind: the history, its binary records, and its time series."""
