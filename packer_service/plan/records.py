"""Records of a plan: what limits its packs, what each source got, which videos were thinned."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Figures(BaseModel):
    """Base of every set of figures: frozen, and legal JSON whatever it holds."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null", json_schema_serialization_defaults_required=True)


class FillLimit(Figures):
    """The limit that keeps packs from being fuller, found by planning the documents again without it."""

    key: Literal["max_images", "max_patches", "layouts", "seq_len", "documents", "rejects"] = Field(
        description="The key of the configuration; `documents` if there are too few, `rejects` if documents that were "
        "rejected while they were written left their places empty."
    )
    setting: str | None = Field(
        description="What would fill packs, as `--set` takes it (two settings have a space between); null if no "
        "setting does.",
        examples=["max_images=768"],
    )
    fill: float | None = Field(description="The fill with that setting, by planning again.", examples=[0.962])
    message: str = Field(description="All of that in a sentence.")


class Thinned(Figures):
    """Documents whose videos have fewer frames than ``video.fps`` asks for, because of ``video.max_frames``."""

    documents: int = Field(ge=0)
    seconds: float = Field(ge=0, description="The largest time between two neighbouring frames of theirs.")


class SourceShare(Figures):
    """Share of a source, beside what the mixture asks for."""

    weight: float = Field(description="Copies of each of its documents that an epoch is to hold.", examples=[0.5])
    documents: int = Field(description="Documents (pieces, of those that are split), every copy counted.")
    tokens: int = Field(description="Real tokens, every copy counted.")
    asked: float | None = Field(
        description="Share of all tokens that it would have with exactly its weight; null where that is not known."
    )
    share: float = Field(description="Share of all tokens that it has.")
    loss_share: float | None = Field(description="Share of the sum of all loss weights; null where that is not known.")


class PhaseShares(Figures):
    """Shares of sources in the tokens of a phase of the curriculum."""

    until: float = Field(description="Where it ends, as a share of the run's tokens.")
    asked: dict[str, float] = Field(description="By source, what its weights and the mixture ask for.")
    shares: dict[str, float] = Field(description="By source, what it has.")


class Mixture(Figures):
    """Share of each source."""

    left_out: int = Field(description="Documents that the mixture leaves out. They are not rejects.")
    shares: dict[str, SourceShare] = Field(description="By source.")
    phases: list[PhaseShares] = Field(description="Those of the curriculum; empty without one, or where not known.")
