"""Parts of a training step on packs, for a loop of your own: the loss divided once by the weights of all ranks, the
norm of a gradient over one replica, schedule, optimiser groups, checkpoints, export. Steps across the end of an epoch
are the dataset's (``PackedDataset(tail=...)``).

``trainer/train.py`` is such a loop, made of these.
"""

from preshard.trainer.core.checkpoint import Checkpoints, RunState, find_checkpoint, load_checkpoint, read_run_state
from preshard.trainer.core.export import export_model
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.objective import deal_packs, evaluating
from preshard.trainer.core.optimizer import learning_rate, make_optimizer
from preshard.trainer.core.processes import Processes, start_processes
from preshard.trainer.core.sharding import end_backward_at_decoder
from preshard.trainer.core.step import LocalTotals, Totals, apply_gradients, join_totals, next_batch, seed_noise
from preshard.trainer.models.interface import feature_parameters

__all__ = [
    "Checkpoints",
    "LocalTotals",
    "Mesh",
    "Processes",
    "RunState",
    "Totals",
    "apply_gradients",
    "deal_packs",
    "end_backward_at_decoder",
    "evaluating",
    "export_model",
    "feature_parameters",
    "find_checkpoint",
    "join_totals",
    "learning_rate",
    "load_checkpoint",
    "make_optimizer",
    "next_batch",
    "read_run_state",
    "seed_noise",
    "start_processes",
]
