"""Reads JSON without changing it: a value is handed out as the text it was written as.

The rig must give back numbers such as 1e400 or 9007199254740993 byte for byte and must survive a million
nested arrays, so it slices text instead of decoding it. Nothing here recurses.
"""

import json
import re

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(r"[^\s,\]}]+")
_STRUCTURE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def _skip_space(text, position):
    return _SPACE.match(text, position).end()


def _value_end(text, start):
    """The position after the value that starts at `start`."""
    first = text[start : start + 1]
    if first == '"':
        match = _STRING.match(text, start)
        if match:
            return match.end()
    elif first and first in "[{":
        depth = 0
        for token in _STRUCTURE.finditer(text, start):
            character = token.group()[0]
            if character in "[{":
                depth += 1
            elif character in "]}":
                depth -= 1
                if depth == 0:
                    return token.end()
    else:
        match = _SCALAR.match(text, start)
        if match:
            return match.end()
    raise ValueError(f"no complete JSON value at position {start}")


def members(text):
    """The members of an object, in order and with duplicates, as (decoded key, raw value)."""
    position = _skip_space(text, 0)
    if text[position : position + 1] != "{":
        raise ValueError("not a JSON object")
    position = _skip_space(text, position + 1)
    found = []
    while text[position : position + 1] != "}":
        key_end = _value_end(text, position)
        key = json.loads(text[position:key_end])
        if not isinstance(key, str):
            raise ValueError(f"key at position {position} is not a string")
        position = _skip_space(text, key_end)
        if text[position : position + 1] != ":":
            raise ValueError(f"no colon at position {position}")
        start = _skip_space(text, position + 1)
        end = _value_end(text, start)
        found.append((key, text[start:end]))
        position = _skip_space(text, end)
        if text[position : position + 1] == ",":
            position = _skip_space(text, position + 1)
        elif text[position : position + 1] != "}":
            raise ValueError(f"no comma or brace at position {position}")
    if _skip_space(text, position + 1) != len(text):
        raise ValueError("text after the JSON object")
    return found


def items(text):
    """The items of an array, in order, as raw values."""
    position = _skip_space(text, 0)
    if text[position : position + 1] != "[":
        raise ValueError("not a JSON array")
    position = _skip_space(text, position + 1)
    found = []
    while text[position : position + 1] != "]":
        end = _value_end(text, position)
        found.append(text[position:end])
        position = _skip_space(text, end)
        if text[position : position + 1] == ",":
            position = _skip_space(text, position + 1)
        elif text[position : position + 1] != "]":
            raise ValueError(f"no comma or bracket at position {position}")
    if _skip_space(text, position + 1) != len(text):
        raise ValueError("text after the JSON array")
    return found


def get(text, *path):
    """The raw value at a path of object keys (the last of duplicate keys), or None."""
    for key in path:
        if text is None:
            return None
        try:
            text = dict(members(text)).get(key)
        except ValueError:
            return None
    return text


def decode(raw, otherwise=None):
    """The decoded value, or `otherwise` where there is none or it cannot be decoded."""
    if raw is None:
        return otherwise
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return otherwise


def as_text(raw):
    """A raw value as a JSON string literal: a string stays as it is, anything else is quoted."""
    return raw if raw.startswith('"') else quote(raw)


def quote(text):
    """A text as a JSON string literal, characters beyond ASCII kept as they are."""
    return json.dumps(text, ensure_ascii=False)
