"""guidellm: a benchmark with two streams, without an error.

Usage: python guidellm_run.py http://127.0.0.1:8000 CHECKPOINT
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

_REQUESTS = 6


def main(url: str, checkpoint: str) -> None:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    command = [str(Path(sys.executable).with_name("guidellm")), "run"]
    command += ["--backend", f"kind=openai_http,target={url},model={model}"]
    command += ["--tokenizer", f"kind=hf_auto,model={checkpoint}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=8"]
    command += ["--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={_REQUESTS}"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--output", f"kind=json,path={folder}/report.json"],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        (report,) = Path(folder).glob("*.json")
        found = json.loads(report.read_text())
    totals = found["benchmarks"][0]["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (_REQUESTS, 0), totals
    print(totals)


if __name__ == "__main__":
    main(*sys.argv[1:3])
