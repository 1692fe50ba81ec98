"""What both fake servers share: settings, records, sessions, and the healthy answers that modes bend."""

import argparse
import os
import sys
import threading
import time
from urllib.parse import parse_qsl

import rig_json
from rig_registry import MODES, table

LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"
META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

# Nothing that a mode starts outlives this many seconds.
LONGEST_SECONDS = 120.0
LIST_CHANGED = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'

_INTEGERS = ("after", "times", "bytes", "count", "depth", "status", "calls", "pages")
_NUMBERS = ("seconds", "interval", "rate")
_TEXTS = ("variant", "when", "target", "message", "era", "answer", "catalog", "instance", "server_name", "tools",
          "legacy_discover", "require_header", "versions")

# What requests are called in `--when`.
POINTS = {"initialize": "initialize", "server/discover": "discover", "tools/list": "list", "tools/call": "call",
          "subscriptions/listen": "listen", "ping": "ping"}
# Settings of the modes alone: a control query that names modes starts from none of them.
MODE_SETTINGS = ("after", "times", "bytes", "count", "depth", "status", "calls", "seconds", "interval", "rate", "variant", "when",
                 "target", "message")


def parse_arguments(transport, argv):
    """The settings of one fake server. Those that shape a mode are None until they are given."""
    parser = argparse.ArgumentParser(description=f"A fake MCP server over {transport} for hostile tests.")
    parser.add_argument("--mode", action="append", default=[], help="may be repeated; the first mode that fills a hook has it")
    parser.add_argument("--list-modes", action="store_true", help="print the table of modes and exit")
    for name in _INTEGERS:
        parser.add_argument(f"--{name}", type=int)
    for name in _NUMBERS:
        parser.add_argument(f"--{name}", type=float)
    for name in _TEXTS:
        parser.add_argument(f"--{name.replace('_', '-')}")
    parser.add_argument("--state-dir", help="folder for the records (see README.md)")
    parser.add_argument("--marker", help="no effect but to be visible in argv, also of descendants")
    parser.add_argument("--control", help="file holding a control query, obeyed whenever its content changes")
    parser.add_argument("--list-changed-on-catalog-change", action="store_true")
    if transport == "http":
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=0)
        parser.add_argument("--lifetime", type=float, default=900.0, help="seconds after which the server exits in any case")
    settings = parser.parse_args(argv)
    if settings.list_modes:
        print(table())
        sys.exit(0)
    problem = modes_problem(settings.mode, transport, settings.variant)
    if problem:
        parser.error(problem)
    settings.era = settings.era or "legacy"
    if settings.era not in ("legacy", "modern", "dual"):
        parser.error("--era is legacy, modern or dual")
    return settings


def modes_problem(names, transport, variant):
    """Why these modes cannot be switched on together with this variant, or None."""
    for name in names:
        if name not in MODES:
            return f"there is no mode {name!r}; see --list-modes"
        if MODES[name].transports not in ("both", transport):
            return f"mode {name} needs {MODES[name].transports}"
    if variant and names and not any(variant in MODES[name].variants for name in names):
        return f"none of the modes {', '.join(names)} has a variant {variant!r}"
    return None


class Records:
    """Append-only files in the state directory, one line per event, written at once."""

    def __init__(self, folder):
        self.folder = folder
        self.lock = threading.Lock()
        self.files = {}
        if folder:
            os.makedirs(folder, exist_ok=True)

    def add(self, name, *columns):
        """Appends the columns, separated by tabs; bytes are written as they are."""
        if not self.folder:
            return
        line = b"\t".join(c if isinstance(c, bytes) else str(c).encode("utf-8", "surrogateescape") for c in columns)
        with self.lock:
            if name not in self.files:
                path = os.path.join(self.folder, name)
                self.files[name] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            remaining = memoryview(line + b"\n")
            while remaining:
                remaining = remaining[os.write(self.files[name], remaining) :]


class RpcError(Exception):
    """An error answer; `status` is its HTTP status where there is one."""

    def __init__(self, code, text, data=None, status=200):
        super().__init__(text)
        self.code = code
        self.text = text
        self.data = data
        self.status = status


class Cancelled(Exception):
    """The client gave the request up; a healthy server answers nothing."""


