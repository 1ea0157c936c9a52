"""Loads that have a name, and loads read from trace files. Pure."""
