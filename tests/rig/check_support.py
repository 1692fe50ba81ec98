"""What the checks share: the table of checks, and short ways to look at answers."""

import time

import rig_json
from check_client import CLIENTS, until
from rig_registry import MODES

CHECKS = []


def check(*modes, transports=None):
    """Registers a check for modes, over each transport that they have (or those named)."""

    def register(function):
        for name in modes:
            over = transports or (("stdio", "http") if name not in MODES or MODES[name].transports == "both" else (MODES[name].transports,))
            for transport in over:
                arguments = (transport, name) if len(modes) > 1 else (transport,)
                CHECKS.append((name, transport, lambda function=function, arguments=arguments: function(*arguments)))
        return function

    return register


def opened(transport, *arguments, era="legacy", handshake=True):
    """A client with its fake server; closes with the `with` block."""
    client = CLIENTS[transport](*arguments, era=era)
    try:
        if handshake:
            assert client.handshake(), "no answer to the handshake"
    except BaseException:
        client.close()
        raise
    return client


def assert_equal(found, expected, about=""):
    assert found == expected, f"{about}: found {found!r:.400}, expected {expected!r:.400}"


def each_variant(client, mode_name, settings=""):
    """Switches the mode on in each of its variants, one after another."""
    for variant in MODES[mode_name].variants:
        client.control(f"mode={mode_name}&variant={variant}" + (f"&{settings}" if settings else ""))
        yield variant


def raw_call(client, tool="echo", arguments='{"value":1}'):
    """Whatever comes back for a call, be it an answer or not."""
    params = f'{{"name":"{tool}","arguments":{arguments}}}'
    if client.transport == "stdio":
        before = len(client.messages)
        client.send(client.frame("tools/call", params, client.new_id()))
        until(lambda: len(client.messages) > before, what="any line")
        return client.messages[before]
    response = client.post("tools/call", params, identity=client.new_id())
    return "".join(response.texts())


def result_of(answer):
    assert answer is not None, "no answer"
    result = rig_json.get(answer, "result")
    assert result is not None, answer[:300]
    return result


def content_text(answer):
    blocks = rig_json.items(rig_json.get(result_of(answer), "content"))
    return rig_json.decode(rig_json.get(blocks[0], "text"))


def tools_of(client):
    return rig_json.items(rig_json.get(client.tools(), "tools"))


def tool_named(client, name):
    return next(raw for raw in tools_of(client) if rig_json.decode(rig_json.get(raw, "name")) == name)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def elapsed(function):
    begin = time.monotonic()
    value = function()
    return value, time.monotonic() - begin
