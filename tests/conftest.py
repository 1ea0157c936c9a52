"""What holds for all tests."""

from hypothesis import settings

settings.register_profile("steelyard", deadline=None)  # a slow moment of the machine is no fault of the code
settings.load_profile("steelyard")
