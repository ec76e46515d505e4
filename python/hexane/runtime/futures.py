"""Calls that run in the background."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any


class Submits:
    """A model whose calls can be submitted, and then run one after the other in a thread of the model."""

    _worker: tuple[int, ThreadPoolExecutor] | None = None
    _starting = Lock()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the model; implemented by subclasses."""
        raise NotImplementedError

    def submit(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Starts a call and returns a future with its result or error.

        Arrays are read when the call runs: do not change them before. Calls of one model or context run in the order of
        submission; calls of different ones run at the same time. The future's `cancel()` cancels a call that has not
        begun.
        """
        with self._starting:
            if self._worker is None or self._worker[0] != os.getpid():  # a forked child has no threads
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
        import asyncio  # costs 3 MB, and few programs need it

        return await asyncio.wrap_future(self.submit(*args, **kwargs))
