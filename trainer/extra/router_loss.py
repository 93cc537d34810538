"""Auxiliary loss of mixtures of experts, by which routers spread tokens evenly (Fedus et al. 2021, Switch Transformer).

That of ``transformers``, over all documents of a pack as one batch: the number of experts times the sum over experts of
the share of tokens that have it among their k largest logits x its mean probability, both over all layers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor, nn

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.core.objective import PackLoss
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.device import to_device
from preshard.trainer.models.interface import family_of, unwrap
from preshard.trainer.models.packed import PackedModel


def find_coefficient(model: Any, given: float | None, name: str = "--router-aux-loss") -> float:
    """Weight of the auxiliary loss; 0 for none.

    Args:
        model: of ``transformers``, with adapters or without.
        given: what the user says. If nothing, the model's settings count, ``output_router_logits`` and
            ``router_aux_loss_coef``, where ``transformers`` has such a loss for the model.
        name: of the option, which messages begin with.

    Raises:
        ConfigError: a weight is given, and ``transformers`` has no such loss for the model.
    """
    base = unwrap(model)
    text = base.config.get_text_config()
    has_loss = any(hasattr(sys.modules.get(kind.__module__), "load_balancing_loss_func") for kind in type(base).__mro__)
    if given is None:
        asked = has_loss and getattr(text, "output_router_logits", False)
        return float(getattr(text, "router_aux_loss_coef", None) or 0.0) if asked else 0.0
    if given and not has_loss:
        raise ConfigError(
            f"{name} is {given:g}, and transformers has no auxiliary loss for {base.config.model_type}: leave it out"
        )
    return given


def loss_with_routers(
    model: PackedModel, batch: RankBatch, cp: ContextParallel, coefficient: float, **exchanges: Any
) -> Float[Tensor, ""]:
    """This rank's share of the sum of losses with the auxiliary loss of the pack, which weighs as all of its tokens do.

    So the sum over packs by the sum of loss weights is the mean of each pack's loss + coefficient x auxiliary loss, by
    the packs' loss weights. All ranks of the pack call this together.
    """
    if not coefficient:
        plain: Tensor = model(batch, cp, **exchanges)
        return plain
    base = unwrap(model.inner)
    core = base.base_model
    with _recorded(core if family_of(base.config) is None else core.language_model) as logits:
        loss: Tensor = model(batch, cp, **exchanges)
    if not logits:
        raise ConfigError(
            f"no layer of this {base.config.model_type} has experts, so there are no routers to balance: give "
            "--router-aux-loss 0"
        )
    text = base.config.get_text_config()
    top_k = getattr(base, "num_experts_per_tok", None) or text.num_experts_per_tok
    is_real = to_device(batch.doc_ids.cpu()[batch.positions.cpu()] >= 0, loss.device)
    share = balance_share(logits, is_real, top_k, cp.cp_group)
    return loss + (coefficient * batch.total_loss_weight * share).to(loss.dtype)


def balance_share(
    logits: Sequence[Float[Tensor, "... experts"]],
    is_real: Bool[Tensor, "local"],
    top_k: int,
    group: dist.ProcessGroup | None = None,
) -> Float[Tensor, ""]:
    """A rank's share of the auxiliary loss: the ranks' shares add up to it, and so do their gradients.

    The loss is linear in the probabilities, and how often an expert is chosen has no gradient. So ranks join the counts
    alone, and nothing is sent in the backward pass.

    Args:
        logits: of each router, in the order of the layers; one that takes its tokens in parts has an entry for each.
        is_real: False for padding, which does not count.
        top_k: experts that a token is sent to.
        group: the ranks of the pack.
    """
    n_experts = logits[0].shape[-1]
    exact = torch.promote_types(logits[0].dtype, torch.float32)
    chosen, probabilities = (logits[0].new_zeros(n_experts, dtype=each) for each in (torch.float64, exact))
    rows = is_real.double()
    begin, counted = 0, rows.new_zeros(())
    for part in logits:
        flat = part.reshape(-1, n_experts)
        own = rows[begin : begin + len(flat)]
        begin = (begin + len(flat)) % len(rows)
        shares = flat.softmax(-1)
        experts = shares.detach().topk(top_k, dim=-1).indices
        chosen = chosen.index_add(0, experts.flatten(), own.repeat_interleave(top_k))
        probabilities = probabilities + own.to(exact) @ shares.to(exact)
        counted = counted + own.sum()
    joined = torch.cat([chosen, counted[None]])
    if group is not None:
        dist.all_reduce(joined, group=group)
    total = joined[-1].clamp(min=1)
    return n_experts * (joined[:-1] / total) @ (probabilities.double() / total)


@contextmanager
def _recorded(language: nn.Module) -> Iterator[list[Tensor]]:
    """The logits of a language model's routers, as its calls inside give them."""
    found: list[Tensor] = []

    def ask(_: nn.Module, args: Any, named: dict[str, Any]) -> Any:
        return args, {**named, "output_router_logits": True}

    def keep(_: nn.Module, __: Any, outputs: Any) -> None:
        found.extend(outputs.router_logits)

    handles = (
        language.register_forward_pre_hook(ask, with_kwargs=True),
        language.register_forward_hook(keep),
    )
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


class WithRouters:
    """The next token's loss and the auxiliary one, as an objective of the recipe.

    Args:
        coefficient: what the auxiliary loss is multiplied by.
        exchanges: as for ``PackedModel``.
    """

    figures: tuple[str, ...] = ()

    def __init__(self, coefficient: float, **exchanges: Any) -> None:
        self._coefficient, self._exchanges = coefficient, exchanges

    def __call__(self, model: PackedModel, batch: RankBatch, cp: ContextParallel) -> PackLoss:
        loss = loss_with_routers(model, batch, cp, self._coefficient, **self._exchanges)
        return PackLoss(loss=loss, loss_sum=loss)
