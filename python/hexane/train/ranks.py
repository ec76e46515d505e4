"""The processes that train one model together, and their communication between batches."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, TypeVar

import numpy as np

from hexane import _core
from hexane.errors import Error
from hexane.graph import Array
from hexane.runtime import Model

T = TypeVar("T")
GO, STOP, END, FAILED = range(4)  # Messages: each rank sends one, and the maximum decides.
DIGEST = 16  # In bytes.


class Communicator(Protocol):
    """The methods of an `mpi4py.MPI.Comm` that a training calls, with NumPy arrays as arguments. All ranks have to make
    each call."""

    def Get_rank(self) -> int: ...
    def Get_size(self) -> int: ...
    def Alltoall(self, sendbuf: Any, recvbuf: Any, /) -> Any: ...
    def Allgather(self, sendbuf: Any, recvbuf: Any, /) -> Any: ...
    def Bcast(self, buf: Any, /, root: int = 0) -> Any: ...


class Ranks:
    """The ranks of a communicator; None: a single process, without communication.

    All ranks must call the same methods in the same order.
    """

    def __init__(self, communicator: Communicator | None) -> None:
        self.communicator = communicator
        self.rank, self.count = 0, 1
        if communicator is not None:
            self.rank, self.count = communicator.Get_rank(), communicator.Get_size()
        self._asked_to_stop = False
        # True if no other rank can wait for this one: all have ended, or know of an error.
        self.ended_together = communicator is None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gathered(self, mine: Array) -> Array:
        """Returns the arrays of all ranks, (ranks, ..)."""
        if self.communicator is None:
            return mine[None]
        rows = np.empty((self.count, *mine.shape), mine.dtype)
        self.communicator.Allgather(np.ascontiguousarray(mine), rows)
        return rows

    def mean(self, values: dict[str, float]) -> dict[str, float]:
        """Returns the mean of each number over the ranks, summed in rank order: the same bits on all ranks."""
        if self.communicator is None:
            return values
        rows = self.gathered(np.array([*values.values()], np.float64))
        means = [sum(column) / self.count for column in rows.T.tolist()]
        return dict(zip(values, means, strict=True))

    def together(self, work: Callable[[], T]) -> T:
        """Runs `work` on all ranks. If `work` fails on one rank, raises Error on all. The work must not wait for other
        ranks."""
        if self.communicator is None:
            return work()
        failed: Exception | None = None
        try:
            result = work()
        except Exception as error:
            failed = error
        self._check(self._most(FAILED if failed else GO), failed)
        return result

    def first(self, work: Callable[[], T]) -> T | None:
        """Runs `work` on rank 0 only, with errors as in `together`. Returns None on the other ranks."""
        return self.together(lambda: work() if self.is_first else None)

    def each(self, items: Iterator[T], may_stop: Callable[[], bool]) -> Iterator[T]:
        """Yields the items while all ranks have one. An error on one rank raises Error on all. If one rank was asked to
        stop, all ranks raise KeyboardInterrupt before the next item for which `may_stop()` is true."""
        if self.communicator is None:
            yield from items
            return
        while True:
            failed: Exception | None = None
            said, item = (STOP if self._asked_to_stop and may_stop() else GO), None
            if said == GO:
                try:
                    item = next(items)
                except StopIteration:
                    said = END
                except Exception as error:
                    failed, said = error, FAILED
            most = self._most(said)
            self._check(most, failed)
            self.ended_together = most != GO
            if most == STOP:
                raise KeyboardInterrupt
            if most == END:
                return
            assert item is not None
            yield item

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Within the block SIGINT and SIGTERM ask all ranks to stop, instead of stopping this one. Does nothing without
        a communicator, or in other threads than the main one."""
        if self.communicator is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            self._asked_to_stop = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self._asked_to_stop = False
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def share_states(self, net: Model) -> None:
        """Copies the states of rank 0 to every rank."""
        if self.communicator is None:
            return
        for name in net.state_names:
            array = np.asarray(net.read_state(name), order="C")
            self.communicator.Bcast(array.reshape(-1).view(np.uint8), root=0)
            if not self.is_first:
                net.write_state(name, array)

    def check_states(self, net: Model, but: Callable[[str], bool]) -> None:
        """Raises Error unless all ranks hold the same bits in each state. but: true for states that may differ."""
        if self.communicator is None:
            return
        parts = [_core.hash128(net.read_state(name)) for name in net.state_names if not but(name)]
        self.check_same(b"".join(parts), "[train.fit] ranks: got different weights after the same updates")

    def check_same(self, data: bytes, error: str) -> None:
        """Raises Error on all ranks unless all have the same data."""
        digests = self.gathered(np.frombuffer(_core.hash128(data), np.uint8))
        assert digests.shape[1] == DIGEST
        if other := [rank for rank in range(self.count) if (digests[rank] != digests[0]).any()]:
            got = f"rank {other[0]} differs from rank 0"
            raise Error(f"{error}: {got}, need the same options, data and kind of CPU")

    def _most(self, said: int) -> int:
        return int(self.gathered(np.array([said], np.int64)).max())

    def _check(self, most: int, mine: Exception | None) -> None:
        self.ended_together = most == FAILED
        if mine is not None:
            raise mine
        if most == FAILED:
            raise Error(f"[train.fit] rank {self.rank}: another rank has failed, and says why")
