"""Runs the tests beside it and ends with one line: N passed, N failed."""
import os
import sys
import time
import unittest


class Result(unittest.TextTestResult):
    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        print(f"{time.monotonic() - self.began:6.1f} s  {test.id()}", flush=True)


if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, folder)
    names = [name[:-3] for name in sorted(os.listdir(folder)) if name.startswith("test_")]
    suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:] or names)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=0, resultclass=Result).run(suite)
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(failed > 0)
