"""Runs a callable of a tool inside an isolated process.

Compiled once by the engine and executed with `rest`, the bytes of the channel that were read with it. As little as
possible is imported: the imports of a plain `import json` take longer than all layers of isolation together.

What a tool may rely on:
- Its module is imported with the interpreter's library, then the source roots, then the package roots on `sys.path`.
- The working directory is an empty, writable folder in memory, also named by `HOME` and `TMPDIR`.
- The callable is called exactly once: with the arguments as keywords, where its signature takes them all and asks for no
  other; otherwise, where it has one parameter alone, with the whole object as that one; otherwise the call is a TypeError
  that names what does not fit. No arguments and no parameters: with nothing. What it returns is awaited when it can be.
- `import caliber_secrets; caliber_secrets.get("NAME")` is a secret of this call; `caliber_secrets.names()` are their names.

Code of the tool shares this process, so it can change everything here: what it gains is that its own answer is another one.
"""

import posix
import sys

HELLO, READY, RESULT, ERROR, FORKED, DONE, FREE = 1, 2, 3, 4, 5, 6, 7
SETUP, CALL, FORK = 16, 17, 18
CHANNEL = 3
TEXT = 4096

received = bytearray(rest)  # noqa: F821


def parse_frame(data):
    end = 4 + int.from_bytes(data[:4], "little")
    return data[4], bytes(data[5:21]), bytes(data[21:end]), end


def receive(read=posix.read, leave=posix._exit):
    while True:
        if len(received) >= 4 and len(received) >= 4 + int.from_bytes(received[:4], "little"):
            kind, nonce, payload, end = parse_frame(received)
            del received[:end]
            return kind, nonce, payload
        data = read(CHANNEL, 1 << 16)
        if not data:
            leave(0)
        received.extend(data)


def make_frame(kind, nonce, payload):
    return (17 + len(payload)).to_bytes(4, "little") + bytes((kind,)) + nonce + payload


def send(kind, nonce, payload=b"", write=posix.write):
    view = memoryview(make_frame(kind, nonce, payload))
    while view:
        view = view[write(CHANNEL, view):]


def make_json():
    try:
        import _json

        class Context:
            strict = True
            object_hook = object_pairs_hook = None
            parse_float = float
            parse_int = int
            parse_constant = float
            memo = {}

        scan = _json.make_scanner(Context())
        quote = _json.encode_basestring_ascii

        def refuse(value):
            raise TypeError(f"a value of type {type(value).__name__} is no JSON")

        def encode(value):
            write = _json.make_encoder({}, refuse, quote, None, ":", ",", False, False, False)
            return "".join(write(value, 0))

        encode([{"a": 1.5}, "b"])
        return (lambda text: scan(text, 0)[0]), encode, quote
    except (ImportError, TypeError, AttributeError):
        # An interpreter with another `_json`.
        import json

        return json.loads, (lambda value: json.dumps(value, allow_nan=False)), json.dumps


decode, encode, quote = make_json()


def hide(text):
    """Without the secrets of the call. The engine looks for them, too; what is cut here has to be without them before."""
    for value in sorted(secrets.values(), key=len, reverse=True):
        if value:
            text = text.replace(value, "[secret]")
    return text


def describe(error):
    """Type and text of what was raised; both may be made to raise again."""
    try:
        name = hide(str(type(error).__name__))[:200]
        name.encode()
    except BaseException:
        name = "Exception"
    try:
        text = hide(str(error))[:TEXT]
        text.encode()
    except BaseException:
        text = "<the text of the error cannot be shown>"
    return name, text


def send_error(nonce, kind, error, send=send, quote=quote, describe=describe):
    name, text = describe(error)
    payload = f'{{"kind":{quote(kind)},"type":{quote(name)},"message":{quote(text)}}}'
    send(ERROR, nonce, payload.encode("utf-8", "replace"))


def show_error(error):
    try:
        sys.__excepthook__(type(error), error, error.__traceback__)
    except BaseException:
        pass


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            pass




def make_secrets():
    module = type(sys)("caliber_secrets", "The secrets of this call.")
    values = {}

    def get(name):
        """The secret of that name; KeyError when this call has none."""
        return values[name]

    def names():
        """The names of the secrets of this call."""
        return sorted(values)

    module.get, module.names = get, names
    sys.modules["caliber_secrets"] = module
    return values


