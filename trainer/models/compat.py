"""What the oldest versions of ``transformers`` lack. All else that is used here has been the same since 5.0."""

from __future__ import annotations

from preshard.schemas.errors import ConfigError

Version = tuple[int, int]

PLACES: Version = (5, 15)
"""Vision encoders take what they would otherwise work out of the grids, and for which a device's host waits."""

OWN_ROWS: Version = (5, 15)
"""``from_pretrained`` reads of a sharded parameter this rank's rows alone. Before, each rank reads whole tensors."""

FAMILIES_SINCE: dict[str, Version] = {"molmo2": (5, 20)}
"""Kinds of models that came later."""


def has(since: Version) -> bool:
    """Whether the installed ``transformers`` is of a version or newer."""
    import transformers

    major, minor = transformers.__version__.split(".")[:2]
    return (int(major), int(minor)) >= since


def check_has(model_type: str | None) -> None:
    """Checks that the installed ``transformers`` is new enough for a kind of model.

    Raises:
        ConfigError: it is not.
    """
    since = FAMILIES_SINCE.get(model_type or "")
    if since is None or has(since):
        return
    import transformers

    first = ".".join(map(str, since))
    raise ConfigError(
        f"--model is a {model_type} model, which needs transformers {first} or newer; {transformers.__version__} is "
        f"installed: pip install 'transformers>={first}'"
    )
