"""python -m trireme why [JOB]: who is in which call since when, who waits for whom, and who is the likely culprit. JOB is a job's
name, or the process id of its launcher or of a rank; without it all jobs of this user on this host are shown."""
import ctypes
import sys

from ._library import lib, message


def main(words):
    asks = "--help" in words or "-h" in words
    if asks or not words or words[0] != "why" or len(words) > 2:
        print(__doc__, file=sys.stdout if asks else sys.stderr)
        return 0 if asks else 2
    text = ctypes.c_void_p()
    if lib.tr_job_explain(words[1].encode() if len(words) > 1 else None, ctypes.byref(text)):
        print(f"trireme why: {message()}", file=sys.stderr)
        return 1
    print(ctypes.string_at(text).decode(errors="replace"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
