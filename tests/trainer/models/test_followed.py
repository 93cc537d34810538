"""Every model that ``transformers`` knows is equal to itself on the documents alone, or refused in one line."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts import load_script
from transformers_alone import load_transformers

from preshard.packer_service.ingest.families.folder import family_at, load_family
from preshard.packer_service.ingest.model import packed_for
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError
from preshard.schemas.model.dimensions import model_dimensions
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.model.followed import check_followed, check_positions, check_window
from preshard.schemas.model.languages import LANGUAGES, window_of
from preshard.trainer.models.interface import decoder_layers
from preshard.trainer.models.load import empty_model, load_model, read_model_config

TEXT = [name for name, model in LANGUAGES.items() if model.alone]

CLOSE = 1e-5
"""Largest relative difference in float32."""

STATEFUL = [
    *("lfm2", "olmo_hybrid", "granitemoehybrid", "bamba", "nemotron_h", "jamba"),
    *("minimax", "falcon_mamba", "mamba2", "falcon_h1"),
]
"""Models whose layers carry a state past the end of a document."""

OTHERS = ["longcat_flash", "deepseek_v32", "kimi_linear", "glm_moe_dsa", "llama4_text", "deepseek_ocr2"]
"""Models that ended in a traceback, or of which no reason was said."""


@cache
def followed() -> Any:
    return load_script(Path(__file__).with_name("followed.py"))


def every_model() -> dict[str, Any]:
    """The configuration of each model type that ``transformers`` has, by its default values; None if it has none."""
    found: dict[str, Any] = {}
    for name, made in load_transformers().CONFIG_MAPPING.items():
        try:
            found[name] = made().to_dict()
        except Exception:  # some have no defaults
            found[name] = {}
        found[name] |= {"model_type": name}
    return found


def said_of(folder: Path, config: dict[str, Any], architecture: str = "XForCausalLM") -> list[str]:
    """Messages of the packer and the trainer on a folder; empty where it is taken."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}, default=str))
    family_at.cache_clear()
    found = []
    for read in (lambda: load_family(str(folder)), lambda: read_model_config(folder)):
        try:
            read()
        except ConfigError as error:
            found.append(str(error))
    return found


@pytest.mark.slow  # a few of them are in the tests of options below
def test_every_model_on_the_list_is_itself_on_packs() -> None:
    """Fails when a model on the list mixes documents, ranks or neighbours, or changes its logits after the head."""
    wrong, built = {}, 0
    for name, config in followed().every_followed():
        found = followed().measure(config)
        assert found.mixed > 1000 * CLOSE, f"{name}: another document changes nothing, so nothing was compared"
        built += 1
        if not (found.hidden < CLOSE and found.logits < CLOSE):
            wrong[name] = found
    assert not wrong
    there = followed().is_there
    families = [facts for name, facts in FAMILIES.items() if there(name)]
    assert built == sum(map(there, TEXT)) + sum(len(facts.text) for facts in families)
    assert built > 60


