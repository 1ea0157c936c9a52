"""Tests of Steelyard; tests/mutants holds the balancers with planted faults."""
