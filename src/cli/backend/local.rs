//! The local database, opened for one command.

use std::path::{Path, PathBuf};
use std::time::Duration;

use caliber::core::id::ProjectId;
use caliber::core::principal::{Principal, Surface};
use caliber::core::text::shown;
use caliber::http::{Authentication, HostCaller, HttpSettings};
use caliber::store::Store;
use caliber::{Installation, SandboxChoice};
use http::{HeaderValue, Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use tower::ServiceExt as _;

use super::{Answer, Needs};
use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::cli::key_file;
use crate::cli::settings::{Settings, named};

/// How long the end of a command waits for sessions and records.
const GRACE: Duration = Duration::from_secs(5);

/// An open installation behind the routes of the API.
pub(crate) struct Local {
    installation: Installation,
    principal: Principal,
    router: caliber::http::Router,
    prefix: String,
    key_file: PathBuf,
}

impl Local {
    pub(super) async fn open(context: &Context, needs: Needs) -> Outcome<Self> {
        let settings = context.settings(&[])?;
        if !needs.make {
            refuse_absent(&settings.config.store.path)?;
        }
        let key_file = settings.key_path();
        let mut principal = Principal::local_administrator();
        if let Some(project) = &context.global.project {
            principal.project = project.parse::<ProjectId>()?;
        }
        let installation = open_installation(settings, needs.sandbox).await?;
        let http = HttpSettings {
            // Nobody but this process can make a request.
            authentication: Authentication::Required,
            ..HttpSettings::default()
        };
        Ok(Self {
            prefix: http.prefix.to_string(),
            router: caliber::http::router(installation.caliber.clone(), http),
            installation,
            principal,
            key_file,
        })
    }

    /// The file with the keys of stored secrets.
    pub(crate) fn key_file(&self) -> &Path {
        &self.key_file
    }

    /// What to do about a secret whose key is not there.
    pub(super) fn key_hint(&self) -> Box<str> {
        format!(
            "the keys are read from {}, which lacks that of this secret: restore the key file that belongs to the \
             database, or name it with --set key_file=FILE",
            shown(&self.key_file.to_string_lossy())
        )
        .into()
    }

    /// The store and the control plane, for what only the machine of the database can do.
    pub(crate) fn installation(&self) -> &Installation {
        &self.installation
    }

    /// Who acts.
    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    pub(super) async fn answer(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Outcome<Answer> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(Exit::Failure, format!("the request cannot be made: {error}"))
        };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(header::HOST, HeaderValue::from_static("localhost"))
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(Full::from(body.unwrap_or_default()))
            .map_err(|error| failed(&error))?;
        request.extensions_mut().insert(HostCaller {
            principal: self.principal.clone(),
            surface: Surface::Command,
        });
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|error| failed(&error))?;
        Ok(Answer {
            status,
            body: body.to_bytes().into(),
        })
    }

    pub(super) async fn close(self) -> Outcome {
        self.installation.caliber.close(GRACE).await?;
        self.installation.store.close().await;
        Ok(())
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Local")
            .field("installation", &self.installation)
            .finish_non_exhaustive()
    }
}

/// Refuses a database that is not there, for a command that would make an empty one of a slip in its path.
fn refuse_absent(path: &Path) -> Outcome {
    // Everything else that can be wrong with the path, the store says.
    if !matches!(path.try_exists(), Ok(false)) {
        return Ok(());
    }
    let text = format!("there is no database at {}", shown(&path.to_string_lossy()));
    Err(Failure::new(Exit::DatabasePath, text).with_hint(
        "name it with --database FILE or the setting `database`; `caliber serve`, `servers add`, `servers import`, \
         `tools register` and `token create` make one",
    ))
}

/// Opens the installation of `settings` with the keys of its key file, which is made on first use, and with the sandbox
/// where one is needed.
pub(crate) async fn open_installation(settings: Settings, sandbox: bool) -> Outcome<Installation> {
    let keys = settings.key_path();
    let beside = settings.key_file.is_none() && !keys.exists();
    let choice = if sandbox {
        settings.sandbox_choice()?
    } else {
        SandboxChoice::Off
    };
    let namespaces = settings.namespaces();
    let mut config = settings.config;
    config.sandbox = choice;
    config.namespaces = namespaces;
    match key_file::read_or_make(&keys) {
        Ok(ring) => config.store.key_ring = Some(ring),
        // Where no file can be made beside the database, the database itself has more to say about it.
        Err(failure) if beside => {
            return Err(Store::open(config.store)
                .await
                .err()
                .map_or(failure, Failure::from));
        }
        Err(failure) => return Err(failure),
    }
    Installation::open(config).await.map_err(named)
}