secrets = make_secrets()


def load(setup):
    sys.path.extend(setup["paths"])
    name = setup["module"]
    __import__(name)
    module = sys.modules[name]
    # The interpreter's own modules come first on the path. What runs has to be what was registered.
    file = getattr(module, "__file__", None) or ""
    if not any(file.startswith(root.rstrip("/") + "/") for root in setup["paths"][: setup["sources"]]):
        raise ImportError(f"the module {name} is not of the tool's source: another one of that name comes first, or it has no file")
    function = module
    for part in setup["callable"].split("."):
        function = getattr(function, part)
    if not callable(function):
        raise TypeError(f"{setup['callable']} of {name} cannot be called")
    return function


KEYWORDS, POSITIONAL, NOTHING = "keywords", "positional", "nothing"


class _Sample:
    def method(self):
        pass


FUNCTION, METHOD = type(load), type(_Sample().method)


def mismatch(unknown, missing):
    parts = []
    if missing:
        parts.append("it needs " + ", ".join(missing))
    if unknown:
        parts.append("it has no parameter " + ", ".join(unknown))
    raise TypeError("the arguments do not fit the parameters of the callable: " + "; ".join(parts))


# What a parameter can be annotated with that is no object, as itself and as text.
NO_OBJECT = (bool, int, float, str, bytes, list, tuple, set)
NO_OBJECT += tuple(each.__name__ for each in NO_OBJECT)


def choose(by_name, needed, only_positional, takes_rest, takes_keywords, arguments, annotations):
    """How to call what has these parameters. The whole object goes to the one parameter of a callable that has no other,
    unless it says that it takes something else; with more than one, a name that does not fit is a mistake and not another
    way to call."""
    unknown = [name for name in arguments if name not in by_name] if not takes_keywords else []
    missing = [name for name in needed if name not in arguments or name in only_positional]
    if not unknown and not missing:
        return KEYWORDS if arguments or not takes_rest or by_name else POSITIONAL
    fixed = (*only_positional, *by_name)
    single = len(fixed) == 1 and annotations.get(fixed[0]) not in NO_OBJECT
    if (single or (not fixed and takes_rest)) and (only_positional or not takes_keywords):
        return POSITIONAL
    mismatch(unknown, missing)


def convention(function, arguments):
    """How to call `function`, judged by its signature alone; nothing is called."""
    plain, skipped = function, 0
    if type(plain) is METHOD:
        plain, skipped = plain.__func__, 1
    if type(plain) is not FUNCTION or "__wrapped__" in plain.__dict__ or "__signature__" in plain.__dict__:
        return convention_by_inspection(function, arguments)
    code = plain.__code__
    count = code.co_argcount
    names = code.co_varnames[:count]
    first_named = max(code.co_posonlyargcount, skipped)
    only_keyword = code.co_varnames[count : count + code.co_kwonlyargcount]
    needed = names[skipped : max(skipped, count - len(plain.__defaults__ or ()))]
    needed += tuple(name for name in only_keyword if name not in (plain.__kwdefaults__ or {}))
    return choose(
        names[first_named:] + only_keyword,
        needed,
        names[skipped:first_named],
        code.co_flags & 4,
        code.co_flags & 8,
        arguments,
        plain.__annotations__,
    )


