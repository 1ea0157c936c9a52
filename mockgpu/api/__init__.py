"""Wire formats of the mock, without I/O: OpenAI and KServe requests and responses, tags, metrics."""
