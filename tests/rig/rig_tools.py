"""The healthy server: its tools, its lists and its handshake, answered as raw JSON text."""

import base64
import json
import os
import sys

import rig_json
from rig_core import (LEGACY_VERSIONS, LIST_CHANGED, LONGEST_SECONDS, MODERN_VERSION, META_SUBSCRIPTION, Cancelled, RpcError, plain, read_text)

ECHO_SCHEMA = '{"type":"object","properties":{"value":{},"meta":{"type":"object"}},"required":["value"]}'
CAPABILITIES = '{"tools":{"listChanged":true}}'

# Every field that a descriptor may carry, `$defs` and `_meta` included: what passes a gateway must arrive like this.
STRUCTURED_DESCRIPTOR = (
    '{"name":"structured","title":"Structured 構造","description":"Returns a count and a label — as declared.",'
    '"inputSchema":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",'
    '"$defs":{"label":{"type":"string","maxLength":1000}},'
    '"properties":{"count":{"type":"integer","default":3},"label":{"$ref":"#/$defs/label"}},"additionalProperties":false},'
    '"outputSchema":{"type":"object","properties":{"count":{"type":"integer"},"label":{"$ref":"#/$defs/label"}},'
    '"$defs":{"label":{"type":"string"}},"required":["count","label"],"additionalProperties":false},'
    '"annotations":{"title":"Structured","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false},'
    '"icons":[{"src":"data:image/png;base64,iVBORw0KGgo=","mimeType":"image/png","sizes":["16x16"]}],'
    '"_meta":{"example.org/kept":{"big":9007199254740993,"text":"\\u2028"}}}'
)


def descriptor(name, description, schema='{"type":"object"}', **raw_fields):
    """One tool as raw text; further fields are given as raw JSON."""
    extra = "".join(f",{rig_json.quote(key)}:{value}" for key, value in raw_fields.items())
    return f'{{"name":{rig_json.quote(name)},"description":{rig_json.quote(description)},"inputSchema":{schema}{extra}}}'


def object_schema(**raw_properties):
    properties = ",".join(f"{rig_json.quote(key)}:{value}" for key, value in raw_properties.items())
    return f'{{"type":"object","properties":{{{properties}}}}}'


def text_result(text, structured=None, is_error=False, meta=None):
    """A tool result with one text block; `structured` and `meta` are raw JSON."""
    result = f'{{"content":[{{"type":"text","text":{rig_json.quote(text)}}}]'
    if structured is not None:
        result += f',"structuredContent":{structured}'
    if is_error:
        result += ',"isError":true'
    if meta is not None:
        result += f',"_meta":{meta}'
    return result + "}"


def number_argument(request, name, default):
    value = rig_json.decode(rig_json.get(request.arguments, name), default)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def echo(request):
    value = rig_json.get(request.arguments, "value")
    meta = rig_json.get(request.arguments, "meta")
    if value is None:
        return text_result("", "{}", meta=meta)
    instance = request.rig.settings.instance
    if instance and request.tool != "echo":
        return text_result(f"{instance}:{request.tool}", f'{{"value":{value},"instance":{rig_json.quote(instance)}}}', meta=meta)
    result = f'{{"content":[{{"type":"text","text":{rig_json.as_text(value)}}}],"structuredContent":{{"value":{value}}}'
    return result + (f',"_meta":{meta}' if meta is not None else "") + "}"


def count(request):
    number = request.session.next_count()
    return text_result(str(number), f'{{"count":{number}}}')


def sleep(request):
    seconds = number_argument(request, "seconds", 1)
    if request.wait(seconds):
        raise Cancelled
    return text_result(f"slept {seconds} s", f'{{"seconds":{seconds}}}')


def fail(request):
    text = rig_json.decode(rig_json.get(request.arguments, "text"), "the tool failed as asked")
    return text_result(text, is_error=True)


def environment(request):
    values = dict(os.environ)
    facts = {"keys": sorted(values), "argv": sys.orig_argv, "cwd": os.getcwd(), "pid": os.getpid(), "parent": os.getppid(),
             "group": os.getpgrp(), "session": os.getsid(0), "descriptors": open_descriptors()}
    if rig_json.decode(rig_json.get(request.arguments, "values"), False) is True:
        facts["values"] = values
    return text_result(" ".join(facts["keys"]), json.dumps(facts, ensure_ascii=False))


def open_descriptors():
    """What each open descriptor points to; empty where there is no /proc."""
    found = {}
    try:
        names = sorted(os.listdir("/proc/self/fd"), key=int)
    except OSError:
        return found
    for name in names:
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            # The descriptor of the listing itself.
            continue
    return found


