"""What each source gets of everything, as figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from preshard.packer_service.plan.mixture import MixtureTotals, source_weights
from preshard.packer_service.report.records import Mixture, SourceShare
from preshard.schemas.config import PackConfig


def mixture_figures(totals: MixtureTotals, config: PackConfig, names: Sequence[str]) -> Mixture:
    """What became of the sources; every epoch takes the same."""
    weights, taken = source_weights(config, names), np.array(totals.taken)
    asked, loss = np.array(totals.available) * weights, totals.loss_weight
    shares = {
        name: SourceShare(
            weight=weights[i],
            documents=int(totals.documents[i]) * config.epochs,
            tokens=int(taken[i]) * config.epochs,
            asked=asked[i] / max(asked.sum(), 1),
            share=taken[i] / max(taken.sum(), 1),
            loss_share=None if loss is None else loss[i] / (np.array(loss).sum() or 1.0),
        )
        for i, name in enumerate(names)
    }
    return Mixture(left_out=totals.left_out, shares=shares)
