"""Virtual time: one event heap, seeded randomness, no socket. Same scenario and seed, same history."""
