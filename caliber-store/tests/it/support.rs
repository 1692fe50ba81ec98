//! What the tests share: a folder with a database, and records to put into it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use caliber_core::Result;
use caliber_core::audit::{AuditAction, AuditEntries, AuditEntry};
use caliber_core::clock::{Clock, SystemClock, Timestamp};
use caliber_core::descriptor::{Descriptor, ToolName};
use caliber_core::digest::ArgumentDigest;
use caliber_core::id::{InstanceId, InvocationId, ProjectId, SecretId, ServerId};
use caliber_core::invocation::{Invocation, InvocationIntent, InvocationOutcome, InvokedTool, Settlement};
use caliber_core::json::JsonText;
use caliber_core::policy::{Classification, SideEffectLevel, ToolPolicy};
use caliber_core::principal::{Principal, Surface};
use caliber_core::registry::{
    Change, Commit, Committed, Expect, NewInventory, NewSecret, Registry, Revision, SecretOwner,
};
use caliber_core::secret::{ConfigValue, SecretReference, SecretText};
use caliber_core::server::{
    Auth, Endpoint, RemoteEndpoint, ServerDefinition, ServerLimits, ServerRecord, ServerStatus, Sharing,
    Visibility,
};
use caliber_store::{KeyRing, Store, StoreSettings};
use diesel::connection::SimpleConnection;
use diesel::{Connection, SqliteConnection};
use tempfile::TempDir;

pub(crate) const KEY_ONE: &str = "1111111111111111111111111111111111111111111111111111111111111111";
pub(crate) const KEY_TWO: &str = "2222222222222222222222222222222222222222222222222222222222222222";

/// A folder of its own with a database in it.
pub(crate) struct Home {
    folder: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("caliber.db")
    }

    pub(crate) fn settings(&self) -> StoreSettings {
        StoreSettings {
            path: self.path(),
            key_ring: Some(KeyRing::parse(KEY_ONE).unwrap()),
            ..StoreSettings::default()
        }
    }

    pub(crate) async fn open(&self) -> Store {
        Store::open(self.settings()).await.unwrap()
    }

    /// Another connection to the same file, past the store.
    pub(crate) fn connect(&self) -> SqliteConnection {
        let mut connection = SqliteConnection::establish(self.path().to_str().unwrap()).unwrap();
        connection.batch_execute("PRAGMA busy_timeout = 5000").unwrap();
        connection
    }

    pub(crate) fn execute(&self, statements: &str) {
        self.connect().batch_execute(statements).unwrap();
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        let log = self.folder().join("caliber.db-wal");
        std::fs::metadata(log).map_or(0, |found| found.len())
    }

    /// Everything that stands in the folder, as it is on disk.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for entry in std::fs::read_dir(self.folder()).unwrap() {
            bytes.extend(std::fs::read(entry.unwrap().path()).unwrap());
        }
        bytes
    }
}

pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

pub(crate) fn now() -> Timestamp {
    SystemClock.now()
}

/// A remote server without credentials.
pub(crate) fn server(name: &str) -> ServerRecord {
    ServerRecord {
        id: ServerId::new(),
        revision: Revision(1),
        definition: ServerDefinition {
            name: name.parse().unwrap(),
            description: format!("the server {name}"),
            icon: String::new(),
            endpoint: Endpoint::StreamableHttp(RemoteEndpoint {
                url: format!("http://127.0.0.1:1/{name}"),
                headers: BTreeMap::new(),
            }),
            auth: Auth::None,
            sharing: Sharing::PerCaller,
            limits: ServerLimits::default(),
        },
        owner: "ada".parse().unwrap(),
        project: ProjectId::default(),
        visibility: Visibility::Project,
        status: ServerStatus::Active,
        last_connected_at: None,
        connection_error: None,
        created_at: now(),
        updated_at: now(),
    }
}

/// An entry about `entity`.
pub(crate) fn entry(entity: &str) -> AuditEntry {
    AuditEntry::new(
        &Principal::system(),
        Surface::Library,
        now(),
        AuditAction::UpdateServer,
        ("test", entity),
        Some(ProjectId::default()),
        JsonText::empty_object(),
    )
}

