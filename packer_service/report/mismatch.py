"""Whether the dimensions that weigh a dataset's work are those of the model that its tokens are for."""

from __future__ import annotations

from preshard.schemas.config import PackConfig
from preshard.schemas.encoder import encoder_of
from preshard.schemas.manifest import ManifestHead, ModelEntry, TokenizerEntry

PADDED_VOCABULARY = 1.03
"""A model's vocabulary is padded to a round number: Qwen3-8B's has 151,936 rows for 151,669 tokens, 1.002 times as
many. One that is larger than this belongs to another tokenizer."""


def warnings_of(manifest: ManifestHead, config: PackConfig) -> list[str]:
    """What a report of a dataset warns of: dimensions of another model than its tokens are for."""
    found = cost_contradiction(manifest.tokenizer, manifest.model, config)
    if found is None:
        return []
    return [f"{found}: costs are those of another model; set cost.* to the dimensions of the one that will train"]


def cost_contradiction(tokenizer: TokenizerEntry, model: ModelEntry | None, config: PackConfig) -> str | None:
    """The first dimension that another model has."""
    cost = config.cost
    encoder = encoder_of(model.settings) if model else None
    if encoder and encoder.row_outputs % cost.hidden_size:
        return (
            f"cost.hidden_size is {cost.hidden_size}, and the image features of {model.model_type if model else ''} "
            f"have {encoder.row_outputs} numbers"
        )
    of_images = model is None and tokenizer.image_id == tokenizer.vocab_size - 1
    tokens = tokenizer.vocab_size - of_images
    if not tokens <= cost.vocab_size <= PADDED_VOCABULARY * tokens:
        return f"cost.vocab_size is {cost.vocab_size:,}, and the tokenizer {tokenizer.name} has {tokens:,} tokens"
    return None
