"""Junk against a running retriever: requests that schemathesis makes from its OpenAPI schema; ends with 1 if one gets a 500.

python scripts/studies/fuzz_retriever.py --requests 10000
"""

import re
import subprocess
import sys
from pathlib import Path

import requests
import tyro

ROOT = Path(__file__).resolve().parents[2]


def served(url: str) -> dict[str, int]:
    """Answers to /retrieve so far, by status."""
    text = requests.get(f"{url}/metrics", timeout=30).text
    return {
        status: int(count)
        for status, count in re.findall(r'retriever_requests_total\{status="(\d+)"\} (\d+)', text)
    }


def fuzz(url: str, wanted: int, seed: int) -> dict[str, int]:
    """Send at least ``wanted`` requests to /retrieve (and some to the other routes); returns its answers by status."""
    while sum(served(url).values()) < wanted:
        left = wanted - sum(served(url).values())
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"{url}/openapi.json",
            "--seed",
            str(seed),
            "--max-examples",
            str(max(50, left)),
            "--checks",
            "not_a_server_error,response_schema_conformance,status_code_conformance,content_type_conformance",
            "--mode",
            "all",
            "--phases",
            "examples,coverage,fuzzing",
            "--suppress-health-check",
            "all",
            "--generation-database",
            "none",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout, done.stderr)
            raise SystemExit(1)
        seed += 1
    return served(url)


def main(requests: int = 10_000, seed: int = 0) -> None:
    """Serve the mini corpus on a free port and send it malformed requests; the exit status is 1 if any gets status 500.

    Args:
        requests: number of requests to send.
        seed: seed of the random requests.
    """
    command = [sys.executable, "-u", "-m", "retriever", "serve", "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            url = ""
            for line in process.stdout or ():
                url = url or line.split()[2].rstrip(",")
                if line.startswith("ready"):
                    break
            statuses = fuzz(url, requests, seed)
        finally:
            process.terminate()
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    print(f"{sum(statuses.values())} requests to /retrieve: {answers}")
    if statuses.get("500"):
        raise SystemExit(1)


if __name__ == "__main__":
    tyro.cli(main)
