"""Modes of an answer's content: keys, depth, numbers, envelopes, output schemas, sizes and odd blocks."""

from rig_registry import mode
from rig_tools import descriptor, text_result

_DUPLICATES = {
    "structured": '{"content":[{"type":"text","text":"ok"}],"structuredContent":{"value":"first","value":"second"}}',
    "structured_case": '{"content":[{"type":"text","text":"ok"}],"structuredContent":{"value":"exact","Value":"look-alike"}}',
    "result_key": '{"content":[{"type":"text","text":"first"}],"content":[{"type":"text","text":"second"}]}',
    "is_error": '{"content":[{"type":"text","text":"ok"}],"isError":false,"isError":true}',
    "result_case": '{"content":[{"type":"text","text":"exact"}],"Content":[{"type":"text","text":"look-alike"}],"IsError":true,"iserror":true}',
    "look_alike": '{"content":[{"type":"text","text":"exact"}],"\u017ftructuredContent":{"value":1},"i\u017fError":true,"\uff43ontent":[]}',
    "escaped_key": '{"content":[{"type":"text","text":"first"}],"\\u0063ontent":[{"type":"text","text":"second"}]}',
    "content_block": '{"content":[{"type":"text","text":"first","text":"second"}]}',
    "meta": '{"content":[{"type":"text","text":"ok"}],"_meta":{"a":1,"a":2}}',
}
_DUPLICATE_ENVELOPES = {
    "envelope_id": '{{"jsonrpc":"2.0","id":{id},"id":987654321,"result":{result}}}',
    "envelope_result": '{{"jsonrpc":"2.0","id":{id},"result":{result},"result":{{"content":[{{"type":"text","text":"second"}}]}}}}',
    "envelope_case": '{{"jsonrpc":"2.0","id":{id},"ID":987654321,"result":{result},"Result":{{"content":[]}},"Error":{{"code":1,"message":"x"}}}}',
}


@mode("duplicate_keys", "J1, SH-09", variants=(*_DUPLICATES, *_DUPLICATE_ENVELOPES))
def duplicate_keys(request):
    """Executes, then answers with a key given twice, in another case, escaped, or with a look-alike letter, at the place the
    variant names. Descriptors with duplicate keys: mode `duplicate_descriptor_keys`."""
    result, variant = request.execute(), request.rig.variant("duplicate_keys")
    if variant in _DUPLICATES:
        request.succeed(_DUPLICATES[variant])
    else:
        request.reply.finish(_DUPLICATE_ENVELOPES[variant].format(id=request.id, result=result))


def nested(depth, kind="arrays"):
    """Text nested `depth` levels deep."""
    return "[" * depth + "]" * depth if kind == "arrays" else '{"a":' * depth + "null" + "}" * depth


_DEEP = {
    "structured": '{{"content":[{{"type":"text","text":"deep"}}],"structuredContent":{{"value":{arrays}}}}}',
    "structured_objects": '{{"content":[{{"type":"text","text":"deep"}}],"structuredContent":{objects}}}',
    "meta": '{{"content":[{{"type":"text","text":"deep"}}],"_meta":{objects}}}',
    "result_top": '{{"content":[{{"type":"text","text":"deep"}}],"unknown":{arrays}}}',
    "content_block": '{{"content":[{{"type":"text","text":"deep","unknown":{arrays}}}]}}',
}


@mode("deep", "J2", options="`--depth` (10000)",
      variants=(*_DEEP, "envelope", "error_data", "bare", "unclosed"))
def deep(request):
    """Executes, then answers with `--depth` nested arrays or objects at the place the variant names; `bare` is nothing but
    arrays, `unclosed` opens them only. `--when list` or `initialize` puts them into that result."""
    request.execute()
    variant, depth = request.rig.variant("deep"), min(request.rig.option("depth", 10_000), 5_000_000)
    arrays, objects = nested(depth), nested(depth, "objects")
    if variant in _DEEP:
        result = _DEEP[variant].format(arrays=arrays, objects=objects)
        if request.point == "list":
            result = f'{{"tools":[],"_meta":{{"deep":{arrays}}}}}'
        request.succeed(result)
    elif variant == "envelope":
        request.reply.finish(request.envelope(text_result("deep"))[:-1] + f',"unknown":{arrays}}}')
    elif variant == "error_data":
        request.fail(-32000, "deep", arrays)
    else:
        request.reply.finish(arrays if variant == "bare" else "[" * depth)


NUMBERS = ("9007199254740993", "9223372036854775807", "-9223372036854775808", "18446744073709551615", "18446744073709551616", "1e400", "-1e400",
           "-0", "-0.0", "0.1000000000000000000000000000000000000001", "3.1415926535897932384626433832795028841971", "1E+2", "1e-400",
           "123456789012345678901234567890123456789012345678901234567890", "1.0", "100e-2")


