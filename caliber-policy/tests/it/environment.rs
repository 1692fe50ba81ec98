//! The environment of a child process.

use std::collections::BTreeMap;
use std::sync::Arc;

use caliber_core::readiness::ReadinessFacts;
use caliber_core::reason::ReasonCode;
use caliber_core::secret::ConfigValue;
use caliber_core::server::{Endpoint, StdioEndpoint};
use caliber_policy::PolicySettings;
use caliber_policy::readiness::readiness;
use caliber_policy::settings::is_refused_variable;

use crate::facts::{blockers, definition, stdio};

/// Everything is open: what is refused is refused whatever the operator allows.
fn open() -> PolicySettings {
    PolicySettings {
        launch: vec!["/usr/bin/mcp-git".parse().unwrap()],
        environment: vec!["*".parse().unwrap()],
        ..PolicySettings::default()
    }
}

fn with(keys: &[&str]) -> ReadinessFacts {
    let env: BTreeMap<_, _> = keys
        .iter()
        .map(|key| ((*key).to_owned(), ConfigValue::from_input("canary-value")))
        .collect();
    ReadinessFacts {
        definition: Arc::new(definition(Endpoint::Stdio(StdioEndpoint {
            command: "/usr/bin/mcp-git".into(),
            args: Vec::new(),
            env,
        }))),
        ..stdio("/usr/bin/mcp-git", &[])
    }
}

fn is_refused(settings: &PolicySettings, key: &str) -> bool {
    let verdict = readiness(settings, &with(&[key]));
    let shown = format!("{verdict:?}");
    assert!(!shown.contains("canary"), "{shown}");
    match blockers(&verdict).as_slice() {
        [] => false,
        [ReasonCode::EnvironmentNotAllowed] => true,
        others => panic!("{key}: {others:?}"),
    }
}

/// What public reports name (loaders, interpreters, what they run), and what the reference refuses.
const REFUSED: &str = "
    LD_PRELOAD LD_AUDIT LD_LIBRARY_PATH LD_DEBUG_OUTPUT LD_BIND_NOW LD_PROFILE
    DYLD_INSERT_LIBRARIES DYLD_LIBRARY_PATH DYLD_FRAMEWORK_PATH
    GLIBC_TUNABLES GCONV_PATH LOCPATH NLSPATH MALLOC_TRACE HOSTALIASES RES_OPTIONS RESOLV_HOST_CONF TZDIR
    NODE_OPTIONS NODE_PATH NODE_EXTRA_CA_CERTS NODE_TLS_REJECT_UNAUTHORIZED NODE_V8_COVERAGE
    NODE_REDIRECT_WARNINGS ELECTRON_RUN_AS_NODE NPM_CONFIG_REGISTRY NPM_CONFIG_SCRIPT_SHELL DENO_DIR BUN_OPTIONS
    PYTHONPATH PYTHONSTARTUP PYTHONHOME PYTHONUSERBASE PYTHONBREAKPOINT PYTHONINSPECT PYTHONWARNINGS
    PYTHONPLATLIBDIR PYTHONPYCACHEPREFIX PYTHONEXECUTABLE __PYVENV_LAUNCHER__ VIRTUAL_ENV
    PIP_INDEX_URL PIP_CONFIG_FILE UV_INDEX_URL UV_PYTHON CONDA_PREFIX
    PERL5OPT PERL5LIB PERL5DB PERLLIB RUBYOPT RUBYLIB GEM_PATH GEM_HOME BUNDLE_GEMFILE LUA_INIT LUA_PATH_5_4 LUA_CPATH
    JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS CLASSPATH DOTNET_STARTUP_HOOKS CORECLR_PROFILER COR_PROFILER
    COMPLUS_ETWENABLED GODEBUG GOFLAGS CARGO_HOME RUSTC_WRAPPER RUSTFLAGS PHPRC PHP_INI_SCAN_DIR R_PROFILE
    ERL_FLAGS JULIA_LOAD_PATH TCLLIBPATH OCAMLRUNPARAM
    BASH_ENV ENV SHELL SHELLOPTS BASHOPTS PROMPT_COMMAND PS4 IFS CDPATH ZDOTDIR
    PATH HOME TMPDIR TMP TEMP TERM TERMINFO TERMCAP
    GIT_SSH_COMMAND GIT_EXTERNAL_DIFF GIT_CONFIG_GLOBAL GIT_EDITOR GIT_EXEC_PATH GIT_ASKPASS SSH_ASKPASS
    EDITOR VISUAL PAGER LESSOPEN LESSCLOSE BROWSER
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY FTP_PROXY GLOBAL_AGENT_HTTP_PROXY
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE OPENSSL_CONF OPENSSL_MODULES SSLKEYLOGFILE
    XDG_CONFIG_HOME XDG_DATA_DIRS GTK_MODULES QT_PLUGIN_PATH MAKEFLAGS ASAN_OPTIONS LLVM_PROFILE_FILE
    COMSPEC PATHEXT PSMODULEPATH SYSTEMROOT
