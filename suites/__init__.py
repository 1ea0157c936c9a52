"""The properties: a folder for each large family, a file for each situation.

The pytest plugin recognises a package of properties by `STEELYARD_SUITE`.
"""

STEELYARD_SUITE = True
