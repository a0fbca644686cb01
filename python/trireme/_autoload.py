"""What PyTorch calls when it is imported (entry point torch.backends), so that a program need not import trireme.torch: it loads
neither the library nor the process group before they are asked for."""
import os


def _create(*arguments):
    from . import torch as plugin
    return plugin._create(*arguments)


def _rendezvous(url, timeout=None, **_):
    """env:// under `trireme run`, whose own store is at MASTER_ADDR:MASTER_PORT: there the ranks learn where rank 0 serves
    PyTorch's, at a port of its own."""
    import ctypes
    from urllib.parse import parse_qs, urlparse

    import torch.distributed as dist
    from torch.distributed.constants import default_pg_timeout

    from . import _c
    from ._library import check, filled, kept, lib, release
    from ._work import milliseconds

    timeout = timeout or default_pg_timeout
    query = parse_qs(urlparse(url).query)
    rank, world = (int(query[name][0] if name in query else os.environ[name.upper()]) for name in ("rank", "world_size"))
    host = os.environ["MASTER_ADDR"]
    ours = kept(lib.tr_store_tcp_with, ctypes.byref(filled(
        _c.tr_store_tcp_options, host=host, port=int(os.environ["MASTER_PORT"]), token=os.environ.get("TRIREME_TOKEN"),
        timeout_ms=milliseconds(timeout))))
    # A program may meet again and again: each time under another number, which all ranks count alike. So may one whose ranks were
    # started again, where the launcher's store has outlived those of before.
    _rendezvous.count = getattr(_rendezvous, "count", 0) + 1
    key = b"torch/%d/%d" % (int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)), _rendezvous.count)
    try:
        if rank == 0:
            store = dist.TCPStore(host, 0, world, is_master=True, timeout=timeout, wait_for_workers=False)
            port = str(store.port).encode()
            check(lib.tr_store_set(ours, key, port, len(port)))
        else:
            value, size = ctypes.c_void_p(), ctypes.c_size_t()
            check(lib.tr_store_get(ours, key, ctypes.byref(value), ctypes.byref(size)))
            port = int(ctypes.string_at(value, size.value))
            ctypes.CDLL(None).free(value)
            store = dist.TCPStore(host, port, world, is_master=False, timeout=timeout)
    finally:
        release(ours)
    yield store, rank, world


def autoload():
    import torch.distributed as dist
    if not dist.is_available():
        return
    if os.environ.get("TRIREME_STORE") == "1":
        dist.rendezvous.__globals__["_rendezvous_handlers"]["env"] = _rendezvous
    if not hasattr(dist.Backend, "_ensure_backend_registered"):  # before PyTorch 2.15: it does not look for entry points itself
        dist.Backend.register_backend("trireme", _create, extended_api=True, devices=["cpu"])
