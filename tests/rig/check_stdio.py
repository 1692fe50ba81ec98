"""The checks of check_rig.py for modes of a stdio child."""

import os
import signal
import subprocess
import sys
import tempfile
import time

import rig_json
from check_client import HERE, until
from check_support import alive, assert_equal, check, each_variant, opened


@check("grandchild")
def grandchild(transport):
    for variant in ("setsid", "same_group", "closed_pipes"):
        with opened(transport, "--mode", "grandchild", "--variant", variant, "--marker", "rig-check-marker", "--seconds", "3") as client:
            pid = next(int(line.split("\t")[0]) for line in client.records("pids") if line.endswith("grandchild"))
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                assert b"rig-check-marker" in file.read(), "the marker stands in argv as soon as the handshake is answered"
            assert_equal(os.getsid(pid) == os.getsid(client.process.pid), variant == "same_group", variant)
            os.kill(pid, signal.SIGTERM)
            client.process.stdin.close()
            assert_equal(client.process.wait(2), 0, "the server itself ends with its input")
            assert alive(pid), "it survives SIGTERM and the end of its parent"
            os.kill(pid, signal.SIGKILL)


@check("stubborn")
def stubborn(transport):
    with opened(transport, "--mode", "stubborn", "--seconds", "1.2") as client:
        client.process.send_signal(signal.SIGTERM)
        assert client.call(), "it survives SIGTERM"
        client.process.stdin.close()
        time.sleep(0.3)
        assert client.process.poll() is None, "it survives the end of its input"
        assert_equal(client.process.wait(3), 0, "and ends by itself")


@check("stderr_flood")
def stderr_flood(transport):
    with opened(transport, "--mode", "stderr_flood", "--bytes", "200000") as client:
        for variant in each_variant(client, "stderr_flood", "bytes=200000"):
            before = len(client.errors)
            assert client.call(), variant
            until(lambda: len(client.errors) - before >= 200_000, what="the flood")
            assert_equal(b"\n" in client.errors[before:], variant != "no_newline", variant)
    with opened(transport, "--mode", "stderr_flood", "--bytes", "50000", "--when", "start") as client:
        until(lambda: len(client.errors) == 50_000, what="the flood at the start")


@check("stdout_noise")
def stdout_noise(transport):
    with opened(transport, "--mode", "stdout_noise") as client:
        for variant in each_variant(client, "stdout_noise"):
            before = len(client.messages)
            assert client.call(), variant
            assert len(client.messages) - before > 1, variant


@check("newline_in_answer")
def newline_in_answer(transport):
    with opened(transport, "--mode", "newline_in_answer") as client:
        assert client.call(seconds=0.3) is None
        client.control("mode=newline_in_answer&variant=forged")
        assert client.call(seconds=0.3) is None
        until(lambda: any(rig_json.get(text, "id") == "987654321" for text in client.messages), what="the forged line")


@check("crlf")
def crlf(transport):
    with opened(transport, "--mode", "crlf") as client:
        assert client.call()
        assert all(text.endswith("\r") for text in client.messages)


@check("exit_at_start")
def exit_at_start(transport):
    with opened(transport, "--mode", "exit_at_start", "--message", "no such database", handshake=False) as client:
        assert_equal(client.process.wait(3), 3)
        until(lambda: b"no such database" in client.errors, what="the message")
        assert_equal(client.messages, [])


@check("exit_before_initialize")
def exit_before_initialize(transport):
    with opened(transport, "--mode", "exit_before_initialize", handshake=False) as client:
        assert client.handshake() is None
        assert_equal(client.process.wait(3), 1)


@check("exit_on_call")
def exit_on_call(transport):
    for variant, status in (("exit", 1), ("kill", -9), ("half_line", 1), ("close_stdout", None)):
        with opened(transport, "--mode", "exit_on_call", "--variant", variant) as client:
            assert client.call(seconds=1) is None, variant
            assert_equal(len(client.records("executions")), 1)
            if status is not None:
                assert_equal(client.process.wait(3), status, variant)
            else:
                until(client.ended, what="end of stdout")
                assert client.process.poll() is None


@check("exit_after")
def exit_after(transport):
    with opened(transport, "--mode", "exit_after", "--seconds", "1.5") as client:
        assert client.call()
        assert_equal(client.process.wait(3), 1)


@check("unbounded_line")
def unbounded_line(transport):
    with opened(transport, "--mode", "unbounded_line", "--bytes", "20000000") as client:
        assert client.call(seconds=0.1) is None
        assert_equal(client.wait_records("cutoffs")[0].split("\t")[1:], ["20000000", "complete"])
    with opened(transport, "--mode", "unbounded_line", "--bytes", "300000", "--when", "start", "--variant", "letters", handshake=False) as client:
        client.wait_records("cutoffs")
        client.process.stdin.close()
        assert_equal(client.process.wait(3), 0)
        until(client.ended, what="end of stdout")
        assert_equal(len(client.messages[0]), 300_000)
    # A client that stops reading and closes: the server notices and goes on.
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, os.path.join(HERE, "fake_stdio.py"), "--mode", "unbounded_line", "--when", "start", "--state-dir", folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert_equal(len(server.stdout.read(2_000_000)), 2_000_000)
            server.stdout.close()
            server.stdin.close()
            assert_equal(server.wait(5), 0)
        with open(os.path.join(folder, "cutoffs"), encoding="utf-8") as file:
            point, sent, how = file.read().split()
        assert point == "start" and how == "peer_closed" and int(sent) < 10_000_000, (point, sent, how)
