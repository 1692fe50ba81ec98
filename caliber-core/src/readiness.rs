//! Whether a server may be started or dialled, and how well it is isolated.

mod boundary;

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::reason::Reason;
use crate::server::ServerDefinition;

pub use boundary::BoundaryReport;

/// What the machine says about an endpoint; gathered by the gateway, judged by the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointFacts {
    /// A child process.
    Stdio {
        /// The real path of the executable, when it exists and may be run.
        executable: Option<String>,
        /// Whether that is the configured Python interpreter, under whatever name.
        is_python: bool,
        /// The real path of the first argument, when it is the path of a file.
        script: Option<String>,
    },
    /// A remote endpoint with the addresses that its host has just now; `None` when it did not resolve.
    Remote {
        /// Every address.
        addresses: Option<Vec<IpAddr>>,
    },
}

/// Everything readiness is judged on.
#[derive(Clone, Debug)]
pub struct ReadinessFacts {
    /// What the admin wrote.
    pub definition: Arc<ServerDefinition>,
    /// What the machine says.
    pub endpoint: EndpointFacts,
}

/// How a server is isolated: what is enforced, what is attested, what is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Boundary {
    /// A child process with a built environment; it can read the host and reach the network.
    LocalContainment,
    /// A child process in a wrapper that caliber cannot verify.
    ExternalWrapper,
    /// A child process in the exact bubblewrap profile that is known; the host is still readable.
    Bubblewrap,
    /// A remote server without a boundary that counts: plain HTTP or loopback.
    RemoteTransport,
    /// A remote server over TLS.
    RemoteHttps,
    /// A container beside caliber that the operator attests.
    ManagedSidecar,
}

impl Boundary {
    /// Whether a production deployment may rely on it. Local containment never counts.
    pub fn is_production_isolated(self) -> bool {
        matches!(self, Self::RemoteHttps | Self::ManagedSidecar)
    }

    /// Whether it is that of a child process.
    pub fn is_child(self) -> bool {
        matches!(
            self,
            Self::LocalContainment | Self::ExternalWrapper | Self::Bubblewrap
        )
    }

    /// The stable word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LocalContainment => "local_containment",
            Self::ExternalWrapper => "external_wrapper",
            Self::Bubblewrap => "bubblewrap",
            Self::RemoteTransport => "remote_transport",
            Self::RemoteHttps => "remote_https",
            Self::ManagedSidecar => "managed_sidecar",
        }
    }
}

/// A measure that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Control {
    /// No shell reads the command.
    NoShell,
    /// The environment is built from nothing.
    SanitizedEnvironment,
    /// The executable and its arguments are on an allowlist.
    CommandAllowlist,
    /// A fresh private working directory.
    PrivateWorkingDirectory,
    /// The exact namespaces of the known bubblewrap profile.
    VerifiedNamespaceProfile,
    /// No network.
    NetworkNamespace,
    /// The host's files cannot be written.
    ReadOnlyHostRoot,
    /// The host is on an exact allowlist.
    RemoteHostAllowlist,
    /// The address that was checked is the address that is dialled.
    PinnedAddress,
    /// The transport is encrypted and the peer authenticated.
    Tls,
}

impl Control {
    /// The stable word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoShell => "no_shell",
            Self::SanitizedEnvironment => "sanitized_environment",
            Self::CommandAllowlist => "command_allowlist",
            Self::PrivateWorkingDirectory => "private_working_directory",
            Self::VerifiedNamespaceProfile => "verified_namespace_profile",
            Self::NetworkNamespace => "network_namespace",
            Self::ReadOnlyHostRoot => "read_only_host_root",
            Self::RemoteHostAllowlist => "remote_host_allowlist",
            Self::PinnedAddress => "pinned_address",
            Self::Tls => "tls",
        }
    }
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// How it is isolated.
    pub boundary: Boundary,
    /// What is in force.
    pub controls: Vec<Control>,
    /// What stands against it; empty means it may be started or dialled.
    pub blockers: Vec<Reason>,
    /// What an operator should know.
    pub warnings: Vec<Reason>,
}

impl Readiness {
    /// Whether nothing stands against starting or dialling it.
    pub fn is_ready(&self) -> bool {
        self.blockers.is_empty()
    }
}