@pytest.mark.slow
def test_every_other_model_is_refused_in_one_line(tmp_path: Path) -> None:
    """Fails when a model that is not on the list is taken, or its refusal is a traceback or several lines."""
    transformers = load_transformers()
    auto = transformers.models.auto.modeling_auto
    taken, refused = set(), set()
    for name, config in every_model().items():
        is_causal = name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        said = said_of(tmp_path / "model", config, "XForCausalLM" if is_causal else "XForConditionalGeneration")
        assert all("\n" not in line and "model" in line for line in said), (name, said)
        if name not in {*TEXT, *FAMILIES}:
            assert len(said) == 2, (name, said)
            refused.add(name)
        elif len(said) < 2:
            taken.add(name)
    assert {*STATEFUL, *OTHERS} <= refused
    assert len(taken) > 50
    generating = {*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    assert generating <= taken | refused | {*TEXT, *FAMILIES}
    assert len(refused & generating) > 150


@pytest.mark.parametrize("model_type", [*STATEFUL, *OTHERS])
def test_what_is_known_of_other_layers_is_said(model_type: str) -> None:
    """Fails when a refusal does not say which layers are in the way, where, and what would work."""
    with pytest.raises(ConfigError) as error:
        check_followed({"model_type": model_type}, "model")
    said = str(error.value)
    assert f"model_type '{model_type}' of config.json is not supported: its layers" in said
    assert "not known" not in said
    assert "take one of qwen3_vl" in said


FOLLOWED_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    ("gpt_bigcode", {"multi_query": False}),
    (
        "gemma4_text",
        {
            **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96, "num_kv_shared_layers": 2},
            **{"num_hidden_layers": 4, "use_double_wide_mlp": True, "attention_k_eq_v": False},
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    ("mistral", {"sliding_window": 48}),
    ("phimoe", {"sliding_window": 48}),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 48}),
    ("deepseek_v3", {"q_lora_rank": None, "rope_interleave": False}),
    ("granite", {"logits_scaling": 8.0}),
    (
        "deepseek_v3",
        {
            "rope_parameters": {
                **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
                **{"mscale": 1.0, "mscale_all_dim": 0.7},
            }
        },
    ),
    ("minicpm3", {"v_head_dim": 12}),
    ("qwen3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}, "attention_bias": True}),
    (
        "ministral3",
        {
            "rope_parameters": {
                **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
                **{"llama_4_scaling_beta": 0.5},
            }
        },
    ),
]


@pytest.mark.parametrize(("model_type", "options"), FOLLOWED_OPTIONS)
def test_options_that_are_followed(model_type: str, options: dict[str, Any]) -> None:
    """Fails when what depends on a position, a window or a layer's number is that of the pack, not of the document."""
    if "rope_parameters" in options:
        options = {"rope_parameters": {"rope_theta": 10000.0, **options["rope_parameters"]}}
    found = followed().measure(followed().tiny_config(model_type, **options))
    assert found.hidden < CLOSE < found.mixed
    assert found.logits < CLOSE


REFUSED_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type of config.json is 'dynamic'"),
    ("llama", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope_type of config.json is 'longrope'"),
    ("gemma3_text", {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "rope_type .* is 'dynamic'"),
    ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}, r"layer_types\[1\] is 'linear_attention'"),
    ("mistral", {"layer_types": ["chunked_attention"]}, r"layer_types\[0\] is 'chunked_attention'"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping of config.json is 50.0"),
    ("gemma3_text", {"final_logit_softcapping": 30.0}, r"final_logit_softcapping of config.json is 30.0"),
    ("gemma4_text", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention of config.json is 'all'"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention of config.json is True"),
    ("hyperclovax", {"logits_scaling": 8.0}, "logits_scaling of config.json is 8.0"),
    ("phimoe", {"lm_head_bias": True}, "lm_head_bias of config.json is True"),
    ("ernie4_5_moe", {"use_bias": True}, "use_bias of config.json is True"),
    ("llama", {"attention_dropout": 0.1}, "attention_dropout of config.json is 0.1.*: set it to 0"),
    ("gpt2", {}, "attn_pdrop of config.json is 0.1.*: set it to 0"),
    ("opt", {"layerdrop": 0.1}, "layerdrop of config.json is 0.1.*: set it to 0"),
    ("llama", {"is_causal": False}, "is_causal of config.json is False"),
    ("own", {"auto_map": {"AutoModel": "x.X"}}, "'own' of config.json is not supported: auto_map names code of the"),
    ("internvl", {"text_config": {"model_type": "qwen3_next"}}, r"'qwen3_next' \(text_config of internvl\).*take one "),
    ("qwen3_vl", {"text_config": {"attention_dropout": 0.1}}, "attention_dropout of config.json is 0.1"),
]


