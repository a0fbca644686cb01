"""PyTorch's store as one of ours, so that ranks meet where PyTorch has made them meet."""
import ctypes
import os
import time

from . import _c
from ._library import filled, kept, lib, release

_malloc = ctypes.CDLL(None).malloc
_malloc.restype, _malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]

# PyTorch's compare_set takes an empty expected value for "the key is absent". So ours are never empty there: they begin with this.
_MARK = b"="


def _give(value, out, size):
    """A copy for the library, from malloc()."""
    memory = _malloc(len(value) or 1)
    if not memory:
        raise MemoryError(f"no memory for a value of {len(value)} bytes")
    ctypes.memmove(memory, value, len(value))
    ctypes.c_void_p.from_address(out).value = memory
    ctypes.c_size_t.from_address(size).value = len(value)


def _unmarked(value):
    return value[1:] if value[:1] == _MARK else value


class Store:
    """.handle is a tr_store on a torch.distributed.Store, for as long as this object lives."""

    def __init__(self, store, timeout_ms, host, token, insecure):
        def guarded(function, kind):
            def called(_user, key, *arguments):
                try:
                    return function(key.decode(), *arguments) or _c.TR_OK
                except Exception as error:
                    return lib.tr_fail(_c.TR_IO, f"the store of PyTorch: {error}".replace("%", "%%").encode(errors="replace"))
            return kind(called)

        kinds = dict(_c.tr_store_custom_options._fields_)
        self._functions = {name: guarded(getattr(self, "_" + name), kinds[name]) for name in ("set", "get", "add", "compare_set")}
        try:  # a connection of its own: a wait in it keeps nobody else from the store
            self._store = store.clone()
        except (AttributeError, RuntimeError, NotImplementedError):
            self._store = store
        self.handle = kept(lib.tr_store_custom_with, ctypes.byref(filled(
            _c.tr_store_custom_options, name="PyTorch's store", timeout_ms=timeout_ms, host=host, token=token, insecure=insecure,
            **self._functions)))

    def __del__(self):
        release(getattr(self, "handle", None))

    def _set(self, key, value, size):
        self._store.set(key, _MARK + ctypes.string_at(value, size))

    def _get(self, key, timeout_ms, out, size):
        deadline, pause = time.monotonic() + timeout_ms / 1000, 0.001
        while not self._store.check([key]):  # its wait() prints two warnings whenever the time is up, as happens while others are late
            left = deadline - time.monotonic()
            if left <= 0:
                return lib.tr_fail(_c.TR_TIMEOUT, b"nobody set a key of the group in PyTorch's store within %g s" %
                                   (timeout_ms / 1000))
            time.sleep(min(pause, left))
            pause = min(2 * pause, 0.05)
        _give(_unmarked(self._store.get(key)), out, size)

    def _add(self, key, amount, out):
        ctypes.c_int64.from_address(out).value = self._store.add(key, amount)

    def _compare_set(self, key, expected, expected_size, desired, desired_size, _timeout_ms, out, size):
        wanted = _MARK + ctypes.string_at(expected, expected_size) if expected else b""
        now = self._store.compare_set(key, wanted, _MARK + ctypes.string_at(desired, desired_size))
        # Where the key is absent and something was expected, PyTorch's stores give that back.
        if now and not (expected and now == wanted and not self._store.check([key])):
            _give(_unmarked(now), out, size)


def meeting_host():
    """Where the job's store is served, as far as the launcher's variables say."""
    return os.environ.get("MASTER_ADDR") or None
