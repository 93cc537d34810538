"""Decisions that follow from a model folder, and what of it is said before any row is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from chats import STYLES, make_folder
from tokenizers import Tokenizer as HuggingFaceTokenizer

from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.document import Document, Medium, Message
from preshard.packer_service.ingest.model import configured_renderer, packed_for
from preshard.packer_service.ingest.render import render
from preshard.packer_service.ingest.text.configured import configured_tokenizer
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError, DocumentError

pytestmark = pytest.mark.process  # folders and templates are read in a process of their own

Make = Callable[..., PackConfig]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder for text alone, in the style of Llama."""
    made = make_folder(STYLES[0], tmp_path_factory.mktemp("model") / "llama")
    (made / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    return made


def test_a_model_for_text_decides_tokens_and_template(folder: Path) -> None:
    """Fails when a model's vocabulary grows by a token that it does not have, or its template is not used."""
    config = load_config(None, [f"model={folder}"])
    target = packed_for(config)
    tokenizer = configured_tokenizer(config)
    assert target.model is not None
    assert (target.model.model_type, target.model.axes, target.model.row_ids) == ("llama", 1, [])
    size = HuggingFaceTokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    assert target.tokenizer.vocab_size == size
    assert target.tokenizer.image_id == target.tokenizer.pad_id < target.tokenizer.vocab_size
    assert tokenizer.template is not None
    assert target.tokenizer.chat_template_sha256 == tokenizer.template.sha256
    turns = (Message(role="user", parts=("q",)), Message(role="assistant", parts=("a",)))
    renderer = configured_renderer(config)
    rendered = render(renderer, Document(branches=(turns,)), [])
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    assert tokenizer.decode(rendered.tokens.tolist()) == (
        f"<|begin_of_text|>{head.format('user')}q<|eot_id|>{head.format('assistant')}a<|eot_id|>"
    )
    image = Message(role="user", parts=(Medium(kind="image", uri="x"),), content_is_list=True)
    with pytest.raises(DocumentError, match="the model llama reads only text"):
        render(renderer, Document(branches=((image, turns[1]),)), [])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("<|eot_id|>", "the chat template writes it, and a row must not"),
        ("<|eot|>", "the tokenizer has no such special token"),
    ],
)
def test_what_rows_may_not_spell_is_told_at_the_start(folder: Path, name: str, reason: str) -> None:
    """Fails when a row may end its own turn, or a slip in a token's name is found by rejects."""
    with pytest.raises(ConfigError, match=reason):
        configured_renderer(load_config(None, [f"model={folder}", f"special_tokens.in_text=[{json.dumps(name)}]"]))


def test_the_same_folder_elsewhere_is_the_same_tokenizer(folder: Path, tmp_path: Path) -> None:
    """Fails when a dataset's identity depends on where its tokenizer lies."""
    moved = folder.rename(tmp_path / "moved")
    try:
        entry = configured_tokenizer(load_config(None, [f"tokenizer={moved}"])).entry
    finally:
        moved.rename(folder)
    assert entry == configured_tokenizer(load_config(None, [f"tokenizer={folder}"])).entry


def test_a_given_template_goes_before_the_folder_s(folder: Path, tmp_path: Path) -> None:
    """Fails when a template that was given is not the one that is used, or is not part of the identity."""
    given = tmp_path / "given.jinja"
    given.write_text("{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}")
    tokenizer = configured_tokenizer(load_config(None, [f"tokenizer={folder}", f"chat_template={given}"]))
    assert tokenizer.template is not None
    assert tokenizer.template.source == given.read_text()
    assert tokenizer.entry.chat_template_sha256 == tokenizer.template.sha256
    # a tokenizer's file alone has no names for templates but those that the packer finds
    settings = [f"tokenizer={folder}/tokenizer.json", "special_tokens.eos=<|eot_id|>", f"chat_template={given}"]
    alone = configured_tokenizer(load_config(None, settings))
    assert alone.template is not None
    assert json.loads(alone.template.special_tokens)["eos_token"] == "<|eot_id|>"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["tokenizer=x.json", "model=FOLDER"], "tokenizer 'x.json' contradicts model"),
        (["vision.max_crops=4", "model=FOLDER"], "vision.max_crops 4 contradicts model"),
        (["bidirectional=none", "model=FOLDER"], "bidirectional 'none' contradicts model"),
        (["images.backend=pil"], "images.backend 'pil' applies only to the processors of a model; set model, too"),
        (["model=NOWHERE"], "is not a folder; give a model folder"),
        (["tokenizer=NOWHERE"], "is not a file; give `tekken`, the path of a tokenizer.json, or a folder with one"),
        (["tokenizer=EMPTY"], "has no tokenizer.json"),
        (["tokenizer=FOLDER", "chat_template=NOWHERE"], "cannot be read (No such file or directory)"),
        (["tokenizer=FOLDER", "chat_template=BROKEN"], "chat_template: line 2: Unexpected end of template"),
        (["tokenizer=FOLDER", "chat_template=BINARY"], "is not UTF-8 text; give a Jinja file"),
        (["chat_template=GIVEN"], "tekken writes Mistral's own form of a chat"),
        (["model=OTHER"], "model_type 'clip' is not supported"),
        (["model=LACKING"], "its tokenizer has no token '<|image_pad|>', which qwen3_vl writes around images"),
    ],
)
def test_what_does_not_fit_is_said_before_any_row_is_read(
    folder: Path, tmp_path: Path, settings: list[str], said: str
) -> None:
    """Fails when a folder or template that cannot be used is found out by the first document, or not in one line."""
    files = {"BROKEN": b"\n{% if x %}", "BINARY": b"\xff\xfe", "GIVEN": b"x"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name in ("EMPTY", "OTHER", "LACKING"):
        (tmp_path / name).mkdir()
    for name, kind in (("OTHER", "clip"), ("LACKING", "qwen3_vl")):
        for file in folder.iterdir():
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": kind, "vision_config": {}}))
        (tmp_path / name / "preprocessor_config.json").write_text("{}")
    places = {name: tmp_path / name for name in (*files, "EMPTY", "OTHER", "LACKING", "NOWHERE")} | {"FOLDER": folder}
    named = [f"{key}={places.get(value, value)}" for key, _, value in (setting.partition("=") for setting in settings)]
    with pytest.raises(ConfigError) as caught:
        packed_for(load_config(None, named))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
