"""Mock GPU model servers: HTTP servers that behave like inference servers, without any GPU.

``mockgpu.gpu.model`` is one GPU server without I/O, ``mockgpu.gpu.catalogue`` the sizes and speeds of real GPUs
and models, ``mockgpu.server.server`` the HTTP around one model, ``mockgpu.fleet.fleet`` many of them, and
``mockgpu.cli`` the command. The package needs nothing else of this repository.
"""
