"""Programs of `headrace.lang` on an engine in this process: the same tokens as the same requests one by one."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from engine_harness import PROGRAM_OPTIONS as OPTIONS

from headrace import LLM, AsyncLLM, SamplingParams
from headrace import lang as hl
from headrace.cli.main import main
from headrace.errors import InvalidRequest


@hl.program
def branches(s: hl.State, question: str) -> Any:
    s.text(question)
    with s.fork(3) as branch:
        branch.text(branch.index, ":")
        branch.gen("said", max_tokens=6, ignore_eos=True)
    return branch["said"]


@hl.program
def pick(s: hl.State, method: hl.Static[str] = "greedy") -> None:
    s.text("Hello ", hl.select("word", ["world", "there", "you"], method=method), "!")
    s.gen("rest", max_tokens=4, temperature=0, ignore_eos=True, logprobs=1)


def test_branches_are_the_separate_requests(llm: LLM) -> None:
    found = llm.run(branches, "Tell me", seed=5)
    again = branches.run("Tell me", on=llm, seed=5)
    assert found.outputs == again.outputs
    assert llm.run(branches, "Tell me", seed=6).outputs != found.outputs
    greedy = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0)
    wanted = [one.outputs[0].text for one in llm.generate([f"Tell me{i}:" for i in range(3)], greedy)]

    @hl.program
    def cold(s: hl.State) -> Any:
        s.text("Tell me")
        with s.fork(3) as branch:
            branch.text(branch.index, ":")
            branch.gen("said", max_tokens=6, ignore_eos=True, temperature=0)
        return branch["said"]

    assert llm.run(cold)["result"] == wanted


@pytest.mark.parametrize("method", ["greedy", "mean", "sum", "unconditional"])
def test_select_scores_the_choices_tokens(llm: LLM, method: str) -> None:
    found = llm.run(pick, method)
    assert found["word"] in ("world", "there", "you")
    assert len(found.nodes[1].logprobs) == 4
    scores = found.nodes[0].scores
    assert scores is not None
    if method == "sum":
        prefix, choice = llm.tokenizer.encode("Hello "), llm.tokenizer.encode("there", add_special_tokens=False)
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        (scored,) = llm.generate([[*prefix, *choice]], params)
        total = sum(entry.logprob or 0 for entry in (scored.prompt_logprobs or [])[len(prefix) :])
        assert scores["there"] == pytest.approx(total)
        assert found["word"] == max(scores, key=lambda name: scores[name])


def test_constraints_and_batches(llm: LLM) -> None:
    @hl.program
    def number(s: hl.State, n: int) -> None:
        s.text(n, " is ")
        s.gen("n", type=int, max_tokens=30)
        s.gen("word", choices=["yes", "no"])

    found = number.run_batch([{"n": n} for n in range(5)], on=llm, seed=1)
    assert all(one.error is None and isinstance(one["n"], int) and one["word"] in ("yes", "no") for one in found)


def test_an_error_of_the_engine_names_the_line(llm: LLM) -> None:
    @hl.program
    def long(s: hl.State) -> None:
        s.text("x")
        s.gen("a", max_tokens=10**6)

    with pytest.raises(InvalidRequest, match=r"test_engine_programs\.py:\d+: gen 'a': .*context"):
        llm.run(long)


def test_streams_and_cancelled_runs_in_an_event_loop(tiny_llama: Path) -> None:
    async def run() -> None:
        llm = AsyncLLM(str(tiny_llama), **OPTIONS)
        await llm.start()
        try:
            texts: dict[tuple[int, ...], str] = {}
            async for event in branches.astream("Tell me", on=llm, seed=5):
                if event.kind == "text":
                    texts[event.path] = texts.get(event.path, "") + event.text
            assert event.result is not None
            assert [texts[(index,)] for index in range(3)] == event.result["result"]
            async with aclosing(branches.astream("Tell me", on=llm)) as events:  # type: ignore[type-var]
                await anext(events)
            while (stats := (await llm.stats()).scheduler).running or stats.waiting:
                await asyncio.sleep(0)
        finally:
            await llm.close()

    asyncio.run(run())


def test_the_checkpoints_sampling_holds_where_none_is_stated(tiny_llama: Path, tmp_path: Path) -> None:
    """In programs as over HTTP: for each parameter that a generation leaves out."""
    model = tmp_path / "recommends"
    shutil.copytree(tiny_llama, model)
    (model / "generation_config.json").write_text('{"top_k": 1, "max_length": 5}')

    @hl.program
    def two(s: hl.State) -> None:
        s.text("Hello")
        s.gen("recommended", max_tokens=6, ignore_eos=True)
        s.gen("stated", max_tokens=6, top_k=0, temperature=3.0, seed=5, ignore_eos=True)

    with LLM(str(model), **OPTIONS) as llm:
        found = llm.run(two, seed=3)
        greedy, warm = (SamplingParams(max_tokens=6, ignore_eos=True, top_k=k, temperature=3.0, seed=5) for k in (1, 0))
        (first,) = llm.generate("Hello", greedy)
        (second,) = llm.generate([*first.prompt_token_ids, *first.outputs[0].token_ids], warm)
        assert (found["recommended"], found["stated"]) == (first.outputs[0].text, second.outputs[0].text)


def test_the_command_line_streams_a_program_on_a_model_here(
    tiny_llama: Path, tmp_path: Path, llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "two.py"
    file.write_text(
        "from headrace import lang as hl\n@hl.program\ndef two(s, word: str):\n    s.text(word)\n"
        "    s.gen('a', max_tokens=4, ignore_eos=True)\n    s.gen('b', max_tokens=4, ignore_eos=True)\n"
    )
    options = ["--platform", "cpu", "--threads", "1", "--num-blocks", "100", "--max-num-seqs", "8"]
    given = ["program", "run", str(file), "word=Hello", "--seed", "3", "--model", str(tiny_llama), *options]
    assert main(given) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main([*given, "--stream"]) == 0
    streamed = capsys.readouterr()
    assert json.loads(streamed.out) == whole
    assert f"a: {whole['a']}" in streamed.err
    assert f"b: {whole['b']}" in streamed.err
