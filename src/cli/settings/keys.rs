//! The table of all settings: the key in the file, where its value goes, and what it is for.
//!
//! The variable of a key is `CALIBER_` and the key in capitals, with `_` for every dot: `http.prefix` is
//! `CALIBER_HTTP_PREFIX`. [`docs/configuration.md`](../../../docs/configuration.md) holds this table for people.

use super::Settings;
use super::setting::{CommandLine, Setting};

/// One setting.
pub(crate) struct Key {
    /// Its place in the file, with dots between tables.
    pub(crate) path: &'static str,
    /// Variables of the reference system that mean the same.
    pub(crate) aliases: &'static [&'static str],
    /// What it is for.
    pub(crate) about: &'static str,
    /// Where its value goes.
    pub(crate) place: fn(&mut Settings) -> Box<dyn Setting + '_>,
}

impl Key {
    /// The variable of the environment.
    pub(crate) fn variable(&self) -> String {
        format!("CALIBER_{}", self.path.to_ascii_uppercase().replace('.', "_"))
    }
}

const fn key(
    path: &'static str,
    about: &'static str,
    place: fn(&mut Settings) -> Box<dyn Setting + '_>,
) -> Key {
    Key {
        path,
        aliases: &[],
        about,
        place,
    }
}

const fn known_as(aliases: &'static [&'static str], key: Key) -> Key {
    Key { aliases, ..key }
}