@mode("numbers", "J3, SH-10", options="`--bytes` (1000000, of `long_integer`)", variants=("all", "long_integer", "meta", "not_numbers"))
def numbers(request):
    """Executes, then answers `structuredContent.values` (or `_meta.values`) with numbers that no double holds; `long_integer`
    is one of `--bytes` digits; `not_numbers` has NaN, Infinity, 01 and +1, which are no JSON."""
    request.execute()
    variant = request.rig.variant("numbers")
    texts = {"long_integer": ("1" + "7" * (min(request.rig.option("bytes", 1_000_000), 64 << 20) - 1),),
             "not_numbers": ("NaN", "Infinity", "-Infinity", "01", "+1", "1.", ".5", "0x10")}.get(variant, NUMBERS)
    values = f'{{"values":[{",".join(texts)}]}}'
    request.succeed(text_result("numbers", meta=values) if variant == "meta" else text_result("numbers", values))


_ANSWER = '{{"jsonrpc":"2.0","id":{id},"result":{result}}}'
_RESULT = '{{"jsonrpc":"2.0","id":{id},"result":%s}}'
_ERROR = '{{"jsonrpc":"2.0","id":{id},"error":%s}}'
_TEXT = '{{"type":"text","text":"x"}}'
BAD_ANSWERS = {
    "no_jsonrpc": '{{"id":{id},"result":{result}}}',
    "jsonrpc_1_0": '{{"jsonrpc":"1.0","id":{id},"result":{result}}}',
    "jsonrpc_number": '{{"jsonrpc":2.0,"id":{id},"result":{result}}}',
    "no_id": '{{"jsonrpc":"2.0","result":{result}}}',
    "id_null": '{{"jsonrpc":"2.0","id":null,"result":{result}}}',
    "id_object": '{{"jsonrpc":"2.0","id":{{"id":{id}}},"result":{result}}}',
    "id_array": '{{"jsonrpc":"2.0","id":[{id}],"result":{result}}}',
    "id_float": '{{"jsonrpc":"2.0","id":{id}.5,"result":{result}}}',
    "id_true": '{{"jsonrpc":"2.0","id":true,"result":{result}}}',
    "result_string": _RESULT % '"text"',
    "result_null": _RESULT % "null",
    "result_array": _RESULT % "[]",
    "result_number": _RESULT % "42",
    "result_empty": _RESULT % "{{}}",
    "content_missing": _RESULT % '{{"isError":false}}',
    "content_null": _RESULT % '{{"content":null}}',
    "content_string": _RESULT % '{{"content":"text"}}',
    "content_object": _RESULT % ('{{"content":' + _TEXT + "}}"),
    "content_item_string": _RESULT % '{{"content":["text"]}}',
    "content_item_null": _RESULT % '{{"content":[null]}}',
    "content_item_no_type": _RESULT % '{{"content":[{{"text":"x"}}]}}',
    "content_type_number": _RESULT % '{{"content":[{{"type":7,"text":"x"}}]}}',
    "content_text_number": _RESULT % '{{"content":[{{"type":"text","text":7}}]}}',
    "content_text_missing": _RESULT % '{{"content":[{{"type":"text"}}]}}',
    "is_error_string": _RESULT % ('{{"content":[' + _TEXT + '],"isError":"true"}}'),
    "is_error_null": _RESULT % ('{{"content":[' + _TEXT + '],"isError":null}}'),
    "structured_string": _RESULT % ('{{"content":[' + _TEXT + '],"structuredContent":"text"}}'),
    "meta_array": _RESULT % ('{{"content":[' + _TEXT + '],"_meta":[]}}'),
    "error_string": _ERROR % '"failed"',
    "error_null": _ERROR % "null",
    "error_empty": _ERROR % "{{}}",
    "error_code_string": _ERROR % '{{"code":"-32000","message":"x"}}',
    "error_code_float": _ERROR % '{{"code":-32000.5,"message":"x"}}',
    "error_code_huge": _ERROR % '{{"code":99999999999999999999,"message":"x"}}',
    "error_no_code": _ERROR % '{{"message":"x"}}',
    "error_no_message": _ERROR % '{{"code":-32000}}',
    "error_message_object": _ERROR % '{{"code":-32000,"message":{{"x":1}}}}',
    "error_and_result": '{{"jsonrpc":"2.0","id":{id},"result":{result},"error":{{"code":-32000,"message":"both"}}}}',
    "neither": '{{"jsonrpc":"2.0","id":{id}}}',
    "answer_with_method": '{{"jsonrpc":"2.0","id":{id},"method":"tools/call","result":{result}}}',
    "notification_with_id": '{{"jsonrpc":"2.0","id":{id},"method":"notifications/progress","params":{{}}}}',
    "method_number": '{{"jsonrpc":"2.0","id":{id},"method":5}}',
    "array_batch": "[" + _ANSWER + "]",
    "empty_batch": "[]",
    "empty_object": "{{}}",
    "bare_string": '"text"',
    "bare_null": "null",
    "truncated": '{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"te',
    "trailing_garbage": _ANSWER + " trailing",
    "two_values": _ANSWER + _ANSWER,
    "single_quotes": "{{'jsonrpc':'2.0','id':{id},'result':{{}}}}",
    "not_json": "Internal Server Error",
    "lone_surrogate": _RESULT % '{{"content":[{{"type":"text","text":"\\ud800"}}]}}',
    "raw_control": _RESULT % '{{"content":[{{"type":"text","text":"a\tb\x01c"}}]}}',
    "byte_order_mark": "\ufeff" + _ANSWER,
    # A byte that no UTF-8 text has: carried as a surrogate and written as 0xFF.
    "invalid_utf8": _RESULT % '{{"content":[{{"type":"text","text":"\udcff\udcfe"}}]}}',
}


