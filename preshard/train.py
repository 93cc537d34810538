"""The trainer's command: ``torchrun --nproc-per-node N -m preshard.train``. One process needs no torchrun."""

from runpy import run_module

if __name__ == "__main__":
    run_module("preshard.trainer.train", run_name="__main__", alter_sys=True)