/// Every setting, in the order of the documents.
pub(crate) const KEYS: &[Key] = &[
    key(
        "database",
        "the SQLite file; made when it is absent, its folder never",
        |s| Box::new(&mut s.config.store.path),
    ),
    key(
        "key_file",
        "the keys of stored secrets; beside the database by default, made on first use",
        |s| Box::new(&mut s.key_file),
    ),
    // The store.
    key("store.readers", "connections for reading, 1 to 64", |s| {
        Box::new(&mut s.config.store.readers)
    }),
    key("store.queue", "commits that may wait for the writer", |s| {
        Box::new(&mut s.config.store.queue)
    }),
    key("store.batch", "commits that share one transaction at most", |s| {
        Box::new(&mut s.config.store.batch)
    }),
    key(
        "store.wait",
        "the longest wait for a place in the queue or a connection for reading",
        |s| Box::new(&mut s.config.store.wait),
    ),
    key(
        "store.busy",
        "the longest wait for another process that writes",
        |s| Box::new(&mut s.config.store.busy),
    ),
    key("store.max_bytes", "the largest database file in bytes", |s| {
        Box::new(&mut s.config.store.max_bytes)
    }),
    key(
        "store.cache_bytes",
        "the page cache of the writer in bytes",
        |s| Box::new(&mut s.config.store.cache_bytes),
    ),
    key(
        "store.check",
        "whether the whole file is checked when it is opened",
        |s| Box::new(&mut s.config.store.check),
    ),
    // What the operator allows.
    key(
        "policy.launch",
        "what stdio servers may run: each entry an executable with its arguments; `*` at the end lets more follow",
        |s| Box::new(&mut s.config.policy.launch),
    ),
    key(
        "policy.environment",
        "the variables that the definition of a stdio server may set",
        |s| Box::new(&mut s.config.policy.environment),
    ),
    known_as(
        &["CALIBER_MCP_STDIO_ISOLATION_PREFIX"],
        key(
            "policy.isolation.prefix",
            "a wrapper that every stdio server runs in",
            |s| Box::new(CommandLine(&mut s.config.policy.isolation.prefix)),
        ),
    ),
    known_as(
        &["CALIBER_MCP_STDIO_ISOLATION_PROFILE"],
        key("policy.isolation.profile", "what that wrapper is", |s| {
            Box::new(&mut s.config.policy.isolation.profile)
        }),
    ),
    known_as(
        &["CALIBER_MCP_REMOTE_HOST_ALLOWLIST"],
        key(
            "policy.remote_hosts",
            "the hosts that remote servers may have, exactly",
            |s| Box::new(&mut s.config.policy.remote_hosts),
        ),
    ),
    known_as(
        &["CALIBER_MCP_ALLOW_INSECURE_HTTP"],
        key(
            "policy.allow_plain_http",
            "whether plain HTTP is accepted beyond loopback",
            |s| Box::new(&mut s.config.policy.allow_plain_http),
        ),
    ),
    known_as(
        &["CALIBER_EGRESS_POLICY_BLOCKED_CATEGORIES"],
        key(
            "policy.addresses.blocked",
            "the categories of addresses that are not dialled",
            |s| Box::new(&mut s.config.policy.addresses.blocked),
        ),
    ),
    key(
        "policy.addresses.sidecars",
        "services beside caliber whose isolation you attest, such as `http://mcp-db:8101 172.18.0.0/16`",
        |s| Box::new(&mut s.config.policy.addresses.sidecars),
    ),
    key(
        "policy.secrets.environment",
        "the variables that `env://NAME` may name",
        |s| Box::new(&mut s.config.policy.secrets.environment),
    ),
    key(
        "policy.secrets.files",
        "the folders that `file:///path` may read in",
        |s| Box::new(&mut s.config.policy.secrets.files),
    ),
    known_as(
        &["CALIBER_REGISTERED_TOOL_MODULE_ALLOWLIST"],
        key(
            "policy.code_tools.modules",
            "the Python modules that may be code tools: one, all below a package with `.*`, or `*`",
            |s| Box::new(&mut s.config.policy.code_tools.modules),
        ),
    ),
    key(
        "policy.code_tools.executables",
        "the native executables that may be code tools: absolute paths, or `*`",
        |s| Box::new(&mut s.config.policy.code_tools.executables),
    ),
    // How servers are reached.
    key(
        "gateway.python",
        "the interpreter that `${PYTHON}` stands for, an absolute path",
        |s| Box::new(&mut s.config.gateway.endpoints.python),
    ),
    known_as(
        &["CALIBER_MCP_STDIO_SAFE_PATH"],
        key(
            "gateway.safe_path",
            "where bare command names are looked for, and the PATH of every child",
            |s| Box::new(&mut s.config.gateway.endpoints.safe_path),
        ),
    ),
    key(
        "gateway.connect_timeout",
        "the longest set-up of one connection",
        |s| Box::new(&mut s.config.gateway.endpoints.connect_timeout),
    ),
    key("gateway.dns_timeout", "the longest lookup of a host", |s| {
        Box::new(&mut s.config.gateway.endpoints.dns_timeout)
    }),
    key(
        "gateway.cache_time",
        "how long a lookup of an executable or a host is used again",
        |s| Box::new(&mut s.config.gateway.endpoints.cache_time),
    ),
    key(
        "gateway.message_bytes",
        "the largest message of an upstream in bytes",
        |s| Box::new(&mut s.config.gateway.message_bytes),
    ),
    key(
        "gateway.stream_bytes",
        "the most bytes of one event stream",
        |s| Box::new(&mut s.config.gateway.stream_bytes),
    ),
    key(
        "gateway.concurrency",
        "calls at once per server, where it says nothing itself",
        |s| Box::new(&mut s.config.gateway.concurrency),
    ),
    key(
        "gateway.queue",
        "calls that may wait for a place at one server",
        |s| Box::new(&mut s.config.gateway.queue),
    ),
    key("gateway.sessions", "open sessions in all", |s| {
        Box::new(&mut s.config.gateway.sessions)
    }),
    key(
        "gateway.sessions_per_server",
        "open sessions of one server",
        |s| Box::new(&mut s.config.gateway.sessions_per_server),
    ),
    key(
        "gateway.idle",
        "how long a session may rest before it is closed",
        |s| Box::new(&mut s.config.gateway.idle),
    ),
    key("gateway.opening", "the longest opening of a session", |s| {
        Box::new(&mut s.config.gateway.opening)
    }),
    key(
        "gateway.probe",
        "how long an upstream may stay silent before it is taken for one of the legacy protocol",
        |s| Box::new(&mut s.config.gateway.probe),
    ),
    key(
        "gateway.list_debounce",
        "how long changes of a tool list are gathered",
        |s| Box::new(&mut s.config.gateway.list_debounce),
    ),
    key(
        "gateway.list_interval",
        "the shortest time between two listings that notifications cause",
        |s| Box::new(&mut s.config.gateway.list_interval),
    ),
    key(
        "gateway.relist",
        "how often an open session lists its tools again",
        |s| Box::new(&mut s.config.gateway.relist),
    ),
    key("gateway.list_pages", "pages of one listing", |s| {
        Box::new(&mut s.config.gateway.list_pages)
    }),
    key("gateway.list_tools", "tools of one listing", |s| {
        Box::new(&mut s.config.gateway.list_tools)
    }),
    key("gateway.list_bytes", "bytes of one listing", |s| {
        Box::new(&mut s.config.gateway.list_bytes)
    }),
    key(
        "gateway.breaker_failures",
        "failed connections in a row that open the breaker",
        |s| Box::new(&mut s.config.gateway.breaker_failures),
    ),
    key(
        "gateway.breaker_pause",
        "how long the breaker stays open at first",
        |s| Box::new(&mut s.config.gateway.breaker_pause),
    ),
    key(
        "gateway.breaker_longest",
        "the longest that the breaker stays open",
        |s| Box::new(&mut s.config.gateway.breaker_longest),
    ),
    // How stdio servers are started.
    key("launcher.children", "child processes at once", |s| {
        Box::new(&mut s.config.launcher.children)
    }),
    key(
        "launcher.directory",
        "where the private working directories are made",
        |s| Box::new(&mut s.config.launcher.directory),
    ),
    key(
        "launcher.input_grace",
        "how long a child may take to end once its input was closed",
        |s| Box::new(&mut s.config.launcher.input_grace),
    ),
    key(
        "launcher.term_grace",
        "how long a child may take to end after SIGTERM",
        |s| Box::new(&mut s.config.launcher.term_grace),
    ),
    key(
        "launcher.tool_path",
        "where the programs that start and watch children are looked for",
        |s| Box::new(&mut s.config.launcher.tool_path),
    ),
    key(
        "launcher.new_privileges",
        "whether children may gain privileges by set-user-ID programs",
        |s| Box::new(&mut s.config.launcher.new_privileges),
    ),
    key(
        "launcher.cgroup",
        "whether each child gets a control group, where that is possible",
        |s| Box::new(&mut s.config.launcher.cgroup),
    ),
    key(
        "launcher.namespaces",
        "whether stdio servers are started in namespaces (Linux); what follows holds for those",
        |s| Box::new(&mut s.namespaces.enabled),
    ),
    key(
        "launcher.network",
        "whether servers in namespaces use the network of this machine, all of it",
        |s| Box::new(&mut s.namespaces.profile.network),
    ),
    key(
        "launcher.readable",
        "what servers in namespaces see besides the system's programs and libraries",
        |s| Box::new(&mut s.namespaces.profile.readable),
    ),
    key("launcher.writable", "what they see and may change", |s| {
        Box::new(&mut s.namespaces.profile.writable)
    }),
    key(
        "launcher.memory_bytes",
        "memory of one server in namespaces, where a control group can be made",
        |s| Box::new(&mut s.namespaces.profile.limits.memory_bytes),
    ),
    key(
        "launcher.processes",
        "processes and threads of one server in namespaces",
        |s| Box::new(&mut s.namespaces.profile.limits.processes),
    ),
    // Where code tools run.
    key(
        "sandbox.backend",
        "where code tools run: `local` on this machine, `remote` at a service, `off` nowhere",
        |s| Box::new(&mut s.sandbox.backend),
    ),
    key(
        "sandbox.required",
        "the guarantees without which nothing runs",
        |s| Box::new(&mut s.sandbox.local.required),
    ),
    key(
        "sandbox.allow_unenforced",
        "whether tools run although required guarantees are missing; every outcome says which",
        |s| Box::new(&mut s.sandbox.local.allow_unenforced),
    ),
    key(
        "sandbox.interpreter",
        "the interpreter of Python tools: a real one, never a shim that searches `PATH`",
        |s| Box::new(&mut s.sandbox.local.interpreter),
    ),
    key(
        "sandbox.snapshots",
        "where copies of registered sources are kept; beside the database by default",
        |s| Box::new(&mut s.sandbox.snapshots),
    ),
    key("sandbox.places", "runs at once", |s| {
        Box::new(&mut s.sandbox.local.places)
    }),
    key(
        "sandbox.queue",
        "runs that may wait for a place; what comes beyond is refused as busy",
        |s| Box::new(&mut s.sandbox.local.queue),
    ),
    key(
        "sandbox.timeout",
        "the longest run, whatever its caller allows",
        |s| Box::new(&mut s.sandbox.local.timeout),
    ),
    key(
        "sandbox.startup_grace",
        "how long start-up and import may take before the clock of a run starts; `0s` takes them from its time",
        |s| Box::new(&mut s.config.settings.startup_grace),
    ),
    key(
        "sandbox.pin_timeout",
        "the longest reading of a source when a tool is registered",
        |s| Box::new(&mut s.config.settings.pin_timeout),
    ),
    key("sandbox.inspect_timeout", "the longest look at a source", |s| {
        Box::new(&mut s.config.settings.inspect_timeout)
    }),
    key(
        "sandbox.output_bytes",
        "what is kept of standard output, and of standard error, in bytes",
        |s| Box::new(&mut s.sandbox.local.output_bytes),
    ),
    key(
        "sandbox.reflections",
        "looks at sources that are remembered",
        |s| Box::new(&mut s.sandbox.local.reflections),
    ),
    key(
        "sandbox.allow_persistent",
        "whether a tool may ask for one process for many calls, which keeps nothing apart",
        |s| Box::new(&mut s.sandbox.local.allow_persistent),
    ),
    key(
        "sandbox.zygotes",
        "processes that are kept for later calls at once, over all tools",
        |s| Box::new(&mut s.sandbox.local.zygotes),
    ),
    key(
        "sandbox.zygote_idle",
        "after how long without a call such a process ends",
        |s| Box::new(&mut s.sandbox.local.zygote_idle),
    ),
    key(
        "sandbox.zygote_calls",
        "after how many calls such a process is replaced",
        |s| Box::new(&mut s.sandbox.local.zygote_calls),
    ),
    key(
        "sandbox.spares",
        "processes that are forked ahead of the next call, for each tool in use",
        |s| Box::new(&mut s.sandbox.local.spares),
    ),
    key(
        "sandbox.control_group",
        "the control group that the groups of runs are made in; that of caliber by default",
        |s| Box::new(&mut s.sandbox.local.control_group),
    ),
    key(
        "sandbox.first_uid",
        "where caliber runs as root: the first of the user ids that runs are given",
        |s| Box::new(&mut s.sandbox.local.first_uid),
    ),
    key("sandbox.uid_count", "how many user ids from there on", |s| {
        Box::new(&mut s.sandbox.local.uid_count)
    }),
    key(
        "sandbox.limits.memory_bytes",
        "memory in bytes, unless the tool says otherwise",
        |s| Box::new(&mut s.sandbox.local.limits.memory_bytes),
    ),
    key(
        "sandbox.limits.processes",
        "processes and threads, unless the tool says otherwise",
        |s| Box::new(&mut s.sandbox.local.limits.processes),
    ),
    key(
        "sandbox.limits.scratch_bytes",
        "scratch space in bytes, unless the tool says otherwise",
        |s| Box::new(&mut s.sandbox.local.limits.scratch_bytes),
    ),
    key(
        "sandbox.limits.scratch_inodes",
        "files in the scratch folder, unless the tool says otherwise",
        |s| Box::new(&mut s.sandbox.local.limits.scratch_inodes),
    ),
    key(
        "sandbox.limits.open_files",
        "open descriptors of one process, unless the tool says otherwise",
        |s| Box::new(&mut s.sandbox.local.limits.open_files),
    ),
    key(
        "sandbox.limits.result_bytes",
        "the largest result in bytes, unless the tool says otherwise",
        |s| Box::new(&mut s.sandbox.local.limits.result_bytes),
    ),
    key(
        "sandbox.ceiling.memory_bytes",
        "memory in bytes: the most that a tool may ask for",
        |s| Box::new(&mut s.sandbox.local.ceiling.memory_bytes),
    ),
    key(
        "sandbox.ceiling.processes",
        "processes and threads: the most that a tool may ask for",
        |s| Box::new(&mut s.sandbox.local.ceiling.processes),
    ),
    key(
        "sandbox.ceiling.scratch_bytes",
        "scratch space in bytes: the most that a tool may ask for",
        |s| Box::new(&mut s.sandbox.local.ceiling.scratch_bytes),
    ),
    key(
        "sandbox.ceiling.scratch_inodes",
        "files in the scratch folder: the most that a tool may ask for",
        |s| Box::new(&mut s.sandbox.local.ceiling.scratch_inodes),
    ),
    key(
        "sandbox.ceiling.open_files",
        "open descriptors of one process: the most that a tool may ask for",
        |s| Box::new(&mut s.sandbox.local.ceiling.open_files),
    ),
    key(
        "sandbox.ceiling.result_bytes",
        "the largest result in bytes: the most that a tool may ask for",
        |s| Box::new(&mut s.sandbox.local.ceiling.result_bytes),
    ),
    key(
        "sandbox.pin.source_entries",
        "files and folders of one source",
        |s| Box::new(&mut s.sandbox.local.pin.source_entries),
    ),
    key(
        "sandbox.pin.source_bytes",
        "bytes of one source or executable",
        |s| Box::new(&mut s.sandbox.local.pin.source_bytes),
    ),
    key("sandbox.pin.depth", "nesting of folders, at most 128", |s| {
        Box::new(&mut s.sandbox.local.pin.depth)
    }),
    key(
        "sandbox.pin.roots",
        "source roots of one program, and package roots likewise",
        |s| Box::new(&mut s.sandbox.local.pin.roots),
    ),
    key(
        "sandbox.pin.package_entries",
        "files and folders of all package roots of one program",
        |s| Box::new(&mut s.sandbox.local.pin.package_entries),
    ),
    key("sandbox.pin.copies", "copies of sources that are kept", |s| {
        Box::new(&mut s.sandbox.local.pin.copies)
    }),
    key(
        "sandbox.remote.url",
        "the address of a sandbox service; `http` only on this machine",
        |s| Box::new(&mut s.sandbox.remote.url),
    ),
    key("sandbox.remote.token_file", "a file with its token", |s| {
        Box::new(&mut s.sandbox.remote.token_file)
    }),
    key(
        "sandbox.remote.ca_file",
        "root certificates to trust beside the platform's, as PEM",
        |s| Box::new(&mut s.sandbox.remote.ca_file),
    ),
    key(
        "sandbox.remote.report_age",
        "how old its report may be before it is asked again",
        |s| Box::new(&mut s.sandbox.remote.report_age),
    ),
    key(
        "sandbox.remote.connect_timeout",
        "the longest time to connect",
        |s| Box::new(&mut s.sandbox.remote.connect_timeout),
    ),
    key(
        "sandbox.remote.answer_bytes",
        "the largest answer beside the result of a run, in bytes",
        |s| Box::new(&mut s.sandbox.remote.answer_bytes),
    ),
    // Calls and records.
    key(
        "calls.timeout",
        "the longest call, where nothing else is said",
        |s| Box::new(&mut s.config.settings.call_timeout),
    ),
    key("calls.discovery_timeout", "the longest check or discovery", |s| {
        Box::new(&mut s.config.settings.discovery_timeout)
    }),
    key(
        "calls.result_bytes",
        "the largest result in bytes, where nothing else is said",
        |s| Box::new(&mut s.config.settings.result_bytes),
    ),
    key(
        "calls.approval_lifetime",
        "how long a request for consent, and the consent, stay valid",
        |s| Box::new(&mut s.config.settings.approval_lifetime),
    ),
    key(
        "calls.waiting_approvals",
        "requests for consent of one caller that may wait in one project; beyond that, calls that need consent are refused",
        |s| Box::new(&mut s.config.settings.waiting_approvals),
    ),
    key(
        "records.linger",
        "how long records of reading calls may wait to be written together",
        |s| Box::new(&mut s.config.settings.record_linger),
    ),
    key(
        "records.backlog",
        "the most records that wait; beyond that, calls wait",
        |s| Box::new(&mut s.config.settings.record_backlog),
    ),
    key(
        "records.keep_invocations",
        "how long settled calls are kept",
        |s| Box::new(&mut s.config.settings.keep_invocations),
    ),
    key(
        "records.keep_audit",
        "how long audit entries are kept; `none` keeps all",
        |s| Box::new(&mut s.config.settings.keep_audit),
    ),
    key(
        "records.sweep_interval",
        "how often calls are settled whose process has died",
        |s| Box::new(&mut s.config.settings.sweep_interval),
    ),
    // The HTTP API of `caliber serve`.
    key("http.listen", "where the API listens", |s| {
        Box::new(&mut s.listen)
    }),
    key("http.prefix", "where the routes stand", |s| {
        Box::new(&mut s.http.prefix)
    }),
    key(
        "http.open_on_loopback",
        "whether requests from this machine need no token; refused on any other address",
        |s| Box::new(&mut s.open_on_loopback),
    ),
    key(
        "http.trusted_identity.header",
        "the header in which a proxy names the subject",
        |s| Box::new(&mut s.trusted_header),
    ),
    key(
        "http.trusted_identity.networks",
        "the networks of that proxy",
        |s| Box::new(&mut s.trusted_networks),
    ),
    key(
        "http.allowed_hosts",
        "the hosts that a request may be addressed to",
        |s| Box::new(&mut s.http.allowed_hosts),
    ),
    key(
        "http.allowed_origins",
        "the origins of web pages that may call the API",
        |s| Box::new(&mut s.http.allowed_origins),
    ),
    key("http.body_bytes", "the largest request body in bytes", |s| {
        Box::new(&mut s.http.body_bytes)
    }),
    key(
        "http.json_depth",
        "the deepest nesting of a request body, at most 127",
        |s| Box::new(&mut s.http.json_depth),
    ),
    key(
        "http.header_bytes",
        "the largest head of a request in bytes",
        |s| Box::new(&mut s.http.header_bytes),
    ),
    key(
        "http.header_timeout",
        "the longest wait for the head of a request",
        |s| Box::new(&mut s.http.header_timeout),
    ),
    key(
        "http.body_timeout",
        "the longest wait for the body of a request",
        |s| Box::new(&mut s.http.body_timeout),
    ),
    key(
        "http.request_timeout",
        "the longest work on a request, beside the time of a call",
        |s| Box::new(&mut s.http.request_timeout),
    ),
    key(
        "http.write_timeout",
        "how long a client may leave an answer unread",
        |s| Box::new(&mut s.http.write_timeout),
    ),
    key("http.max_connections", "open connections", |s| {
        Box::new(&mut s.http.max_connections)
    }),
    key(
        "http.max_requests_per_source",
        "requests of one source at once",
        |s| Box::new(&mut s.http.max_requests_per_source),
    ),
    key(
        "http.grace",
        "how long requests and calls may go on after the end was asked for",
        |s| Box::new(&mut s.http.grace),
    ),
    // The log.
    key(
        "log.filter",
        "what is logged to standard error, such as `info` or `caliber_gateway=debug,warn`",
        |s| Box::new(&mut s.log_filter),
    ),
    key("log.json", "whether each line of the log is a JSON object", |s| {
        Box::new(&mut s.log_json)
    }),
    key(
        "log.line_bytes",
        "the longest line of the log in bytes, 256 or more; longer ones are cut and say so",
        |s| Box::new(&mut s.log_line_bytes),
    ),
];

