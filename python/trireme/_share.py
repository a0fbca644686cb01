"""Large tensors in memory that the ranks of a host map from each other: see share_memory()."""
import ctypes
import mmap
import os
import struct

import torch

from ._library import lib

_libc = ctypes.CDLL(None, use_errno=True)
# <elf.h>: tags of the dynamic section, and the relocations that hold the address of a function
_STRTAB, _SYMTAB, _RELA, _RELASZ, _PLTRELSZ, _JMPREL = 5, 6, 7, 8, 2, 23
_FUNCTION_SLOTS = {"x86_64": (6, 7), "aarch64": (1025, 1026)}  # GLOB_DAT, JUMP_SLOT


class _LinkMap(ctypes.Structure):
    _fields_ = [("base", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dynamic", ctypes.c_size_t)]


def _slots(library, names):
    """Where a loaded library keeps the addresses of functions that it calls: for each name a list of addresses."""
    kinds = _FUNCTION_SLOTS.get(os.uname().machine)
    if not kinds:
        raise OSError(f"this is known for {' and '.join(_FUNCTION_SLOTS)}, not for {os.uname().machine}")
    loaded, link = ctypes.CDLL(library, mode=os.RTLD_NOLOAD), ctypes.POINTER(_LinkMap)()
    if _libc.dlinfo(ctypes.c_void_p(loaded._handle), 2, ctypes.byref(link)):  # RTLD_DI_LINKMAP
        raise OSError(f"dlinfo() does not know {library}")
    base, at, table = link.contents.base, link.contents.dynamic, {}
    while (pair := struct.unpack("qQ", ctypes.string_at(at, 16)))[0]:
        table[pair[0]] = pair[1]
        at += 16
    slots = {name: [] for name in names}
    for start, size in ((_RELA, _RELASZ), (_JMPREL, _PLTRELSZ)):
        for offset, info, _ in struct.iter_unpack("QQq", ctypes.string_at(table[start], table[size])):
            if info & 0xffffffff in kinds:
                symbol = ctypes.c_uint32.from_address(table[_SYMTAB] + 24 * (info >> 32)).value
                name = ctypes.string_at(table[_STRTAB] + symbol).decode()
                if name in slots:
                    slots[name].append(base + offset)
    return slots


def mapping(address):
    """The line of /proc/self/maps about it: (its letters as mprotect() takes them, its name)."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split(maxsplit=5)
            begin, end = (int(part, 16) for part in words[0].split("-"))
            if begin <= address < end:
                bits = zip(words[1], (mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC))
                return sum(bit for letter, bit in bits if letter != "-"), words[5].strip() if len(words) > 5 else ""
    raise OSError(f"nothing is mapped at {address:#x}")


def _protect(address, protection):
    if _libc.mprotect(ctypes.c_void_p(address // mmap.PAGESIZE * mmap.PAGESIZE), ctypes.c_size_t(1), protection):
        raise OSError(ctypes.get_errno(), f"mprotect(): {os.strerror(ctypes.get_errno())}")


def share_memory():
    """From now on this process's CPU tensors of 64 KiB and more, DDP's buckets among them, are made in memory that the other ranks
    of the host map, and collectives read and write them where they lie. Call it once, before the model is made. What was made
    before stays where it is.

    PyTorch has no public means to replace its allocator of the CPU. It allocates in libc10.so, by posix_memalign() and free(), whose
    addresses stand in that library's table of functions: there they are exchanged for the library's own, which any version of
    PyTorch can call. RuntimeError where that does not work; tensors then are what they were."""
    try:
        slots = _slots("libc10.so", ("free", "posix_memalign"))
        # The new free() takes memory of both kinds, so it comes first: other threads may be allocating.
        for name, function in (("free", lib.tr_shared_memalign_free), ("posix_memalign", lib.tr_shared_memalign)):
            if not slots[name]:
                raise OSError(f"libc10.so does not call {name}()")
            for slot in slots[name]:
                protection = mapping(slot)[0]
                _protect(slot, protection | mmap.PROT_WRITE)
                ctypes.c_void_p.from_address(slot).value = ctypes.cast(function, ctypes.c_void_p).value
                _protect(slot, protection)
        if not mapping(torch.empty(1 << 20, dtype=torch.uint8).data_ptr())[1].startswith("/memfd:trireme"):
            raise OSError("a new tensor is in memory of its own: none can be shared here, or libc10.so allocates by other means")
    except OSError as error:
        raise RuntimeError(f"trireme: share_memory() does nothing with PyTorch {torch.__version__}: {error}") from None
