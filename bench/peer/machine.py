"""What every result says of itself, as cli/bench_result.c writes it: bench, date, commit, machine and versions."""
import datetime
import os
import re
import subprocess


def _cpuinfo(key: str) -> str:
    with open("/proc/cpuinfo") as lines:
        return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == key), "")


def family(name: str, flags: str) -> str:
    """Maker and line, the first two words that are no numbers, and what it multiplies by: "Intel Xeon, AMX"."""
    plain = re.sub(r"\([^)]*\)", "", name)
    words: list[str] = []
    for word in plain[max(plain.find("Intel"), 0):].split()[:2]:
        if re.search("[0-9@]", word) or word in ("CPU", "Processor"):
            break
        words.append(word)
    widest = [("amx_bf16", "AMX"), ("avx512_bf16", "AVX-512 BF16"), ("avx512f", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON")]
    vectors = next((said for flag, said in widest if flag in flags), "no vectors")
    return ", ".join([" ".join(words), vectors] if words else [vectors])


def result(bench: str, trireme: str | None, peer: str | None) -> dict:
    """The keys that a result begins with. trireme, peer: the versions of both programs."""
    name = _cpuinfo("model name") or "unknown"
    describe = ["git", "-C", os.path.dirname(os.path.abspath(__file__)), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "bench": bench,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit or "unknown",
        "machine": {"family": family(name, _cpuinfo("flags") or _cpuinfo("Features")), "name": name, "cores": os.cpu_count()},
        "versions": {"trireme": trireme, "peer": peer},
    }
