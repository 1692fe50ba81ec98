"""Takes over the process that has it imported, and the control socket and nonce that lie there.

`KIND` is written above it: what it does with them. In a process that forks no calls it does nothing.
"""

import ctypes
import os
import posix
import sys
import threading
import time

READY, FORKED, DONE, FREE = 2, 5, 6, 7
PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2


def serving():
    """The variables of the function that will fork calls."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "serve":
        frame = frame.f_back
    return frame and frame.f_locals


def keep(descriptor):
    kept.append(descriptor)
    return descriptor


def sleeper():
    """A child of its own that no call has asked for."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    return keep(os.pidfd_open(child))


def take_over(variables):
    """Answers in the place of the code that would fork the calls."""
    control, nonce = variables["control"], variables["nonce"]

    def tell(kind, payload, *descriptors):
        data = (17 + len(payload)).to_bytes(4, "little") + bytes((kind,)) + nonce + payload.encode()
        rights = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in descriptors)
        control.sendmsg([data], [(1, 1, rights)] if rights else [])

    tell(READY, '{"safe":true,"clone":0}')
    if KIND == "ready_twice":
        tell(READY, '{"safe":true,"clone":0}')
    if KIND == "forked_unasked":
        tell(FORKED, '{"id":1,"errno":0}', sleeper())
    while True:
        data, rights, _, _ = control.recvmsg(1 << 16, 64)
        if not data:
            os._exit(0)
        number = int(data[21:].split()[0])
        forked = f'{{"id":{number},"errno":0}}'
        if KIND == "no_process":
            tell(FORKED, forked, keep(os.eventfd(0)))
        elif KIND == "no_descriptor":
            tell(FORKED, forked)
        elif KIND == "foreign_process":
            tell(FORKED, forked, keep(os.pidfd_open(os.getpid())))
        elif KIND == "forked_twice":
            tell(FORKED, forked, sleeper())
            tell(FORKED, forked, keep(os.eventfd(0)))
        elif KIND == "another_process":
            tell(FORKED, forked, sleeper())
        elif KIND == "done_without_forked":
            tell(DONE, f'{{"id":{number},"status":0}}')
        elif KIND == "done_twice":
            tell(FORKED, forked, sleeper())
            for _ in range(3):
                tell(DONE, f'{{"id":{number},"status":0}}')
        elif KIND == "free_while_it_runs":
            tell(FORKED, forked, sleeper())
            tell(FREE, f'{{"id":{number},"free":{2**64 - 1}}}')
        elif KIND == "errors":
            tell(FORKED, f'{{"id":{number},"errno":11}}')
            tell(FORKED, f'{{"id":{number},"errno":0}}', keep(os.eventfd(0)))


def hide_thread():
    """Says that nothing is in the way of a fork while a thread runs."""
    listdir = posix.listdir
    posix.listdir = lambda path: ["1"] if path == "/proc/self/task" else listdir(path)
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def change_death_signal():
    """What the kernel answers, and the signal that this process then gets at the end of the one that made it."""
    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) < 0
    signal = ctypes.c_int(-1)
    libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(signal), 0, 0, 0)
    return [refused, signal.value]


kept = []
death_signal = None
_variables = serving()
if _variables is not None:
    if KIND == "death_signal":
        death_signal = change_death_signal()
    elif KIND == "hidden_thread":
        hide_thread()
    else:
        take_over(_variables)


def answer(host):
    return {"death_signal": death_signal}
