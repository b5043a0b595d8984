"""Baseline server of the benchmark: the same stack and index, one search per request.

Like Search-R1's server it has a synchronous endpoint, which FastAPI runs in its pool of 40 threads. It has no queue,
batching or cache.
"""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

from retriever.app import RetrieveRequest
from retriever.storage import load_index


def main(folder: str, port: str, threads: str) -> None:
    """Serve an index folder on a loopback port."""
    index = load_index(folder, int(threads))
    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(request: RetrieveRequest) -> dict[str, Any]:
        hits = index.search(request.texts(), request.clamped_topk(3, index.ntotal))
        return {
            "result": [
                [
                    {
                        "document": {"id": hit.document.id, "contents": hit.document.contents},
                        "score": hit.score,
                    }
                    for hit in row
                ]
                for row in hits
            ]
        }

    @app.get("/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    uvicorn.run(app, port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
