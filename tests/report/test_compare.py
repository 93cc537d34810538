"""Two sides of a comparison: which figures meet, what is better, what is unknown; and costs of another model."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from preshard.packer_service.report.compare import ComparedFigure, ComparedSide, compare
from preshard.packer_service.report.console import print_comparison
from preshard.packer_service.report.dataset import cost_contradiction
from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import ModelEntry, TokenizerEntry


def side(name: str, *figures: tuple[str, str, float | None, Any], **configuration: Any) -> ComparedSide:
    return ComparedSide(
        name=name,
        figures=[
            ComparedFigure(section=section, name=label, unit="share", value=value, better=better)
            for section, label, value, better in figures
        ],
        configuration=configuration,
    )


def test_figures_meet_by_name_and_say_which_is_better() -> None:
    """Fails when a larger fill counts as worse, or rows are joined by their places."""
    first = side(
        "a", ("padding", "fill", 0.9, "more"), ("padding", "packing", 0.05, "less"), ("steps", "cost", 5, None)
    )
    second = side(
        "b", ("padding", "packing", 0.1, "less"), ("padding", "fill", 0.95, "more"), ("steps", "cost", 5, None)
    )
    rows = {row.name: row for row in compare(first, second).rows}
    assert (rows["fill"].verdict, rows["packing"].verdict, rows["cost"].verdict) == ("better", "worse", None)
    assert rows["packing"].change == pytest.approx(1.0)
    assert compare(first, first).rows[0].verdict == "same"


def test_a_reason_that_one_side_lacks_is_none_of_it_and_a_length_is_unknown() -> None:
    """Fails when a new reject code has no verdict, or a plan without lengths has documents of no tokens."""
    first = side("a", ("lengths", "median", 100, None), ("rejects", "all", 1, "less"))
    second = side("b", ("rejects", "all", 3, "less"), ("rejects", "bad_row", 2, "less"))
    rows = {row.name: row for row in compare(first, second).rows}
    assert (rows["bad_row"].first, rows["bad_row"].second, rows["bad_row"].verdict) == (0, 2, "worse")
    assert (rows["median"].second, rows["median"].change) == (None, None)
    assert [row.section for row in compare(first, second).rows] == ["lengths", "rejects", "rejects"]


def test_only_keys_that_differ_are_listed() -> None:
    """Fails when equal keys are repeated, or a side without a configuration differs in every key."""
    found = compare(side("a", seq_len=1024, epochs=1), side("b", seq_len=2048, epochs=1)).configuration
    assert [(each.key, each.first, each.second) for each in found] == [("seq_len", 1024, 2048)]
    assert compare(side("a", seq_len=1024), side("b")).configuration == []


def test_names_of_sources_cannot_format_the_table() -> None:
    """Fails when a source called [red] is taken for markup, or unknown rows take up a line."""
    console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    first = side("a", ("sources", "[red]", 1.0, None), ("images", "CP 2", None, "less"))
    print_comparison(compare(first, first), console)
    text = console.export_text()
    assert "[red]" in text
    assert "CP 2" not in text


def tokenizer(size: int, image_id: int = 5) -> TokenizerEntry:
    return TokenizerEntry(
        name="one", sha256="0", vocab_size=size, bos_id=None, eos_id=1, pad_id=1, image_id=image_id,
        chat_template_sha256=None,
    )  # fmt: skip


def config(**cost: int) -> PackConfig:
    return PackConfig.model_validate({"cost": cost})


@pytest.mark.parametrize(
    ("size", "image_id", "rows", "warned"),
    [
        (151_669, 5, 151_936, False),  # Qwen3: padded
        (131_073, 131_072, 131_072, False),  # Tekken, and an image's id behind it
        (131_073, 131_072, 151_936, True),
        (262_144, 5, 151_936, True),
        (32_000, 5, 32_000, False),
    ],
)
def test_costs_of_another_model_are_noticed(size: int, image_id: int, rows: int, warned: bool) -> None:
    """Fails when the default costs pass for those of Tekken, or a padded vocabulary is taken for another model's."""
    found = cost_contradiction(tokenizer(size, image_id), None, config(vocab_size=rows))
    assert (found is not None) == warned


def test_image_features_show_another_model() -> None:
    """Fails when a model folder's encoder, which gives rows of one width, is weighed with a decoder of another."""
    encoder = {
        **{"patch_size": [16, 16], "temporal_patch_size": 2, "hidden_size": 32, "intermediate_size": 64},
        **{"mlp_matrices": 2, "layers": 2, "windowed_layers": 0, "window_size": 0, "patch_inputs": 1536},
        **{"row_inputs": 128, "row_hidden": 128, "row_outputs": 2 * 64},
    }
    model = ModelEntry(
        model_type="qwen3_vl", files={}, axes=3, merge=2, row_ids=[1], group_ids=[], settings={"encoder": encoder}
    )
    found = cost_contradiction(tokenizer(1000), model, config(hidden_size=4096, vocab_size=1000))
    assert found is not None
    assert "128 numbers" in found
    assert cost_contradiction(tokenizer(1000), model, config(hidden_size=64, vocab_size=1000)) is None
