//! The server, and the command that works on it.

use std::process::{Child, Command, Stdio};

use super::{allow, ends, failure, register, with_server};
use crate::support::command::{CommandRig, Said};
use crate::support::{Client, eventually, is_running, signal};

/// A running command. Dropping it ends it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Sends a signal, and gives the exit code.
    async fn end(mut self, name: &str) -> Option<i32> {
        let id = self.0.id();
        signal(id, name);
        eventually("the command ends", async || (!is_running(id)).then_some(())).await;
        self.0.wait().expect("it can be waited for").code()
    }
}

/// A running `caliber serve`.
struct Served {
    process: Running,
    address: String,
}

impl Served {
    async fn start(rig: &CommandRig, arguments: &[&str]) -> Self {
        let listening = rig.folder().join("listening");
        let process = Command::new(env!("CARGO_BIN_EXE_caliber"))
            .args(["serve", "--listen", "127.0.0.1:0", "--listening-file"])
            .arg(&listening)
            .args(arguments)
            .current_dir(rig.folder())
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(rig.folder().join("log")).expect("a log"))
            .spawn()
            .expect("the command can be started");
        let mut served = Self {
            process: Running(process),
            address: String::new(),
        };
        served.address = eventually("the server listens", async || {
            std::fs::read_to_string(&listening)
                .ok()
                .filter(|address| !address.is_empty())
        })
        .await;
        served
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    async fn end(self, name: &str) -> Option<i32> {
        self.process.end(name).await
    }
}

async fn token(rig: &CommandRig, subject: &str, scopes: &[&str]) -> String {
    let mut arguments = vec!["token", "create", "--print", "--subject", subject];
    for scope in scopes {
        arguments.extend(["--scope", scope]);
    }
    let said = rig.run_for_people(&arguments).await;
    assert_eq!(said.code, 0, "{}", said.stderr);
    said.stdout.trim().to_owned()
}

/// A command of its own folder that works on a server.
struct Remote {
    rig: CommandRig,
    url: String,
}

impl Remote {
    fn new(served: &Served, token: &str) -> Self {
        let mut rig = CommandRig::new(&[]);
        rig.set("CALIBER_TOKEN", token);
        Self {
            rig,
            url: served.url(),
        }
    }

    async fn run(&self, arguments: &[&str]) -> Said {
        self.rig
            .run(&[&["--server", self.url.as_str()], arguments].concat())
            .await
    }
}

#[tokio::test]
async fn the_command_does_the_same_on_a_server() {
    let rig = with_server("one", &[]).await;
    allow(&rig, "one", "echo").await;
    let admin = token(&rig, "grace", &["admin"]).await;
    let served = Served::start(&rig, &[]).await;
    let grace = Remote::new(&served, &admin);

    for arguments in [
        &["servers", "list"][..],
        &["tools", "list", "one"],
        &["token", "list"],
        &["grants", "list"],
    ] {
        assert_eq!(
            grace.run(arguments).await.json(),
            rig.run(arguments).await.json(),
            "{arguments:?}"
        );
    }
    let said = grace
        .run(&[
            "tools",
            "call",
            "one",
            "echo",
            r#"{"value":12345678901234567890.10}"#,
        ])
        .await;
    ends(&said, 0);
    assert!(said.stdout.contains("12345678901234567890.10"), "{}", said.stdout);
    let unclassified = grace.run(&["tools", "call", "one", "count"]).await;
    ends(&unclassified, 4);
    assert_eq!(unclassified.reason(), "unclassified");
    ends(&grace.run(&["servers", "show", "absent"]).await, 3);
    ends(&grace.run(&["db", "backup", "x"]).await, 2);

    let trail = grace
        .run(&["audit", "tail", "--actor", "grace"])
        .await
        .json_lines();
    assert!(!trail.is_empty());
    for entry in &trail {
        assert_eq!(entry["identity"], "token", "{entry}");
        assert_ne!(entry["surface"], "command", "{entry}");
    }
    let nobody = Remote::new(&served, "caliber_wrong")
        .run(&["servers", "list"])
        .await;
    ends(&nobody, 4);
    assert!(failure(&nobody, "hint").contains("token"), "{}", nobody.stderr);
    assert!(!nobody.stderr.contains("caliber_wrong"), "{}", nobody.stderr);
    assert_eq!(served.end("TERM").await, Some(0));
    let gone = grace.run(&["servers", "list"]).await;
    ends(&gone, 10);
}

