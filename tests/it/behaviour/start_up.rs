//! Servers that do not start.

use std::time::Duration;

use caliber::ErrorKind;
use caliber::core::reason::ReasonCode;
use caliber::core::server::{Endpoint, StdioEndpoint};
use caliber::policy::settings::{ArgumentRule, LaunchRule};

use crate::support::{Rig, Transport, Upstream};

/// How long a server that cannot start may take to be an error.
const TWO_SECONDS: Duration = Duration::from_secs(2);

async fn in_two_seconds<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TWO_SECONDS, work)
        .await
        .expect("a server that cannot start is an error within two seconds")
}

fn program(path: &str) -> (Endpoint, LaunchRule) {
    let endpoint = StdioEndpoint {
        command: path.into(),
        args: Vec::new(),
        env: Default::default(),
    };
    let rule = LaunchRule {
        executable: path.into(),
        arguments: ArgumentRule::Exact(Vec::new()),
    };
    (Endpoint::Stdio(endpoint), rule)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_exits_at_its_start_is_an_error_with_the_end_of_its_complaint() {
    for mode in ["exit_at_start", "exit_before_initialize"] {
        let rig = Rig::open().await;
        let settings = ["--mode", mode, "--message", "cannot open the vault of Ávila"];
        let upstream = Upstream::start(Transport::Stdio, &settings).await;
        let server = rig.register("broken", upstream.endpoint()).await;
        let error = in_two_seconds(server.discover()).await.expect_err("it exits");
        assert_eq!(error.kind(), ErrorKind::Upstream, "{mode}: {error:?}");
        assert!(
            error.message().contains("cannot open the vault of"),
            "{mode}: {error}"
        );
        let checked = in_two_seconds(rig.caliber.check(server.who(), &server.id))
            .await
            .unwrap();
        let error = checked.report.expect_err("it exits");
        assert!(
            error.message().contains("cannot open the vault of"),
            "{mode}: {error}"
        );
        assert!(
            error.message().contains("exit"),
            "says that it ended, {mode}: {error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_only_fails_is_an_error_at_once() {
    let (endpoint, rule) = program("/bin/false");
    let rig = Rig::open_with(|config| config.policy.launch.push(rule)).await;
    let server = rig.register("false", endpoint).await;
    let error = in_two_seconds(server.discover()).await.expect_err("it exits");
    assert_eq!(error.reason(), Some(ReasonCode::ConnectFailed), "{error:?}");
    assert!(error.message().contains('1'), "names the exit status: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_exist_is_named() {
    let (endpoint, rule) = program("/nowhere/mcp-server");
    let rig = Rig::open_with(|config| config.policy.launch.push(rule)).await;
    let server = rig.register("absent", endpoint).await;
    let error = in_two_seconds(server.discover())
        .await
        .expect_err("it does not exist");
    assert_eq!(error.reason(), Some(ReasonCode::ExecutableNotFound), "{error:?}");
    assert!(error.message().contains("/nowhere/mcp-server"), "{error}");
}
