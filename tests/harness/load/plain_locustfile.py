"""A usual locustfile, a closed loop: four users, each waiting for its answer, together send 100 requests per second."""

from locust import FastHttpUser, constant_throughput, task


class Plain(FastHttpUser):
    """One of the four."""

    wait_time = constant_throughput(25)

    @task
    def ask(self) -> None:
        """One request."""
        self.client.post("/v1/completions", json={"prompt": "word"})