#[tokio::test]
async fn somebody_else_consents_on_the_server() {
    let rig = with_server("one", &[]).await;
    let classify = [
        "tools",
        "classify",
        "one",
        "echo",
        "--level",
        "external_action",
        "--allow",
        "--yes",
    ];
    ends(&rig.run(&classify).await, 0);
    ends(&rig.run(&["grants", "add", "one", "--subject", "ada"]).await, 0);
    let (ada, ben) = (
        token(&rig, "ada", &["operator"]).await,
        token(&rig, "ben", &["approver"]).await,
    );
    let served = Served::start(&rig, &[]).await;
    let (ada, ben) = (Remote::new(&served, &ada), Remote::new(&served, &ben));

    let call = ["tools", "call", "one", "echo", r#"{"value":"once"}"#];
    let waiting = ada.run(&call).await;
    ends(&waiting, 5);
    let approval = failure(&waiting, "approval_id");
    ends(&ada.run(&["approvals", "approve", &approval]).await, 4);
    assert_eq!(
        ben.run(&["approvals", "approve", &approval, "--note", "fine"])
            .await
            .json()["state"],
        "approved"
    );
    let with_approval = [&call[..], &["--approval", &approval]].concat();
    ends(&ada.run(&with_approval).await, 0);
    let spent = ada.run(&with_approval).await;
    ends(&spent, 4);
    assert_eq!(spent.reason(), "approval_invalid");
    ends(&ben.run(&call).await, 4);
    assert_eq!(served.end("INT").await, Some(0));
}

#[tokio::test]
async fn a_call_under_way_is_answered_before_the_end() {
    let rig = with_server("one", &[]).await;
    allow(&rig, "one", "sleep").await;
    let admin = token(&rig, "grace", &["admin"]).await;
    let served = Served::start(&rig, &[]).await;
    let grace = Remote::new(&served, &admin);
    let id = served.process.0.id();
    let listening = rig.folder().join("listening");
    let call = grace.run(&["tools", "call", "one", "sleep", r#"{"seconds":2}"#]);
    let ending = async {
        let client = Client::new();
        let server = rig.run(&["servers", "show", "one"]).await.json();
        let path = format!(
            "/ajax-api/2.0/mlflow/caliber/mcp-servers/{}",
            server["server_id"].as_str().expect("an id")
        );
        eventually("the call is under way", async || {
            let request = client
                .request("GET", &format!("{}{path}", served.url()))
                .bearer_auth(&admin);
            let health = client.send(request).await.data();
            (health["health"]["calls"] == 1).then_some(())
        })
        .await;
        signal(id, "TERM");
        eventually("the address is taken back", async || {
            (!listening.exists()).then_some(())
        })
        .await;
    };
    let (said, ()) = tokio::join!(call, ending);
    ends(&said, 0);
    eventually("the server is gone", async || (!is_running(id)).then_some(())).await;
}

#[tokio::test]
async fn an_unsafe_address_is_refused_before_anything_is_opened() {
    let rig = CommandRig::new(&[]);
    let open = [
        "serve",
        "--listen",
        "0.0.0.0:0",
        "--set",
        "http.open_on_loopback=true",
    ];
    let said = rig.run(&open).await;
    ends(&said, 2);
    assert!(
        !rig.folder().join("caliber.db").exists(),
        "the database was opened"
    );
    ends(&rig.run(&["serve", "--server", "http://127.0.0.1:9"]).await, 2);
    let plain = rig
        .run(&["--server", "http://caliber.example.com", "servers", "list"])
        .await;
    assert!([2, 10].contains(&plain.code), "{}", plain.stderr);
    let mut with_token = CommandRig::new(&[]);
    with_token.set("CALIBER_TOKEN", "canary");
    let clear = with_token
        .run(&["--server", "http://caliber.example.com", "servers", "list"])
        .await;
    ends(&clear, 2);
    assert!(
        clear.stderr.contains("plain HTTP") && !clear.stderr.contains("canary"),
        "{}",
        clear.stderr
    );
}

#[tokio::test]
async fn a_taken_address_is_told() {
    let rig = CommandRig::new(&[]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = taken.local_addr().expect("an address").to_string();
    let said = rig.run(&["serve", "--listen", &address]).await;
    ends(&said, 1);
    assert!(said.stderr.contains(&address), "{}", said.stderr);
}

#[tokio::test]
async fn the_trail_is_followed_while_the_server_works() {
    let rig = with_server("one", &[]).await;
    let served = Served::start(&rig, &[]).await;
    let out = rig.folder().join("followed");
    let follower = Command::new(env!("CARGO_BIN_EXE_caliber"))
        .args(["--json", "audit", "tail", "-n", "1", "--follow"])
        .current_dir(rig.folder())
        .env_clear()
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&out).expect("a file"))
        .spawn()
        .expect("the command can be started");
    let follower = Running(follower);
    let holds = |word: &str| std::fs::read_to_string(&out).is_ok_and(|text| text.contains(word));
    eventually("the newest entry is printed", async || {
        holds("discover_mcp_tools").then_some(())
    })
    .await;
    register(&rig, "two", &[]).await;
    eventually("what happens is printed", async || {
        holds("create_mcp_server").then_some(())
    })
    .await;
    assert_eq!(follower.end("INT").await, Some(0));
    for line in std::fs::read_to_string(&out).expect("the output").lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
    assert_eq!(served.end("TERM").await, Some(0));
}

/// The server of this test tells nobody that its list has changed, and a session of the caller stays open.
#[tokio::test]
async fn a_tool_that_was_decided_on_again_is_open_again() {
    let catalogs = tempfile::tempdir().expect("a folder");
    let catalog = catalogs.path().join("catalog.json");
    let write = |description: &str| {
        let tools = serde_json::json!([{ "name": "echo", "description": description, "inputSchema": { "type": "object" } }]);
        std::fs::write(&catalog, tools.to_string()).expect("the catalog can be written");
    };
    write("Says it again.");
    let rig = with_server("one", &["--catalog", &catalog.to_string_lossy()]).await;
    let admin = token(&rig, "grace", &["admin"]).await;
    let served = Served::start(&rig, &[]).await;
    let grace = Remote::new(&served, &admin);
    let classify = [
        "tools", "classify", "one", "echo", "--level", "read", "--allow", "--yes",
    ];
    let call = ["tools", "call", "one", "echo", r#"{"value":1}"#];
    ends(&grace.run(&classify).await, 0);
    ends(&grace.run(&call).await, 0);

    write("Says it again, and sends it elsewhere.");
    ends(&grace.run(&["servers", "discover", "one"]).await, 0);
    assert_eq!(grace.run(&call).await.reason(), "drifted");
    ends(&grace.run(&classify).await, 0);
    eventually("the open session has listed its tools again", async || {
        (grace.run(&call).await.code == 0).then_some(())
    })
    .await;
    assert_eq!(served.end("TERM").await, Some(0));
}
