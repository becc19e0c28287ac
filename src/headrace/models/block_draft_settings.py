"""Reads the config.json of block drafters, in the layouts that their authors publish.

| layout | architectures | where the drafter's own settings stand |
|---|---|---|
| z-lab | DFlashDraftModel, DFlash2DraftModel | `dflash_config`; `block_size` on top, or there |
| DeepSpec | Qwen3DFlashModel, Qwen3DSparkModel | on top |
| SpecForge, SGLang | DSparkDraftModel | `dflash_config` with `projector_type` |
| speculators | by `speculators_model_type` | on top; the layers under `transformer_layer_config` |

So every setting is looked up in `dflash_config`, then `eagle_config`, then on top, each also with prefix `dspark_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from headrace.errors import CheckpointError, UnsupportedModel, excerpt
from headrace.models import hf
from headrace.models.block_draft_config import BlockConvolution, BlockDraftConfig, Candidates, Markov, Method
from headrace.models.config import DecoderConfig, LayerConfig
from headrace.settings import Settings

__all__ = ["is_block_draft", "read_block_draft"]

_DFLASH2 = ("DFlash2DraftModel", "DFlash2BeamDraftModel", "MiniMaxDFlash2DraftModel")
_METHODS: dict[str, Method] = {
    "DFlashDraftModel": "dflash",
    "DFlashSpeculator": "dflash",
    "Qwen3DFlashModel": "dflash",
    **dict.fromkeys(_DFLASH2, "dflash"),
    "DSparkDraftModel": "dspark",
    "DSparkSpeculator": "dspark",
    "Qwen3DSparkModel": "dspark",
}
_SPECULATORS: dict[str, Method] = {"dflash": "dflash", "dflash2": "dflash", "dspark": "dspark"}
_MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
_ENTERING = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
"""Ids of layers whose *input* is read; `target_layer_ids` name those whose output is."""
_REFUSED: dict[str, Any] = {
    "attention_mode": "gqa",
    "attention_sink_bias": False,
    "attention_value_scale": 1.0,
    "dspark_backbone_conv_enabled": False,
    "fusion": False,
    "include_embedding_chs": False,
    "local_position": False,
    "shift_label": False,
}
"""Settings that change the arithmetic, with the only value that is served."""


class _Lookup:
    """Typed access to settings that may stand in several places."""

    def __init__(self, config: Settings) -> None:
        found = [config.section(name) for name in ("dflash_config", "eagle_config")]
        self._places = [place for place in found if place is not None] + [config]

    def place(self, *keys: str) -> tuple[Settings, str]:
        """(where the first of the keys stands, that key); the place for a missing one is the top."""
        for key in keys:
            for name in (key, f"dspark_{key}"):
                for place in self._places:
                    if place.get(name) is not None:
                        return place, name
        return self._places[-1], keys[0]

    def get(self, *keys: str) -> Any:
        place, key = self.place(*keys)
        return place.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        place, name = self.place(key)
        return place.integer(name, default)

    def optional_integer(self, key: str) -> int | None:
        place, name = self.place(key)
        return place.optional_integer(name)

    def flag(self, key: str, default: bool) -> bool:
        place, name = self.place(key)
        return place.flag(name, default)

    def number(self, key: str, default: float) -> float:
        place, name = self.place(key)
        return place.positive(name, default)


def is_block_draft(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is a block drafter's."""
    return _method(Settings(config)) is not None


def read_block_draft(config: Mapping[str, Any], target_layers: int) -> BlockDraftConfig:
    """The configuration of a drafter for a target of so many layers.

    Raises CheckpointError for a missing or wrong setting, UnsupportedModel for what is not served; both name it.
    """
    top = Settings(config)
    method = _method(top)
    if method is None:
        names = top.texts("architectures")
        raise UnsupportedModel(
            f"{excerpt(names[0]) if names else 'a checkpoint without architectures'} is no block drafter that is "
            f"served: {', '.join(sorted(_METHODS))} are"
        )
    look = _Lookup(top)
    for key, neutral in _REFUSED.items():
        place, name = look.place(key)
        place.refuse(method, {name: neutral})
    speculators = top.get("speculators_model_type") is not None
    layers = _layer_settings(config)
    decoder = _decoder(layers, look, method)
    anchored = look.flag("sample_from_anchor", method == "dspark")
    rows = look.integer("block_size", 5 if look.get("n_mtp_layers") else 16 if method == "dflash" else 7)
    if rows < 2 and not anchored:
        raise CheckpointError(f"field 'block_size' is {rows}: expected at least 2")
    second = bool(set(top.texts("architectures")) & {*_DFLASH2}) or top.get("speculators_model_type") == "dflash2"
    return BlockDraftConfig(
        method=method,
        decoder=decoder,
        features=_features(look, target_layers, len(decoder.layers)),
        target_hidden=look.integer("target_hidden_size", decoder.hidden),
        rows=rows,
        anchored=anchored,
        causal=_causal(top, look, decoder, speculators),
        mask_token=_mask(look),
        draft_vocab=_draft_vocab(top, decoder.vocab),
        logit_scale=look.number("output_multiplier", 1.0),
        convolution=_convolution(look, decoder.hidden) if second else None,
        candidates=Candidates(look.integer("selector_rank"), look.integer("selector_top_k")) if second else None,
        markov=_markov(look) if method == "dspark" else None,
        confidence=method == "dspark" and look.flag("enable_confidence_head", True),
        confidence_markov=look.flag("confidence_head_with_markov", True),
        target_layers=look.optional_integer("num_target_layers"),
        target_name=_verifier(top),
    )


