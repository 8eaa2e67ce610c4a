"""Users for the load tool Locust: locust --headless --users 32 --spawn-rate 32 --run-time 30s --locustfile load_users.py --host http://127.0.0.1:8080

Chats, streams and embeddings as fast as the server answers; a request that fails makes Locust exit with 1. Streams count as failed without [DONE].
"""
import random

import locust


class User(locust.FastHttpUser):
    wait_time = locust.constant(0)

    def body(self, **more):
        words = " ".join(random.choice("stone river bird ship cloud tree".split()) for _ in range(random.randrange(1, 60)))
        return {"model": "any", "messages": [{"role": "user", "content": words}], "max_tokens": random.randrange(1, 32), **more}

    @locust.task(3)
    def chat(self):
        with self.client.post("/v1/chat/completions", json=self.body(), catch_response=True) as reply:
            if reply.status_code != 200 or not reply.json()["choices"][0]["finish_reason"]:
                reply.failure(f"{reply.status_code} {reply.text[:200]}")

    @locust.task(3)
    def stream(self):
        with self.client.post("/v1/chat/completions", json=self.body(stream=True), catch_response=True, name="/v1/chat/completions streamed") as reply:
            if reply.status_code != 200 or not reply.text.rstrip().endswith("data: [DONE]"):
                reply.failure(f"{reply.status_code} {reply.text[-200:]}")

    @locust.task(1)
    def embeddings(self):
        self.client.post("/v1/embeddings", json={"model": "any", "input": "one two three"})
