"""A server of Weights & Biases on this machine, which can be down.

It has the part of the API that wandb-core 0.31 needs to create, resume and finish a
run, and keeps the rows of one run.
"""

import gzip
import http.server
import json
import threading
from typing import Any


class Server:
    """The rows of a run.

    Attributes:
      url: the value of WANDB_BASE_URL.
      rows: the history of the run.
      is_down: whether each request is answered with status 503.
    """

    def __init__(self):
        self.rows: list[dict[str, Any]] = []
        self.is_down = False
        self.exists = False
        server = self

        class Handler(_Handler):
            def __init__(self, *args):
                self.fake = server
                super().__init__(*args)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def query(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Answers a GraphQL query."""
        project = {"id": "p", "name": "bert_jax", "entity": {"id": "e", "name": "me"}}
        bucket: dict[str, Any] = {"id": "b", "name": variables.get("name")}
        bucket |= {"displayName": "run", "config": "{}", "project": project}
        bucket |= {"historyLineCount": len(self.rows)}
        if name == "UpsertBucket":
            self.exists = True
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if name == "RunResumeStatus":
            last = [json.dumps(row) for row in self.rows[-1:]]
            bucket |= {"logLineCount": 0, "eventsLineCount": 0, "eventsTail": "[]"}
            bucket |= {"historyTail": json.dumps(last), "wandbConfig": '{"t": {}}'}
            bucket |= {"summaryMetrics": last[0] if last else "{}"}
            model = project | {"bucket": bucket if self.exists else None}
            return {"data": {"model": model}}
        return {"errors": [{"message": f"{name} is unknown"}]}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: Server

    def log_message(self, format, *args):
        pass

    def _answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer: dict[str, Any] = {}
        if self.fake.is_down:
            pass
        elif self.path == "/graphql":
            query = json.loads(body)
            answer = self.fake.query(query["operationName"], query["variables"] or {})
        elif self.path.endswith("/file_stream"):
            history = (json.loads(body).get("files") or {}).get("wandb-history.jsonl")
            if history:
                rows = [json.loads(row) for row in history["content"]]
                self.fake.rows[history["offset"] :] = rows
        content = json.dumps(answer).encode()
        self.send_response(503 if self.fake.is_down else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = _answer
