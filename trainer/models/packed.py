"""A Hugging Face model over one rank's part of a pack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.bind import Attend, Exchange, bind, check_heads
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels import kernel_for
from preshard.trainer.attention.listed import ListedKernel, TileLister
from preshard.trainer.attention.mask import Groups, MaskTensors, count_layers
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.device import compute_device, to_device
from preshard.trainer.extras import load_extra
from preshard.trainer.families.family import Features, Inputs, ModelFamily, normalise
from preshard.trainer.models.features import FeatureExchange, bind_features
from preshard.trainer.models.interface import (
    PACKED,
    Sealed,
    bind_states,
    block_paths,
    family_of,
    unwrap,
    without_autocast,
)
from preshard.trainer.models.load import model_sizes
from preshard.trainer.models.loss import LOGITS_BYTES, loss_sum, token_losses

LENDS = "lends_weight"
"""Attribute of the class of an output projection that gives its weight to the loss."""


class PackedModel(nn.Module):
    """A model from :func:`preshard.models.load_model`, called with this rank's part of a pack.

    Each rank encodes its own units; features travel to the ranks of their tokens, and attention is that of
    :mod:`preshard.trainer.attention`. Every rank runs the same collectives and gives every parameter a gradient,
    whatever its part of a pack holds: a rank without a unit encodes the smallest image there is, and uses no feature
    of it.

    To shard it, shard each of :attr:`blocks`, then the whole, as all else is used inside its own forward.

    Its parts are the model's own, so parameters, ``state_dict`` and checkpoints have the model's names. What it does
    not have itself is the model's too: ``device``, ``dtype``, ``generation_config``, ``save_pretrained`` ...

    Args:
        model: from ``load_model``, or such a model with adapters of ``peft``.
        logits_bytes: the most bytes of logits that exist at once.

    Attributes:
        inner: the model.

    Raises:
        ConfigError: the model does not ask for the attention of packs, is of no supported kind, or has adapters that
            packs do not follow.
    """

    inner: Any

    def __init__(self, model: nn.Module, *, logits_bytes: int = LOGITS_BYTES) -> None:
        super().__init__()
        base = unwrap(model)
        check_adapters(model)
        self.config: Any = base.config
        if self.config.get_text_config()._attn_implementation != PACKED:
            raise ConfigError(f"the model's attention is not {PACKED}; load it with preshard.models.load_model")
        load_extra("model_check").check_experts_whole(self.config)
        self.family: ModelFamily | None = family_of(self.config)
        self.logits_bytes = logits_bytes
        self._sizes = model_sizes(self.config)
        self.__dict__["inner"] = model  # as a part of this module it would put its name before all others
        for parts in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            self.__dict__[parts] = getattr(model, parts)
        self._block_paths = block_paths(base, within=model) + _end_paths(base, model)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "inner" not in self.__dict__:
                raise
            return getattr(self.inner, name)

    def train(self, mode: bool = True) -> PackedModel:
        """Sets the mode, as on every module. What the model itself looks at is set with it."""
        self.inner.training = mode
        return super().train(mode)

    @property
    def blocks(self) -> tuple[nn.Module, ...]:
        """The parts to be sharded one by one: the outermost that the model says are not to be split, and its two ends,
        the embedding and the output projection, unless they share a weight.
        """
        return tuple(self.get_submodule(path) for path in self._block_paths)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The tokens that each layer sees, None for a layer without a sliding window; empty if no layer has one."""
        return self._sizes.windows

    @property
    def groups(self) -> Groups:
        """The layers in which bidirectional groups of tokens see each other."""
        return self._sizes.groups

    def forward(
        self,
        batch: RankBatch,
        cp: ContextParallel,
        *,
        attention: str = "gather",
        features: str = "route",
        exchange: Exchange = "needed",
        overlap: bool = False,
        head_stride: int = 0,
        per_token: bool = False,
        return_dict: bool = False,
    ) -> Any:
        """The sum of loss weight x cross entropy over this rank's tokens, to be divided by all ranks' loss weights.

        All ranks of ``cp`` call it together, and then go backward together.

        Args:
            batch: this rank's part of a pack, best on the CPU: what plans the step is read there, and the rest moves
                without waiting. On a device it is read back first. ``batch.tiles`` are used if they were listed for
                this attention on these ranks.
            cp: this rank's place among the ranks of the pack.
            attention: one of ``preshard.attention.KINDS``.
            features: one of ``preshard.trainer.models.features.WAYS``.
            exchange: which keys the attention ``gather`` moves.
            overlap: of the attentions ``ulysses`` and ``gather``: exchange some heads while others are computed.
            head_stride: of the attention ``gather``: key heads of a rank that are gathered at a time; 0 is all.
            per_token: return the cross entropy of each of ``batch.loss_tokens`` instead, without weights.
            return_dict: give what would be returned as the ``loss`` of an output of ``transformers``.

        Returns:
            The sum, of shape []; or with ``per_token`` one number for each counted token.

        Raises:
            ConfigError: the kind of attention does not run on this mesh, the model's heads do not divide among its
                ranks, or the batch is of another model, or of preferences, whose answers are not all to be learnt.
        """
        has_images = len(batch.pool_positions) > 0
        load_extra("model_check").check_packed_for(self.config, batch.model, has_images=has_images)
        check_adapters(self.inner)  # peft may have come since
        head = unwrap(self.inner).get_output_embeddings()
        if not hasattr(type(head), LENDS):
            load_extra("adapters").check_order(head)
        if not per_token and any(batch.preferences):
            raise ConfigError(
                f"pack {batch.pack_id} holds preferences, and rejected answers would be learnt like chosen ones: train "
                "with --loss dpo, or pack chosen as completion"
            )
        check_heads(
            attention,
            self._sizes.num_heads,
            self._sizes.num_kv_heads,
            ulysses_degree=cp.ulysses_degree,
            ring_degree=cp.ring_degree,
            overlap=overlap,
            head_stride=head_stride,
        )
        device = compute_device(self)
        on_host, batch = batch, batch.with_levels().to(device, non_blocking=True)
        mask = MaskTensors.of(on_host, batch)
        states = bind_states(self.config, batch.layout, mask.host, cp, device)
        kernel, device_type = None, device.type
        groups, score_cap = self.groups, self._sizes.score_cap
        wanted = TileLister.of(
            attention, cp, exchange=exchange, device_type=device_type, windows=self.windows, groups=groups
        )
        if batch.tiles is not None and batch.tiles.lister == wanted:
            kernel = ListedKernel(kernel_for(device_type, score_cap), batch.tiles.calls)
        attends = {
            window: bind(
                attention,
                batch.layout,
                mask.within(window, groups),
                cp,
                exchange=exchange,
                overlap=overlap,
                head_stride=head_stride,
                softcap=score_cap,
                kernel=kernel,
            )
            for window in count_layers(self.windows, batch.seq_len, groups)
        }
        given = {"input_ids": batch.tokens[None]}
        if self.family is not None:
            inputs = self._vision_inputs(batch)
            batch = replace(batch, levels=None)  # they have become inputs
            given = self._embedded(batch, inputs, bind_features(batch, cp, features))
            del inputs
        hidden = self._hidden(batch, attends, given | states)
        loss = head(hidden, partial(self._loss, batch, per_token=per_token))
        if not return_dict:
            return loss
        from transformers.modeling_outputs import CausalLMOutput

        return CausalLMOutput(loss=loss)

    def _loss(self, batch: RankBatch, hidden: Tensor, weight: Tensor, *, per_token: bool) -> Tensor:
        how: Any = {
            "logits_bytes": self.logits_bytes,
            "loss_tokens": batch.loss_tokens,
            "softcap": self._sizes.softcap,
        }
        with without_autocast(hidden, weight) as (own, projection):
            if per_token:
                return token_losses(own, projection, batch.labels, **how)
            return loss_sum(own, projection, batch.labels, batch.loss_weights, **how)

    def _vision_inputs(self, batch: RankBatch) -> Inputs:
        """The inputs of this rank's encoder: pixels where the model is, all else on the CPU."""
        assert self.family is not None
        if batch.model is None or batch.levels is None:
            return self.family.stand_in(self.config)
        return normalise(batch.model.settings, batch.levels)

    def _encode(self, batch: RankBatch, inputs: Inputs) -> Features:
        """Features of this rank's units, in the order of the pack's rows."""
        assert self.family is not None
        made = self.family.encode(self.core, inputs)
        return made[self._row_order(batch)] if batch.units else made[:0]

    def _row_order(self, batch: RankBatch) -> Tensor:
        """Place of each row of this rank's units among rows of its images, then of its videos, both in token order."""
        made = torch.tensor(sorted(batch.unit_order, key=lambda number: batch.units[number].kind != "image"))
        rows = torch.tensor([unit.rows for unit in batch.units])
        return to_device(torch.argsort(made.repeat_interleave(rows[made]), stable=True), batch.tokens.device)

    def _embedded(self, batch: RankBatch, inputs: Inputs, exchange: FeatureExchange) -> dict[str, Any]:
        """The local tokens with the features that fill some of them, as arguments of the language model's call."""
        assert self.family is not None
        embeddings = self.core.get_input_embeddings()(batch.tokens)
        given = self.family.embedded(embeddings, exchange(self._encode(batch, inputs)), exchange.slots)
        return given | self.family.from_tokens(self.core, batch.tokens, exchange.slots)

    def _hidden(
        self, batch: RankBatch, attends: Mapping[int | None, Attend], given: dict[str, Any]
    ) -> Float[Tensor, "local hidden"]:
        language = self.core if self.family is None else self.core.language_model
        positions = batch.position_ids[:, None] if len(batch.position_ids) > 1 else batch.position_ids
        sealed: dict[Any, Attend] = {window: Sealed(attend) for window, attend in attends.items()}
        outputs = language(
            **given,
            position_ids=positions,
            use_cache=False,
            attend=sealed.pop(None, None),
            in_windows=tuple(sealed.items()),
            pack_length=batch.seq_len,
            score_cap=self._sizes.score_cap,
        )
        hidden: Tensor = outputs.last_hidden_state[0]
        return hidden if self._sizes.divisor == 1 else hidden / self._sizes.divisor

    @property
    def core(self) -> Any:
        """The model under its output projection."""
        return unwrap(self.inner).base_model


def _end_paths(base: Any, within: nn.Module) -> tuple[str, ...]:
    """Paths of a model's embedding and output projection, where FSDP can gather each by itself.

    The output projection gets a class that inherits from its own and lends its weight to the loss inside a call, as
    FSDP gathers by calls.
    """
    ends = base.get_input_embeddings(), base.get_output_embeddings()
    kind = type(ends[1])

    def forward(self: Any, hidden: Tensor, loss: Callable[[Tensor, Tensor], Tensor] | None = None) -> Any:
        return kind.forward(self, hidden) if loss is None else loss(hidden, self.weight)

    ends[1].__class__ = type(kind.__name__, (kind,), {"forward": forward, LENDS: True})
    if ends[0].weight is ends[1].weight:
        return ()
    return tuple(path for path, module in within.named_modules() if module in ends)


def check_adapters(model: Any) -> None:
    """Refuses adapters of ``peft``, if a model has any, that do not train on packs as on the documents alone.

    Raises:
        ConfigError: a kind of adapter is not followed, or one is of the output projection.
    """
    base = unwrap(model)
    if any(hasattr(each, "peft_config") for each in (model, base)) or hasattr(
        base.get_output_embeddings(), "base_layer"
    ):
        load_extra("adapters").check_peft(model)
