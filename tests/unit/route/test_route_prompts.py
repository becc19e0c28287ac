"""The router reads the tokens that the engine reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from route_harness import PATIENCE, until
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headrace.errors import ModelNotFound
from headrace.route import prompt_client
from headrace.route.prompt_client import PromptClient
from headrace.route.prompts import Prompt, load_reader
from headrace.route.segment_encoder import SegmentEncoder
from headrace.route.text_prefixes import TextPrefixes
from headrace.tokenization.tokenizer import load_tokenizer
from headrace.transfer.chain import chain, first_hash

LAYOUT = (b"layout", 4)
TEMPLATE = (
    "{% if 'forever' in messages[0].content %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}{% endif %}{% for m in messages %}<x>{{ m.role }}:{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<x>{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte tokenizer with two control tokens, and a chat template."""
    path = tmp_path_factory.mktemp("tokenizer")
    vocab = {"</s>": 0, "<x>": 1, **{char: 2 + i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("</s>", "<x>")])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "chat_template": TEMPLATE}))
    return path


def read(folder: Path, path: str, **body: Any) -> Prompt | None:
    reader = load_reader(str(folder), "tiny", 512)
    try:
        return asyncio.run(reader.read(path, json.dumps({"model": "tiny", **body}).encode()))
    finally:
        reader.close()


def test_each_api_gives_the_same_conversation(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    expected = tokenizer.encode("<x>system:Be brief</s><x>user:Hi</s><x>", False)
    turns = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    chat = read(folder, "/v1/chat/completions", messages=turns, cache_salt="s")
    assert chat == Prompt(expected, "s")
    other = read(folder, "/v1/messages", system="Be brief", messages=turns[1:], max_tokens=4)
    assert other == Prompt(expected)
    assert read(folder, "/v1/completions", prompt="Hi") == Prompt(tokenizer.encode("Hi"))
    assert read(folder, "/v1/completions", prompt=[[5, 6], [7]]) == Prompt([5, 6])
    assert read(folder, "/v1/completions", prompt=[5, 6]) == Prompt([5, 6])


def test_control_tokens_in_a_message_are_text_as_in_the_engine(folder: Path) -> None:
    turns = [{"role": "user", "content": "what is <x>?"}]
    found = read(folder, "/v1/chat/completions", messages=turns)
    assert found is not None
    assert list(found.tokens).count(1) == 2, "those of the template"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "no_such_field": 1}),
        ("/v1/completions", {"prompt": {}}),
        ("/v1/embeddings", {"input": "Hi"}),
    ],
)
def test_what_an_engine_refuses_has_no_tokens(folder: Path, path: str, body: dict[str, Any]) -> None:
    assert read(folder, path, **body) is None


def test_without_the_files_nothing_is_read(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        load_reader(str(tmp_path / "none"), "tiny", 512)


def asked(client: PromptClient, text: str) -> Coroutine[Any, Any, tuple[int, dict[tuple[bytes, int], list[bytes]]]]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "cache_salt": "s"}
    return client.read("/v1/chat/completions", json.dumps(body).encode(), [LAYOUT])


def test_a_process_names_the_blocks_of_prompts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_client, "_PATIENCE", PATIENCE)
    ids = load_tokenizer(folder).encode("<x>user:Hello there</s><x>", False)
    blocks = [ids[at : at + 4] for at in range(0, len(ids) - 3, 4)]
    names = list(chain(first_hash(b"layout", "", "s"), blocks))

    async def check() -> None:
        client = PromptClient(str(folder), "tiny", 512)
        try:
            await until(lambda: client.ready)
            found = await asyncio.gather(*(asked(client, "Hello there") for _ in range(20)))
            assert found == [(len(ids), {LAYOUT: names})] * 20
            assert await client.read("/v1/chat/completions", b"{", [LAYOUT]) == (0, {})
            assert await client.read("/v1/embeddings", b"{}", [LAYOUT]) == (0, {})
            # A long request has a process of its own, which is started with the first.
            assert await asked(client, "long " * 20000) == (0, {})
            await until(lambda: client._lanes[1].ready)
            tokens, chains = await asked(client, "long " * 20000)
            assert (tokens, len(chains[LAYOUT])) == (100_008, 25_002)
        finally:
            client.close()

    asyncio.run(check())


def test_a_template_that_never_ends_stops_nobody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_client, "_PATIENCE", 0.2)
    monkeypatch.setattr(prompt_client, "_PAUSE", 0.0)

    async def check() -> None:
        client = PromptClient(str(folder), "tiny", 512)
        try:
            await until(lambda: client.ready)
            assert await asyncio.gather(asked(client, "forever"), asked(client, "Hi")) == [(0, {}), (0, {})]
            monkeypatch.setattr(prompt_client, "_PATIENCE", PATIENCE)
            await until(lambda: client.ready)
            assert (await asked(client, "Hi"))[0] > 0
        finally:
            client.close()

    asyncio.run(check())


def test_a_tokenizer_that_is_not_here_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        client = PromptClient(str(tmp_path / "none"), "tiny", 512)
        try:
            await until(lambda: client.failed)
            assert await asked(client, "Hi") == (0, {})
        finally:
            client.close()

    asyncio.run(check())
    assert caplog.text.count("placed by the beginnings of their texts, which is approximate") == 1


class Counting:
    """Tokens are letters; control tokens are numbers above them."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def __call__(self, text: str) -> list[int]:
        self.encoded.append(text)
        return [ord(char) for char in text.replace("<x>", "\u2603")]


def test_known_pieces_are_not_tokenised_again() -> None:
    encode = Counting()
    pieces = SegmentEncoder(encode, ["<x>"])
    for turn in range(40):
        text = "<x>system" + "".join(f"<x>turn {at}" for at in range(turn))
        assert pieces.encode(text) == encode(text)
    encode.encoded.clear()
    pieces.encode("<x>system<x>turn 1<x>new")
    assert encode.encoded == ["new"]


def test_a_tokenizer_whose_pieces_differ_is_asked_for_the_whole() -> None:
    class Spaced(Counting):
        def __call__(self, text: str) -> list[int]:
            return [32, *super().__call__(text)]

    encode = Spaced()
    pieces = SegmentEncoder(encode, ["<x>"])
    for text in ("<x>one", "<x>one<x>two", "three"):
        assert pieces.encode(text) == encode(text)
    encode.encoded.clear()
    pieces.encode("<x>one")
    assert encode.encoded == ["<x>one"]


def test_a_prompt_without_control_tokens_is_tokenised_whole() -> None:
    encode = Counting()
    assert SegmentEncoder(encode, []).encode("ab") == [97, 98]


def test_texts_are_compared_piece_by_piece() -> None:
    texts = TextPrefixes()
    one = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 600}], "temperature": 0}).encode()
    two = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 600 + "b"}]}).encode()
    salted = json.dumps(
        {"model": "m", "cache_salt": "s", "messages": [{"role": "user", "content": "a" * 600}]}
    ).encode()
    texts.sent("engine", texts.chain(one))
    assert texts.held(texts.chain(two))["engine"].blocks == 2
    assert texts.held(texts.chain(salted)) == {}
    assert texts.chain(b"no json") == texts.chain(b"{}") == []
    texts.forget("engine")
    assert texts.held(texts.chain(two)) == {}
