"""Work: a collective under way, as PyTorch sees it."""
import queue
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work as _TorchWork

from . import _c
from ._library import lib, message, quick

_done, _release = quick.tr_work_done, quick.tr_release
_NO_TIMEOUT = timedelta(0)


def failure(status):
    """The latest failure of this thread, as the exception that PyTorch's users expect."""
    kind = {_c.TR_INVALID: ValueError, _c.TR_DTYPE: TypeError}.get(status, dist.DistBackendError)
    return kind(f"trireme: {message()}")


def milliseconds(timeout):
    """Of a timedelta that limits something; the library counts up to 24.8 days, which is all the same as for ever."""
    return max(1, min(int(timeout.total_seconds() * 1000), 2**31 - 1))


def put_back(results):
    """Copies results to where they belong: into values, of which autograd hears nothing, also in inference mode."""
    with torch.inference_mode():
        for target, source in results:
            target.detach().copy_(source)


class Work(_TorchWork):
    """Holds the tensors until the library no longer touches them; `finish` then puts results where they belong. source: of a send or
    receive, where the library notes the rank that the message is from."""

    def __init__(self, group, handle, outputs, held, finish, source=None):
        super().__init__()
        self._group, self._handle, self._outputs, self._held = group, handle, outputs, held
        self._finish, self._source = finish, source
        self._ended = self._future = self._signal = self._error = None
        self._lock = threading.Lock()

    def _settle(self, status):
        """Once, by whoever hears of the end first; status is that of tr_wait() on this thread."""
        with self._lock:
            if not self._ended:
                if status:
                    self._error = failure(status)
                else:
                    try:
                        put_back(self._finish)
                    except Exception as error:  # who waits hears of it, and nobody waits for ever
                        self._error = error
                self._held = self._finish = ()
                self._ended = True

    def _wait(self, timeout):
        if not self._ended:
            if timeout and timeout > _NO_TIMEOUT:
                status = lib.tr_wait_for(self._handle, milliseconds(timeout))
                if status == _c.TR_TIMEOUT and not _done(self._handle):
                    raise failure(status)
            else:
                status = lib.tr_wait(self._handle)
            self._settle(status)

    def wait(self, timeout=_NO_TIMEOUT):
        self._wait(timeout)
        if self._error:
            raise self._error
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        if not self._ended and _done(self._handle):
            self._settle(lib.tr_wait(self._handle))
        return bool(self._ended)

    def is_success(self):
        return self.is_completed() and self._error is None

    def exception(self):
        return self._error

    def result(self):
        self.wait()
        return self._outputs

    def source_rank(self):
        return -1 if self._source is None else self._source.value

    _source_rank = source_rank

    def get_future(self):
        """Raises in a callback: an exception that is set is a result to C++, and DDP would take it for tensors."""
        with self._lock:
            if self._future:
                return self._future
            self._signal = torch.futures.Future()
            future = self._future = self._signal.then(lambda _: self.result())
        if self.is_completed():
            self._resolve()
        else:
            self._group._waiter.put(self)
        return future

    getFuture = get_future

    def _resolve(self):
        self._wait(_NO_TIMEOUT)
        self._signal.set_result(None)

    def __del__(self):
        handle = getattr(self, "_handle", None)
        if handle and not self._ended and not _done(handle):
            self._group._orphans.append((handle, self._held, self._outputs, self._source))  # memory that is still in use
        elif handle:
            _release(handle)


class Ended(_TorchWork):
    """A collective that ran to its end in the call."""

    def __init__(self, outputs=()):
        super().__init__()
        self._outputs = list(outputs)

    def wait(self, timeout=_NO_TIMEOUT):
        return True

    def synchronize(self):
        pass

    def is_completed(self):
        return True

    is_success = is_completed

    def exception(self):
        return None

    def result(self):
        return self._outputs

    def source_rank(self):
        return -1

    _source_rank = source_rank

    def get_future(self):
        future = torch.futures.Future()
        future.set_result(self._outputs)
        return future

    getFuture = get_future


class Joint(_TorchWork):
    """Several works as one."""

    def __init__(self, works):
        super().__init__()
        self._works = works

    def wait(self, timeout=_NO_TIMEOUT):
        return all([work.wait(timeout) for work in self._works])

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return all([work.is_completed() for work in self._works])

    def is_success(self):
        return all([work.is_success() for work in self._works])

    def exception(self):
        return next((work.exception() for work in self._works if work.exception()), None)

    def result(self):
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self):
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(lambda _: self.result())

    getFuture = get_future


class Waiter:
    """Completes futures, in threads that sleep until their work is done: one for collectives, which end in the order of their
    calls. Those that do not wait for it have a thread of their own: a send or receive, which may end whenever it likes, and what is
    called in a future's callback, which may itself wait for its end, as PowerSGD's hook does."""

    def __init__(self):
        self._queue = self._thread = None

    def put(self, work):
        if work._source is not None or self._thread is threading.current_thread():
            threading.Thread(target=work._resolve, daemon=True).start()
            return
        if not self._thread:
            self._queue = queue.SimpleQueue()
            self._thread = threading.Thread(target=self._run, args=(self._queue,), name="trireme futures", daemon=True)
            self._thread.start()
        self._queue.put(work)

    @staticmethod
    def _run(works):
        while work := works.get():
            work._resolve()
            work = None  # noqa: F841, or the buffers would live until the next one comes

    def end(self):
        if self._thread:
            self._queue.put(None)
            if self._thread is not threading.current_thread():
                self._thread.join()
            self._thread = None
