"""Tokenizers from a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizer_vocabs import byte_level_tokenizer, gpt2_metadata, save, sentencepiece_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.errors import CheckpointError, ConfigError, InvalidRequest, ModelNotFound, UnsupportedModel
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.tokenizer import load_tokenizer, tokenizer_from_gguf

TEXTS = ["", "hello world", " hello", "a\n\nb", "it's 1212", "héllo 😀", "<s>hello<end>", "<tool> x"]
USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_is_the_same_from_either_kind_of_checkpoint(tmp_path: Path, text: str) -> None:
    ours = load_tokenizer(save(byte_level_tokenizer(), tmp_path))
    gguf = tokenizer_from_gguf(gpt2_metadata())
    ids = ours.encode(text)
    assert ids == gguf.encode(text)
    for skip in (True, False):
        assert ours.decode(ids, skip) == gguf.decode(ids, skip) == byte_level_tokenizer().decode(ids, skip)
    assert [ours.token_bytes(i) for i in range(ours.vocab_size)] == [
        gguf.token_bytes(i) for i in range(gguf.vocab_size)
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece_decodes_as_the_library_does(tmp_path: Path, text: str) -> None:
    backend = sentencepiece_tokenizer()
    ours = load_tokenizer(save(backend, tmp_path))
    ids = ours.encode(text)
    assert ids == backend.encode(text).ids
    for skip in (True, False):
        assert ours.decode(ids, skip) == backend.decode(ids, skip)


def test_metaspace_drops_the_first_space(tmp_path: Path) -> None:
    backend = sentencepiece_tokenizer()
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    ours = load_tokenizer(save(backend, tmp_path))
    assert ours.decode(ours.encode("hello world")) == "hello world"
    backend.decoder = decoders.Metaspace(prepend_scheme="never", split=False)
    ours = load_tokenizer(save(backend, tmp_path))
    assert ours.decode(ours.encode("hello world")) == " hello world"


def test_words_without_a_decoder_are_joined_by_spaces(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "red": 1, "fish": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    ours = load_tokenizer(save(backend, tmp_path))
    ids = ours.encode("red fish red")
    stream = ours.stream()
    assert [stream.push(i) for i in ids] == ["red", " fish", " red"]
    assert ours.decode(ids) == backend.decode(ids) == "red fish red"


def test_an_unsupported_decoder_is_named(tmp_path: Path) -> None:
    backend = byte_level_tokenizer()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        load_tokenizer(save(backend, tmp_path))


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({}, [1]),
        ({"bos_token": "<s>", "add_bos_token": False}, []),
        ({"bos_token": "<s>", "add_bos_token": True}, [1]),
        ({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_eos_token": True}, [1, 2]),
    ],
)
def test_the_configuration_decides_what_is_added(tmp_path: Path, config: dict[str, object], ids: list[int]) -> None:
    assert load_tokenizer(save(sentencepiece_tokenizer(), tmp_path, tokenizer_config=config)).encode("") == ids


def test_bos_can_be_added_if_tokenizer_json_adds_none(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "add_bos_token": True}
    ours = load_tokenizer(save(byte_level_tokenizer(), tmp_path, tokenizer_config=config))
    assert ours.encode("") == [0]
    assert ours.bos_token_id == 0


def test_ends_come_from_both_configurations_and_the_tokenizer(tmp_path: Path) -> None:
    files = {"generation_config": {"eos_token_id": [5, 7]}, "config": {"eos_token_id": 9}}
    assert load_tokenizer(save(byte_level_tokenizer(), tmp_path, **files)).eos_token_ids == (5, 7, 9)
    files["tokenizer_config"] = {"eos_token": {"content": "<end>"}}
    assert load_tokenizer(save(byte_level_tokenizer(), tmp_path, **files)).eos_token_ids == (1, 5, 7, 9)
    files["config"] = {"eos_token_id": "</s>"}
    with pytest.raises(CheckpointError, match=r"config\.json.*eos_token_id"):
        load_tokenizer(save(byte_level_tokenizer(), tmp_path, **files))


def test_truncation_and_padding_are_switched_off(tmp_path: Path) -> None:
    backend = byte_level_tokenizer()
    backend.enable_truncation(2)
    backend.enable_padding(length=10)
    assert len(load_tokenizer(save(backend, tmp_path)).encode("a b c d")) == 7


def test_tokens_of_the_configuration_are_added(tmp_path: Path) -> None:
    size = byte_level_tokenizer().get_vocab_size()
    config = {"added_tokens_decoder": {"2": {"content": "<tool>", "special": True}, str(size): {"content": "<new>"}}}
    ours = load_tokenizer(save(byte_level_tokenizer(), tmp_path, tokenizer_config=config))
    assert ours.encode("<new>") == [size]
    assert ours.special_ids == {0, 1, 2}
    config["added_tokens_decoder"]["3"] = {"content": "<tool>"}
    with pytest.raises(CheckpointError, match="'<tool>' is 3 here and 2"):
        load_tokenizer(save(byte_level_tokenizer(), tmp_path, tokenizer_config=config))


def test_the_declaration_of_formats_is_passed_on_as_it_is(tmp_path: Path) -> None:
    folder = save(byte_level_tokenizer(), tmp_path)
    assert load_tokenizer(folder).response_template is None
    for declared in ({"fields": {"content": {"close": "</s>"}}}, ["wrong"], 5):
        save(byte_level_tokenizer(), tmp_path, tokenizer_config={"response_template": declared})
        assert load_tokenizer(folder).response_template == declared


def test_templates_are_found_in_every_place_that_checkpoints_use(tmp_path: Path) -> None:
    folder = save(byte_level_tokenizer(), tmp_path)
    with pytest.raises(InvalidRequest, match="no chat template"):
        load_tokenizer(folder).apply_chat_template(ChatInputs(USER))
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    save(byte_level_tokenizer(), tmp_path, tokenizer_config={"chat_template": named})
    assert load_tokenizer(folder).apply_chat_template(ChatInputs(USER)) == "plain"
    assert load_tokenizer(folder).apply_chat_template(ChatInputs(USER, tools=[{}])) == "tools"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load_tokenizer(folder).apply_chat_template(ChatInputs(USER)) == "file"
    (tmp_path / "mine.jinja").write_text("mine")
    assert load_tokenizer(folder, tmp_path / "mine.jinja").apply_chat_template(ChatInputs(USER, tools=[{}])) == "mine"


def test_special_tokens_are_known_to_templates(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "<end>"}, "chat_template": "{{ bos_token }}|{{ eos_token }}"}
    tokenizer = load_tokenizer(save(byte_level_tokenizer(), tmp_path, tokenizer_config=config))
    assert tokenizer.apply_chat_template(ChatInputs(USER)) == "<s>|<end>"


def test_a_template_given_as_an_option_must_be_valid(tmp_path: Path) -> None:
    save(byte_level_tokenizer(), tmp_path)
    (tmp_path / "bad.jinja").write_text("{% for %}")
    with pytest.raises(ConfigError, match="line 1"):
        load_tokenizer(tmp_path, str(tmp_path / "bad.jinja"))
    with pytest.raises(ConfigError, match=r"none\.jinja: cannot be read"):
        load_tokenizer(tmp_path, tmp_path / "none.jinja")


def test_missing_and_invalid_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="neither a directory"):
        load_tokenizer(tmp_path / "none.gguf")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer"):
        load_tokenizer(tmp_path)
    save(byte_level_tokenizer(), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: holds a list"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        load_tokenizer(tmp_path)


def test_a_directory_without_a_tokenizer_may_be_no_checkpoint_at_all(tmp_path: Path) -> None:
    """The checkpoint's own error comes first: a model that cannot be served needs no tokenizer."""
    with pytest.raises(ModelNotFound, match="the directory is empty"):
        load_tokenizer(tmp_path)
    (tmp_path / "README.md").touch()
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelNotFound, match=r"give the file model\.gguf itself"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json: field 'architectures' is missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(UnsupportedModel, match="architecture 'BertModel' is not supported"):
        load_tokenizer(tmp_path)
