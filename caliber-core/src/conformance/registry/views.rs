use std::sync::Arc;

use crate::audit::AuditQuery;
use crate::conformance::samples::*;
use crate::id::{ProjectId, SecretId};
use crate::page::PageRequest;
use crate::registry::{Change, NewSecret, Registry, SecretOwner, ServerQuery, Viewer};
use crate::secret::SecretText;
use crate::server::{Endpoint, ServerStatus, StdioEndpoint, Visibility};

async fn names(registry: &dyn Registry, query: ServerQuery) -> Vec<String> {
    let page = registry.servers(&query, &PageRequest::default()).await.unwrap();
    page.items.iter().map(|server| server.name.to_string()).collect()
}

pub(super) async fn visibility_holds_in_lists(registry: Arc<dyn Registry>) {
    for (name, owner, place, visibility) in [
        ("a-public", "ada", "one", Visibility::Public),
        ("b-project", "ada", "one", Visibility::Project),
        ("c-user", "ada", "one", Visibility::User),
        ("d-project", "bob", "two", Visibility::Project),
        ("e-user", "bob", "two", Visibility::User),
    ] {
        let mut record = server(name);
        record.owner = subject(owner);
        record.project = project(place);
        record.visibility = visibility;
        register(&*registry, &record).await;
    }
    let seen = async |who: &str, place: &str, admin: bool| {
        let viewer = Viewer {
            subject: subject(who),
            project: project(place),
            admin,
        };
        names(
            &*registry,
            ServerQuery {
                viewer: Some(viewer),
                ..ServerQuery::default()
            },
        )
        .await
    };
    assert_eq!(seen("eve", "one", false).await, ["a-public", "b-project"]);
    assert_eq!(
        seen("eve", "one", true).await,
        ["a-public", "b-project", "c-user"]
    );
    assert_eq!(
        seen("ada", "one", false).await,
        ["a-public", "b-project", "c-user"]
    );
    assert_eq!(
        seen("ada", "two", false).await,
        ["a-public", "c-user", "d-project"]
    );
    assert_eq!(seen("eve", "three", true).await, ["a-public"]);
    assert_eq!(names(&*registry, ServerQuery::default()).await.len(), 5);
    // Pages stay full: what is hidden takes no place.
    let viewer = Viewer {
        subject: subject("eve"),
        project: project("two"),
        admin: true,
    };
    let query = ServerQuery {
        viewer: Some(viewer),
        ..ServerQuery::default()
    };
    let page = registry.servers(&query, &first(2)).await.unwrap();
    let shown: Vec<_> = page.items.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(shown, ["a-public", "d-project"]);
    assert!(page.next.is_some());
}

pub(super) async fn filters_hold_in_lists(registry: Arc<dyn Registry>) {
    let remote = registered(&*registry, "Weather").await;
    let mut local = server("files");
    local.definition.description = "Reads WEATHER logs, 100% of them".to_owned();
    local.definition.endpoint = Endpoint::Stdio(StdioEndpoint {
        command: "/usr/bin/files_server".to_owned(),
        args: Vec::new(),
        env: Default::default(),
    });
    local.status = ServerStatus::Disabled;
    register(&*registry, &local).await;
    let error = Some("no route".to_owned());
    let change = Change::RecordConnection {
        server: remote.id,
        at: now(),
        error,
    };
    commit(&*registry, change).await.unwrap();
    let all = ServerQuery::default;
    let text = |text: &str| ServerQuery {
        text: Some(text.to_owned()),
        ..all()
    };
    for (query, expected) in [
        (
            ServerQuery {
                status: Some(ServerStatus::Active),
                ..all()
            },
            vec!["Weather"],
        ),
        (
            ServerQuery {
                status: Some(ServerStatus::Disabled),
                ..all()
            },
            vec!["files"],
        ),
        (
            ServerQuery {
                failing: Some(true),
                ..all()
            },
            vec!["Weather"],
        ),
        (
            ServerQuery {
                failing: Some(false),
                ..all()
            },
            vec!["files"],
        ),
        (
            ServerQuery {
                transport: Some("stdio".to_owned()),
                ..all()
            },
            vec!["files"],
        ),
        (
            ServerQuery {
                transport: Some("sse".to_owned()),
                ..all()
            },
            vec![],
        ),
        (text("wEATHER"), vec!["Weather", "files"]),
        (text("/usr/BIN"), vec!["files"]),
        (text("127.0.0.1"), vec!["Weather"]),
        // What a pattern language would read as a pattern is plain text.
        (text("100%"), vec!["files"]),
        (text("%"), vec!["files"]),
        (text("files_server"), vec!["files"]),
        (text("files%server"), vec![]),
        (text("'"), vec![]),
        (text("*"), vec![]),
        (text("\\"), vec![]),
        (
            ServerQuery {
                failing: Some(true),
                ..text("logs")
            },
            vec![],
        ),
    ] {
        let shown = format!("{query:?}");
        assert_eq!(names(&*registry, query).await, expected, "{shown}");
    }
}

pub(super) async fn secrets_are_in_no_view(registry: Arc<dyn Registry>) {
    const CANARY: &str = "canary-7f3a";
    let id = SecretId::new();
    let record = with_token(server("weather"), &id);
    let secret = || NewSecret {
        id: id.clone(),
        owner: SecretOwner::Server(record.id.clone()),
        value: SecretText::new(CANARY),
    };
    let change = Change::RegisterServer {
        record: Box::new(record.clone()),
        secrets: vec![secret()],
    };
    commit(&*registry, change).await.unwrap();
    let echo = descriptor("echo", "one");
    discovered(&*registry, &record.id, vec![echo.clone()]).await;
    classified(&*registry, &record, &echo).await;
    // A refused change must not repeat its secret either.
    let refusal = Change::RegisterServer {
        record: Box::new(record.clone()),
        secrets: vec![secret()],
    };
    let error = commit(&*registry, refusal).await.unwrap_err();
    let read = registry.server(&record.id).await.unwrap().unwrap();
    let page = PageRequest::default();
    let views = [
        format!("{error} {error:?}"),
        format!("{read:?}"),
        serde_json::to_string(&read).unwrap(),
        format!(
            "{:?}",
            registry.server_by_name(&record.definition.name).await.unwrap()
        ),
        format!(
            "{:?}",
            registry.servers(&ServerQuery::default(), &page).await.unwrap()
        ),
        format!("{:?}", registry.inventory(&record.id).await.unwrap()),
        format!("{:?}", registry.tools(&record.id, &page).await.unwrap()),
        format!(
            "{:?}",
            registry.admission(&question(&record.id, "echo")).await.unwrap()
        ),
        format!(
            "{:?}",
            registry.grants(&ProjectId::default(), &page).await.unwrap()
        ),
        serde_json::to_string(&registry.audit(&AuditQuery::default(), &page).await.unwrap()).unwrap(),
        format!("{registry:?}"),
    ];
    for view in views {
        assert!(!view.contains(CANARY), "a secret shows: {view}");
    }
}
