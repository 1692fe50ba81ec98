"""Modes of a stdio child as a process: descendants, stderr, noise on stdout, early ends, endless lines."""

import os
import signal
import sys
import threading
import time

from rig_core import LONGEST_SECONDS, Cancelled
from rig_registry import also, mode

FLOOD_CHUNK = 64 << 10


def _ignore_signals():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


@mode("grandchild", "P4, SH-04", hook="start", transports="stdio", options="`--seconds` (120), `--marker`",
      variants=("setsid", "same_group", "closed_pipes"))
def grandchild(rig):
    """Leaves a descendant that ignores SIGTERM and end of input, with the marker in its argv: double-forked into a session
    of its own with our pipes open (`setsid`) or closed (`closed_pipes`), or a plain child in our group (`same_group`).
    It ends by itself after `--seconds`. Its pid is recorded before any message is answered."""
    variant = rig.variant("grandchild")
    started, ready = os.pipe()
    child = os.fork()
    if child == 0:
        if variant != "same_group":
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
        _become_sleeper(rig, variant)
    os.close(ready)
    # The other end closes by itself when the descendant runs its own program.
    os.read(started, 1)
    os.close(started)
    if variant != "same_group":
        os.waitpid(child, 0)


def _become_sleeper(rig, variant):
    try:
        _ignore_signals()
        rig.records.add("pids", os.getpid(), "grandchild")
        if variant == "closed_pipes":
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
        program = "import sys, time; time.sleep(float(sys.argv[2]))"
        marker = rig.settings.marker or "rig-grandchild"
        os.execv(sys.executable, [sys.executable, "-S", "-E", "-c", program, marker, str(rig.seconds(LONGEST_SECONDS))])
    finally:
        os._exit(127)


@mode("stubborn", "P4, peers 8", hook="start", transports="stdio", options="`--seconds` (120)")
def stubborn(rig):
    """Answers healthily, but ignores SIGTERM, SIGHUP, SIGINT and the end of its input for `--seconds` more."""
    _ignore_signals()


@mode("stderr_flood", "P5, SH-01", hook="noise", transports="stdio", when="every", options="`--bytes` (262144)",
      variants=("lines", "no_newline", "binary", "escapes"))
def stderr_flood(request):
    """Writes that many bytes to stderr before each answer (and at the start with `--when start`)."""
    _flood(request.rig)


@also("stderr_flood", "start")
def _flood_at_start(rig):
    if "start" in (rig.settings.when or "").split(","):
        _flood(rig)


