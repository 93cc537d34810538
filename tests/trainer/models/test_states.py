"""Models whose layers carry a state give, on packs over several ranks, what they give for each document alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thread_ranks import run_ranks
from torch import Tensor
from transformers_alone import load_transformers

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TokenLayout, rank_positions
from preshard.schemas.model.languages import LANGUAGES
from preshard.schemas.schemes import zigzag_runs
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention import heads
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.states import check_value_heads, list_sequences
from preshard.trainer.families.family import has_transformers
from preshard.trainer.models.gated_delta import bind_states, check_states
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel

pytestmark = pytest.mark.skipif(not has_transformers(LANGUAGES["qwen3_next"].since), reason="needs newer transformers")

PARTS = [
    (0, 0, 70),
    (1, 0, 69),
    (1, 1, 5),
    (1, 2, 66),
    (1, 3, 1),
    (2, 0, 1),
    (3, 0, 2),
    (3, 1, 9),
    (4, 1, 6),
    (4, 2, 7),
]
"""Document, branch and tokens of what is in the pack: stems of more than a chunk of 64 tokens, of fewer than the
convolution reads, and of none; branches that begin inside a chunk.
"""

PADDING = 20
SEQ_LEN = sum(length for _, _, length in PARTS) + PADDING

CONFIG: dict[str, Any] = {
    **{"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "num_experts": 0},
    **{"layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_conv_kernel_dim": 4},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 6},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}

MODELS = ("qwen3_next", "qwen3_5_text")


def pack_mask() -> MaskArrays:
    """The pack's mask, with padding at its end."""
    docs, branches, lengths = zip(*PARTS, (-1, 0, PADDING), strict=True)
    columns = [np.repeat(np.array(column, np.int32), lengths) for column in (docs, branches)]
    return MaskArrays(doc_ids=columns[0], branch_ids=columns[1], group_ids=np.full(SEQ_LEN, -1, np.int32))


def paths() -> list[tuple[Tensor, Tensor]]:
    """Positions of the tokens in the pack, and which are new, for each document or each annotation after its prefix."""
    mask, found = pack_mask(), []
    for doc in range(5):
        own = mask.doc_ids == doc
        for branch in range(1, int(mask.branch_ids[own].max()) + 1) or (0,):
            at = np.flatnonzero(own & ((mask.branch_ids == 0) | (mask.branch_ids == branch)))
            is_new = (mask.branch_ids[at] == branch) | (branch <= 1)
            found.append((torch.from_numpy(at), torch.from_numpy(is_new)))
    return found


@cache
def models(model_type: str, folder: Path) -> tuple[Any, Any]:
    """The model as we load it, and as ``transformers`` makes it, with the same weights in float64."""
    auto = load_transformers().AutoModelForCausalLM
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **CONFIG}))
    ours: Any = load_model(folder, dtype=torch.float64, from_scratch=True)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    alone = auto.from_config(copy.deepcopy(ours.config), attn_implementation="sdpa", dtype=torch.float64)
    alone.load_state_dict(ours.state_dict())
    return ours, alone.train()


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (number > 0)) for number, name in enumerate(MODELS)]
)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return models(request.param, tmp_path_factory.getbasetemp() / request.param)


def random_tokens() -> Tensor:
    return torch.randint(96, (SEQ_LEN,), generator=torch.Generator().manual_seed(1))


def random_weights() -> Tensor:
    """Weights by which the loss multiplies hidden states."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(SEQ_LEN, CONFIG["hidden_size"], generator=generator, dtype=torch.float64)


def run_alone(model: Any, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Hidden states of each document, and each parameter's gradient."""
    hidden, loss = torch.zeros(SEQ_LEN, CONFIG["hidden_size"], dtype=torch.float64), torch.zeros(())
    for at, is_new in paths():
        made = model.model(input_ids=tokens[at][None], use_cache=False).last_hidden_state[0]
        loss = loss + (made * random_weights()[at])[is_new].sum()
        hidden[at[is_new]] = made[is_new].detach()
    return hidden, list(torch.autograd.grad(loss, list(model.model.parameters())))


def run_packed(
    model: Any, tokens: Tensor, kind: str, ulysses: int, ring: int, *, learn: bool = True
) -> tuple[Tensor, list[Tensor]]:
    """The same of a pack on several ranks; hidden states of padding are left at 0."""
    mask = pack_mask()
    layout = TokenLayout(
        scheme="zigzag",
        ring_degree=ring,
        block_size=SEQ_LEN,
        runs=zigzag_runs(np.array([0, SEQ_LEN]), ring),
        needs=np.ones((ring, 1), np.bool_),
    )
    positions = torch.zeros(SEQ_LEN, dtype=torch.int64)
    for at, _ in paths():
        positions[at] = torch.arange(len(at))
    is_text = torch.from_numpy(mask.doc_ids >= 0)

    def on_rank(cp: ContextParallel) -> tuple[Tensor, Tensor, list[Tensor]]:
        own = copy.deepcopy(model)
        at = torch.from_numpy(
            rank_positions(layout.runs, ring_rank=cp.ring_rank, ulysses_degree=ulysses, ulysses_rank=cp.ulysses_rank)
        )
        hidden = own.model(
            input_ids=tokens[at][None],
            position_ids=positions[at][None],
            use_cache=False,
            attend=bind(kind, layout, MaskTensors.from_arrays(mask), cp),
            pack_length=SEQ_LEN,
            **bind_states(own.config, layout, mask, cp, torch.device("cpu")),
        ).last_hidden_state[0]
        loss = (hidden * random_weights()[at])[is_text[at]].sum()
        return at, hidden.detach(), list(torch.autograd.grad(loss, list(own.model.parameters()))) if learn else []

    found, hidden = run_ranks(ulysses, ring, on_rank), torch.zeros(SEQ_LEN, CONFIG["hidden_size"], dtype=torch.float64)
    for at, part, _ in found:
        hidden[at] = part
    hidden[~is_text] = 0
    return hidden, [sum(parts, torch.zeros(())) for parts in zip(*(grads for _, _, grads in found), strict=True)]


