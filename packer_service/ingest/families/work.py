"""The work of a vision encoder for one unit, in multiplications: what a rank's share of images is weighed by.

Linear layers grow with the number of patches, and attention with the square of the patches that see each other, which
are those of one window, crop or frame and never those of a whole video (Dosovitskiy et al. 2021; Narayanan et al. 2021,
appendix). A backward pass takes the same multiple of every term, so it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from preshard.schemas.encoder import VisionEncoder


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderWork:
    """Dimensions that decide the work.

    Attributes:
        width: of the encoder's hidden states.
        inner: of its MLP.
        matrices: matrices of its MLP: 2, or 3 with a gate.
        layers: that attend among all patches of a sequence.
        windowed_layers: that attend inside windows.
        patch_inputs: numbers of a patch that the embedding takes.
        row_inputs, row_inner, row_outputs: widths of the two layers that turn patches into a row.
    """

    width: int
    inner: int
    matrices: int
    layers: int
    patch_inputs: int
    row_inputs: int
    row_inner: int
    row_outputs: int
    windowed_layers: int = 0

    def load(self, sequences: Sequence[int], rows: int, windows: int = 0) -> int:
        """Multiplications for one unit.

        Args:
            sequences: patches of each sequence inside of which the encoder attends.
            rows: feature rows that come out.
            windows: sum of the squares of the windows' numbers of patches, for windowed layers.
        """
        patches = sum(sequences)
        layers = self.layers + self.windowed_layers
        per_patch = self.patch_inputs * self.width
        per_patch += layers * (4 * self.width**2 + self.matrices * self.width * self.inner)
        pairs = self.layers * sum(n * n for n in sequences) + self.windowed_layers * windows
        per_row = self.row_inputs * self.row_inner + self.row_inner * self.row_outputs
        return patches * per_patch + 2 * self.width * pairs + rows * per_row

    def entry(self, *, patch: tuple[int, int], together: int = 1, window: int = 0) -> dict[str, Any]:
        """What the manifest says of the encoder, so that every unit's patches and load can be derived again.

        Args:
            patch: height and width of a patch in pixels.
            together: crops that one patch covers.
            window: side of the encoder's windows in patches.
        """
        return VisionEncoder(
            patch_size=list(patch),
            temporal_patch_size=together,
            hidden_size=self.width,
            intermediate_size=self.inner,
            mlp_matrices=self.matrices,
            layers=self.layers,
            windowed_layers=self.windowed_layers,
            window_size=window,
            patch_inputs=self.patch_inputs,
            row_inputs=self.row_inputs,
            row_hidden=self.row_inner,
            row_outputs=self.row_outputs,
        ).model_dump()