@mode("bad_answer", "J4", variants=tuple(BAD_ANSWERS))
def bad_answer(request):
    """Executes, then answers with an envelope or a result that breaks the rules as the variant says. `--when list` or
    `--when initialize` (or `every`) does it to other answers."""
    template = BAD_ANSWERS[request.rig.variant("bad_answer")]
    request.reply.finish(template.format(id=request.id, result=request.execute()))


_INITIALIZE = '{"protocolVersion":%s,"capabilities":{"tools":{}},"serverInfo":{"name":"rig","version":"1"}}'
_BAD_INITIALIZE = {
    "version_unknown": _INITIALIZE % '"1999-01-01"',
    "version_modern": _INITIALIZE % '"2026-07-28"',
    "version_number": _INITIALIZE % "20251125",
    "version_null": _INITIALIZE % "null",
    "no_version": '{"capabilities":{"tools":{}},"serverInfo":{"name":"rig","version":"1"}}',
    "no_capabilities": '{"protocolVersion":"2025-06-18","serverInfo":{"name":"rig","version":"1"}}',
    "no_tools_capability": '{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"rig","version":"1"}}',
    "capabilities_array": '{"protocolVersion":"2025-06-18","capabilities":[],"serverInfo":{"name":"rig","version":"1"}}',
    "no_server_info": '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}',
    "result_string": '"welcome"',
    "empty": "{}",
}


@mode("bad_initialize", "J4, R-40", when="initialize,discover", options="`--bytes` (20000000, of `huge_instructions`)",
      variants=(*_BAD_INITIALIZE, "huge_instructions", "error"))
def bad_initialize(request):
    """A handshake answer that is wrong as the variant says."""
    request.execute()
    variant = request.rig.variant("bad_initialize")
    if variant == "error":
        request.fail(-32603, "rig: initialization failed at /srv/canary-internal-path")
    elif variant == "huge_instructions":
        text = "a" * min(request.rig.option("bytes", 20_000_000), 256 << 20)
        request.succeed((_INITIALIZE % '"2025-06-18"')[:-1] + f',"instructions":"{text}"}}')
    else:
        request.succeed(_BAD_INITIALIZE[variant])


@mode("line_of", "P8, T4", options="`--bytes` (1048576)")
def line_of(request):
    """Executes, then answers with a message of exactly `--bytes` bytes (without the line end, or the SSE framing)."""
    request.execute()
    frame = request.envelope(text_result(""))
    fill = request.rig.option("bytes", 1 << 20) - len(frame.encode())
    request.succeed(text_result("a" * max(0, fill)))


_OUTPUTS = {
    "matching": text_result("3 three", '{"count":3,"label":"three"}'),
    "missing": text_result("no structured content at all"),
    "null": text_result("null", "null"),
    "missing_field": text_result("no label", '{"count":3}'),
    "extra_field": text_result("extra", '{"count":3,"label":"three","extra":true}'),
    "wrong_type": text_result("count is text", '{"count":"three","label":"three"}'),
    "error_other_shape": text_result("the real error text", '{"reason":"other shape"}', is_error=True),
    "error_without": text_result("the real error text", is_error=True),
    "array": text_result("array", "[1,2,3]"),
    "scalar": text_result("scalar", "42"),
    "in_text_only": text_result('{"count":3,"label":"three"}'),
}


@mode("output", "S6, SH-15, peers 21", variants=tuple(_OUTPUTS))
def output(request):
    """Executes, then answers any call as the tool `structured` should or should not by its output schema."""
    request.execute()
    request.succeed(_OUTPUTS[request.rig.variant("output")])


