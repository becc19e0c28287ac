"""`LLM` and `AsyncLLM`: the engine from plain Python."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from engine_forks import forks
from pydantic import BaseModel, ConfigDict

import headrace
from headrace import LLM, AsyncLLM, SamplingParams, StructuredOutputs
from headrace.client.api import EngineClient, GenerateRequest, Usage
from headrace.errors import ConfigError, ContextOverflow, EngineDead, InvalidRequest, ModelNotFound, UserError
from headrace.tokenization.chat_inputs import ChatInputs

OPTIONS: dict[str, Any] = {"platform": "cpu", "threads": 1, "num_blocks": 100, "max_num_seqs": 8}
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), **OPTIONS) as llm:
        yield llm


def test_a_text_and_its_ids_are_one_prompt(llm: LLM) -> None:
    (by_text,) = llm.generate("Hello", GREEDY)
    ids = llm.tokenizer.encode("Hello")
    (by_ids,) = llm.generate(ids, GREEDY)
    (nested,) = llm.generate([ids], GREEDY)
    assert by_text.prompt == "Hello"
    assert by_ids.prompt is None
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == ids
    assert by_text.outputs == by_ids.outputs == nested.outputs
    assert len(by_text.outputs[0].token_ids) == 6
    assert by_text.outputs[0].text == llm.tokenizer.decode(by_text.outputs[0].token_ids)
    assert by_text.usage == Usage(len(ids), 6, by_text.usage.cached_tokens if by_text.usage else -1)


def test_answers_come_in_the_prompts_order_each_with_its_parameters(llm: LLM) -> None:
    prompts = [f"prompt {i}" for i in range(20)]
    params = [SamplingParams(max_tokens=1 + i % 5, temperature=0.0, ignore_eos=True) for i in range(20)]
    found = llm.generate(prompts, params)
    assert [one.prompt for one in found] == prompts
    assert [len(one.outputs[0].token_ids) for one in found] == [1 + i % 5 for i in range(20)]
    assert found[7].outputs == llm.generate(prompts[7], params[7])[0].outputs


def test_without_parameters_the_checkpoint_says_how_to_sample(tiny_llama: Path, tmp_path: Path) -> None:
    model = tmp_path / "recommends"
    shutil.copytree(tiny_llama, model)
    (model / "generation_config.json").write_text('{"top_k": 1}')
    talk = [{"role": "user", "content": "Hello"}]
    with LLM(str(model), **OPTIONS) as recommends:
        assert recommends.info.sampling_defaults == {"top_k": 1}
        ids = [one.outputs[0].token_ids for one in recommends.generate(["Hello", "Well"])]
        greedy = recommends.generate(["Hello", "Well"], SamplingParams(temperature=0.0))
        assert ids == [one.outputs[0].token_ids for one in greedy]
        (said,), (same,) = recommends.chat(talk), recommends.chat(talk, SamplingParams(temperature=0.0, max_tokens=20))
        assert said.outputs[0].token_ids[:20] == same.outputs[0].token_ids
        stated = SamplingParams(max_tokens=12, temperature=3.0, seed=1, ignore_eos=True)
        assert recommends.generate("Hello", stated)[0].outputs[0].token_ids[:8] != ids[0][:8]


def test_choices_and_logprobs(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, n=3, seed=1, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (found,) = llm.generate("Hello", params)
    assert [choice.index for choice in found.outputs] == [0, 1, 2]
    assert all(len(choice.logprobs or []) == 4 for choice in found.outputs)
    assert [entry.logprob is None for entry in found.prompt_logprobs or []] == [True, False, False, False, False]
    assert found.usage is not None
    assert found.usage.completion_tokens == 12


def test_predictions_change_nothing_but_the_speed(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    plain = llm.generate(["Hello", "Bye"], params)
    ids = [one.outputs[0].token_ids for one in plain]
    for predictions in ("some text", [ids[0], None], ids):
        found = llm.generate(["Hello", "Bye"], params, predictions=predictions)
        assert [one.outputs for one in found] == [one.outputs for one in plain]
    none = llm.generate(["Hello", "Bye"], params, predictions=ids, speculation=False)
    assert [(one.usage.accepted_drafts, one.usage.rejected_drafts) for one in none if one.usage] == [(0, 0)] * 2
    talk = [{"role": "user", "content": "Hi"}]
    one, other = llm.chat(talk, GREEDY), llm.chat(talk, GREEDY, predictions=[ids[0]], speculation={"max_tokens": 2})
    assert one[0].outputs == other[0].outputs
    with pytest.raises(InvalidRequest, match="drafts with: predicted"):
        llm.generate("Hello", params, speculation={"method": "ngram"})
    with pytest.raises(InvalidRequest, match="needs one entry a prompt, 2 in all, got 1"):
        llm.generate(["Hello", "Bye"], params, predictions=["a"])


def test_chat_is_the_templates_text(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    (chat,) = llm.chat(messages, GREEDY)
    text = llm.tokenizer.apply_chat_template(ChatInputs(messages))
    (plain,) = llm.generate(llm.tokenizer.encode(text, add_special_tokens=False), GREEDY)
    assert chat.prompt == text
    assert chat.outputs == plain.outputs
    several = llm.chat([messages, [{"role": "user", "content": "Ho"}]], GREEDY)
    assert several[0].outputs == chat.outputs
    assert len(several) == 2


def test_chat_without_parameters_has_an_end(llm: LLM) -> None:
    (found,) = llm.chat([{"role": "user", "content": "x" * 470}])
    assert 0 < len(found.outputs[0].token_ids) <= 512 - len(found.prompt_token_ids)


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    ok: bool
    tag: Literal["a", "é"]


def test_typed_values(llm: LLM) -> None:
    """Random weights at a high temperature: only the constraint makes sense of them."""
    form = StructuredOutputs(json=Answer, whitespace="compact")
    params = SamplingParams(max_tokens=60, temperature=1.5, seed=1, n=3, structured_outputs=form)
    cut = SamplingParams(max_tokens=2, structured_outputs=form)
    choice = SamplingParams(max_tokens=20, seed=2, structured_outputs=StructuredOutputs(choice=["yes", "no"]))
    first, second, third = llm.generate(["Hello", "Hello", "Hello"], [params, cut, choice])
    for one in first.outputs:
        assert one.finish_reason == "stop"
        assert isinstance(one.parsed, Answer)
    assert (second.outputs[0].finish_reason, second.outputs[0].parsed) == ("length", None)
    assert third.outputs[0].parsed == third.outputs[0].text
    assert third.outputs[0].parsed in ("yes", "no")
    assert llm.generate("Hello", GREEDY)[0].outputs[0].parsed is None


@pytest.mark.parametrize("form", ["older", "newer"])
def test_structural_tags(llm: LLM, form: str) -> None:
    """`e` is a trigger that random weights hit by themselves."""
    tag: Any = {"structures": [{"begin": "e", "schema": {"enum": [7, 8]}, "end": "!"}], "triggers": ["e"]}
    if form == "newer":
        content = {"type": "json_schema", "json_schema": {"enum": [7, 8]}}
        tags = [{"type": "tag", "begin": "e", "content": content, "end": "!"}]
        tag = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["e"], "tags": tags}}
    outputs = StructuredOutputs(structural_tag=tag)
    (answer,) = llm.generate(
        "Hello", SamplingParams(max_tokens=80, temperature=1.5, seed=5, n=8, structured_outputs=outputs)
    )
    complete = [one.text for one in answer.outputs if one.finish_reason == "stop"]
    cut = [one.text.rpartition("e")[0] for one in answer.outputs if one.finish_reason == "length"]
    found = [behind for text in complete + cut for behind in text.split("e")[1:]]
    assert found
    assert [behind for behind in found if not re.match(r"\s*[78]\s*!", behind)] == []


@pytest.mark.parametrize("form", [{"regex": "("}, {"json": {"not": {}}}, {"grammar": "start: nowhere"},
                                  {"structural_tag": {"format": {"type": "regex", "pattern": "("}}}])  # fmt: skip
def test_a_constraint_that_cannot_be_enforced_is_raised(llm: LLM, form: dict[str, Any]) -> None:
    params = SamplingParams(structured_outputs=form)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="cannot be compiled") as caught:
        llm.generate(["Hello", "again"], params)
    assert caught.value.param == f"structured_outputs.{next(iter(form))}"


def test_nothing_to_do(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_more_prompts_than_may_wait_are_fed_as_places_come_free(tiny_llama: Path) -> None:
    prompts = [f"prompt {i}" for i in range(40)]
    with LLM(str(tiny_llama), max_waiting=3, **OPTIONS) as small:
        found = small.generate(prompts, GREEDY)
        assert [one.prompt for one in found] == prompts
        assert all(one.outputs[0].finish_reason == "length" for one in found)
        assert found[39].outputs == small.generate(prompts[39], GREEDY)[0].outputs


def test_an_array_a_dict_and_a_list_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode("Hello")
    array = np.array(ids)
    (plain,) = llm.generate("Hello", GREEDY)
    shapes: list[Any] = [array, [array], {"prompt": "Hello"}, [{"prompt_token_ids": ids}], array[None]]
    for shape in shapes:
        assert llm.generate(shape, GREEDY)[0].outputs == plain.outputs


def test_without_a_limit_as_many_tokens_as_fit(llm: LLM) -> None:
    (found,) = llm.generate("Hello", SamplingParams(max_tokens=None, temperature=0, ignore_eos=True))
    assert len(found.prompt_token_ids) + len(found.outputs[0].token_ids) == llm.info.max_model_len
    assert found.outputs[0].finish_reason == "length"


def test_a_stop_that_is_the_text_of_a_special_token(llm: LLM) -> None:
    (special, *_) = sorted(llm.tokenizer.special_ids)
    text = llm.tokenizer.token_text(special)
    bias = {special: 100.0}
    params = SamplingParams(stop=text, temperature=0, ignore_eos=True, logit_bias=bias, max_tokens=20)
    (found,) = llm.generate("Hello", params)
    assert (found.outputs[0].finish_reason, found.outputs[0].text) == ("stop", "")


def test_a_second_event_loop_is_refused_by_name(tiny_llama: Path) -> None:
    engine = AsyncLLM(str(tiny_llama), **OPTIONS)
    request = GenerateRequest("a", tuple(engine.tokenizer.encode("Hello")), GREEDY)

    async def first() -> int:
        await engine.start()
        return len([output async for output in engine.generate(request)])

    async def second() -> None:
        with pytest.raises(UserError, match=r"belongs to the event loop .*closed") as caught:
            await engine.generate(request).__anext__()
        assert "MainThread" in str(caught.value)
        with pytest.raises(UserError, match="belongs to the event loop"):
            await engine.stats()
        await engine.close()

    assert asyncio.run(first()) > 0
    asyncio.run(second())


def test_errors_name_the_cause_and_leave_the_engine_well(llm: LLM) -> None:
    with pytest.raises(ContextOverflow, match=r"^prompts\[1\]: .*512"):
        llm.generate(["fine", "x" * 600], GREEDY)
    with pytest.raises(InvalidRequest, match="2 prompts"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(InvalidRequest, match="prompt"):
        llm.generate([[]], GREEDY)
    assert len(llm.generate("fine", GREEDY)) == 1
    assert llm.stats().scheduler.running == 0


def test_from_several_threads(llm: LLM) -> None:
    found: dict[int, list[int]] = {}

    def work(at: int) -> None:
        found[at] = llm.generate(f"thread {at}", GREEDY)[0].outputs[0].token_ids

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {at: llm.generate(f"thread {at}", GREEDY)[0].outputs[0].token_ids for at in range(4)}


def test_info(llm: LLM, tiny_llama: Path) -> None:
    assert llm.info.name == tiny_llama.name
    assert (llm.info.path, llm.info.max_model_len, llm.info.platform) == (str(tiny_llama), 512, "cpu")


def test_inside_a_running_event_loop(llm: LLM) -> None:
    async def main() -> int:
        return len(llm.generate("Hello", GREEDY))

    assert asyncio.run(main()) == 1


def test_closed(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), **OPTIONS)
    llm.close()
    llm.close()
    with pytest.raises(EngineDead, match="closed"):
        llm.generate("Hello")


@pytest.mark.parametrize("ranks", [1, 2])
def test_left_open_in_the_middle_and_forked(tiny_llama: Path, tmp_path: Path, ranks: int) -> None:
    """The process is a fork of one that has imported torch; it ends as any Python does."""
    script = tmp_path / "left_open.py"
    script.write_text(f"""
