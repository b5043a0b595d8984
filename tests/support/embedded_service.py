"""Search service over HTTP that answers as the embedded searcher does, and fails where a test says so."""

from __future__ import annotations

import json
from collections.abc import Sequence

from loopback import QuietHandler

from tstar_envs.envs.search_qa.search import EmbeddedSearcher
from tstar_envs.envs.search_qa.tasks import MINI_FOLDER

EMBEDDED = EmbeddedSearcher(MINI_FOLDER / "corpus.jsonl.gz")


class EmbeddedHandler(QuietHandler):
    """Answers POSTs of the wire contract; 503 to requests for which ``busy`` says so."""

    protocol_version = "HTTP/1.1"

    def busy(self, queries: Sequence[str]) -> bool:
        """Decide about one request; called once for each."""
        return False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rows = EMBEDDED.search(body["queries"], body["topk"])
        hits = [
            [{"document": {"id": p.id, "contents": f'"{p.title}"\n{p.text}'}, "score": 1.0} for p in row]
            for row in rows
        ]
        busy = self.busy(body["queries"])
        status, content = (503, {"detail": "full"}) if busy else (200, {"result": hits})
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Retry-After", "30")
        self.end_headers()
        self.wfile.write(text)
