//! The canaries, and where each is planted.

use caliber::Config;
use caliber::core::secret::SecretText;
use caliber::policy::settings::{ArgumentRule, LaunchRule};
use caliber::store::KeyRing;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(super) const ENV: &str = "CANARY-env-7d1f0c52";
pub(super) const HEADER: &str = "CANARY-header-1b6e93aa";
pub(super) const TOKEN: &str = "CANARY-token-c40d2f71";
pub(super) const PASSWORD: &str = "CANARY-password-95e8d60b";
pub(super) const CUSTOM: &str = "CANARY-custom-2a7c14ef";
pub(super) const FILE: &str = "CANARY-file-d3905b88";
pub(super) const VARIABLE: &str = "CANARY-variable-60fa7e19";
pub(super) const STDERR: &str = "CANARY-stderr-8cc3a204";
pub(super) const ECHO: &str = "CANARY-echo-f17b5d36";
pub(super) const URL: &str = "CANARY-url-4e92c0ad";
pub(super) const ARGUMENT: &str = "CANARY-argument-b8056f3e";

/// The password as basic authentication sends it, with the user `user`.
pub(super) const ENCODED_PASSWORD: &str = "dXNlcjpDQU5BUlktcGFzc3dvcmQtOTVlOGQ2MGI";

/// A server that complains about its own secret and ends.
const COMPLAINING: &str = "import os, sys\nprint('cannot sign in with', os.environ['RIG_COMPLAINT'], file=sys.stderr)\nsys.exit(3)\n";

/// What is planted beside the definitions of servers.
#[derive(Debug)]
pub(super) struct Planted {
    /// The text of the one key, which is the twelfth canary.
    pub(super) key: SecretText,
    folder: TempDir,
}

impl Planted {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for secrets");
        std::fs::write(folder.path().join("secret"), format!("{FILE}\n")).expect("a file with a secret");
        std::fs::write(folder.path().join("complaining.py"), COMPLAINING).expect("a script");
        Self {
            key: KeyRing::generate_line().expect("a key"),
            folder,
        }
    }

    /// Every canary.
    pub(super) fn canaries(&self) -> Vec<&str> {
        let mut all = vec![
            ENV,
            HEADER,
            TOKEN,
            PASSWORD,
            ENCODED_PASSWORD,
            CUSTOM,
            FILE,
            VARIABLE,
            STDERR,
            ECHO,
            URL,
            ARGUMENT,
        ];
        all.push(self.key.expose());
        all
    }

    /// Lets an installation use what is planted.
    pub(super) fn allow(&self, config: &mut Config) {
        config.store.key_ring = Some(KeyRing::parse(self.key.expose()).expect("a key ring"));
        config.policy.launch.extend(self.launch_rules());
        config.policy.secrets.files = vec![self.path("")];
        config
            .variables
            .insert("CANARY_VARIABLE".into(), SecretText::new(VARIABLE));
    }

    pub(super) fn launch_rules(&self) -> Vec<LaunchRule> {
        vec![LaunchRule {
            executable: "${PYTHON}".into(),
            arguments: ArgumentRule::Script(self.path("complaining.py")),
        }]
    }

    /// The real path of something in the folder of secrets; of the folder itself for an empty name.
    pub(super) fn path(&self, name: &str) -> String {
        let folder = self
            .folder
            .path()
            .canonicalize()
            .expect("the folder of secrets is there");
        let path = if name.is_empty() {
            folder
        } else {
            folder.join(name)
        };
        path.to_str().expect("the paths of tests are UTF-8").to_owned()
    }

    /// A stdio server with secrets in its environment, as the API takes it.
    pub(super) fn stdio_server(&self, args: &[String]) -> Value {
        json!({
            "name": "with-environment", "transport": "stdio", "command": "${PYTHON}", "args": args,
            "env": {
                "RIG_SECRET": ENV,
                "RIG_VARIABLE": "env://CANARY_VARIABLE",
                "RIG_FILE": format!("file://{}", self.path("secret")),
            },
        })
    }

    /// Servers at `url`, each with credentials of another kind.
    pub(super) fn remote_servers(&self, url: &str) -> Vec<Value> {
        vec![
            json!({
                "name": "with-token", "transport": "streamable-http", "uri": url, "headers": { "X-Extra": HEADER },
                "auth_type": "token", "auth_config": { "token": TOKEN },
            }),
            json!({
                "name": "with-password", "transport": "streamable-http", "uri": url,
                "auth_type": "basic", "auth_config": { "username": "user", "password": PASSWORD },
            }),
            json!({
                "name": "with-custom", "transport": "streamable-http", "uri": url,
                "auth_type": "custom", "auth_config": { "headers": {
                    "X-Api-Key": CUSTOM,
                    "X-Variable": "env://CANARY_VARIABLE",
                    "X-File": format!("file://{}", self.path("secret")),
                } },
            }),
        ]
    }

    /// A server that complains of its secret to its standard error.
    pub(super) fn complaining_server(&self) -> Value {
        json!({
            "name": "complaining", "transport": "stdio", "command": "${PYTHON}", "args": [self.path("complaining.py")],
            "env": { "RIG_COMPLAINT": STDERR },
        })
    }
}

/// A server that repeats its credentials in its answers.
pub(super) fn mirrored_server(number: usize, url: &str) -> Value {
    json!({
        "name": format!("mirrored-{number}"), "transport": "streamable-http", "uri": url,
        "headers": { "X-Extra": ECHO }, "auth_type": "token", "auth_config": { "token": ECHO },
    })
}

/// Requests that are refused and hold a secret where it does not belong.
pub(super) fn refused_servers() -> Vec<Value> {
    vec![
        json!({ "name": "url", "transport": "streamable-http", "uri": format!("http://user:{URL}@127.0.0.1:9/mcp") }),
        json!({ "name": "url", "transport": "sse", "uri": format!("http://{URL}@127.0.0.1:9/mcp") }),
        json!({ "name": "header", "transport": "streamable-http", "uri": "http://127.0.0.1:9/mcp",
                "headers": { "X-Extra": format!("{HEADER}\r\nX-Other: 1") } }),
        json!({ "name": "token", "transport": "streamable-http", "uri": "http://127.0.0.1:9/mcp",
                "auth_type": "token", "auth_config": { "token": format!("{TOKEN}\n") } }),
        json!({ "name": "type", "transport": "streamable-http", "uri": "http://127.0.0.1:9/mcp",
                "auth_type": "basic", "auth_config": { "token": TOKEN } }),
        json!({ "name": "null", "transport": "stdio", "command": "${PYTHON}", "env": { "RIG_SECRET": format!("{ENV}\0") } }),
    ]
}
