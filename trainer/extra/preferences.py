"""Direct preference optimisation (Rafailov et al. 2023) on packs whose documents are two answers to a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.tokens import gather_tokens
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.objective import PackLoss, deal_packs, evaluating, exchanges_of
from preshard.trainer.core.setup import Job, open_dataset
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.device import to_device
from preshard.trainer.models.packed import PackedModel

BETA = 0.1
"""The default of ``--beta``, as of TRL's."""

REWARDS = ("chosen", "rejected", "accuracies", "margins")
"""TRL's figures of a pair. An answer's reward is beta x (its log-probability less that under the reference);
``accuracies`` is 1 where the chosen answer has the larger one, else 0; ``margins`` is by how much.
"""

Reference = Mapping[tuple[int, int], Float64[Tensor, "documents 2"]]
"""Values of :func:`answer_log_probs` under the model that a run starts from, by dataset and pack."""


def answer_log_probs(
    losses: Float[Tensor, "counted"], batch: RankBatch, cp: ContextParallel
) -> Float64[Tensor, "documents 2"]:
    """The log-probability of each document's two answers, the preferred one first, on every rank of the pack.

    A rank holds some tokens of an answer. So all ranks call this together, and each gives its own tokens the gradient.

    Args:
        losses: cross entropy of each of ``batch.loss_tokens``, without weights.
        batch: this rank's part of a pack of pairs.
        cp: this rank's place among the ranks of the pack.

    Raises:
        ConfigError: a document of the pack is no pair.
    """
    return _of_answers(losses, batch, cp)[0]


def _of_answers(
    losses: Float[Tensor, "counted"], batch: RankBatch, cp: ContextParallel
) -> tuple[Float64[Tensor, "documents 2"], Float64[Tensor, "documents"]]:
    """The log-probabilities of answers, and what each document counts: the weight of its tokens, which all have one."""
    if not all(batch.preferences):
        number = batch.preferences.index(False)
        raise ConfigError(
            f"--loss is dpo, and document {number} of pack {batch.pack_id} is not a preference: pack only rows of "
            "chosen and rejected"
        )
    device, n_documents = losses.device, len(batch.preferences)
    at = batch.loss_tokens
    own = torch.stack([-losses.double(), to_device(batch.loss_weights[at].double(), device)], 1)
    own = own.new_zeros(len(batch.tokens), 2).index_copy(0, to_device(at, device), own)
    log_probs, weights = gather_tokens(own, batch, cp).unbind(1)
    branch, document = (to_device(each, device).long() for each in (batch.branch_ids, batch.doc_ids))
    answers = torch.where(branch > 0, 2 * document + branch - 1, 0)  # what is in none has no loss, and adds 0
    found = log_probs.new_zeros(2 * n_documents).index_add(0, answers, log_probs).view(n_documents, 2)
    zeros = weights.new_zeros(n_documents)
    return found, zeros.scatter_reduce(0, document.clamp(min=0), weights.detach(), "amax")


def preference_loss(
    losses: Float[Tensor, "counted"], batch: RankBatch, cp: ContextParallel, reference: Reference, beta: float
) -> tuple[Float64[Tensor, ""], Float64[Tensor, ""], Float64[Tensor, "4"]]:
    """The sums over a pack's pairs of -log sigmoid(margin), of 1 and of :data:`REWARDS`, the same on all its ranks.

    Each pair counts as its document's weight says. The margin is by how much the chosen answer's reward is larger:
    TRL's loss ``sigmoid``. Only it has a gradient.

    Raises:
        ConfigError: see :func:`answer_log_probs`.
    """
    log_probs, weights = _of_answers(losses, batch, cp)
    rewards = beta * (log_probs - reference[batch.dataset, batch.pack_id].to(log_probs.device, non_blocking=True))
    chosen, rejected = rewards.unbind(1)
    margins = chosen - rejected
    of_pairs = torch.stack([chosen, rejected, (chosen > rejected).double(), margins]).detach()
    return -(weights * logsigmoid(margins)).sum(), weights.sum(), (weights * of_pairs).sum(1)


def find_reference(
    model: PackedModel,
    datasets: list[PackedDataset],
    mesh: Mesh,
    stop: Callable[[], bool] = lambda: False,
    **exchanges: Any,
) -> Reference:
    """The log-probabilities of all answers under a model as it is, by one pass over every pack. All ranks call this.

    Args:
        model: stays as it is.
        datasets: each opened with ``dp_size`` 1; the packs are dealt here.
        mesh: of all ranks.
        stop: whether this rank was asked to stop.
        exchanges: as for ``PackedModel``.

    Raises:
        StoppedError: a rank was; all ranks raise it.
    """
    found: dict[tuple[int, int], Tensor] = {}
    cp = mesh.cp
    with evaluating(model):
        for number, dataset in enumerate(datasets):
            for batch, _ in deal_packs(dataset, mesh, stop):
                log_probs = answer_log_probs(model(batch, cp, per_token=True, **exchanges), batch, cp)
                found[number, batch.pack_id] = log_probs.cpu()
    every: list[dict[tuple[int, int], Tensor]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, found if cp.cp_rank == 0 else {})
    return {key: value for each in every for key, value in each.items()}


class Preferences:
    """The loss of a run that learns to prefer answers, as an objective of the recipe.

    Args:
        reference: of the packs that it will see.
        beta: see :func:`preference_loss`.
        exchanges: as for ``PackedModel``.
    """

    figures = REWARDS

    def __init__(self, reference: Reference, beta: float, **exchanges: Any) -> None:
        self._reference, self._beta, self._exchanges = reference, beta, exchanges

    def __call__(self, model: PackedModel, batch: RankBatch, cp: ContextParallel) -> PackLoss:
        losses = model(batch, cp, per_token=True, **self._exchanges)
        loss, *sums = preference_loss(losses, batch, cp, self._reference, self._beta)
        # each rank of a pack has the loss of all of its pairs
        return PackLoss(loss, *(each / cp.cp_size for each in (loss, *sums)))


def objectives(job: Job, mesh: Mesh, model: PackedModel, stop: Callable[[], bool]) -> tuple[Preferences, Preferences]:
    """The objectives of a run's two datasets, against the model as the run began, also where that is resumed. The model
    then has no noise, or what tells it from its reference would be noise, too.

    Raises:
        StoppedError: a rank was asked to stop; all ranks raise it.
    """
    config, exchanges = job.config, exchanges_of(job.config)
    datasets = [open_dataset(config, path, mesh.cp.cp_rank) for path, _ in config.datasets]
    both = (datasets, [] if job.evaluation is None else [job.evaluation])
    references = [find_reference(model, each, mesh, stop, **exchanges) for each in both]
    train_without_noise(model)
    first, second = (Preferences(each, config.beta or BETA, **exchanges) for each in references)
    return first, second


def train_without_noise(model: nn.Module) -> None:
    """Sets a model to train without noise.

    Whatever draws looks at its module's ``training``. Blocks that are computed again in the backward pass stay in
    training, without which ``transformers`` would keep what is inside of them: ``save_memory(..., noise=False)`` has
    them compute without.
    """
    model.eval()
    for module in model.modules():
        module.training = bool(getattr(module, "gradient_checkpointing", False))