@pytest.mark.parametrize(
    ("kind", "ulysses", "ring"), [("ring", 1, 1), ("gather", 1, 2), ("ulysses", 4, 1), ("hybrid", 2, 2)]
)
def test_each_document_and_annotation_is_as_alone(both: tuple[Any, Any], kind: str, ulysses: int, ring: int) -> None:
    """Fails when a state passes into another document or annotation, or a branch does not start from the state and the
    convolution's inputs at the end of its stem, or its gradient does not return there; when key heads are not copied
    to the ranks of their value heads, or channels of the convolution are those of other heads.
    """
    ours, alone = both
    right, gradients = run_alone(alone, random_tokens())
    found, ours_gradients = run_packed(ours, random_tokens(), kind, ulysses, ring)
    assert ((found - right).norm(dim=1) <= 1e-6 * right.norm(dim=1)).all()
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for (name, _), one, other in zip(alone.model.named_parameters(), ours_gradients, gradients, strict=True):
        assert (one - other).norm() < 1e-6 * norm, name
        assert other.norm() > 1e-4 * norm, f"{name}: no gradient to compare"


def test_a_token_reaches_only_what_follows_it_in_its_document(both: tuple[Any, Any]) -> None:
    """Fails when a changed token changes a hidden state of another document or annotation, or none of its own."""
    ours, mask = both[0], pack_mask()
    before, _ = run_packed(ours, random_tokens(), "gather", 1, 2, learn=False)
    starts = np.cumsum([0, *(length for _, _, length in PARTS)])
    for (doc, branch, length), start in zip(PARTS, starts, strict=False):
        tokens = random_tokens()
        tokens[start] = (tokens[start] + 1) % 96
        changed = (run_packed(ours, tokens, "gather", 1, 2, learn=False)[0] != before).any(1).numpy()
        own = (mask.doc_ids == doc) & ((mask.branch_ids == branch) | (branch == 0)) & (np.arange(SEQ_LEN) >= start)
        assert (changed <= own).all(), (doc, branch)
        assert changed[start : start + length].all(), (doc, branch)


def test_stems_and_branches_of_a_pack() -> None:
    """Fails when a branch does not begin at the last whole chunk of its own prefix, or padding alone has no stem."""
    stems, branches, parents = list_sequences(pack_mask())
    tail = range(134, 139)
    assert [[*stem] for stem in stems] == [
        [*range(70)], [*range(70, 134)], [211], [*range(212, 223)], [*range(223, 229)], [*range(229, 236)]
    ]  # fmt: skip
    assert [[*each] for each in branches] == [[*tail, *range(*own)] for own in ((139, 144), (144, 210), (210, 211))]
    assert parents == [1, 1, 1]
    nothing = np.full(8, -1, np.int32)
    only, *others = list_sequences(MaskArrays(doc_ids=nothing, branch_ids=nothing + 1, group_ids=nothing))
    assert [[*stem] for stem in only] == [[0]]
    assert others == [[], []]


def test_bytes_that_layers_with_a_state_send(both: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when they send more than docs/attention.md says, such as the gate of the output or float32."""
    sent: list[int] = []

    def counting(exchange: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def counted(x: Tensor, degree: int, group: Any) -> Tensor:
            sent.append(x.nbytes * (degree - 1) // degree)
            return exchange(x, degree, group)

        return counted

    for name in ("_tokens_to_heads", "_heads_to_tokens"):
        monkeypatch.setattr(heads, name, counting(getattr(heads, name)))
    ranks = 4
    run_packed(both[0], random_tokens(), "ring", 1, ranks)
    there, back = 2 * 4 * 8 + 4 * 6 + 2 * 4, 4 * 6  # each of the two key heads is copied
    of_layer = 2 * (there + back) * (SEQ_LEN // ranks) * 8 * (ranks - 1) // ranks
    assert sum(sent) == 2 * ranks * of_layer


def test_what_layers_with_a_state_need_is_said_in_one_line(both: tuple[Any, Any]) -> None:
    """Fails when heads are dealt that do not divide, or a model runs outside of a pack as if it were one document."""
    ours = both[0]
    PackedModel(ours)
    check_states(ours.config, 2)
    with pytest.raises(
        ConfigError, match=r"linear_num_value_heads 4 over .* = 8 ranks.* whose product is one of \[1, 2, 4\]"
    ):
        check_states(ours.config, 8)
    with pytest.raises(ConfigError, match=r"product is one of \[1, 3\]"):  # an odd number divides itself, too
        check_value_heads(3, 2)
    with pytest.raises(ConfigError, match="wrap the model in PackedModel"):
        ours.model(input_ids=random_tokens()[None], use_cache=False)
