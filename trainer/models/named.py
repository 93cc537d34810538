"""Parts of a model by the names of their parameters.

A part is ``vision``, all that makes features of images; ``language``, the rest; or a pattern. A pattern is some
consecutive components of a parameter's name, where ``*`` stands for anything: ``visual.merger``, ``layers.0``,
``*norm*``.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from preshard.schemas.errors import ConfigError
from preshard.trainer.families.family import family_of
from preshard.trainer.models.interface import unwrap

VISION, LANGUAGE = "vision", "language"


def named_parameters(model: Any) -> Sequence[tuple[str, nn.Parameter]]:
    """The parameters of a model without what ``peft`` has put around it; one that is tied, under each of its names."""
    return list(unwrap(model).named_parameters(remove_duplicate=False))


def names_of(model: Any, part: str, option: str) -> frozenset[str]:
    """Names of the parameters in a part of a model.

    Args:
        model: of ``transformers``, with or without adapters.
        part: ``vision``, ``language`` or a pattern.
        option: that names the part, for messages.

    Raises:
        ConfigError: no parameter matches; the message gives the nearest names.
    """
    base = unwrap(model)
    parameters = named_parameters(model)
    if part in (VISION, LANGUAGE):
        language = base.base_model if family_of(base.config) is None else base.base_model.language_model
        own = {id(each) for each in (*language.parameters(), *base.get_output_embeddings().parameters())}
        found = {name for name, each in parameters if (id(each) in own) == (part == LANGUAGE)}
        if not found:
            raise ConfigError(f"{option} is {part}, and {base.config.model_type} is a model of text: leave it out")
        return frozenset(found)
    found = {name for name, _ in parameters if _matches(f".{name}.", part)}
    if not found:
        near = get_close_matches(part, _pieces([name for name, _ in parameters]), n=3, cutoff=0.0)
        raise ConfigError(
            f"{option} is {part}, which matches no parameter of {base.config.model_type}; take {VISION}, {LANGUAGE}, "
            f"or a part of a name, such as {', '.join(near)}"
        )
    return frozenset(found)


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, f"*.{pattern}.*")


def _pieces(names: Sequence[str]) -> list[str]:
    """Every run of components of some names, each number in them as ``*``."""
    shapes = {tuple("*" if piece.isdigit() else piece for piece in name.split(".")) for name in names}
    runs = {shape[i:j] for shape in shapes for i in range(len(shape)) for j in range(i + 1, len(shape) + 1)}
    return sorted(".".join(run) for run in runs if run != ("*",))


def encoder_trains(base: Any) -> bool:
    """Whether a parameter that makes features trains."""
    return bool(feature_parameters(base))


def feature_parameters(base: Any) -> list[nn.Parameter]:
    """The parameters that make features of images and train; none of a model of text."""
    if family_of(base.config) is None:
        return []
    own = names_of(base, VISION, "")
    return [each for name, each in named_parameters(base) if name in own and each.requires_grad]
