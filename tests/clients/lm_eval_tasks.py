"""lm-eval: `local-completions` and `local-chat-completions` on small tasks, and the figures of its `hf` backend on the
same weights in float32.

Usage: python lm_eval_tasks.py http://127.0.0.1:8000 CHECKPOINT, of a server with --dtype float32
The environment has torch and transformers, too.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_DATASETS_OFFLINE"] = "1"

import httpx

FACTS = (
    ("The capital of France is", ("Paris", "Madrid", "Rome")),
    ("The capital of Italy is", ("Rome", "Paris", "London")),
    ("Water freezes at zero degrees", ("Celsius", "Fahrenheit", "of joy")),
    ("The opposite of hot is", ("cold", "warm", "blue")),
    ("A week has seven", ("days", "months", "years")),
    ("The sun rises in the", ("east", "west", "north")),
    ("Bees make", ("honey", "milk", "iron")),
    ("The largest ocean is the", ("Pacific", "Atlantic", "Arctic")),
    ("Two plus two is", ("four", "five", "eleven")),
    ("Cats are", ("animals", "plants", "minerals")),
    ("The Nile is a", ("river", "mountain", "city")),
    ("Shakespeare wrote", ("plays", "software", "laws")),
)
CHOICE = """\
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
WRITE = """\
task: tiny_write
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{choices[gold]}}}}"
generation_kwargs: {{until: ["\\n", "."], max_gen_toks: 12, do_sample: false, temperature: 0.0}}
metric_list: [{{metric: exact_match, ignore_case: true}}]
"""
ROLL = """\
task: tiny_roll
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}} {{{{choices[0]}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}]
"""
_CLOSE = 1e-3
"""Relative; the two sum in another order."""


def tasks(folder: Path) -> Any:
    """lm-eval's manager of the tasks, which are written into `folder`."""
    from lm_eval.tasks import TaskManager

    data = folder / "facts.jsonl"
    rows = [{"text": text, "choices": list(choices), "gold": 0} for text, choices in FACTS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("choice", CHOICE), ("write", WRITE), ("roll", ROLL)):
        (folder / f"{name}.yaml").write_text(text.format(data=data))
    return TaskManager(include_path=str(folder), include_defaults=False)


def figures(manager: Any, kind: str, settings: dict[str, Any], names: list[str], **more: Any) -> dict[str, Any]:
    import lm_eval

    found = lm_eval.simple_evaluate(kind, model_args=settings, tasks=names, task_manager=manager, **more)
    return {
        f"{task} {name}": value
        for task, values in found["results"].items()
        for name, value in values.items()
        if isinstance(value, float) and "stderr" not in name
    }


def main(url: str, checkpoint: str) -> None:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    names = ["tiny_choice", "tiny_write", "tiny_roll"]
    served = {"model": model, "base_url": f"{url}/v1/completions", "tokenizer": checkpoint, "num_concurrent": 4}
    with tempfile.TemporaryDirectory() as folder:
        manager = tasks(Path(folder))
        ours = figures(manager, "local-completions", served, names)
        theirs = figures(manager, "hf", {"pretrained": checkpoint, "dtype": "float32"}, names, device="cpu")
        assert ours.keys() == theirs.keys()
        assert ours
        for name, value in ours.items():
            print(f"{name}: {value:.6f}, hf {theirs[name]:.6f}")
            assert abs(value - theirs[name]) <= _CLOSE * abs(theirs[name]), name
        talking = {**served, "base_url": f"{url}/v1/chat/completions"}
        said = figures(manager, "local-chat-completions", talking, ["tiny_write"], apply_chat_template=True)
        print(said)


if __name__ == "__main__":
    main(*sys.argv[1:3])
