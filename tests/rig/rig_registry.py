"""The table of modes: what a mode is called, which attack it serves, where it acts, and its functions."""

from dataclasses import dataclass, field

MODES = {}

# The hooks a mode may fill. A mode needs at least one.
#   start(rig)                     once, before the first message is read
#   ready(rig, push)               a session is open and `push(text)` reaches the client outside of any answer
#   noise(request)                 before an answer, which then follows as usual
#   answer(request)                in place of the answer
#   tools(rig)                     the raw descriptors that tools/list shows
#   page(request, cursor, tools)   the raw result of tools/list
#   http(exchange)                 a whole HTTP exchange before its body is looked at; True if it was answered
#   flag                           no code of its own: the transports look for the mode's name
HOOKS = ("start", "ready", "noise", "answer", "tools", "page", "http", "flag")


@dataclass
class Mode:
    name: str
    attacks: str
    transports: str
    when: str
    times: int | None
    options: str
    variants: tuple
    summary: str
    hooks: dict = field(default_factory=dict)


def mode(name, attacks, hook="answer", transports="both", when="call", times=None, options="", variants=()):
    """Registers a function as a mode. Its docstring is the mode's line in the table.

    `when` names the requests that `noise` and `answer` act on, `times` how often they do (None: always).
    The first of `variants` is the default.
    """
    assert hook in HOOKS, hook

    def register(function):
        assert name not in MODES, name
        summary = " ".join((function.__doc__ or "").split())
        assert summary, f"mode {name} has no summary"
        MODES[name] = Mode(name, attacks, transports, when, times, options, tuple(variants), summary, {hook: function})
        return function

    return register


def also(name, hook):
    """Adds a second hook to a registered mode."""

    def register(function):
        assert hook in HOOKS and hook not in MODES[name].hooks, (name, hook)
        MODES[name].hooks[hook] = function
        return function

    return register


def table():
    """All modes as a Markdown table; README.md holds exactly this text."""
    lines = ["| mode | serves | over | when | options (default) | what it does |", "|---|---|---|---|---|---|"]
    for entry in MODES.values():
        options = entry.options
        if entry.variants:
            names = ", ".join(f"`{name}`" for name in entry.variants)
            options = f"{options}; `--variant` {names}" if options else f"`--variant` {names}"
        if entry.times is not None:
            options = f"{options}; `--times {entry.times}`" if options else f"`--times {entry.times}`"
        when = entry.when if {"noise", "answer", "http"} & entry.hooks.keys() else "-"
        lines.append(f"| `{entry.name}` | {entry.attacks} | {entry.transports} | {when} | {options or '-'} | {entry.summary} |")
    return "\n".join(lines)
