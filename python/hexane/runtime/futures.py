"""Calls that run while their caller does something else."""

import asyncio
import os
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any


class Submits:
    """A model whose calls may be submitted: they run one after the other, in a thread of the model's own."""

    _worker: tuple[int, ThreadPoolExecutor] | None = None
    _starting = Lock()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The function of a submitted call."""
        raise NotImplementedError

    def submit(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Starts a call and returns its future, which has the call's result or error.

        Arrays are read when the call runs: leave them as they are until then. Calls of one model or context run in the
        order of submission; calls of several run at the same time. `cancel()` of the future cancels a call that has not
        begun.
        """
        with self._starting:
            if self._worker is None or self._worker[0] != os.getpid():  # a fork has no threads
                self._worker = os.getpid(), ThreadPoolExecutor(1, "hexane")
            worker = self._worker[1]
        return worker.submit(self, *args, **kwargs)

    def _end_worker(self) -> None:
        """Cancels calls that have not begun, and waits for the running one."""
        with self._starting:
            worker, self._worker = self._worker, None
        if worker is not None and worker[0] == os.getpid():
            worker[1].shutdown(cancel_futures=True)

    async def run_async(self, /, *args: Any, **kwargs: Any) -> Any:
        """Like a call, for `await`."""
        return await asyncio.wrap_future(self.submit(*args, **kwargs))