pub(crate) fn entries(entity: &str) -> AuditEntries {
    entry(entity).into()
}

pub(crate) fn commit_of(change: Change) -> Commit {
    Commit {
        change,
        expect: Expect::nothing(),
        audit: entries("change"),
    }
}

pub(crate) async fn commit(store: &Store, change: Change) -> Result<Committed> {
    store.commit(commit_of(change)).await
}

pub(crate) fn registration(record: &ServerRecord) -> Change {
    Change::RegisterServer {
        record: Box::new(record.clone()),
        secrets: Vec::new(),
    }
}

pub(crate) async fn registered(store: &Store, name: &str) -> ServerRecord {
    let record = server(name);
    commit(store, registration(&record)).await.unwrap();
    record
}

/// A server whose token is the stored secret `value`.
pub(crate) async fn with_secret(store: &Store, name: &str, value: &str) -> (ServerRecord, SecretId) {
    let id = SecretId::new();
    let mut record = server(name);
    record.definition.auth = Auth::Token {
        token: ConfigValue::Reference(SecretReference::Stored(id.clone())),
    };
    let secrets = vec![NewSecret {
        id: id.clone(),
        owner: SecretOwner::Server(record.id.clone()),
        value: SecretText::new(value),
    }];
    let change = Change::RegisterServer {
        record: Box::new(record.clone()),
        secrets,
    };
    commit(store, change).await.unwrap();
    (record, id)
}

pub(crate) fn descriptor(name: &str) -> Descriptor {
    let text = format!(
        r#"{{"name":"{name}","description":"says what it hears","inputSchema":{{"type":"object","properties":{{"text":{{"type":"string"}}}},"required":["text"]}},"outputSchema":{{"type":"object"}}}}"#
    );
    Descriptor::parse(text).unwrap()
}

pub(crate) fn listing(tools: Vec<Descriptor>) -> NewInventory {
    NewInventory {
        discovered_at: now(),
        asked_for: true,
        protocol_version: "2025-11-25".to_owned(),
        server_info: None,
        instructions: None,
        tools,
        withheld: Vec::new(),
    }
}

pub(crate) fn classification(server: &ServerRecord, descriptor: &Descriptor) -> Classification {
    Classification {
        server: server.id.clone(),
        tool: descriptor.name().clone(),
        revision: Revision(0),
        policy: ToolPolicy::allow_read(),
        descriptor_digest: descriptor.digest(),
        fingerprint: server.definition.fingerprint(),
        descriptor: descriptor.text().clone(),
        classified_by: "ada".parse().unwrap(),
        classified_at: now(),
        drifted_at: None,
    }
}

/// A call with effects that has not ended.
pub(crate) fn invocation(server: &ServerRecord, tool: &ToolName) -> Invocation {
    Invocation {
        id: InvocationId::new(),
        started_at: now(),
        subject: "ada".parse().unwrap(),
        identity: caliber_core::principal::Identity::Host,
        surface: Surface::Library,
        project: server.project.clone(),
        tool: InvokedTool::Server {
            server: server.id.clone(),
            server_name: server.definition.name.clone(),
            tool: tool.clone(),
            descriptor_digest: None,
            policy_revision: Some(Revision(1)),
        },
        side_effect_level: Some(SideEffectLevel::Write),
        argument_digest: ArgumentDigest::of(b"{}"),
        approval: None,
        break_glass: None,
    }
}

pub(crate) fn intent(invocation: &Invocation, lease: Duration) -> Change {
    Change::BeginInvocation {
        intent: Box::new(InvocationIntent {
            invocation: invocation.clone(),
            owner: InstanceId::new(),
            lease_ms: u64::try_from(lease.as_millis()).unwrap(),
        }),
    }
}

pub(crate) fn settlement(ended_at: Timestamp) -> Settlement {
    Settlement {
        outcome: InvocationOutcome::Ok,
        reason: None,
        detail: None,
        ended_at,
        duration_us: 1_000,
        result_bytes: Some(2),
    }
}

/// Waits until `holds`, at most ten seconds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < until, "{what}: it did not come to be");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