/// Variables of the reference system that have no counterpart here, and why.
pub(crate) const FOREIGN_VARIABLES: &[(&str, &str)] = &[
    (
        "CALIBER_REGISTERED_TOOL_SANDBOX_ENABLED",
        "code tools always run in the sandbox; sandbox.backend says which",
    ),
    (
        "CALIBER_REGISTERED_TOOL_SANDBOX_TIMEOUT_SECONDS",
        "set calls.timeout, or the limits of the tool",
    ),
    ("CALIBER_TOOL_SANDBOX_BACKEND", "set sandbox.backend"),
    (
        "CALIBER_TOOL_SANDBOX_TIMEOUT_SECONDS",
        "set calls.timeout, or the limits of the tool",
    ),
    (
        "CALIBER_TOOL_SANDBOX_MAX_OUTPUT_BYTES",
        "set sandbox.output_bytes",
    ),
    (
        "CALIBER_TOOL_SANDBOX_MAX_MEMORY_BYTES",
        "set sandbox.limits.memory_bytes",
    ),
    (
        "CALIBER_TOOL_SANDBOX_MAX_FILE_BYTES",
        "set sandbox.limits.scratch_bytes",
    ),
    (
        "CALIBER_TOOL_SANDBOX_MAX_OPEN_FILES",
        "set sandbox.limits.open_files",
    ),
    (
        "CALIBER_MCP_MANAGED_SIDECAR_HOSTS",
        "a sidecar is named with its addresses here: set policy.addresses.sidecars, such as `http://mcp-db:8101 172.18.0.0/16`",
    ),
    (
        "CALIBER_MCP_REQUIRE_EXTERNAL_ISOLATION_FOR_ALIASES",
        "deployments are not part of this version",
    ),
    (
        "CALIBER_MCP_REQUIRE_EXTERNAL_ISOLATION_FOR_ENVIRONMENT_CLASSES",
        "deployments are not part of this version",
    ),
    (
        "CALIBER_DEPLOYMENT_ENVIRONMENT_CLASSES",
        "deployments are not part of this version",
    ),
    (
        "CALIBER_DEPLOYMENT_DEFAULT_ENVIRONMENT_CLASS",
        "deployments are not part of this version",
    ),
    (
        "CALIBER_EGRESS_POLICY_ALLOWED_HOSTS",
        "hosts are allowed with policy.remote_hosts, addresses with policy.addresses.blocked",
    ),
    (
        "CALIBER_EGRESS_POLICY_ALLOW_UNRESOLVABLE_HOSTS",
        "a host that does not resolve is a warning here, and an error when it is dialled",
    ),
    (
        "CALIBER_DB_MODE",
        "the database server is a command of its own: caliber-mcp-db",
    ),
    (
        "CALIBER_MCP_TRANSPORT",
        "the database server is a command of its own: caliber-mcp-db",
    ),
    (
        "CALIBER_MCP_HOST",
        "the database server is a command of its own: caliber-mcp-db",
    ),
    (
        "CALIBER_MCP_PORT",
        "the database server is a command of its own: caliber-mcp-db",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_and_variables_are_distinct() {
        let mut seen = HashSet::new();
        for key in KEYS {
            assert!(seen.insert(key.path.to_owned()), "{}", key.path);
            assert!(seen.insert(key.variable()), "{}", key.path);
            for alias in key.aliases {
                assert!(seen.insert((*alias).to_owned()), "{alias}");
            }
        }
        for variable in super::super::layers::OWN_VARIABLES {
            assert!(seen.insert((*variable).to_owned()), "{variable}");
        }
        for (variable, _) in FOREIGN_VARIABLES {
            assert!(seen.insert((*variable).to_owned()), "{variable}");
        }
    }

    /// The table for people names every key with its default and what it takes.
    #[test]
    fn the_documents_hold_the_table() {
        let page = include_str!("../../../docs/configuration.md");
        let mut settings = Settings::default();
        for key in KEYS {
            let setting = (key.place)(&mut settings);
            let default = match setting.show() {
                serde_json::Value::String(text) if text.is_empty() => "`\"\"`".to_owned(),
                serde_json::Value::String(text) => format!("`{text}`"),
                other => format!("`{other}`"),
            };
            let row = format!("| `{}` | {default} | {} |", key.path, key.about);
            assert!(page.contains(&row), "docs/configuration.md lacks the row\n{row}");
        }
        for (variable, _) in FOREIGN_VARIABLES {
            assert!(
                page.contains(variable),
                "docs/configuration.md says nothing about {variable}"
            );
        }
    }

    /// What is shown can be read again, and means the same.
    #[test]
    fn every_setting_reads_what_it_shows() {
        let mut settings = Settings::default();
        for key in KEYS {
            let shown = (key.place)(&mut settings).show();
            let value = figment::value::Value::serialize(&shown).unwrap();
            (key.place)(&mut settings)
                .read(&value)
                .unwrap_or_else(|problems| panic!("{}: {problems:?}", key.path));
            assert_eq!((key.place)(&mut settings).show(), shown, "{}", key.path);
        }
    }

    #[test]
    fn nonsense_is_refused_everywhere_but_in_plain_text() {
        let mut settings = Settings::default();
        let nonsense = figment::value::Value::serialize(["\u{0}?!\"", "\\"]).unwrap();
        for key in KEYS {
            let mut place = (key.place)(&mut settings);
            if !matches!(place.form(), "a list of texts" | "a command with its arguments") {
                assert!(place.read(&nonsense).is_err(), "{}", key.path);
            }
        }
    }
}
