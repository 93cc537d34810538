"""Parts of a model that are frozen, adapters beside a frozen model, and learning rates by part.

A part is ``vision``, all that makes features of images; ``language``, the rest; or a pattern. A pattern is some
consecutive components of a parameter's name, where ``*`` stands for anything: ``visual.merger``, ``layers.0``,
``*norm*``.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

from torch import nn

from preshard.schemas.errors import ConfigError
from preshard.schemas.model.memory import Trains
from preshard.trainer.core.config import TrainConfig
from preshard.trainer.core.optimizer import OwnRate
from preshard.trainer.models.interface import base_names, decoder_layers, encoder_trains, language_parameters, unwrap

VISION, LANGUAGE = "vision", "language"


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters (Hu et al. 2021), as ``peft`` has them.

    Attributes:
        rank: of each.
        alpha: what an adapter adds is scaled by alpha / rank.
        targets: parts whose linear layers get one.
    """

    rank: int
    alpha: int
    targets: tuple[str, ...] = (LANGUAGE,)

    def wrap(self, model: Any) -> nn.Module:
        """Freezes a model and puts adapters into it. They hold nothing if the model is on the meta device.

        Raises:
            ConfigError: ``peft`` is not installed, or a target has no linear layer that can have an adapter.
        """
        try:
            peft = import_module("peft")
        except ModuleNotFoundError:
            raise ConfigError(
                "--lora needs the package peft, which is not installed: pip install peft, or train parts of the model "
                "with --freeze"
            ) from None
        dtype = next(model.parameters()).dtype
        config = peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, target_modules=self._layers(model), task_type="CAUSAL_LM"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of transformers, at what peft asks
            wrapped: nn.Module = peft.get_peft_model(model, config, low_cpu_mem_usage=True)
        for parameter in wrapped.parameters():
            parameter.data = parameter.data.to(dtype)
        return wrapped

    def _layers(self, model: Any) -> list[str]:
        """Paths of the linear layers that the targets name, except the output projection, which the loss multiplies by
        itself.
        """
        linear = {f"{path}.weight" for path, each in model.named_modules() if isinstance(each, nn.Linear)}
        output = {name for name, each in named_parameters(model) if each is model.get_output_embeddings().weight}
        found: set[str] = set()
        for target in self.targets:
            own = names_of(model, target, "--lora-targets") & (linear - output)
            if not own:
                raise ConfigError(
                    f"--lora-targets is {target}, which matches no linear layer but the output projection: name "
                    "linear layers, such as q_proj"
                )
            found |= own
        return sorted(name.removesuffix(".weight") for name in found)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Choice of what of a model trains.

    Attributes:
        freeze: parts that stay as they are.
        lora: adapters, which then train alone.
        rates: learning rates of parts; of several that name a parameter, the last counts.
    """

    freeze: tuple[str, ...] = ()
    lora: Lora | None = None
    rates: tuple[tuple[str, float], ...] = ()

    def apply(self, model: Any) -> Any:
        """Freezes parts of a model in place, or wraps it with adapters. Call it before the model is sharded.

        Raises:
            ConfigError: an option names nothing, names what does not train, or leaves nothing to train.
        """
        frozen = set[str]().union(*(names_of(model, part, "--freeze") for part in self.freeze))
        for name, parameter in named_parameters(model):
            if name in frozen:
                parameter.requires_grad_(False)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(f"--freeze {' --freeze '.join(self.freeze)} leaves nothing to train: freeze less")
        applied = model if self.lora is None else self.lora.wrap(model)
        for part, _ in self.rates:
            own = names_of(applied, part, "--lr-part")
            if not any(each.requires_grad for name, each in named_parameters(applied) if name in own):
                raise ConfigError(f"--lr-part is {part}, all of which is frozen: leave it out, or freeze less")
        return applied

    @classmethod
    def of(cls, config: TrainConfig) -> Parts:
        """Parts that the options name.

        Raises:
            ConfigError: a ``--lr-part`` is not PART=LR.
        """
        lora = None
        if config.lora is not None:
            alpha, targets = config.lora_alpha or 2 * config.lora, config.lora_targets or (LANGUAGE,)
            lora = Lora(rank=config.lora, alpha=alpha, targets=targets)
        return cls(freeze=config.freeze, lora=lora, rates=tuple(map(_parse_rate, config.lr_part)))

    def own_rates(self, model: Any) -> list[OwnRate]:
        """The parameters of a model that have a rate of their own, as ``make_optimizer`` takes them."""
        parts = [(names_of(model, part, "--lr-part"), rate) for part, rate in self.rates]
        return [([each for name, each in named_parameters(model) if name in own], rate) for own, rate in parts]

    def describe(self, model: Any) -> dict[str, Any]:
        """Entries of a checkpoint: how it was chosen, a hash of what trains, and what adapters are made of."""
        options = [f"--freeze {part}" for part in self.freeze]
        if self.lora is not None:
            options.append(f"--lora {self.lora.rank} --lora-alpha {self.lora.alpha}")
            options += [f"--lora-targets {target}" for target in self.lora.targets]
        options += [f"--lr-part {part}" for part, _ in self.rates]
        shapes = [f"{name} {tuple(each.shape)}" for name, each in named_parameters(model) if each.requires_grad]
        alpha = "" if self.lora is None else str(self.lora.alpha)
        trained = "\n".join([alpha, *(part for part, _ in self.rates), *sorted(shapes)])
        return {
            "options": " ".join(options),
            "names": hashlib.sha256(trained.encode()).hexdigest()[:16],
            "lora": None if self.lora is None else asdict(self.lora),
        }


def _parse_rate(text: str) -> tuple[str, float]:
    part, _, rate = text.rpartition("=")
    try:
        found = float(rate)
    except ValueError:
        found = 0.0
    if not part or not 0 < found < float("inf"):
        raise ConfigError(f"--lr-part is {text}; write PART=LR with a learning rate above 0, such as vision=1e-6")
    return part, found


def count_trains(model: Any) -> Trains:
    """Counts what of a model trains, as memory depends on it."""
    base = unwrap(model)
    trained, frozen = (
        sum(each.numel() for each in model.parameters() if each.requires_grad == wanted) for wanted in (True, False)
    )
    layers = decoder_layers(base)
    own = base_names(layers)
    return Trains(
        trained=trained,
        frozen=frozen,
        blocks=any(each.requires_grad for name, each in layers.named_parameters() if name in own),
        head=base.get_output_embeddings().weight.requires_grad,
        encoder=encoder_trains(base),
    )


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
        own = language_parameters(base)
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