def structured(request):
    number = rig_json.get(request.arguments, "count") or "3"
    label = rig_json.get(request.arguments, "label") or '"three"'
    return text_result(f"{number} {label}", f'{{"count":{number},"label":{label}}}')


def big(request):
    size = min(int(number_argument(request, "bytes", 1024)), 1 << 30)
    return text_result("x" * size)


def progress(request):
    total = min(int(number_argument(request, "count", 3)), 1_000_000)
    interval = number_argument(request, "interval", 0.01)
    for step in range(1, total + 1):
        if request.progress_token is not None:
            send_progress(request, request.progress_token, step, total)
        if request.wait(interval):
            raise Cancelled
    return text_result(f"{total} steps", f'{{"count":{total}}}')


def send_progress(request, token, step, total=None):
    """Sends one progress notification; False once the client is gone."""
    end = f',"total":{total}' if total is not None else ""
    return request.notify("notifications/progress", f'{{"progressToken":{token},"progress":{step}{end},"message":"step {step}"}}')


def raw_headers(request):
    head = getattr(request.reply, "request_head", None)
    if head is None:
        return text_result("", '{"head":null,"base64":null}')
    text = rig_json.quote(head.decode("latin-1"))
    return text_result("", f'{{"head":{text},"base64":"{base64.b64encode(head).decode()}"}}')


# name -> (raw descriptor, function). The order is the order of tools/list.
TOOLS = {
    "echo": (descriptor("echo", "Returns the value as it was sent.", ECHO_SCHEMA), echo),
    "count": (descriptor("count", "Counts the calls of this session: 1, 2, 3 and so on."), count),
    "sleep": (descriptor("sleep", "Answers after some seconds.", object_schema(seconds='{"type":"number"}')), sleep),
    "fail": (descriptor("fail", "Always reports an error.", object_schema(text='{"type":"string"}')), fail),
    "environment": (descriptor("environment", "Shows the server's own process.", object_schema(values='{"type":"boolean"}')), environment),
    "structured": (STRUCTURED_DESCRIPTOR, structured),
    "big": (descriptor("big", "Returns a text of that many bytes.", object_schema(bytes='{"type":"integer"}')), big),
    "progress": (descriptor("progress", "Reports progress before it answers.",
                            object_schema(count='{"type":"integer"}', interval='{"type":"number"}')), progress),
    "raw_headers": (descriptor("raw_headers", "Shows the head of the HTTP request it was called with."), raw_headers),
}
SLOW_TOOLS = ("sleep", "progress")


def advertised(rig):
    """The raw descriptors of tools/list: of a mode, of the catalog file, or the healthy ones."""
    tools = rig.hook("tools")
    if tools:
        return tools(rig)
    if rig.settings.catalog:
        try:
            return rig_json.items(read_text(rig.settings.catalog) or "")
        except ValueError:
            return None
    further = [descriptor(name, f"Answers as {name}.", ECHO_SCHEMA) for name in (rig.settings.tools or "").split(",") if name]
    return [raw for raw, _ in TOOLS.values()] + further


def list_result(request, tools, next_cursor=None):
    """The result of tools/list; `next_cursor` is raw JSON."""
    ending = f',"nextCursor":{next_cursor}' if next_cursor is not None else ""
    if request.era == "modern":
        ending += ',"ttlMs":0,"cacheScope":"private"'
    return f'{{"tools":[{",".join(tools)}]{ending}}}'