import os, sys, threading, time, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # Python 3.12 and later
from headrace import LLM, SamplingParams
llm = LLM({str(tiny_llama)!r}, tensor_parallel_size={ranks}, **{OPTIONS})
def forever():
    while True: llm.generate(["a", "b"], SamplingParams(max_tokens=400, ignore_eos=True))
threading.Thread(target=forever, daemon=True).start()
while not llm.stats().scheduler.running: time.sleep(0.001)
if not os.fork(): sys.exit(5)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) - 2)
""")
    environment = {**os.environ, "HEADRACE_LOG": "warning"}
    process = forks().Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, errors = process.communicate()
    assert (process.returncode, out, errors) == (3, "", "")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_blocks": 1}, "num_blocks"),
        ({"dtype": "float8"}, "dtype"),
        ({"gpu_memory_utilization": 0.9}, "unknown option 'gpu_memory_utilization'.*kv_memory"),
        ({"max_model_len": 10**6}, "512"),
        ({"block_size": 5}, "block_size 5"),
        ({"platform": "abacus"}, "abacus"),
    ],
)
def test_options_that_cannot_be(tiny_llama: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        LLM(str(tiny_llama), **options)


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        LLM("/nowhere/at/all")


def test_async_is_an_engine_client(tiny_llama: Path) -> None:
    async def main() -> None:
        client = AsyncLLM(str(tiny_llama), **OPTIONS)
        as_client: EngineClient = client
        await as_client.start()
        await client.check_health()
        request = GenerateRequest("a", tuple(client.tokenizer.encode("Hello")), GREEDY)
        ids = [i async for output in as_client.generate(request) for i in output.token_ids]
        assert len(ids) == 6
        await client.close()

    asyncio.run(main())


def test_the_package_offers_them_lazily() -> None:
    code = "import sys, headrace; headrace.LLM; assert 'headrace.llm' in sys.modules and 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert headrace.LLM is LLM
