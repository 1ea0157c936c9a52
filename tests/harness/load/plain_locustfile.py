"""Locust as it is usually written: four users, each of whom waits for its answer; together 100 requests a second."""

from locust import FastHttpUser, constant_throughput, task


class Plain(FastHttpUser):
    """One of the four."""

    wait_time = constant_throughput(25)

    @task
    def ask(self) -> None:
        """One request."""
        self.client.post("/v1/completions", json={"prompt": "word"})
