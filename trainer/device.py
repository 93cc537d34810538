"""Tensors of the host on their way to a device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PAGE_LOCKED = ("cuda",)
"""Types of devices that copy from page-locked memory while the host goes on."""


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor on a device, without making the host wait: it leaves the host from page-locked memory."""
    target = torch.device(device)
    if tensor.device.type == "cpu" and target.type in PAGE_LOCKED:
        tensor = tensor.pin_memory()  # the same tensor if it is page-locked already
    return tensor.to(target, non_blocking=target.type != "cpu")


def compute_device(model: nn.Module) -> torch.device:
    """Device that a model computes on. Parameters that wait in host memory are sharded over a mesh of its devices."""
    parameter = next(model.parameters())
    mesh = getattr(parameter, "device_mesh", None)  # of a DTensor, whose module takes the reader long to import
    if mesh is not None and mesh.device_type != parameter.device.type:
        return torch.device(mesh.device_type, torch.get_device_module(mesh.device_type).current_device())
    return parameter.device
