"""Attacks over the way that a result takes: rows 47 to 62."""

import ctypes
import gc
import json
import os
import signal
import socket
import stat
import struct
import sys
import time

from attempt import WON, WORKS, entries, mark


def _call_socket():
    """The descriptor of the call, as an attacker would find it."""
    for descriptor in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                return descriptor
        except OSError:
            pass
    raise RuntimeError("there is no socket")


def _nonce():
    """The number of the call, which the code in the same process can find."""
    frame = sys._getframe()
    while frame is not None:
        for scope in (frame.f_locals, frame.f_globals):
            for value in list(scope.values()):
                if isinstance(value, (bytes, bytearray)) and len(value) == 16:
                    return bytes(value)
        frame = frame.f_back
    for value in gc.get_objects():
        if isinstance(value, dict):
            for inner in list(value.values()):
                if isinstance(inner, bytes) and len(inner) == 16:
                    return inner
    raise RuntimeError("the number of the call was not found")


def _frame(host, payload, nonce):
    return struct.pack("<IB", 17 + len(payload), host["result_type"]) + nonce + payload


def _send(data):
    descriptor = _call_socket()
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]


def fake_on_output(host):
    frame = _frame(host, b'{"forged":true}', b"\0" * 16)
    os.write(1, frame)
    print('{"forged": true}')
    sys.stdout.flush()
    return {"result": WORKS}


def wrong_nonce(host):
    _send(_frame(host, b'{"forged":true}', b"\xaa" * 16))
    return {"result": "real"}


def forged_then_real(host):
    _send(_frame(host, b'{"forged":true}', _nonce()))
    return {"result": "real"}


def oversize(host):
    _send(struct.pack("<IB", 0xFFFFFFFF, host["result_type"]) + b"\0" * 16)
    time.sleep(600)


def oversize_with_nonce(host):
    _send(struct.pack("<IB", 0xFFFFFFFF, host["result_type"]) + _nonce())
    time.sleep(600)


def one_byte_then_stall(host):
    mark()
    _send(b"\x10")
    time.sleep(600)


def garbage(host):
    _send(b"\xff" * 4096)
    return {"result": "real"}


def garbage_then_exit(host):
    _send(bytes(range(1, 22)) * 3)
    os._exit(0)


def partial_then_exit(host):
    _send(struct.pack("<IB", 100, host["result_type"]) + b"\0" * 16 + b"half")
    os._exit(0)


def unknown_type(host):
    _send(struct.pack("<IB", 19, 250) + _nonce() + b"{}")
    return {"result": "real"}


def no_json(host):
    _send(_frame(host, b"{not json", _nonce()))
    os._exit(0)


def close_output(host):
    os.close(1)
    os.close(2)
    return {"result": WORKS}


def close_everything(host):
    os.closerange(0, 256)
    return {"result": "real"}


def shut_down_socket(host):
    with socket.socket(fileno=os.dup(_call_socket())) as call:
        call.shutdown(socket.SHUT_RDWR)
    return {"result": "real"}


def exit_silently(host):
    os._exit(0)


def exit_with_code(host):
    os._exit(77)


def segmentation_fault(host):
    ctypes.string_at(1)


def abort(host):
    os.abort()


def end_itself(host):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def not_a_number(host):
    return float("nan")


def infinite(host):
    return {"x": [float("inf")]}


def negative_infinite(host):
    return [float("-inf")]


def two_to_the_64(host):
    return 2**64


def largest_integer(host):
    return 2**64 - 1


def smallest_integer(host):
    return -(2**63)


def below_smallest_integer(host):
    return -(2**63) - 1


def huge_integer(host):
    return 10**4000


def unprintable_integer(host):
    return 10**5000


def _nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def depth_900(host):
    return _nested(900)


def depth_100000(host):
    return _nested(100_000)


def lone_surrogate(host):
    return {"text": "\ud800"}


def lone_surrogate_key(host):
    return {"\udfff": 1}


def duplicate_keys(host):
    return {1: "a", "1": "b"}


def some_bytes(host):
    return b"bytes"


def tuple_keys(host):
    return {(1, 2): 3}


def circular(host):
    value = []
    value.append(value)
    return value


def too_large(host):
    return "x" * (50 << 20)


class _Items(dict):
    def items(self):
        raise SystemExit(5)

    __iter__ = keys = values = items


def hostile_mapping(host):
    value = _Items()
    dict.__setitem__(value, "a", 1)
    return value


class _Unprintable(Exception):
    def __str__(self):
        raise SystemExit(5)

    __repr__ = __str__


def hostile_message(host):
    raise _Unprintable()


class _Recursive(Exception):
    def __str__(self):
        return str(self)


def recursive_message(host):
    raise _Recursive()


def system_exit(host):
    sys.exit(0)


def keyboard_interrupt(host):
    raise KeyboardInterrupt


def generator_exit(host):
    raise GeneratorExit


class Strange(BaseException):
    pass


def strange(host):
    raise Strange("strange")


class _Name(type):
    __name__ = property(lambda self: (_ for _ in ()).throw(SystemExit(5)))


class _Nameless(Exception, metaclass=_Name):
    pass


def nameless(host):
    raise _Nameless("nameless")


def long_message(host):
    raise ValueError("x" * 30_000_000)


def memory_error_message(host):
    raise MemoryError()


def change_class_of_result(host):
    """A string whose class lies about itself."""
    class Text(str):
        def __eq__(self, other):
            os._exit(5)

        __hash__ = str.__hash__

        def encode(self, *arguments):
            return b'{"forged":true}'

    return {"text": Text("real")}


entries(globals())
