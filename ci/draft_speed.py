#!/usr/bin/env python3
"""Speed of a model with a draft model or a head beside the same without: one stream, request by request in turn.

    python ci/draft_speed.py --model smollm2 --keep 20                 # a GGUF without some of its own layers drafts
    python ci/draft_speed.py --model smollm2-f32/ --draft smollm2      # another checkpoint drafts
    python ci/draft_speed.py --speculate eagle3:head/                  # a trained head drafts
    python ci/draft_speed.py --speculate eagle3:head/ --answers head/training/answers.jsonl   # for held-out prompts
    python ci/draft_speed.py --speculate eagle3:head/ --draft-quantization none int8   # in two precisions

`--keep N` writes the model with N of its layers to a temporary folder: the first half and the last half of them. All
engines live in this process, and each request is answered by one after the other, so that a machine whose speed
changes does not decide. Printed are the ratio of tokens per second (medians over requests), the share of drafts that
were accepted, and whether every answer was the same.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from headrace import LLM, SamplingParams
from headrace.bench.tasks import TASKS, task_prompt
from headrace.hub.catalogue import resolve_model
from headrace.training.answers import load_answers


def truncated(path: Path, keep: int, folder: Path) -> Path:
    """A GGUF with `keep` of its layers."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(path)
    architecture = str(reader.fields["general.architecture"].contents())
    count = int(reader.fields[f"{architecture}.block_count"].contents())
    kept = [at for at in range(count) if at < keep - keep // 2 or at >= count - keep // 2]
    target = folder / f"{path.stem}-{keep}-layers.gguf"
    writer = GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = keep if name.endswith(".block_count") else field.contents()
        kind = field.types[0]
        writer.add_key_value(name, value, kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if int(parts[1]) not in kept:
                continue
            parts[1] = str(kept.index(int(parts[1])))
        writer.add_tensor(".".join(parts), tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft", help="a name or a path")
    parser.add_argument("--speculate", help="another method with its checkpoint, such as eagle3:DIRECTORY")
    parser.add_argument("--keep", type=int, help="layers of the model's own GGUF")
    parser.add_argument("--task", choices=sorted(TASKS), nargs="+", default=["chat", "code"])
    parser.add_argument("--answers", type=Path, help="of a training: what it held out, in place of tasks")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--platform")
    parser.add_argument("--draft-quantization", nargs="+", default=["auto"], help="an engine with drafts for each")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        method = args.speculate
        if method is None:
            method = f"draft:{args.draft or truncated(resolve_model(args.model), args.keep, Path(folder))}"
        options = {"platform": args.platform, "kv_memory": "1GiB", "max_num_seqs": 16}
        with ExitStack() as stack:
            plain = stack.enter_context(LLM(args.model, **options))
            drafted = {
                kind: stack.enter_context(LLM(args.model, speculate=method, draft_quantization=kind, **options))
                for kind in args.draft_quantization
            }
            for task in ["held out"] if args.answers else args.task:
                for temperature in args.temperature:
                    compare(args, task, temperature, plain, drafted)


def compare(args: argparse.Namespace, task: str, temperature: float, plain: LLM, drafted: dict[str, LLM]) -> None:
    rng, same, engines = random.Random(5), True, [plain, *drafted.values()]
    before = {kind: counts_of(llm) for kind, llm in drafted.items()}
    speeds: dict[LLM, list[float]] = {llm: [] for llm in engines}
    held_out = [one.prompt for one in load_answers(args.answers) if one.held_out] if args.answers else []
    for number in range(args.requests + 1):
        encode = lambda text: plain.tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
        prompts = (
            rng.sample(held_out, args.batch)
            if args.answers
            else [list(task_prompt(TASKS[task], args.prompt, encode, rng)) for _ in range(args.batch)]
        )
        params = SamplingParams(
            max_tokens=args.tokens, temperature=temperature, seed=number, ignore_eos=not args.answers
        )
        answers = []
        for llm in engines if number % 2 else engines[::-1]:
            start = time.perf_counter()
            answers.append([one.outputs[0].token_ids for one in llm.generate(prompts, params, progress=False)])
            speeds[llm].append(sum(map(len, answers[-1])) / (time.perf_counter() - start))
        same = same and all(one == answers[0] for one in answers)
    for kind, llm in drafted.items():
        drafts, accepted, rounds = (now - then for now, then in zip(counts_of(llm), before[kind], strict=True))
        ratios = [own / other for own, other in zip(speeds[llm], speeds[plain], strict=True)]
        print(
            f"{task} T={temperature:g} batch {args.batch}, {kind}: {statistics.median(speeds[plain][1:]):.0f} -> "
            f"{statistics.median(speeds[llm][1:]):.0f} tok/s, ratio {statistics.median(ratios[1:]):.2f} · "
            f"{accepted} of {drafts} drafts accepted in {rounds} rounds ({accepted / max(1, drafts):.0%}) · "
            f"{'same' if same else 'OTHER'} answers",
            flush=True,
        )


def counts_of(llm: LLM) -> tuple[int, int, int]:
    """Drafts, accepted ones and rounds since the start."""
    methods = llm.stats().speculation.methods
    return (sum(methods[-1].drafted), sum(methods[-1].accepted), methods[-1].rounds) if methods else (0, 0, 0)


if __name__ == "__main__":
    main()