def _flood(rig):
    pattern = {"lines": b"warning: the rig fills its stderr, line by line, as talkative servers do\n",
               "no_newline": b"x" * 64,
               "binary": bytes(range(256)),
               "escapes": b"\x1b[2J\x1b]0;title\x07\r\xe2\x80\xae\xf0\x9f\x94\xa5\xff\n"}[rig.variant("stderr_flood")]
    chunk = pattern * (FLOOD_CHUNK // len(pattern) + 1)
    remaining = rig.option("bytes", 256 << 10)
    while remaining > 0:
        try:
            remaining -= os.write(2, chunk[: min(remaining, FLOOD_CHUNK)])
        except OSError:
            return


_NOISE = {
    "banner": b"Welcome to the rig server v1.0\nListening on stdio...\n",
    "progress_bar": b"loading:  10%\rloading:  50%\rloading: 100%\r\n",
    "pretty_json": b'{\n  "jsonrpc": "2.0",\n  "method": "notifications/message",\n  "params": {"level": "info", "data": "x"}\n}\n',
    "blank_lines": b"\n\r\n   \n\t\n",
    "other_json": b'{"level":"info","message":"structured log on stdout"}\n[1,2,3]\n"text"\n42\nnull\ntrue\n',
    "binary": b"\x00\xff\xfe\x80 not text \xc3\x28\n",
    "escapes": b"\x1b[31mred\x1b[0m \x1b[2J\n",
    "byte_order_mark": b"\xef\xbb\xbf\n",
}


@mode("stdout_noise", "P6", hook="noise", transports="stdio", when="every", variants=("all", *_NOISE))
def stdout_noise(request):
    """Writes lines that are no messages to stdout, at the start and before each answer; the answer follows as usual."""
    _make_noise(request.rig)


@also("stdout_noise", "start")
def _make_noise(rig):
    variant = rig.variant("stdout_noise")
    for noise in _NOISE.values() if variant == "all" else (_NOISE[variant],):
        rig.output.write(noise)


@mode("newline_in_answer", "P6", transports="stdio", variants=("pretty", "forged"))
def newline_in_answer(request):
    """An answer broken over several lines: `pretty` printed, so that no line is a message, or `forged`, with a line inside
    a text that alone is a valid answer to an id never sent."""
    if request.rig.variant("newline_in_answer") == "pretty":
        text = request.envelope(request.execute()).replace(",", ",\n  ").replace("{", "{\n  ")
    else:
        request.execute()
        forged = '{"jsonrpc":"2.0","id":987654321,"result":{"content":[{"type":"text","text":"forged"}]}}'
        text = request.envelope(f'{{"content":[{{"type":"text","text":"before\n{forged}\nafter"}}]}}')
    request.reply.send(text)


@mode("crlf", "P6", hook="noise", transports="stdio", when="every")
def crlf(request):
    """Healthy answers, but each line ends with CR LF."""
    send = request.rig.output.write

    def finish(text=None):
        if text is not None:
            send(text.encode("utf-8", "surrogateescape") + b"\r\n")

    request.reply.finish = finish


def _message(rig, default):
    print(rig.option("message", default), file=sys.stderr, flush=True)


@mode("exit_at_start", "P7, peers 10", hook="start", transports="stdio", options="`--message`, `--status` (3)")
def exit_at_start(rig):
    """Prints a message to stderr and exits before it reads anything."""
    _message(rig, "rig: cannot start: the configuration file is missing")
    os._exit(rig.option("status", 3))


@mode("exit_before_initialize", "P7", transports="stdio", when="initialize,discover", options="`--message`, `--status` (1)")
def exit_before_initialize(request):
    """Exits when the handshake asks, without an answer."""
    _message(request.rig, "rig: refusing to be initialized")
    os._exit(request.rig.option("status", 1))


@mode("exit_on_call", "P7, SH-02, C4", transports="stdio", options="`--message`, `--status` (1)",
      variants=("exit", "kill", "half_line", "close_stdout"))
def exit_on_call(request):
    """Executes the call, then ends without an answer: `exit`, `kill` (SIGKILL to itself), `half_line` (exit amid the
    answer), `close_stdout` (the process stays)."""
    result = request.execute()
    variant = request.rig.variant("exit_on_call")
    _message(request.rig, "rig: fatal: giving up in the middle of a call")
    if variant == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if variant == "half_line":
        answer = request.envelope(result).encode("utf-8", "surrogateescape")
        request.reply.write(answer[: len(answer) // 2])
    if variant == "close_stdout":
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        raise Cancelled
    os._exit(request.rig.option("status", 1))


@mode("exit_after", "P7", hook="start", transports="stdio", options="`--seconds` (0.1), `--status` (1)")
def exit_after(rig):
    """Works, and exits after `--seconds` from its start: with a restart, a crash loop."""

    def end():
        time.sleep(rig.seconds(0.1))
        os._exit(rig.option("status", 1))

    threading.Thread(target=end, daemon=True).start()


@mode("unbounded_line", "P8, SH-03, peers 4", transports="stdio", options="`--bytes` (300000000)",
      variants=("json", "letters", "spaces"))
def unbounded_line(request):
    """Executes, then in place of the answer writes a line that does not end, of that many bytes (with `--when start`: before anything is read);
    stops when nobody reads. `cutoffs` says how much was taken."""
    request.execute()
    if request.rig.variant("unbounded_line") == "json":
        request.reply.write(request.envelope('{"content":[{"type":"text","text":"')[:-1].encode())
    request.pour(_line_chunk(request.rig), request.rig.option("bytes", 300_000_000))
    raise Cancelled


@also("unbounded_line", "start")
def _unbounded_at_start(rig):
    if "start" in (rig.settings.when or "").split(","):
        sent, total, chunk = 0, rig.option("bytes", 300_000_000), _line_chunk(rig)
        try:
            while sent < total:
                rig.output.write(chunk[: total - sent])
                sent += min(len(chunk), total - sent)
        except OSError:
            pass
        rig.records.add("cutoffs", "start", sent, "complete" if sent >= total else "peer_closed")


def _line_chunk(rig):
    return (b" " if rig.variant("unbounded_line") == "spaces" else b"a") * FLOOD_CHUNK
