"""Verifying a dataset: every invariant of the format derived again from the bytes."""

from preshard.packer_service.verify.dataset import verify_dataset
from preshard.packer_service.verify.verdict import Fault, Verdict

__all__ = ["Fault", "Verdict", "verify_dataset"]
