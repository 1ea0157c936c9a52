"""Mock GPU model servers: HTTP servers that behave like inference servers, without a GPU.

``mockgpu.gpu.model`` is the model of one GPU server without I/O, ``mockgpu.gpu.catalogue`` has sizes and speeds of
real GPUs and models, ``mockgpu.server.server`` is the HTTP server around one model, ``mockgpu.fleet.fleet`` runs a
fleet of them, and ``mockgpu.cli`` is the command. The package imports nothing else of this repository.
"""
