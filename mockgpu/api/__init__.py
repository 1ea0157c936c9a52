"""Wire formats of the mock: OpenAI and KServe requests and answers, tags, metrics. Pure."""
