"""Which of a tokenizer's special tokens begin and end documents, pad them, and stand for images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from preshard.packer_service.ingest.text.marks import BOS_NAMES, EOS_NAMES, IMAGE_NAMES, PAD_NAMES
from preshard.schemas.config import SpecialTokensConfig
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import TokenizerEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialIds:
    """Their ids. ``vocab_size`` covers that of images, which may be a new one after the vocabulary."""

    bos: int | None
    eos: int
    pad: int
    image: int
    vocab_size: int

    def entry(self, name: str, sha256: str) -> TokenizerEntry:
        """The manifest's entry of a tokenizer, so far without a chat template."""
        return TokenizerEntry(
            name=name,
            sha256=sha256,
            vocab_size=self.vocab_size,
            bos_id=self.bos,
            eos_id=self.eos,
            pad_id=self.pad,
            image_id=self.image,
            chat_template_sha256=None,
        )

    def by_role(self, ids: Mapping[str, int]) -> str:
        """What chat templates find under ``bos_token`` and the like where no folder says it, as JSON text."""
        names = {number: name for name, number in ids.items()}
        roles = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad}
        return json.dumps({role: names[number] for role, number in roles.items() if number in names})


def find_special_ids(
    ids: Mapping[str, int], special: SpecialTokensConfig, *, vocab_size: int, special_tokens: str | None = None
) -> SpecialIds:
    """The ids that the configuration names, else those that the tokenizer's folder names, else by well-known names.

    Args:
        ids: the tokens besides the vocabulary, by how they are spelled.
        special: special tokens that the configuration names.
        vocab_size: of the tokenizer.
        special_tokens: special tokens by the names that ``transformers`` gives them (``bos_token`` ...), as JSON text;
            None if no folder says.

    Raises:
        ConfigError: one that is named is not there, or none ends a document.
    """
    own = json.loads(special_tokens or "{}")
    # a folder that names no token for the beginning means that there is none
    bos = _find(ids, special.bos or own.get("bos_token"), BOS_NAMES if special_tokens is None else (), "bos")
    eos = _find(ids, special.eos or own.get("eos_token"), EOS_NAMES, "eos")
    if eos is None:
        raise ConfigError(
            f"special_tokens.eos: the tokenizer has none of {', '.join(EOS_NAMES)}; name one of its special tokens: "
            f"{', '.join(list(ids)[:20]) or 'it has none'}"
        )
    pad = _find(ids, own.get("pad_token"), PAD_NAMES, "pad")
    image = _find(ids, special.image, IMAGE_NAMES, "image")
    if image is None:
        image, vocab_size = vocab_size, vocab_size + 1
    return SpecialIds(bos=bos, eos=eos, pad=eos if pad is None else pad, image=image, vocab_size=vocab_size)


def _find(ids: Mapping[str, int], given: str | None, names: Sequence[str], what: str) -> int | None:
    if given is not None:
        if given not in ids:
            raise ConfigError(
                f"special_tokens.{what}: {given!r} is not a special token of the tokenizer; it has: "
                f"{', '.join(list(ids)[:20]) or 'none'}"
            )
        return ids[given]
    return next((ids[name] for name in names if name in ids), None)
