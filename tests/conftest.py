"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A slow moment of the machine is no fault of the code, and a test says the same of the same code each time.
settings.register_profile(
    "steelyard", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steelyard")