class Message:
    """One JSON-RPC message as received, values kept as raw text."""

    def __init__(self, raw):
        self.raw = raw
        self.kind = "invalid"
        self.method = self.id = None
        self.params = "{}"
        try:
            found = dict(rig_json.members(raw))
        except ValueError:
            return
        self.method = rig_json.decode(found.get("method"))
        self.id = found.get("id")
        self.params = found.get("params", "{}")
        if isinstance(self.method, str):
            self.kind = "notification" if self.id is None else "request"
        elif self.id is not None and ("result" in found or "error" in found):
            self.kind = "response"


class Session:
    """What the server remembers of one client."""

    def __init__(self, name, era="legacy"):
        self.name = name
        self.era = era
        self.initialized = False
        self.version = None
        self.counter = 0
        self.calls = 0
        self.stream = None
        self.lock = threading.Lock()

    def push(self, text):
        """Sends a message outside of any answer; False if there is nowhere to send it."""
        stream = self.stream
        if stream is None:
            return False
        try:
            stream.send(text)
            return True
        except OSError:
            return False

    def next_count(self):
        with self.lock:
            self.counter += 1
            return self.counter


class Rig:
    """One fake server: its settings, the modes that are on, and everything in flight."""

    def __init__(self, settings, transport):
        self.settings = settings
        self.transport = transport
        self.records = Records(settings.state_dir)
        self.lock = threading.RLock()
        self.sessions = {}
        self.standing_sessions = []
        self.in_flight = set()
        self.subscriptions = set()
        self.matched = {}
        self.lists = 0
        self.toggles = 0
        self.client_responses = 0
        self.sentinel = settings.target
        self.actions = {"list_changed": self.announce_list_changed, "forget_sessions": self.forget_sessions, "exit": lambda: os._exit(0)}
        self.modes = [MODES[name] for name in settings.mode]
        self.records.add("pids", os.getpid(), "server")

    def option(self, name, default):
        value = getattr(self.settings, name)
        return default if value is None else value

    def variant(self, mode_name):
        """The chosen variant of a mode, if it is one of this mode's; else its first."""
        variants = MODES[mode_name].variants
        return self.settings.variant if self.settings.variant in variants else variants[0]

    def seconds(self, default):
        return min(self.option("seconds", default), LONGEST_SECONDS)

    def has(self, mode_name):
        return any(entry.name == mode_name for entry in self.modes)

    def hook(self, name, request=None):
        """The function of the first active mode that fills this hook and acts on this request."""
        for entry in self.modes:
            function = entry.hooks.get(name)
            if function and (request is None or self._acts_on(entry, request.point)):
                return function
        return None

    def _acts_on(self, entry, point):
        points = (self.settings.when or entry.when).split(",")
        if point not in points and "every" not in points:
            return False
        with self.lock:
            seen = self.matched[entry.name] = self.matched.get(entry.name, 0) + 1
        past = seen - self.option("after", 0)
        times = self.option("times", entry.times)
        return past > 0 and (times is None or past <= times)

    def may_be_slow(self, request):
        """Whether a request needs a thread of its own; asks no counters."""
        return request.may_wait() or any("answer" in entry.hooks or "noise" in entry.hooks for entry in self.modes)

    def era_of(self, message):
        """The protocol family that a message belongs to, as this server understands it."""
        if self.settings.era != "dual":
            return self.settings.era
        version = rig_json.get(message.params, "_meta", META_VERSION)
        return "modern" if version is not None or message.method == "server/discover" else "legacy"

    def receive(self, session, message, reply, era):
        """Takes one message that is no request; requests go through `Request`."""
        if message.kind == "response":
            self.records.add("client_responses", message.raw)
            with self.lock:
                self.client_responses += 1
        elif message.kind == "notification":
            if message.method == "notifications/cancelled":
                self.cancel(session, rig_json.get(message.params, "requestId"), "notification")
            elif message.method == "notifications/initialized":
                session.initialized = True
                if session.stream is not None:
                    self.session_ready(session.push)

    def session_ready(self, push):
        for entry in self.modes:
            if "ready" in entry.hooks:
                threading.Thread(target=entry.hooks["ready"], args=(self, push), daemon=True).start()

    def cancel(self, session, request_id, source):
        with self.lock:
            live = self.in_flight | self.subscriptions
        request = next((r for r in live if r.session is session and r.id == request_id), None)
        self.records.add("cancels", request_id or "-", source, "live" if request else "unknown")
        if request:
            request.cancelled.set()

    def announce_list_changed(self):
        with self.lock:
            sessions = [session for session in (*self.sessions.values(), *self.standing_sessions) if session.initialized]
            subscriptions = list(self.subscriptions)
        for session in sessions:
            session.push(LIST_CHANGED)
        for request in subscriptions:
            request.notify("notifications/tools/list_changed", f'{{"_meta":{{"{META_SUBSCRIPTION}":{request.id}}}}}')

    def forget_session(self, session):
        with self.lock:
            self.sessions.pop(session.name, None)
        self.records.add("sessions", "forget", session.name)

    def forget_sessions(self):
        with self.lock:
            sessions, self.sessions = self.sessions, {}
        for session in sessions.values():
            session.initialized, session.version = False, None
            if session.stream is not None and self.transport == "http":
                session.stream.end()
            self.records.add("sessions", "forget", session.name)
        if self.transport == "stdio":
            self.sessions = sessions

    def control(self, query):
        """Obeys a control query such as `mode=drip&interval=0.1&do=forget_sessions`; answers the state as text."""
        names, actions, changes = None, [], {}
        for key, value in parse_qsl(query, keep_blank_values=True):
            key = key.replace("-", "_")
            if key == "mode":
                names = names or []
                if value != "healthy":
                    names.append(value)
            elif key == "do":
                if value not in self.actions:
                    raise ValueError(f"there is no action {value!r}; known: {', '.join(sorted(self.actions))}")
                actions.append(self.actions[value])
            elif key in _INTEGERS:
                changes[key] = int(value) if value else None
            elif key in _NUMBERS:
                changes[key] = float(value) if value else None
            elif key in _TEXTS:
                changes[key] = value or None
            elif key != "nonce":
                raise ValueError(f"there is no setting {key!r}")
        problem = modes_problem(names or [], self.transport, changes.get("variant"))
        if problem:
            raise ValueError(problem)
        with self.lock:
            if names is not None:
                self.modes = [MODES[name] for name in names]
                for key in MODE_SETTINGS:
                    setattr(self.settings, key, None)
            for key, value in changes.items():
                setattr(self.settings, key, value)
            if names is not None or changes:
                self.matched = {}
        for action in actions:
            action()
        with self.lock:
            names = ",".join(rig_json.quote(entry.name) for entry in self.modes)
            streams = sum(1 for session in self.sessions.values() if session.stream is not None)
            return (f'{{"modes":[{names}],"sessions":{len(self.sessions)},"streams":{streams},'
                    f'"subscriptions":{len(self.subscriptions)},"in_flight":{len(self.in_flight)}}}')

    def start_watchers(self):
        """Watches the control file and the catalog, where the settings ask for it."""
        if self.settings.control:
            threading.Thread(target=_watch, args=(self.settings.control, self._control_changed, True), daemon=True).start()
        if self.settings.list_changed_on_catalog_change and self.settings.catalog:
            announce = lambda _text: self.announce_list_changed()
            threading.Thread(target=_watch, args=(self.settings.catalog, announce, False), daemon=True).start()

    def _control_changed(self, text):
        try:
            self.control(text.strip())
            self.records.add("control", text.strip())
        except ValueError as problem:
            print(f"control file: {problem}", file=sys.stderr, flush=True)


def _watch(path, changed, obey_first):
    """Calls `changed(text)` whenever the file holds another text; looks every 50 ms."""
    last = None if obey_first else read_text(path)
    while True:
        text = read_text(path)
        if text is not None and text != last:
            last = text
            changed(text)
        time.sleep(0.05)


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError:
        return None


def plain(name):
    """A name for a record: as it is, or as a JSON string where it holds anything odd."""
    if isinstance(name, str) and name and name.isascii() and name.isprintable() and " " not in name and '"' not in name:
        return name
    return rig_json.quote(name) if isinstance(name, str) else "-"


def load_modes():
    """Fills the table of modes."""
    import rig_calls  # noqa: F401
    import rig_catalogs  # noqa: F401
    import rig_lists  # noqa: F401
    import rig_process  # noqa: F401
    import rig_results  # noqa: F401
    import rig_wire  # noqa: F401
