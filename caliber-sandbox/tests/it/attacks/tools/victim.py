"""A process of the host that attacks are aimed at.

    victim.py FOLDER SECRET

Writes `signals` into the folder with one byte for each signal that reached it, says "ready" and then waits for its
input to end.
"""

import os
import signal
import sys

folder, _ = sys.argv[1:]
signals = os.open(os.path.join(folder, "signals"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH, signal.SIGUSR1, signal.SIGCONT):
    signal.signal(number, lambda number, _: os.write(signals, b"!"))
print("ready", flush=True)
sys.stdin.read()
