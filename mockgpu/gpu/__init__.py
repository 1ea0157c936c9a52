"""The GPU server as a pure model: admission, batching, memory, KV cache. Time is an argument."""
