"""The properties, one file per family. The line below is what the pytest plugin knows a suite by."""

STEELYARD_SUITE = True
