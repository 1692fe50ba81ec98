#!/usr/bin/env python3
"""A fake MCP server over stdio: healthy, or hostile in one of the ways that README.md lists."""

import os
import signal
import sys
import threading
import time

from rig_core import LONGEST_SECONDS, Message, Rig, Session, load_modes, parse_arguments
from rig_request import Request

LONGEST_LINE = 256 << 20


class Output:
    """Standard output. Whoever writes holds the lock, so lines of different threads do not mix."""

    def __init__(self):
        self.lock = threading.RLock()

    def write(self, data):
        with self.lock:
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[os.write(1, remaining) :]

    def send(self, text):
        self.write(text.encode("utf-8", "surrogateescape") + b"\n")


class LineReply:
    """The answer to one request, as lines on standard output."""

    kind = "line"
    poll_seconds = LONGEST_SECONDS

    def __init__(self, output):
        self.output = output
        self.send = output.send
        self.write = output.write

    def frame(self):
        """What stands before and after a message that is written in pieces."""
        return b"", b"\n"

    def finish(self, text=None):
        if text is not None:
            self.output.send(text)

    def refuse(self, _status, text):
        self.output.send(text)

    def abandon(self):
        pass

    def close(self):
        pass

    def closed(self):
        return False


def serve(rig, output):
    session = Session(f"pid-{os.getpid()}", rig.settings.era)
    session.stream = output
    rig.sessions[session.name] = session
    while line := sys.stdin.buffer.readline(LONGEST_LINE):
        line = line.rstrip(b"\n")
        rig.records.add("requests", line)
        message = Message(line.decode("utf-8", "surrogateescape"))
        if message.kind == "invalid":
            output.send('{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a JSON-RPC message"}}')
        elif message.kind != "request":
            rig.receive(session, message, None, rig.settings.era)
        else:
            request = Request(rig, session, message, LineReply(output), rig.era_of(message))
            if rig.may_be_slow(request):
                threading.Thread(target=request.run, daemon=True).start()
            else:
                request.run()
    rig.records.add("pids", os.getpid(), "end_of_input")


def main():
    load_modes()
    settings = parse_arguments("stdio", sys.argv[1:])
    # A client that went away shows as an error of the write, which the modes count on.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    rig = Rig(settings, "stdio")
    output = Output()
    rig.output = output
    for entry in rig.modes:
        if "start" in entry.hooks:
            entry.hooks["start"](rig)
    rig.start_watchers()
    serve(rig, output)
    if rig.has("stubborn"):
        time.sleep(rig.seconds(LONGEST_SECONDS))
    os._exit(0)


if __name__ == "__main__":
    main()