def convention_by_inspection(function, arguments):
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return KEYWORDS if arguments else NOTHING
    kinds = inspect.Parameter
    fixed = [each for each in parameters if each.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
    return choose(
        [each.name for each in fixed if each.kind is not kinds.POSITIONAL_ONLY],
        [each.name for each in fixed if each.default is kinds.empty],
        [each.name for each in fixed if each.kind is kinds.POSITIONAL_ONLY],
        any(each.kind is kinds.VAR_POSITIONAL for each in parameters),
        any(each.kind is kinds.VAR_KEYWORD for each in parameters),
        arguments,
        {each.name: each.annotation for each in fixed},
    )


def call(function, arguments):
    way = convention(function, arguments)
    if way == KEYWORDS:
        value = function(**arguments)
    elif way == POSITIONAL:
        value = function(arguments)
    else:
        value = function()
    if hasattr(type(value), "__await__"):
        import asyncio

        async def wait():
            return await value

        value = asyncio.run(wait())
    return value


def limit_processor(seconds):
    if seconds:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        if most == resource.RLIM_INFINITY or most > seconds:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def answer(function, nonce, payload, send=send, send_error=send_error):
    """Runs the call of `payload` and sends the one frame that ends it."""
    request = decode(payload.decode())
    secrets.clear()
    secrets.update(request["secrets"])
    limit_processor(request["cpu"])
    try:
        value = call(function, request["arguments"])
    except BaseException as error:
        show_error(error)
        flush()
        send_error(nonce, "tool", error)
        return
    flush()
    try:
        text = encode(value).encode()
    except (TypeError, ValueError, RecursionError, UnicodeError) as error:
        send_error(nonce, "invalid", error)
    except BaseException as error:
        send_error(nonce, "tool", error)
    else:
        send(RESULT, nonce, text)


def rehearse():
    """Does what a call does besides the tool, once: a forked process copies every page that it touches, and one that waits
    for its call has time for that."""

    def sample(a=None, **rest):
        return rest

    request = decode('{"cpu":0,"secrets":{},"arguments":{"a":[1,2.5,"b",null,true],"b":1}}')
    secrets.update(request["secrets"])
    limit_processor(0)
    value = call(sample, request["arguments"])
    flush()
    parse_frame(bytearray(make_frame(RESULT, b"0" * 16, encode(value).encode())))


def leave(code=0, leave=posix._exit, close=posix.close):
    """Ends at once: no handler of the tool runs, and the engine sees the end of the channel before that of the process."""
    try:
        close(CHANNEL)
    except OSError:
        pass
    leave(code)


def run_once(setup, nonce):
    send(HELLO, nonce)
    try:
        function = load(setup)
    except BaseException as error:
        show_error(error)
        flush()
        send_error(nonce, "import", error)
        leave()
    send(READY, nonce)
    _, nonce, payload = receive()
    answer(function, nonce, payload)
    leave()


def run_many(setup, nonce):
    send(HELLO, nonce)
    try:
        function = load(setup)
    except BaseException as error:
        show_error(error)
        flush()
        send_error(nonce, "import", error)
        leave()
    send(READY, nonce)
    while True:
        _, nonce, payload = receive()
        answer(function, nonce, payload)


def look(setup, nonce):
    send(HELLO, nonce)
    found = {"callable": False, "available": False, "signature": setup["callable"], "doc": "", "source": "", "truncated": False, "error": None}
    limit = setup["source_limit"]
    try:
        function = load(setup)
        found["callable"] = True
        import inspect

        found["doc"] = str(inspect.getdoc(function) or "")[:limit]
        try:
            found["signature"] = (setup["callable"] + str(inspect.signature(function)))[:TEXT]
        except (ValueError, TypeError):
            pass
        source = inspect.getsource(function)
        found["truncated"] = len(source) > limit
        found["source"] = source[:limit]
        found["available"] = True
    except BaseException as error:
        name, text = describe(error)
        found["error"] = f"{name}: {text}"
    flush()
    try:
        text = encode(found).encode()
    except BaseException as error:
        send_error(nonce, "tool", error)
    else:
        send(RESULT, nonce, text)
    leave()


def open_descriptors():
    try:
        return {int(name) for name in posix.listdir("/proc/self/fd")}
    except OSError:
        return set()


def count_threads():
    try:
        return len(posix.listdir("/proc/self/task"))
    except OSError:
        import _thread

        return 1 + _thread._count()


def has_children():
    """Whether the module left processes behind: they would outlive every call. The first process of a namespace
    inherits all of them."""
    while True:
        try:
            # Also those that end without a signal: WNOHANG | __WALL.
            pid, _ = posix.waitpid(-1, 1 | 0x40000000)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def empty(folder):
    """Removes everything in `folder`. Folders are moved up before they are emptied, so no path gets long."""
    number = 0
    while True:
        entries = list(posix.scandir(folder))
        if not entries:
            return
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                posix.unlink(entry.path)
                continue
            posix.chmod(entry.path, 0o700)
            for inner in list(posix.scandir(entry.path)):
                if inner.is_dir(follow_symlinks=False):
                    posix.chmod(inner.path, 0o700)
                    while True:
                        number += 1
                        try:
                            posix.rename(inner.path, f"{folder}/.{number}.moved")
                            break
                        except FileExistsError:
                            continue
                        except OSError as error:
                            if error.errno not in (39, 20, 17):
                                raise
                else:
                    posix.unlink(inner.path)
            posix.rmdir(entry.path)


def serve(setup, nonce):
    """Imports the module once and forks every call from here."""
    import _socket
    import ctypes
    import gc
    import select

    import resource

    limits = [(resource.RLIMIT_NPROC, setup["processes"]), (resource.RLIMIT_NOFILE, setup["open_files"])]
    control = _socket.socket(fileno=CHANNEL)
    library = ctypes.PyDLL(None, use_errno=True)
    syscall = library.syscall
    numbers = setup["calls"]
    word = ctypes.c_long

    def must(name, *arguments):
        if syscall(word(numbers[name]), *arguments) < 0:
            raise OSError(ctypes.get_errno(), name)

    # Everything that the layers of a call need is made before the module is there.
    nothing = (ctypes.c_uint32 * 6)()
    capability_head = (ctypes.c_uint32 * 2)(0x20080522, 0)
    filter_bytes = bytes.fromhex(setup["filter"])
    instructions = ctypes.create_string_buffer(filter_bytes, len(filter_bytes))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

    program = Program(len(filter_bytes) // 8, ctypes.addressof(instructions))
    landlock = setup["landlock"]
    ruleset_bytes = bytes.fromhex(landlock["ruleset"]) if landlock else b""
    ruleset = ctypes.create_string_buffer(ruleset_bytes, max(1, len(ruleset_bytes)))

    # What every call reaches. Not the whole tree: the folders of other calls are in it.
    shared = []
    if landlock:
        for path in landlock["paths"]:
            is_folder = posix.stat(path).st_mode & 0o170000 == 0o040000
            shared.append((path, landlock["read"] if is_folder else landlock["read"] & landlock["file"]))
        shared += [(path, landlock["write"] & landlock["file"]) for path in landlock["files"]]

    class Beneath(ctypes.Structure):
        _pack_ = 1
        _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]

    pidfd = ctypes.c_int(-1)
    before_fork, after_parent, after_child = (
        ctypes.pythonapi.PyOS_BeforeFork,
        ctypes.pythonapi.PyOS_AfterFork_Parent,
        ctypes.pythonapi.PyOS_AfterFork_Child,
    )
    for hook in (before_fork, after_parent, after_child):
        hook.restype, hook.argtypes = None, ()

    def clone():
        before_fork()
        pid = syscall(word(numbers["clone"]), word(setup["clone_flags"]), word(0), ctypes.byref(pidfd), word(0), word(0))
        if pid == 0:
            after_child()
        else:
            after_parent()
        return pid

    def restrict(folder):
        must("capset", ctypes.byref(capability_head), ctypes.byref(nothing))
        if landlock:
            rules = syscall(word(numbers["landlock_create_ruleset"]), ctypes.byref(ruleset), word(len(ruleset_bytes)), word(0))
            if rules < 0:
                raise OSError(ctypes.get_errno(), "landlock")
            for path, rights in (*shared, (folder, landlock["write"] | landlock["read"])):
                parent = posix.open(path, 0o10000000)
                rule = Beneath(rights, parent)
                must("landlock_add_rule", word(rules), word(1), ctypes.byref(rule), word(0))
                posix.close(parent)
            must("landlock_restrict_self", word(rules), word(0))
            posix.close(rules)
        if filter_bytes:
            must("seccomp", word(1), word(0), ctypes.byref(program))

    def tell(kind, nonce, payload=b"", descriptors=()):
        rights = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in descriptors)
        extra = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else []
        control.sendmsg([make_frame(kind, nonce, payload)], extra)

    own = open_descriptors()
    tell(HELLO, nonce)
    try:
        function = load(setup)
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & 0x80:
            import asyncio  # noqa: F401
    except BaseException as error:
        show_error(error)
        flush()
        name, text = describe(error)
        payload = f'{{"kind":"import","type":{quote(name)},"message":{quote(text)}}}'
        tell(ERROR, nonce, payload.encode("utf-8", "replace"))
        leave()
    flush()

    # Whether a call can be forked here at all.
    safe = count_threads() == 1 and not open_descriptors() - own and not has_children()
    problem = 0
    if safe:
        pid = clone()
        if pid == 0:
            posix._exit(0)
        if pid < 0:
            problem = ctypes.get_errno()
        else:
            posix.close(pidfd.value)
            posix.waitpid(pid, 0)
    gc.collect()
    gc.freeze()
    tell(READY, nonce, f'{{"safe":{"true" if safe else "false"},"clone":{problem}}}'.encode())

    numpy_random = sys.modules.get("numpy.random")
    space = _socket.CMSG_SPACE(3 * 4)
    free = list(setup["slots"])
    children = {}
    poll = select.poll()
    poll.register(CHANNEL, select.POLLIN)

    def child(nonce, descriptors, folder, waits):
        posix.setsid()
        for target, descriptor in zip((CHANNEL, 1, 2), descriptors):
            posix.dup2(descriptor, target, inheritable=target != CHANNEL)
        posix.closerange(4, 1 << 20)
        posix.chdir(folder)
        posix.environ[b"HOME"] = posix.environ[b"TMPDIR"] = folder.encode()
        environment = getattr(sys.modules.get("os"), "environ", None)
        if environment is not None:
            environment["HOME"] = environment["TMPDIR"] = folder
        if numpy_random is not None:
            numpy_random.seed()
        for limit, most in limits:
            resource.setrlimit(limit, (most, most))
        restrict(folder)
        if waits:
            rehearse()
        send(HELLO, nonce)
        _, nonce, payload = receive()
        answer(function, nonce, payload)

    while True:
        for descriptor, _ in poll.poll():
            if descriptor != CHANNEL:
                pid, number, folder = children.pop(descriptor)
                poll.unregister(descriptor)
                posix.close(descriptor)
                _, status = posix.waitpid(pid, 0)
                # How it ended is waited for; emptying a folder may take long.
                tell(DONE, nonce, f'{{"id":{number},"status":{status}}}'.encode())
                try:
                    empty(folder)
                    free.append(folder)
                except BaseException:
                    # A folder that cannot be emptied is not used again.
                    pass
                tell(FREE, nonce, f'{{"id":{number},"free":{len(free)}}}'.encode())
                continue
            data, extra, _, _ = control.recvmsg(1 << 16, space)
            if not data:
                posix._exit(0)
            _, call_nonce, payload, _ = parse_frame(data)
            number, waits = map(int, payload.split())
            rights = b"".join(item for _, _, item in extra)
            descriptors = [int.from_bytes(rights[at : at + 4], sys.byteorder) for at in range(0, len(rights), 4)]
            if not free:
                for descriptor in descriptors:
                    posix.close(descriptor)
                tell(FORKED, nonce, f'{{"id":{number},"errno":11}}'.encode())
                continue
            folder = free.pop()
            pid = clone()
            if pid == 0:
                code = 70
                try:
                    child(call_nonce, descriptors, folder, waits)
                    code = 0
                except BaseException as error:
                    show_error(error)
                    flush()
                finally:
                    leave(code)
            for descriptor in descriptors:
                posix.close(descriptor)
            if pid < 0:
                free.append(folder)
                tell(FORKED, nonce, f'{{"id":{number},"errno":{ctypes.get_errno()}}}'.encode())
                continue
            children[pidfd.value] = (pid, number, folder)
            poll.register(pidfd.value, select.POLLIN)
            tell(FORKED, nonce, f'{{"id":{number},"errno":0}}'.encode(), [pidfd.value])


def main():
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)
        posix.set_inheritable(CHANNEL, False)
        _, nonce, payload = receive()
        setup = decode(payload.decode())
        {"once": run_once, "many": run_many, "look": look, "serve": serve}[setup["mode"]](setup, nonce)
    except BaseException as error:
        show_error(error)
        flush()
        leave(70)


main()
