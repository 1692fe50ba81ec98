"""Attacks on memory, disk, time and output: rows 39 to 46."""

import atexit
import mmap
import os
import re
import signal
import sys
import threading
import time

from attempt import WON, WORKS, attempts, entries, mark, told


def allocate(host):
    held = mmap.mmap(-1, host["bytes"])
    return {"allocated": WON, "_held": str(len(held))}


def allocate_bytes(host):
    """What the interpreter itself says to a tool that asks for too much."""
    return {"allocated": WON, "_held": str(len(bytearray(host["bytes"])))}


def fork_memory(host):
    """Several processes which each stay below the limit of one."""
    mark()
    reader, writer = os.pipe()
    made = 0
    for _ in range(host["count"]):
        try:
            if os.fork() == 0:
                held = bytearray(host["bytes"])
                for position in range(0, len(held), 4096):
                    held[position] = 1
                os.write(writer, b"x")
                time.sleep(600)
                os._exit(0)
            made += 1
        except OSError:
            break
    os.close(writer)
    os.set_blocking(reader, False)
    filled = 0
    until = time.monotonic() + 10
    while filled < made and time.monotonic() < until:
        try:
            chunk = os.read(reader, 64)
        except BlockingIOError:
            time.sleep(0.01)
            continue
        if not chunk:
            break
        filled += len(chunk)
    # One that was killed for the memory of another has told before, perhaps.
    alive = made
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not ended:
            break
        alive -= 1
    together = min(filled, alive) * host["bytes"]
    return {"together": WON if together > host["limit"] else "nothing", "_filled": f"{filled}, {alive} alive"}


def fill_scratch(host):
    """Everything that can be written to, up to `bytes` each."""
    written = {}
    for name, folder in (("working_folder", os.getcwd()), ("temporary", "/tmp"), ("shared_memory", "/dev/shm")):
        total = 0
        try:
            with open(os.path.join(folder, "filler"), "wb", buffering=0) as file:
                while total < host["bytes"]:
                    total += file.write(b"\0" * (1 << 20))
        except OSError:
            pass
        if host.get("clean"):
            os.remove(os.path.join(folder, "filler"))
        written[name] = WON if total >= host["bytes"] else "nothing"
    return written


def many_files(host):
    made = 0
    try:
        for number in range(host["count"]):
            os.close(os.open(f"inode-{number}", os.O_CREAT | os.O_WRONLY))
            made += 1
    except OSError:
        pass
    if host.get("clean"):
        for number in range(made):
            os.remove(f"inode-{number}")
    return {"files": WON if made >= host["count"] else "nothing", "_made": str(made)}


def large_file(host):
    """One sparse file beyond every size that a tool may write."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def sparse():
        with open("sparse", "wb") as file:
            file.seek(64 << 30)
            file.write(b"x")

    found = attempts(sparse=sparse)
    try:
        os.remove("sparse")
    except OSError:
        pass
    return found


def loop(host):
    mark()
    while True:
        pass


def loop_in_native_code(host):
    mark()
    return sum(range(10**13))


def loop_in_expression(host):
    mark()
    return bool(re.match(r"(a+)+$", "a" * 64 + "b"))


def ignore_signals(host):
    mark()
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True:
        time.sleep(600)


def stop_itself(host):
    mark()
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.01)


def block_signals_and_wait(host):
    mark()
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    threading.Event().wait()


def use_processor(host):
    mark()
    children = []
    for _ in range(4):
        if os.fork() == 0:
            while True:
                pass
    while True:
        pass


def flood_output(host):
    block = b"x" * (1 << 20)
    for _ in range(host["bytes"] // len(block)):
        os.write(1, block)
    return {"result": WORKS}


def flood_errors(host):
    block = b"x" * (1 << 20)
    for _ in range(host["bytes"] // len(block)):
        os.write(2, block)
    return {"result": WORKS}


def leave_thread(host):
    mark()
    threading.Thread(target=lambda: time.sleep(600)).start()
    return {"result": WORKS}


def leave_exit_handler(host):
    mark()
    atexit.register(time.sleep, 600)
    return {"result": WORKS}


entries(globals())