def list_tools(request):
    rig = request.rig
    cursor = rig_json.get(request.message.params, "cursor")
    cursor = None if cursor == "null" else cursor
    rig.records.add("lists", cursor or "-", request.session.name)
    if cursor is None:
        with rig.lock:
            rig.lists += 1
    tools = advertised(rig)
    if tools is None:
        # A catalog file that holds no JSON array is sent as it is: the test wants exactly that.
        return f'{{"tools":{(read_text(rig.settings.catalog) or "").strip()}}}'
    page = rig.hook("page")
    if page:
        return page(request, cursor, tools)
    pages = max(1, rig.option("pages", 1))
    size = max(1, -(-len(tools) // pages))
    cursors = {None: 0, **{f'"page-{number + 1}"': number for number in range(1, pages)}}
    if cursor not in cursors:
        raise RpcError(-32602, f"unknown cursor {cursor}")
    number = cursors[cursor]
    following = f'"page-{number + 2}"' if number + 1 < pages else None
    return list_result(request, tools[number * size : (number + 1) * size], following)


def call_tool(request):
    rig = request.rig
    if not isinstance(request.tool, str):
        raise RpcError(-32602, "params.name must be a string")
    entry = TOOLS.get(request.tool)
    function = entry[1] if entry else echo
    if entry is None and not is_advertised(rig, request.tool):
        raise RpcError(-32602, f"Unknown tool: {request.tool}")
    with rig.lock:
        request.session.calls += 1
    rig.records.add("executions", plain(request.tool), request.id, request.session.name)
    return function(request)


def is_advertised(rig, name):
    tools = advertised(rig)
    return tools is None or any(rig_json.decode(rig_json.get(raw, "name")) == name for raw in tools)


def server_info(rig):
    return f'{{"name":{rig_json.quote(rig.option("server_name", "rig"))},"version":"1.0.0"}}'


def legacy_versions(rig):
    return tuple(v for v in (rig.settings.versions or "").split(",") if v) or LEGACY_VERSIONS


def initialize(request):
    rig = request.rig
    if rig.settings.era == "modern":
        raise RpcError(-32022, "initialize is not part of this protocol version",
                       f'{{"supported":["{MODERN_VERSION}"],"requested":{rig_json.get(request.message.params, "protocolVersion") or "null"}}}', 400)
    wanted = rig_json.decode(rig_json.get(request.message.params, "protocolVersion"))
    rig.records.add("initializes", wanted, request.session.name)
    versions = legacy_versions(rig)
    request.session.version = wanted if wanted in versions else versions[-1]
    return (f'{{"protocolVersion":"{request.session.version}","capabilities":{CAPABILITIES},'
            f'"serverInfo":{server_info(rig)},"instructions":"Call echo first."}}')


def discover(request):
    rig = request.rig
    rig.records.add("discovers", request.session.name)
    if request.era == "legacy":
        return refuse_discover(request)
    versions = [MODERN_VERSION] + (list(reversed(legacy_versions(rig))) if rig.settings.era == "dual" else [])
    listed = ",".join(f'"{version}"' for version in versions)
    return (f'{{"supportedVersions":[{listed}],"capabilities":{CAPABILITIES},"instructions":"Call echo first.",'
            f'"ttlMs":0,"cacheScope":"private","_meta":{{"io.modelcontextprotocol/serverInfo":{server_info(rig)}}}}}')


def refuse_discover(request):
    """The many ways in which servers that know only the legacy family meet the probe."""
    how = request.rig.option("legacy_discover", "method_not_found")
    if how == "silent":
        request.wait(LONGEST_SECONDS)
        raise Cancelled
    if how == "exit":
        os._exit(1)
    if how == "plain_text_400" and request.reply.kind == "post":
        request.reply.connection.respond(400, b"Bad Request: no session", "text/plain")
        request.reply.done = True
        raise Cancelled
    code, status = {"method_not_found": (-32601, 200), "invalid_params": (-32602, 200), "invalid_request": (-32600, 400),
                    "server_error": (-32000, 400), "odd_code": (7, 200), "status_404": (-32601, 404),
                    "plain_text_400": (-32600, 400)}[how]
    raise RpcError(code, "Method not found", status=status)


def listen(request):
    """subscriptions/listen: acknowledges, then stays open until the client gives up."""
    rig = request.rig
    if request.era != "modern":
        raise RpcError(-32601, "Method not found")
    tag = f'"_meta":{{"{META_SUBSCRIPTION}":{request.id}}}'
    accepted = rig_json.get(request.message.params, "notifications") or "{}"
    request.notify("notifications/subscriptions/acknowledged", f'{{{tag},"notifications":{accepted}}}')
    with rig.lock:
        rig.subscriptions.add(request)
    try:
        rig.session_ready(lambda text: _push_to_subscription(request, text, tag))
        while not request.wait(LONGEST_SECONDS):
            pass
    finally:
        with rig.lock:
            rig.subscriptions.discard(request)
    raise Cancelled


def _push_to_subscription(request, text, tag):
    """Sends a message on a subscription; list_changed gets the tag that the modern family requires."""
    if text == LIST_CHANGED:
        return request.notify("notifications/tools/list_changed", f"{{{tag}}}")
    try:
        request.reply.send(text)
        return True
    except OSError:
        return False


_METHODS = {"initialize": initialize, "server/discover": discover, "tools/list": list_tools, "tools/call": call_tool,
            "subscriptions/listen": listen, "ping": lambda request: "{}"}


def healthy_result(request):
    """The raw result that a healthy server gives to this request."""
    function = _METHODS.get(request.method)
    if function is None or (request.method == "ping" and request.era == "modern"):
        raise RpcError(-32601, f"Method not found: {request.method}", status=404 if request.era == "modern" else 200)
    if request.era == "legacy" and request.point in ("list", "call") and request.session.version is None:
        raise RpcError(-32600, "this session is not initialized")
    return function(request)
