"""Pictures of small simulated fleets."""
