"""Mock GPU model servers: HTTP servers that behave like inference servers, without any GPU.

``mockgpu.model`` is one GPU server without I/O, ``mockgpu.catalogue`` the sizes and speeds of real GPUs
and models, ``mockgpu.server`` the HTTP around one model, ``mockgpu.fleet`` many of them, and
``mockgpu.cli`` the command. The package needs nothing else of this repository.
"""