@pytest.mark.parametrize(("model_type", "options", "said"), REFUSED_OPTIONS)
def test_options_that_break_a_model_are_refused(
    tmp_path: Path, model_type: str, options: dict[str, Any], said: str
) -> None:
    """Fails when a model on the list is taken with an option under which it is another model on packs."""
    config = {"model_type": model_type, **options}
    with pytest.raises(ConfigError, match=said):
        check_followed(config, "model")
    both = said_of(tmp_path / "model", config)
    assert len(both) == 2
    assert [line.split(":")[0] for line in both] == ["model", "--model"]


def test_keys_left_out_mean_what_they_mean_to_transformers() -> None:
    """Fails when a default on the list is not that of the model: a folder would be taken or refused by mistake."""
    compared = 0
    for name in filter(followed().is_there, TEXT):
        config = load_transformers().CONFIG_MAPPING[name]().to_dict()
        verdicts = []
        for given in ({"model_type": name}, config):
            try:
                check_followed(given, "model")
                verdicts.append(str(window_of(given)))
            except ConfigError as error:
                verdicts.append(str(error))
        assert verdicts[0] == verdicts[1], name
        compared += verdicts[0].isdigit()
    assert compared > 5, "no window was compared"


def test_a_window_that_layers_do_not_pass_on_is_refused_before_packing(tmp_path: Path) -> None:
    """Fails when a model is packed for whose layers have a window that attention does not learn of."""
    config = {"model_type": "phimoe", "architectures": ["PhimoeForCausalLM"], "sliding_window": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    family_at.cache_clear()
    with pytest.raises(ConfigError, match="model has a sliding_window of 4096 tokens, shorter than packs of 8192"):
        packed_for(PackConfig(seq_len=8192, model=str(tmp_path)))
    check_window(load_family(str(tmp_path)).hidden_window, 4096, "model")
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    family_at.cache_clear()
    family = load_family(str(tmp_path))
    assert (family.window, family.hidden_window) == (4096, None)


@pytest.mark.parametrize(
    ("kind", "key"),
    [("gpt2", "n_positions"), ("opt", "max_position_embeddings"), ("biogpt", "max_position_embeddings")],
)
def test_packs_longer_than_learnt_positions_are_refused(tmp_path: Path, kind: str, key: str) -> None:
    """Fails when documents may be longer than a model has embeddings for their positions, which ends the first step."""
    config = followed().tiny_config(kind, **{key: 64})
    (tmp_path / "config.json").write_text(json.dumps(config))
    family_at.cache_clear()
    with pytest.raises(
        ConfigError, match=rf"model has learnt 64 positions \({key} of config.json\).*pack with seq_len=64"
    ):
        packed_for(PackConfig(seq_len=8192, model=str(tmp_path)))
    check_positions(read_model_config(tmp_path).to_dict(), 64, "model")
    with pytest.raises(ConfigError, match="documents in packs of 65 tokens may be longer"):
        check_positions(read_model_config(tmp_path).to_dict(), 65, "model")
    del config[key]
    transformers = load_transformers()
    left_out = transformers.AutoConfig.for_model(**config).max_position_embeddings
    check_positions(config, left_out, "model")
    with pytest.raises(ConfigError, match=f"has learnt {left_out} positions"):
        check_positions(config, left_out + 1, "model")


def test_a_type_alone_says_what_a_model_is(tmp_path: Path) -> None:
    """Fails when a supported type is called unsupported because ``architectures`` is left out or is another one."""
    config = {**followed().tiny_config("llama"), "architectures": None}
    for named in (None, ["LlamaForSequenceClassification"]):
        (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": named}))
        family_at.cache_clear()
        if named is None:
            load_family(str(tmp_path))
            continue
        with pytest.raises(ConfigError, match=r"architectures of config.json is .* and packs train llama as a causal"):
            load_family(str(tmp_path))


def test_sizes_that_fit_no_model_are_said_in_one_line(tmp_path: Path) -> None:
    """Fails when a configuration that transformers refuses while it builds a model ends in a traceback."""
    config = followed().tiny_config("llama", num_attention_heads=4) | {"hidden_act": "nothing"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="transformers cannot build llama from its config"):
        load_model(tmp_path, from_scratch=True)


def test_embeddings_of_each_layer_are_counted() -> None:
    """Fails when the largest part of Gemma 4 E2B is left out of the memory that it needs."""
    options = dict(FOLLOWED_OPTIONS)["gemma4_text"]
    config = followed().tiny_config("gemma4_text", **options)
    transformers = load_transformers()
    made = {name: value for name, value in config.items() if name != "model_type"}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING["gemma4_text"](**made))
    matrices = [x for name, x in model.named_parameters() if "per_layer" in name and x.ndim == 2]
    assert len(matrices) == 2 + 2 * options["num_hidden_layers"]
    found = model_dimensions(config, None, "test")
    assert found.more_embeddings == sum(matrix.numel() for matrix in matrices)
    assert found.parameters > found.more_embeddings > 0


WIDTHS = {
    *("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "ffn_dim", "n_inner", "intermediate_size"),
    *("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"),
    *("head_dim", "kv_channels", "linear_key_head_dim", "linear_value_head_dim", "q_lora_rank", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim"),
}
"""Sizes of the tiny models that are 16 times as large where parameters are counted, so that norms, biases and routers,
which are left out, are as few as in published ones."""


def counted(config: dict[str, Any], folder: Path) -> tuple[float, float]:
    """Matrices of the blocks by the dimensions, over those that are there; and all parameters."""
    config = {name: 16 * value if value and name in WIDTHS else value for name, value in config.items()}
    (folder / "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")
    model: Any = empty_model(folder)
    own = sum(each.numel() for each in decoder_layers(model).parameters() if each.ndim > 1)
    found = model_dimensions(config, None, "test")
    every = sum(each.numel() for each in model.parameters())
    return found.layers * found.layer_parameters / own, found.parameters / every


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in ("aria_text", "ernie4_5_moe", "exaone_moe", "glm4_moe", "gpt2", "hunyuan_v1_moe")),
        *((kind, {}) for kind in ("afmoe", "jetmoe", "opt", "qwen2_moe", "solar_open", "starcoder2")),
        *((kind, {}) for kind in ("deepseek_v3", "glm4_moe_lite", "minicpm3", "mimo_v2_flash")),
        ("deepseek_v3", {"q_lora_rank": None}),
        ("qwen3_5_text", {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "num_hidden_layers": 4}),
        ("qwen3_5_text", {"layer_types": None, "num_hidden_layers": 5}),
        ("laguna", {"num_attention_heads_per_layer": [4, 8], "gating": "per-element"}),
        ("gemma4_text", {"global_head_dim": 64, "attention_k_eq_v": False}),
        ("gemma4_text", {"global_head_dim": 64, "num_global_key_value_heads": 1}),
        ("gemma4_text", dict(FOLLOWED_OPTIONS)["gemma4_text"]),
    ],
)
def test_parameters_are_counted(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Fails when experts by another name, shared ones, dense layers among them, MLPs without a gate, gates, states or
    heads that differ between layers are counted otherwise than they are, or a model has no estimate because its sizes
    have other names.
    """
    config = {**followed().tiny_config(kind, **options), **options}
    if "global_head_dim" in options:
        del config["per_layer_config"]  # as it is published
    assert counted(config, tmp_path) == pytest.approx((1, 1), abs=0.01)


@pytest.mark.slow
def test_parameters_of_every_followed_model_are_counted(tmp_path: Path) -> None:
    """The same for each model of text on the list."""
    wrong = {}
    for name, config in followed().every_followed():
        if config["model_type"] not in FAMILIES:
            found = counted(config, tmp_path)
            if found != pytest.approx((1, 1), abs=0.01):
                wrong[name] = found
    assert not wrong
