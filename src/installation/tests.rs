use caliber_core::page::PageRequest;
use caliber_core::principal::{Principal, Scope, Scopes, Surface};
use caliber_core::server::{
    Auth, Endpoint, ServerDefinition, ServerLimits, Sharing, StdioEndpoint, Visibility,
};
use caliber_core::{ServerRegistration, id::ServerId};

use super::*;

/// A server that says something on its standard error and ends, registered and checked once.
async fn broken() -> (Caliber, ServerId, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::at(folder.path().join("caliber.db"));
    let script = "echo canary-of-stderr >&2";
    config.policy.launch = vec![caliber_policy::settings::LaunchRule {
        executable: "/bin/sh".to_owned(),
        arguments: caliber_policy::settings::ArgumentRule::Exact(vec!["-c".to_owned(), script.to_owned()]),
    }];
    let caliber = open(config).await.unwrap();
    let who = Principal::local_administrator();
    let definition = ServerDefinition {
        name: "broken".parse().unwrap(),
        description: String::new(),
        icon: String::new(),
        endpoint: Endpoint::Stdio(StdioEndpoint {
            command: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: BTreeMap::new(),
        }),
        auth: Auth::None,
        sharing: Sharing::default(),
        limits: ServerLimits::default(),
    };
    let registration = ServerRegistration {
        definition,
        visibility: Visibility::Public,
    };
    let server = caliber
        .register_server((&who, Surface::Library), registration)
        .await
        .unwrap();
    let checked = caliber.check((&who, Surface::Library), &server.id).await.unwrap();
    assert!(checked.report.unwrap_err().message().contains("canary-of-stderr"));
    (caliber, server.id, folder)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_words_of_a_process_are_for_admins() {
    let (caliber, id, _folder) = broken().await;
    let viewer = Principal::host(
        "vera".parse().unwrap(),
        "default".parse().unwrap(),
        Scopes::NONE.with(Scope::Viewer),
    );
    for (who, shown) in [(&Principal::local_administrator(), true), (&viewer, false)] {
        let one = caliber
            .server(who, &id)
            .await
            .unwrap()
            .record
            .connection_error
            .unwrap();
        let page = caliber
            .servers(who, Default::default(), &PageRequest::first(10))
            .await
            .unwrap();
        let listed = page.items[0].connection_error.clone().unwrap();
        for told in [one, listed] {
            assert_eq!(told.contains("canary-of-stderr"), shown, "{told}");
            assert!(told.contains("ended"), "{told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_tells_what_contains_it() {
    let (caliber, id, _folder) = broken().await;
    let boundary = caliber
        .server(&Principal::local_administrator(), &id)
        .await
        .unwrap()
        .boundary;
    assert!(!boundary.production_isolated);
    for word in ["no_shell", "process_group"] {
        assert!(
            boundary.enforced.iter().any(|enforced| enforced == word),
            "{boundary:?}"
        );
    }
    assert!(
        boundary.absent.iter().any(|absent| absent == "network_namespace"),
        "{boundary:?}"
    );
}
