"""The canary of calls that are forked from a process with the module imported."""

import os
import socket
import time

calls = []


def run(canary, stays=600):
    calls.append(1)
    seen = [name for name in os.listdir("/proc") if name.isdigit()] if os.path.exists("/proc/self") else []
    left = os.listdir(os.environ["HOME"])
    with open(os.path.join(os.environ["HOME"], "left"), "w") as file:
        file.write("left")
    others = 0
    for name in seen:
        try:
            with open(f"/proc/{name}/cmdline") as file:
                file.read()
            others += int(name) != int(os.readlink("/proc/self"))
        except OSError:
            pass
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        net = "open"
    except OSError:
        net = "held"
    try:
        with open(canary) as file:
            file.read()
        read = "open"
    except OSError:
        read = "held"
    # It stays as long as anything lets it.
    if os.fork() == 0:
        os.setsid()
        time.sleep(stays)
        os._exit(0)
    return {"calls": len(calls), "left": left, "others": others, "net": net, "read": read}
