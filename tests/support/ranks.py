"""Several ranks as threads of one process, with the methods of mpi4py's communicators that training uses."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
PATIENCE = 60  # seconds, after which a rank that waits for one that does not come fails


class _Meeting:
    """A barrier that breaks only for ranks which wait for one that has left.

    threading.Barrier also breaks for ranks that have met but did not run yet."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.given: list[Any] = [None] * count
        self._changed = threading.Condition()
        self._round, self._arrived, self._broken = 0, 0, False

    def wait(self) -> None:
        with self._changed:
            if self._broken:
                raise threading.BrokenBarrierError("another rank has left")
            this = self._round
            self._arrived += 1
            if self._arrived == self.count:
                self._round, self._arrived = this + 1, 0
                self._changed.notify_all()
                return
            self._changed.wait_for(lambda: self._round != this or self._broken, PATIENCE)
            if self._round == this:
                self._broken = True
                self._changed.notify_all()
                raise threading.BrokenBarrierError("another rank has left, or did not come")

    def leave(self) -> None:
        with self._changed:
            self._broken = True
            self._changed.notify_all()


class ThreadCommunicator:
    """calls: how many of each method this rank has made."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank
        self.calls: dict[str, int] = {}

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._meeting.count

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Row i of what this rank gets is row `rank` of what rank i gives."""
        parts = self._met("Alltoall", sendbuf.reshape(self.Get_size(), -1))
        recvbuf.reshape(self.Get_size(), -1)[:] = [rows[self._rank] for rows in parts]

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        recvbuf.reshape(self.Get_size(), -1)[:] = [part.reshape(-1) for part in self._met("Allgather", sendbuf)]

    def Bcast(self, buf: Any, root: int = 0) -> None:
        buf[:] = self._met("Bcast", buf)[root]

    def _met(self, name: str, mine: Any) -> list[Any]:
        """What each rank has given."""
        self.calls[name] = self.calls.get(name, 0) + 1
        meeting = self._meeting
        meeting.given[self._rank] = (name, np.array(mine))
        meeting.wait()
        found = list(meeting.given)
        meeting.wait()
        assert {one for one, _ in found} == {name}, found
        return [array for _, array in found]

    def leave(self) -> None:
        """As a process that dies: whoever waits for this rank fails."""
        self._meeting.leave()


def run_ranks(count: int, work: Callable[[ThreadCommunicator], T]) -> list[T]:
    """What the work gives on each rank. Raises what it raises on the first rank that does by itself."""
    meeting = _Meeting(count)

    def run(rank: int) -> T:
        communicator = ThreadCommunicator(meeting, rank)
        try:
            return work(communicator)
        except BaseException:
            communicator.leave()
            raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(run, rank) for rank in range(count)]
    return [future.result() for future in futures]