_TEXT_BLOCK = '{"type":"text","text":"kept"}'
_ODD_RESULTS = {
    "bad_base64": '{"content":[{"type":"image","data":"%%%not base64%%%","mimeType":"image/png"}]}',
    "bad_padding": '{"content":[{"type":"audio","data":"QUJD=","mimeType":"audio/wav"}]}',
    "bad_blob": '{"content":[{"type":"resource","resource":{"uri":"rig://blob","blob":"\\u0000\\u0001","mimeType":"x/y"}}]}',
    "file_link": '{"content":[{"type":"resource_link","uri":"file:///etc/passwd","name":"passwd"}]}',
    "http_link": '{"content":[{"type":"resource_link","uri":"%(sentinel)s","name":"page"},{"type":"resource","resource":{"uri":"%(sentinel)s","text":"x"}}]}',
    "script_link": '{"content":[{"type":"resource_link","uri":"javascript:alert(1)","name":"<script>alert(1)</script>"}]}',
    "unknown_type": '{"content":[{"type":"example_hologram","layers":[1,2,{"deep":9007199254740993}]},' + _TEXT_BLOCK + "]}",
    "unknown_fields": '{"content":[{"type":"text","text":"kept","unknownInBlock":{"x":1e400},"annotations":{"audience":["user"],"priority":0.5,"odd":true},'
    '"_meta":{"b":2}}],"structuredContent":{"value":1,"unknown":null},"isError":false,"unknownInResult":[1,{"y":2}],"_meta":{"example.org/x":{"z":-0}}}',
    "empty_content": '{"content":[]}',
    "all_types": '{"content":[' + _TEXT_BLOCK + ',{"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png"},'
    '{"type":"audio","data":"UklGRg==","mimeType":"audio/wav"},{"type":"resource_link","uri":"rig://a","name":"a","size":3},'
    '{"type":"resource","resource":{"uri":"rig://b","text":"b","mimeType":"text/plain"}}]}',
    "texts": '{"content":[{"type":"text","text":"汉字 🔥 \u2028\u2029 e\u0301 \u202e\u200b \\u0000\\u001b[2J \\ud83d\\udd25"}],'
    '"structuredContent":{"value":"汉字 🔥 \u2028 \\u0000"}}',
    "canaries": '{"content":[{"type":"text","text":"canary-tool-text"}],"isError":true,"_meta":{"trace":"canary-tool-meta"}}',
}


@mode("odd_result", "C7, J4, SH-15, peers 20", options="`--count` (1000000, of `many_items`), `--bytes` (1000000000, of `big_text`)",
      variants=(*_ODD_RESULTS, "many_items", "many_keys", "big_text"))
def odd_result(request):
    """Executes, then answers with a valid but odd result: links not to fetch, blobs that are no Base64, unknown types and
    fields to keep, `--count` small blocks or keys, a text of `--bytes` (written in pieces; stops when nobody reads)."""
    request.execute()
    rig, variant = request.rig, request.rig.variant("odd_result")
    count = min(rig.option("count", 1_000_000), 10_000_000)
    if variant == "many_items":
        request.succeed(f'{{"content":[{",".join([_TEXT_BLOCK] * count)}]}}')
    elif variant == "many_keys":
        keys = ",".join(f'"k{number}":0' for number in range(count))
        request.succeed(text_result("many keys", f"{{{keys}}}"))
    elif variant == "big_text":
        _big_text(request, rig.option("bytes", 1_000_000_000))
    elif variant == "http_link":
        request.succeed(_ODD_RESULTS[variant] % {"sentinel": rig.sentinel or "http://127.0.0.1:9/sentinel"})
    else:
        request.succeed(_ODD_RESULTS[variant])


def _big_text(request, total):
    """A complete and valid answer, too big to be built in memory."""
    head, tail = request.envelope(text_result("@")).encode().split(b"@")
    before, after = request.reply.frame()
    request.reply.write(before + head)
    if request.pour(b"a" * (64 << 10), total):
        request.reply.write(tail + after)
    request.reply.finish()


@mode("duplicate_descriptor_keys", "J1", hook="tools", variants=("name", "name_case", "input_schema", "look_alike"))
def duplicate_descriptor_keys(rig):
    """tools/list with one healthy tool and one whose descriptor has a key twice or a look-alike of it."""
    odd = {"name": '{"name":"harmless","name":"harmful","inputSchema":{"type":"object"}}',
           "name_case": '{"name":"harmless","Name":"harmful","inputSchema":{"type":"object"}}',
           "input_schema": '{"name":"harmless","inputSchema":{"type":"object"},"inputSchema":{"type":"object","required":["x"]}}',
           "look_alike": '{"name":"harmless","input\u017fchema":{"type":"string"},"inputSchema":{"type":"object"}}'}
    return [descriptor("echo", "Returns the value."), odd[rig.variant("duplicate_descriptor_keys")]]
