"""The reference balancer: pure state machines without clock or sockets. ARCHITECTURE.md lists the drivers."""
