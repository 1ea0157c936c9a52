"""Pure model of a GPU server: admission, batching, memory and KV cache. Time is an argument."""
