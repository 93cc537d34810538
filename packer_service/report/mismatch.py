"""Whether the dimensions that weigh a dataset's work are those of the model that its tokens are for."""

from __future__ import annotations

from preshard.packer_service.report.records import Thinned
from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import ManifestHead, ModelEntry, TokenizerEntry
from preshard.schemas.model.encoder import encoder_of

PADDED_VOCABULARY = 1.03
"""A model's vocabulary is padded to a round number: Qwen3-8B's has 151,936 rows for 151,669 tokens, 1.002 times as
many. One that is larger than this belongs to another tokenizer."""


def warnings_of(manifest: ManifestHead, config: PackConfig, thinned: Thinned | None = None) -> list[str]:
    """What a report of a dataset warns of: dimensions of another model than its tokens are for, and thinned videos."""
    warnings = thinned_warnings(thinned, config)
    if found := cost_contradiction(manifest.tokenizer, manifest.model, config):
        told = "costs are those of another model; set cost.* to the dimensions of the one that will train"
        warnings.insert(0, f"{found}: {told}")
    return warnings


def thinned_warnings(thinned: Thinned | None, config: PackConfig) -> list[str]:
    """Says how far apart the frames of long videos are; nothing where every video has the frames that it should."""
    if thinned is None or not thinned.documents:
        return []
    number = thinned.documents
    return [
        f"video.max_frames {config.video.max_frames} thins the videos of {number:,} "
        f"{'document' if number == 1 else 'documents'}, down to one frame in {thinned.seconds:.3g} s where "
        f"video.fps asks for {config.video.fps:g} a second; raise video.max_frames, or cut long videos into clips with "
        "start and end"
    ]


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
