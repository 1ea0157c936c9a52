"""Steelyard weighs load balancers. ARCHITECTURE.md maps this package."""
