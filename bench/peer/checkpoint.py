"""The peer of `trireme bench checkpoint`: torch.save and torch.load, and torch.distributed.checkpoint (DCP), of one process.

    checkpoint.py --megabytes 1493 --folder FOLDER [--dcp-threads 2] [--no-crc]

prints "ready"; then for each line that it reads it does what the line says and prints the seconds that it took; ends with its
input. Lines are torch_save, torch_load, torch_cold_load, dcp_save, dcp_load and dcp_cold_load. Both kinds of saves end when the
bytes are on the disk (DCP syncs its files by itself, torch.save's is synced here), as ours do. torch.load reads tensors only
(weights_only, the default) into new memory; DCP into tensors that are there. Cold loads drop the files from the page cache first,
the others read them into it.

The tensors are those of GPT-2 with 124M parameters and AdamW's two moments of each, as many as --megabytes allow; --no-crc leaves
out the CRC-32 of each record, which torch.save writes by default and torch.load does not look at.
"""
import argparse
import os
import shutil
import sys
import time

import torch
import torch.distributed.checkpoint as dcp

DIM = 768
BLOCK = [("ln_1.weight", (DIM,)), ("ln_1.bias", (DIM,)), ("attn.c_attn.weight", (DIM, 3 * DIM)), ("attn.c_attn.bias", (3 * DIM,)),
         ("attn.c_proj.weight", (DIM, DIM)), ("attn.c_proj.bias", (DIM,)), ("ln_2.weight", (DIM,)), ("ln_2.bias", (DIM,)),
         ("mlp.c_fc.weight", (DIM, 4 * DIM)), ("mlp.c_fc.bias", (4 * DIM,)), ("mlp.c_proj.weight", (4 * DIM, DIM)),
         ("mlp.c_proj.bias", (DIM,))]


def make_state(megabytes: int) -> dict:
    shapes = [(f"h.{i}.{name}", shape) for i in range(12) for name, shape in BLOCK]
    shapes += [("wte.weight", (50257, DIM)), ("wpe.weight", (1024, DIM)), ("ln_f.weight", (DIM,)), ("ln_f.bias", (DIM,))]
    model, moments, left = {}, {}, megabytes * 1_000_000 + 500_000
    for name, shape in shapes:
        row = 12 * shape[-1]
        rows = min(shape[0] if len(shape) > 1 else 1, left // row)
        if rows < 1:
            continue
        left -= rows * row
        model[name] = torch.randn(rows, shape[-1])
        moments[name] = {"exp_avg": torch.randn(rows, shape[-1]), "exp_avg_sq": torch.randn(rows, shape[-1])}
    return {"model": model, "optimizer": moments}


def prepare(path: str, cold: bool) -> None:
    """Brings files out of the page cache, or all of them into it."""
    names = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else [path]
    for name in names:
        with open(name, "rb", buffering=0) as f:
            if cold:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while not cold and f.read(1 << 20):
                pass


class Peer:
    def __init__(self, args: argparse.Namespace) -> None:
        os.makedirs(args.folder, exist_ok=True)
        self.file, self.folder = os.path.join(args.folder, "model.pt"), os.path.join(args.folder, "dcp")
        self.threads = args.dcp_threads
        self.state = make_state(args.megabytes)
        self.into = make_state(args.megabytes)

    def torch_save(self) -> None:
        with open(self.file + ".tmp", "wb") as f:
            torch.save(self.state, f)
            f.flush()
            os.fsync(f.fileno())
        os.rename(self.file + ".tmp", self.file)

    def torch_load(self) -> None:
        torch.load(self.file)

    def dcp_save(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        dcp.save(self.state, storage_writer=dcp.FileSystemWriter(self.folder, thread_count=self.threads))

    def dcp_load(self) -> None:
        dcp.load(self.into, storage_reader=dcp.FileSystemReader(self.folder))

    def run(self, what: str) -> float:
        cold, what = "_cold_" in what, what.replace("_cold", "")
        if what.endswith("load"):
            prepare(self.folder if what.startswith("dcp") else self.file, cold)
        begin = time.perf_counter()
        getattr(self, what)()
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--dcp-threads", type=int, default=2)
    parser.add_argument("--no-crc", action="store_true")
    args = parser.parse_args()
    if args.no_crc:
        torch.serialization.set_crc32_options(False)
    peer = Peer(args)
    print(f"ready PyTorch {torch.__version__}", flush=True)
    for line in sys.stdin:
        print(f"{peer.run(line.strip()):.6f}", flush=True)


if __name__ == "__main__":
    main()