";

#[test]
fn loaders_and_interpreters_are_not_steered_in_any_spelling() {
    let settings = open();
    for name in REFUSED.split_whitespace() {
        let lower = name.to_lowercase();
        let mixed: String = name
            .chars()
            .enumerate()
            .map(|(index, letter)| {
                if index % 2 == 0 {
                    letter.to_ascii_lowercase()
                } else {
                    letter
                }
            })
            .collect();
        for spelling in [
            name.to_owned(),
            lower,
            mixed,
            format!(" {name}"),
            format!("{name} "),
            format!("\t{name}"),
            format!("{name}\n"),
            format!("{name}\0"),
            format!("{name}="),
            format!("\u{feff}{name}"),
        ] {
            assert!(is_refused(&settings, &spelling), "{spelling:?}");
        }
        assert!(is_refused_variable(name), "{name}");
    }
}

#[test]
fn ordinary_variables_are_the_operators_to_open() {
    let open = open();
    let some = PolicySettings {
        environment: vec!["API_*".parse().unwrap(), "GITHUB_TOKEN".parse().unwrap()],
        ..open.clone()
    };
    let none = PolicySettings {
        environment: Vec::new(),
        ..open.clone()
    };
    for (key, is_named) in [
        ("API_KEY", true),
        ("GITHUB_TOKEN", true),
        ("GOOGLE_API_KEY", false),
        ("GEMINI_API_KEY", false),
        ("POSTGRES_URL", false),
        ("LANG", false),
        ("TZ", false),
        ("NODE_ENV", false),
        ("PYTHONUNBUFFERED", false),
        ("Github_Token", false),
        ("_", false),
    ] {
        assert!(!is_refused(&open, key), "{key}");
        assert_eq!(is_refused(&some, key), !is_named, "{key}");
        assert!(is_refused(&none, key), "{key}");
    }
}

#[test]
fn what_is_no_name_is_refused_before_it_is_compared() {
    let settings = open();
    for key in ["", "1A", "A-B", "A B", "Ä", "A=B", "A\u{200b}", "ＬＤ_PRELOAD"] {
        assert!(is_refused(&settings, key), "{key:?}");
    }
}

#[test]
fn a_refusal_names_the_variables_but_not_without_end() {
    let keys: Vec<_> = (0..60).map(|index| format!("LD_{index}")).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    let verdict = readiness(&open(), &with(&keys));
    let text = &verdict.blockers[0].text;
    assert_eq!(verdict.blockers.len(), 1);
    assert!(text.contains("`LD_0`") && text.contains("and 52 more"), "{text}");
    let verdict = readiness(&open(), &with(&["LD_PRELOAD", "two\nlines", "\u{202e}"]));
    assert_eq!(verdict.blockers.len(), 2);
    for blocker in &verdict.blockers {
        assert!(crate::facts::is_presentable(&blocker.text), "{blocker:?}");
    }
}
