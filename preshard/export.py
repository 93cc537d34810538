"""Writes the model of a checkpoint as a folder for ``from_pretrained``: ``python -m preshard.export CHECKPOINT``."""

from runpy import run_module

if __name__ == "__main__":
    run_module("preshard.trainer.export", run_name="__main__", alter_sys=True)
