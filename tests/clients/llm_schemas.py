"""llm: a schema on a model of an OpenAI-compatible server, as extra-openai-models.yaml declares it.

Usage: python llm_schemas.py http://127.0.0.1:8000
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path


def main(url: str) -> None:
    import httpx

    name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LLM_USER_PATH"] = folder
        lines = ["- model_id: served", f"  model_name: {name}", f"  api_base: {url}/v1", "  supports_schema: true"]
        Path(folder, "extra-openai-models.yaml").write_text("\n".join(lines))
        # Late: it reads its folder when it is imported.
        import llm

        model = llm.get_model("served")
        model.key = "none"
        schema = {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
        answer = model.prompt("Ada is 36 years old.", schema=schema, temperature=0, max_tokens=100, stream=False)
        found = json.loads(answer.text())
        assert set(found) == {"name", "age"}
        print(found)


if __name__ == "__main__":
    main(sys.argv[1])
