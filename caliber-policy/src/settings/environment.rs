//! Environment variables that no server definition may set.

/// Whether `name`, in whatever case, is a variable that decides what a process loads or runs: it is refused
/// for every server, and no setting allows it. An operator who needs one sets it in a wrapper of the server.
///
/// The list holds what loaders, C libraries, shells, interpreters, build tools, version managers, version control,
/// graphic toolkits and TLS libraries take code, programs, configuration files, trust or detours from, and the
/// variables that the launcher itself sets.
pub fn is_refused_variable(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let name = name.as_str();
    let is_listed = words(NAMES).any(|listed| name == listed)
        || words(BEGINNINGS).any(|beginning| name.starts_with(beginning))
        || name.ends_with(NETWORK_DETOURS);
    is_listed && !words(HARMLESS).any(|listed| name == listed)
}

fn words(groups: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
    groups.iter().flat_map(|group| group.split_ascii_whitespace())
}

/// They fit a beginning below, and change no more than output, encoding or a mode.
const HARMLESS: &[&str] = &[
    "NODE_ENV",
    "PYTHONDONTWRITEBYTECODE PYTHONHASHSEED PYTHONIOENCODING PYTHONUNBUFFERED PYTHONUTF8",
];

/// How the names of proxies end: `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY` and what else there is.
const NETWORK_DETOURS: &str = "_PROXY";

/// How names begin, with white space between the beginnings.
const BEGINNINGS: &[&str] = &[
    // Loaders and C libraries. `LD_` holds LD_PRELOAD, LD_AUDIT, LD_LIBRARY_PATH and some thirty more.
    "LD_ DYLD_ _RLD_ MALLOC_",
    // Shells.
    "BASH_",
    // Python and what installs its packages.
    "PYTHON PIP_ PIPX_ UV_ CONDA_ POETRY_ PDM_",
    // JavaScript.
    "NODE_ NPM_CONFIG_ PNPM_ YARN_ BUN_ DENO_ ELECTRON_ TS_NODE_ COREPACK_",
    // Perl, Ruby, Lua, Erlang, Julia, Guile.
    "PERL5 PERLLIB PERL_ RUBY GEM_ BUNDLE_ LUA_INIT LUA_PATH LUA_CPATH ERL_ JULIA_ GUILE_",
    // Java and .NET.
    "JAVA_ _JAVA_ JDK_ MAVEN_ GRADLE_ DOTNET_ CORECLR_ COR_ COMPLUS_ MONO_",
    // Rust.
    "CARGO_ RUSTC RUSTUP_",
    // Version managers, which choose the interpreter.
    "PYENV_ RBENV_ NODENV_ NVM_ VOLTA_ ASDF_ MISE_",
    // Version control and remote shells, which run other programs.
    "GIT_ SSH_ SUDO_",
    // TLS libraries, which load engines.
    "OPENSSL_",
    // Where configuration, plug-ins and modules are looked for.
    "XDG_ QT_ GTK_ GIO_ GST_",
];

/// Whole names, with white space between them.
const NAMES: &[&str] = &[
    // What the launcher sets.
    "HOME OLDPWD PATH PWD SHELL TEMP TERM TMP TMPDIR",
    // Loaders of other systems.
    "LIBPATH SHLIB_PATH",
    // C libraries: code, files, and how names are resolved.
    "GCONV_PATH GETCONF_DIR GLIBC_TUNABLES HOSTALIASES LOCALDOMAIN LOCPATH NIS_PATH",
    "NLSPATH RES_OPTIONS RESOLV_HOST_CONF TZDIR",
    // Instrumented programs, which write files where they are told.
    "ASAN_OPTIONS GCOV_PREFIX LLVM_PROFILE_FILE LSAN_OPTIONS MSAN_OPTIONS TSAN_OPTIONS",
    "UBSAN_OPTIONS",
    // Shells.
    "BASHOPTS CDPATH ENV FPATH GLOBIGNORE IFS INPUTRC PROMPT_COMMAND PS1 PS2 PS4 SHELLOPTS ZDOTDIR",
    // Terminals.
    "TERMCAP TERMINFO TERMINFO_DIRS",
    // Programs that others start.
    "BROWSER EDITOR LESS LESSCLOSE LESSKEY LESSOPEN MANPAGER PAGER VISUAL",
    // Python.
    "VIRTUAL_ENV __PYVENV_LAUNCHER__",
    // Java, Go, Rust, PHP, R, Tcl, OCaml, Erlang, and make.
    "ANT_OPTS CLASSPATH JRE_HOME",
    "GOBIN GOCACHE GODEBUG GOENV GOFLAGS GOPATH GOPROXY GOROOT GOTOOLCHAIN RUSTDOCFLAGS RUSTFLAGS",
    "PHPRC PHP_INI_SCAN_DIR",
    "R_ENVIRON R_ENVIRON_USER R_HOME R_LIBS R_LIBS_SITE R_LIBS_USER R_PROFILE R_PROFILE_USER",
    "TCLLIBPATH TCL_LIBRARY TK_LIBRARY CAML_LD_LIBRARY_PATH OCAMLRUNPARAM ELIXIR_ERL_OPTIONS",
    "GNUMAKEFLAGS MAKEFILES MAKEFLAGS",
    // Trust of TLS, and where its keys are written.
    "CURL_CA_BUNDLE CURL_HOME REQUESTS_CA_BUNDLE SSLKEYLOGFILE SSL_CERT_DIR SSL_CERT_FILE WGETRC",
    // Windows.
    "COMSPEC PATHEXT PSMODULEPATH SYSTEMROOT WINDIR",
];
