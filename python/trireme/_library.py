"""libtrireme-comm.so: loaded once, with the declarations of _c.py; failures as exceptions, log messages to `logging`."""
import ctypes
import logging
import os

from . import _c

HERE = os.path.dirname(os.path.abspath(__file__))

# Calls that may wait give up the interpreter's lock; those of quick are over before another thread could take it.
_path = os.path.join(HERE, "libtrireme-comm.so")
lib, quick = ctypes.CDLL(_path), ctypes.PyDLL(_path)
for _name, _result, _parameters in _c.FUNCTIONS:
    for _library in (lib, quick):
        _function = getattr(_library, _name)
        _function.restype, _function.argtypes = _result, _parameters

_error_message, _status_name = quick.tr_error_message, quick.tr_status_name
_push, _pop, _keep = quick.tr_scope_push, quick.tr_scope_pop, quick.tr_object_keep
release = quick.tr_release


def message():
    """Of the latest failure on this thread."""
    return _error_message().decode(errors="replace")


def check(status, error=RuntimeError):
    if status:
        raise error(f"trireme: {message()} ({_status_name(status).decode()})")


def kept(function, *arguments, error=RuntimeError):
    """Calls a function that returns an object, which is the caller's, to release(); 0 where it returns none."""
    _push()
    made = _keep(function(*arguments))
    _pop()
    status = quick.tr_status_of(made)
    if status:
        try:
            check(status, error)
        finally:
            release(made)
    return made or 0


def filled(structure, **members):
    """An options struct, its texts in UTF-8."""
    texts = {name: value.encode() if isinstance(value, str) else value for name, value in members.items()}
    return structure(size=ctypes.sizeof(structure), **texts)


_LEVELS = {_c.TR_LOG_ERROR: logging.ERROR, _c.TR_LOG_WARN: logging.WARNING, _c.TR_LOG_INFO: logging.INFO}
_logger = logging.getLogger("trireme")


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _log(level, text, _user):
    _logger.log(_LEVELS.get(level, logging.DEBUG), "%s", text.decode(errors="replace"))


def log(on):
    """From any thread of the library, so it is off before the interpreter ends."""
    lib.tr_set_log(ctypes.cast(_log, ctypes.c_void_p) if on else None, None, _c.TR_LOG_WARN if on else _c.TR_LOG_OFF)