def _method(top: Settings) -> Method | None:
    kind = top.get("speculators_model_type")
    if kind is not None:
        return _SPECULATORS.get(top.text("speculators_model_type"))
    names = top.texts("architectures")
    found = _METHODS.get(names[0]) if names else None
    if found is not None and _Lookup(top).get("projector_type") == "dspark":
        return "dspark"
    return found


def _layer_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the layers: those of `transformer_layer_config` if there is one, before those on top."""
    nested = Settings(config).section("transformer_layer_config")
    return dict(config) if nested is None else {**config, **nested.values()}


def _decoder(config: dict[str, Any], look: _Lookup, method: Method) -> DecoderConfig:
    settings = Settings(config)
    count = settings.layers("num_hidden_layers")
    types = settings.texts("layer_types") or ["full_attention"] * count
    windows = hf.layer_windows({**config, "layer_types": types}, method, types)
    if look.flag("use_swa", False):
        windows = [look.integer("swa_window_size")] * count
    if settings.get("model_type") == "qwen3":
        config = {"head_dim": 128, **config}
    # Its positions are the target's, whatever length it was trained with.
    config = {"max_position_embeddings": 1 << 15, **config}
    bias = settings.flag("attention_bias", False)
    rope = hf.read_rope(hf.rope_parameters(config), config, method)
    fields = hf.base_fields(config, method)
    cap, key = look.place("final_logit_softcapping")
    return DecoderConfig(
        **{**fields, "tied": False},
        layers=tuple(LayerConfig(0, window) for window in windows),
        ropes=(rope,),
        embedding_scale=look.number("input_embedding_scale", 1.0),
        logits_soft_cap=cap.optional_positive(key),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=settings.flag("mlp_bias", False),
    )


def _features(look: _Lookup, target_layers: int, count: int) -> tuple[int, ...]:
    place, key = look.place("target_layer_ids", *_ENTERING)
    offset = 0 if key in _ENTERING else 1
    values = place.items(key) if place.get(key) is not None else _default_ids(target_layers, count)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value + offset <= target_layers:
            raise place.wrong(key, value, f"layers of a target that has {target_layers}")
    if not values:
        raise place.wrong(key, values, "at least one layer")
    return tuple(value + offset for value in values)


def _default_ids(target_layers: int, count: int) -> list[int]:
    """The layers that a DFlash drafter reads if its settings name none."""
    if count == 1:
        return [target_layers // 2]
    return [round(1 + at * (target_layers - 4) / (count - 1)) for at in range(count)]


def _causal(top: Settings, look: _Lookup, decoder: DecoderConfig, speculators: bool) -> tuple[bool, ...]:
    sliding = tuple(layer.window is not None for layer in decoder.layers)
    if top.get("is_causal") is not None:
        return (top.flag("is_causal"),) * len(sliding)
    if look.get("causal") is not None:
        return (look.flag("causal", False),) * len(sliding)
    if speculators and look.flag("sliding_window_non_causal", True):
        return (False,) * len(sliding)
    return sliding


def _mask(look: _Lookup) -> int | None:
    place, key = look.place(*_MASKS)
    found = place.token_ids(key)
    if len(found) > 1:
        raise place.wrong(key, found, "one token id")
    return found[0] if found else None


def _draft_vocab(top: Settings, vocab: int) -> int | None:
    found = top.optional_integer("draft_vocab_size")
    if found is not None and found > vocab:
        raise top.wrong("draft_vocab_size", found, f"at most vocab_size, {vocab}")
    return None if found == vocab else found


def _convolution(look: _Lookup, hidden: int) -> BlockConvolution:
    found = BlockConvolution(look.integer("conv_kernel_size"), look.integer("conv_group_size"))
    if hidden % found.group:
        place, key = look.place("conv_group_size")
        raise place.wrong(key, found.group, f"a divisor of hidden_size, {hidden}")
    return found


def _markov(look: _Lookup) -> Markov | None:
    place, key = look.place("markov_rank")
    if place.get(key) in (None, 0):
        return None
    kinds = get_args(Literal["vanilla", "gated", "rnn"])
    where, name = look.place("markov_head_type")
    kind = where.text(name, "vanilla").lower()
    if kind not in kinds:
        raise where.wrong(name, kind, f"one of {', '.join(kinds)}")
    return Markov(kind, place.integer(key), look.optional_integer("draft_topk"))  # type: ignore[arg-type]


def _verifier(top: Settings) -> str:
    """The name of the target for which it was trained, if it is stated."""
    section = top.section("speculators_config")
    verifier = None if section is None else section.section("verifier")
    return "" if verifier is None else verifier.optional_text("name_or_path") or ""
