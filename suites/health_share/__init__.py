"""Traffic shares that follow backend health."""
