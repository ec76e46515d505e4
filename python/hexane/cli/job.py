"""The processes that mpirun started for `hexane train`, and how they end together."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

import typer

from hexane.errors import Error

P = ParamSpec("P")
# The number of processes, as set by Open MPI, by MPICH and Intel MPI, and by MVAPICH.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
OF_RANK = "PMIX_RANK"  # set by launchers that set no variable of SIZES
INSTALL = "pip install 'hexane[distributed]', with the MPI library that mpirun belongs to"


@dataclass(frozen=True, slots=True)
class Job:
    """This process of a job. communicator: mpi4py's, for several processes; None: a single process. threads: this
    process's share of the machine's cores; None: all cores that it may use."""

    communicator: Any = None
    rank: int = 0
    count: int = 1
    threads: int | None = None


def this_job() -> Job:
    """Returns the job from the environment variables of launchers. Raises Error for several processes without mpi4py:
    they would all write to one folder. Also raises for an mpi4py of another MPI, and for an MPI for one thread."""
    name = next((name for name in (*SIZES, OF_RANK) if name in os.environ), None)
    if name is None or (name != OF_RANK and os.environ[name] == "1"):
        return Job()
    started = f"{os.environ[name]} processes" if name != OF_RANK else "a process"
    got = f"[train] got {started} of mpirun ({name})"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError means that there is no MPI library
        raise Error(f"{got} without mpi4py ({error}), need it: {INSTALL}") from None
    world = MPI.COMM_WORLD
    count = world.Get_size()
    if name != OF_RANK and str(count) != os.environ[name]:
        raise Error(f"{got}, of which mpi4py sees {count}, need an mpi4py of the same MPI: {INSTALL}")
    if count == 1:
        return Job()
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise Error(f"{got} and an MPI for one thread alone, need one with MPI_THREAD_SERIALIZED")
    here = world.Split_type(MPI.COMM_TYPE_SHARED).Get_size()
    cores = os.cpu_count() or 1
    is_bound = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) < cores
    return Job(world, world.Get_rank(), count, None if is_bound else max(1, cores // here))


def ends_the_job(function: Callable[P, None]) -> Callable[P, None]:
    """Makes the command end the whole job if it fails on one rank: the other ranks would wait forever."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except BaseException as error:
            code = error.exit_code if isinstance(error, typer.Exit) else 1
            mpi = sys.modules.get("mpi4py.MPI")
            if code and mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.Get_size() > 1:
                if not isinstance(error, (typer.Exit, KeyboardInterrupt)):
                    sys.excepthook(type(error), error, error.__traceback__)
                sys.stdout.flush()
                sys.stderr.flush()
                mpi.COMM_WORLD.Abort(code)
            raise

    return run
