"""Which of a job's processes this is, from what launchers put into the environment."""

from __future__ import annotations

import os

# (rank, world size, rank on this host) of torchrun and others that speak its names, Slurm, Open MPI, MPICH and Intel MPI.
_NAMES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def rank_and_world_size() -> tuple[int, int]:
    """(rank, world size); (0, 1) where nothing launched ranks."""
    for rank_name, size_name in _NAMES:
        try:
            rank, size = int(os.environ[rank_name]), int(os.environ[size_name])
        except (KeyError, ValueError):
            continue
        if 0 <= rank < size:
            return rank, size
    return 0, 1


def restart() -> int:
    """How often torchrun has restarted the ranks of this job."""
    try:
        return int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    except (KeyError, ValueError):
        return 0


def job() -> str:
    """A word that all ranks of one job share and that other jobs do not, as far as the environment tells."""
    words = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
    return "/".join(os.environ.get(word, "") for word in words)
