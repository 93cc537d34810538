"""A training loop that is nobody's but the user's: it imports public names of ``preshard`` alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from preshard.attention import TileLister
from preshard.data import PackedDataset, make_loader
from preshard.models import PackedModel, load_sharded, shard_model
from preshard.training import (
    Checkpoints,
    LocalTotals,
    Mesh,
    RunState,
    apply_gradients,
    end_backward_at_decoder,
    export_model,
    feature_parameters,
    find_checkpoint,
    join_totals,
    learning_rate,
    load_checkpoint,
    make_optimizer,
    next_batch,
    read_run_state,
    seed_noise,
)

LR, WARMUP, LEAST, DECAY, CLIP, SEED = 1e-3, 2, 0.1, 0.1, 1.0, 0


def train(
    mesh: Mesh, data: str, model_folder: Path, kept: Path, exported: Path, *, steps: int, last: int, layout: str
) -> list[tuple[float, float]]:
    """Loss and norm of the gradient of each step that is done here: from the newest checkpoint, if there is one, to
    ``last`` of a run of ``steps``. Then the model is saved, and after the last step of the run exported.
    """
    dataset = PackedDataset(data, **mesh.place, layout=layout, seed=SEED)
    found = find_checkpoint(kept)
    start = RunState(step=0, data=dataset.state_dict(), model={}) if found is None else read_run_state(found)
    dataset.load_state_dict(start.data)

    def shard(model: nn.Module) -> PackedModel:
        packed = PackedModel(model)
        shard_model(packed, packed.blocks, mesh.parameters, bfloat16=False)
        end_backward_at_decoder(model)
        return packed

    model = load_sharded(model_folder, shard, weights="random" if found is None else "none", seed=SEED)
    optimizer = make_optimizer(model, lr=LR, weight_decay=DECAY)
    if found is not None:
        load_checkpoint(found, model, optimizer)
    parameters = [each for each in model.parameters() if each.requires_grad]
    tiles = TileLister.of("gather", mesh.cp, exchange="needed", device_type="cpu", windows=model.windows)
    batches = iter(make_loader(dataset, workers=0, device="cpu", list_tiles=tiles))
    saves, done, state = Checkpoints(kept, keep=1), [], start
    for step in range(start.step + 1, last + 1):
        seed_noise(SEED, step, dist.get_rank())
        local = LocalTotals.zero(torch.device("cpu"))
        for _ in range(2):
            batch = next_batch(batches, local)
            loss = model(batch, mesh.cp, attention="gather")
            loss.backward()
            local.add(batch, loss)
        totals = join_totals(local, parameters, replica=mesh.replica, cp_size=mesh.cp.cp_size, stop=False)
        lr = learning_rate(step, peak=LR, steps=steps, warmup=WARMUP, least=LEAST)
        of_features = feature_parameters(model.inner)
        apply_gradients(optimizer, parameters, totals, lr=lr, clip=CLIP, of_features=of_features)
        done.append((totals.loss_sum / totals.loss_weight, totals.grad_norm / totals.loss_weight))
        state = replace(start, step=step, data=batch.state)
    saves.save(model, optimizer, state, wait=True)
    if last == steps:
        export_model(model.inner, model_folder, exported)
    return done
