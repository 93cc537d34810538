"""The chunked sum of losses against torch's own cross entropy."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from preshard.trainer.models.loss import loss_sum, tokens_of_a_chunk


def _example(dtype: torch.dtype = torch.float64, tokens: int = 23, without: int = 9) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, 6, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(31, 6, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    labels = torch.randint(0, 31, (tokens,), generator=generator)
    labels[torch.randperm(tokens, generator=generator)[:without]] = -100
    loss_weights = torch.rand(tokens, generator=generator) * (labels >= 0)
    return hidden, weight, labels, loss_weights


class _ShapesMade(TorchDispatchMode):
    """The shapes of every tensor that is made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.shapes.add(tuple(made.shape))
        return made


def _plain(
    hidden: Tensor, weight: Tensor, labels: Tensor, loss_weights: Tensor, softcap: float | None = None
) -> Tensor:
    logits = hidden @ weight.T
    capped = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    each = functional.cross_entropy(capped, labels, reduction="none", ignore_index=-100)
    return (each * loss_weights).sum()


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("chunk", [1, 3, 7, 14, 15, 1000])
def test_chunks_change_neither_the_loss_nor_its_gradients(chunk: int, softcap: float | None) -> None:
    """Fails when a token is left out or counted twice at a chunk's edge, or where the last chunk is short; when the
    loss or a gradient passes over the cap, or a chunk takes the slopes of another.
    """
    example, of_token = _example(), 31 * 8 * (1 if softcap is None else 2)
    assert int((example[2] >= 0).sum()) == 14, "chunks that divide the tokens with loss, and chunks that do not"
    total = loss_sum(*example, logits_bytes=chunk * of_token, softcap=softcap)
    expected = _plain(*example, softcap=softcap)
    torch.testing.assert_close(total, expected, rtol=1e-13, atol=0)
    ours, plain = (torch.autograd.grad(3 * loss, example[:2]) for loss in (total, expected))
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-14)


def test_a_chunk_follows_from_memory() -> None:
    """Fails when a large vocabulary gets chunks of a few tokens, whose gradients move a large matrix each time, or when
    the copies of logits in other dtypes are not counted.
    """
    assert tokens_of_a_chunk(151_936, torch.float32) == 1766
    assert tokens_of_a_chunk(151_936, torch.bfloat16) == 1177
    assert tokens_of_a_chunk(31, torch.float64, logits_bytes=31 * 8 * 20) == 20
    assert tokens_of_a_chunk(151_936, torch.float32, logits_bytes=1) == 1


def test_gradients_pass_gradcheck() -> None:
    """Fails when a gradient is not the derivative of what forward computes."""
    hidden, weight, labels, loss_weights = _example()
    assert torch.autograd.gradcheck(
        lambda h, w: loss_sum(h, w, labels, loss_weights, logits_bytes=5 * 31 * 8), (hidden, weight)
    )


def test_no_token_with_loss_gives_zero_and_zero_gradients() -> None:
    """Fails when a rank whose slice has no loss has no graph: other ranks would wait for its backward pass."""
    hidden, weight, labels, loss_weights = _example(without=23)
    total = loss_sum(hidden, weight, labels, loss_weights)
    assert total.item() == 0.0
    d_hidden, d_weight = torch.autograd.grad(total, (hidden, weight))
    assert not d_hidden.any()
    assert d_hidden.shape == hidden.shape
    assert not d_weight.any()
    assert d_weight.shape == weight.shape


def test_low_precision_is_summed_in_float32() -> None:
    """Fails when probabilities, the sum over tokens or the weight's gradient are accumulated in bfloat16."""
    example = _example(torch.bfloat16, tokens=3000, without=0)
    total = loss_sum(*example, logits_bytes=8 * 31 * 6)
    assert total.dtype == torch.float32
    exact = [tensor.detach().double().requires_grad_() for tensor in example[:2]]
    expected = _plain(*exact, *example[2:])
    torch.testing.assert_close(total.double(), expected, rtol=2e-3, atol=0)
    gradients = torch.autograd.grad(total, example[:2])
    assert gradients[1].dtype == torch.bfloat16
    scale = torch.autograd.grad(expected, exact)[1]
    assert ((gradients[1].double() - scale).norm() / scale.norm()).item() < 5e-3


def test_the_logits_of_all_tokens_never_exist_together() -> None:
    """Fails when forward or backward makes a tensor with a row per token and a column per vocabulary entry."""
    hidden, weight, labels, loss_weights = _example(tokens=400, without=0)
    with _ShapesMade() as seen:
        loss_sum(hidden, weight, labels, loss_weights, logits_bytes=20 * 31 * 8).backward()
    largest = max(map(math.prod, seen.shapes))
    assert 20 * 31 <= largest <= max(400 * 6, 20 * 31), largest


def test_the_host_does_not_wait_for_the_device() -> None:
    """Fails when a shape or a number of the loss depends on what a device has computed; a meta tensor has no values."""
    hidden, weight, labels, loss_weights = (x.detach().to("meta") for x in _example())
    hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
    found = torch.arange(14, device="meta")
    total = loss_sum(hidden, weight, labels, loss_weights, logits_bytes=5 * 31 * 8, loss_tokens=found)
    total.backward()
    assert hidden.grad is not None


def test_tokens_without_loss_get_no_gradient() -> None:
    """Fails when a masked token's hidden state is trained on whatever id its label holds."""
    hidden, weight, labels, loss_weights = _example()
    gradient = torch.autograd.grad(loss_sum(hidden, weight, labels, loss_weights), hidden)[0]
    assert gradient[labels < 0].abs().max() == 0
    assert (gradient[labels >= 0].abs().amax(1) > 0).all()


def test_a_frozen_projection_has_no_gradient_in_memory() -> None:
    """Fails when the gradient of an output projection that does not train is summed all the same: 2.3 GiB of one of
    151,936 x 4,096.
    """
    hidden, weight, labels, loss_weights = _example()
    [expected] = torch.autograd.grad(loss_sum(hidden, weight, labels, loss_weights), hidden)
    for trains in (True, False):
        loss = loss_sum(hidden, weight.detach().requires_grad_(trains), labels, loss_weights)
        with _ShapesMade() as seen:
            [found] = torch.autograd.grad(loss, hidden)
        assert torch.equal(found, expected)
        assert ((31, 6) in seen.shapes) == trains
