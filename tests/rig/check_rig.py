#!/usr/bin/env python3
"""Starts the fake servers in every mode and checks that each does what its line in README.md says.

    python3 check_rig.py [WORD ...]     only checks whose name holds one of the words
"""

import faulthandler
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from rig_core import load_modes
from rig_registry import MODES

load_modes()
# The bombs are nested deeper than Python decodes by default.
sys.setrecursionlimit(20_000)

import check_healthy  # noqa: E402, F401
import check_http  # noqa: E402, F401
import check_lists  # noqa: E402, F401
import check_modes  # noqa: E402, F401
import check_stdio  # noqa: E402, F401
from check_support import CHECKS  # noqa: E402

TOGETHER = 6
# The whole run takes about a quarter of this; a check that hangs must not hang the caller.
LONGEST_RUN_SECONDS = 120


def run(entry):
    name, transport, function = entry
    begin = time.monotonic()
    try:
        function()
        problem = None
    except BaseException:
        problem = traceback.format_exc()
    return name, transport, time.monotonic() - begin, problem


def main(words):
    unchecked = set(MODES) - {name for name, _, _ in CHECKS}
    if unchecked:
        print(f"modes without a check: {', '.join(sorted(unchecked))}")
        return 1
    chosen = [entry for entry in CHECKS if not words or any(word in entry[0] for word in words)]
    if not chosen:
        print(f"no check matches {' '.join(words)}")
        return 1
    begin = time.monotonic()
    faulthandler.dump_traceback_later(LONGEST_RUN_SECONDS, exit=True)
    with ThreadPoolExecutor(TOGETHER) as pool:
        outcomes = list(pool.map(run, chosen))
    failures = [outcome for outcome in outcomes if outcome[3]]
    for name, transport, _, problem in failures:
        print(f"--- {name} over {transport}\n{problem}")
    slowest = ", ".join(f"{name}/{transport} {seconds:.1f} s" for name, transport, seconds, _ in sorted(outcomes, key=lambda o: -o[2])[:4])
    print(f"{len(outcomes) - len(failures)} of {len(outcomes)} checks of {len(MODES)} modes passed in {time.monotonic() - begin:.1f} s (slowest: {slowest})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
