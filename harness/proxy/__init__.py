"""The HTTP server around a gateway: client connections, upstream connections, admin interface, metrics."""
