//! How a command ends: the exit codes, and the one error that every command returns.

use std::fmt::Write as _;

use caliber::core::reason::ReasonCode;
use caliber::core::text::escaped;
use caliber::{Error, ErrorKind};
use serde::Serialize;

/// The result of every command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

macro_rules! exits {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $meaning:literal;)*) => {
        /// What the exit code of the command says.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Exit {
            $($(#[$doc])* $name = $code,)*
        }

        impl Exit {
            /// Every code with its meaning, for the help and the documents.
            pub(crate) const ALL: &[(Self, &'static str)] = &[$((Self::$name, $meaning),)*];
        }
    };
}

exits! {
    /// It is done.
    Ok = 0, "done";
    /// Something else failed.
    Failure = 1, "failed for another reason";
    /// The arguments, the settings or the input are wrong.
    Usage = 2, "the arguments, the settings or the input are wrong";
    /// There is no such thing.
    NotFound = 3, "there is no such thing, or it is hidden from you";
    /// Somebody may not do this.
    Denied = 4, "you may not do this, or admission refused the call";
    /// A person has to consent first.
    ApprovalNeeded = 5, "the call needs a person's consent first";
    /// The upstream server failed.
    Upstream = 6, "the MCP server cannot be reached or answered wrongly";
    /// The deadline passed.
    Timeout = 7, "the deadline passed";
    /// The call may or may not have taken effect.
    OutcomeUnknown = 8, "the call was sent and its answer was lost: it may have taken effect";
    /// The state has changed, or a name is taken.
    Conflict = 9, "a name is taken, or something has changed in the meantime";
    /// A quota is spent, or something is busy or away.
    Unavailable = 10, "a quota is spent, or something is busy or away: try again later";
    /// The tool says that it failed.
    ToolError = 11, "the tool itself says that it failed";
    /// There is a difference.
    Different = 12, "the tool differs from what was classified (tools diff --exit-code)";
    /// The sandbox does not enforce what is required.
    SandboxUnavailable = 13, "the sandbox does not enforce what is required, so no code tool runs";
    /// There is no database there, or there can be none.
    DatabasePath = 20, "there is no database at this path, or there can be none (no such folder, not a file)";
    /// The database cannot be written.
    DatabaseReadOnly = 21, "the database or its folder cannot be written";
    /// Somebody else holds the database.
    DatabaseLocked = 22, "another process holds the database";
    /// The disk is full.
    DatabaseFull = 23, "the disk is full, or the database has reached its limit";
    /// The database is damaged.
    DatabaseCorrupt = 24, "the database is damaged";
    /// The database belongs to a newer version.
    DatabaseNewer = 25, "the database was changed by a newer version of caliber";
    /// The file is something else.
    DatabaseForeign = 26, "the file is no database, or one of another program";
    /// The key file cannot be used.
    Key = 27, "the key file cannot be used, or lacks the key of a stored secret";
    /// The user stopped it.
    Interrupted = 130, "interrupted";
}

/// The list of exit codes as it stands in the help.
pub(crate) fn exit_help() -> String {
    let mut help = "Exit codes:\n".to_owned();
    for (exit, meaning) in Exit::ALL {
        // Writing to a `String` cannot fail.
        let _ = writeln!(help, "{:>5}  {meaning}", *exit as u8);
    }
    help
}

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// One line, without a secret.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) hint: Option<Box<str>>,
    /// The stable word for programs.
    pub(crate) reason_code: Option<Box<str>>,
    /// The request for consent that was made.
    pub(crate) approval: Option<Box<str>>,
    /// The call in the ledger.
    pub(crate) invocation: Option<Box<str>>,
}

/// The longest message that is printed, in characters.
const MESSAGE_LENGTH: usize = 4_000;
/// The most lines of one message.
const MESSAGE_LINES: usize = 40;

/// A message for people. The line ends that its causes hold (a settings file that cannot be read, the last words of a
/// process) stand escaped in it; they become lines again, each behind a bar, so that none passes for ours.
pub(crate) fn in_lines(message: &str) -> String {
    let message = escaped(message, MESSAGE_LENGTH);
    let mut lines = message.split("\\n");
    let mut text = lines.next().unwrap_or_default().to_owned();
    for line in lines.take(MESSAGE_LINES) {
        text.push_str("\n    | ");
        text.push_str(line.trim_end_matches("\\r"));
    }
    text
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            hint: None,
            reason_code: None,
            approval: None,
            invocation: None,
        }
    }

    /// The arguments or the input are wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<Box<str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn with_reason(mut self, reason: impl Into<Box<str>>) -> Self {
        self.reason_code = Some(reason.into());
        self
    }

    /// Reading or writing of `what` failed.
    pub(crate) fn io(what: &str, error: &std::io::Error) -> Self {
        Self::new(Exit::Failure, format!("{what}: {error}"))
    }

    /// The failure as it goes to the terminal: a line, the further lines of a cause behind a bar, and what to do.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("caliber: {}", in_lines(&self.message));
        if let Some(hint) = &self.hint {
            text.push_str("\n  hint: ");
            text.push_str(&in_lines(hint));
        }
        text
    }

    /// The failure for programs.
    pub(crate) fn document(&self) -> impl Serialize {
        let mut error = serde_json::Map::new();
        error.insert("exit_code".to_owned(), (self.exit as u8).into());
        error.insert("detail".to_owned(), self.message.as_str().into());
        for (key, value) in [
            ("hint", &self.hint),
            ("reason_code", &self.reason_code),
            ("approval_id", &self.approval),
            ("invocation_id", &self.invocation),
        ] {
            if let Some(value) = value {
                error.insert(key.to_owned(), (**value).into());
            }
        }
        serde_json::json!({ "error": error })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut exit = exit_of(error.kind());
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            if let Some(store) = cause.downcast_ref::<caliber::store::Error>() {
                exit = exit_of_store(store.kind()).unwrap_or(exit);
                break;
            }
            source = cause.source();
        }
        let mut failure = Self::new(exit, error.message());
        failure.reason_code = error.reason().map(|reason| reason.as_str().into());
        for (key, value) in error.context() {
            match *key {
                "approval" => failure.approval = Some(value.as_str().into()),
                "invocation" => failure.invocation = Some(value.as_str().into()),
                _ => {}
            }
        }
        failure.hint = hint(exit, error.reason(), failure.approval.as_deref());
        failure
    }
}

impl From<caliber::store::Error> for Failure {
    fn from(error: caliber::store::Error) -> Self {
        Error::from(error).into()
    }
}

/// The exit code of an error of core's.
pub(crate) fn exit_of(kind: ErrorKind) -> Exit {
    match kind {
        ErrorKind::Invalid | ErrorKind::TooLarge => Exit::Usage,
        ErrorKind::NotFound => Exit::NotFound,
        ErrorKind::Unauthenticated | ErrorKind::Forbidden | ErrorKind::Denied => Exit::Denied,
        ErrorKind::ApprovalNeeded => Exit::ApprovalNeeded,
        ErrorKind::Upstream => Exit::Upstream,
        ErrorKind::Timeout => Exit::Timeout,
        ErrorKind::OutcomeUnknown => Exit::OutcomeUnknown,
        ErrorKind::Conflict => Exit::Conflict,
        ErrorKind::RateLimited | ErrorKind::Unavailable => Exit::Unavailable,
        ErrorKind::Cancelled => Exit::Interrupted,
        _ => Exit::Failure,
    }
}

/// The exit code of a database that cannot be used; `None` where the error is not about the file.
fn exit_of_store(kind: caliber::store::ErrorKind) -> Option<Exit> {
    use caliber::store::ErrorKind as Store;
    Some(match kind {
        Store::Path => Exit::DatabasePath,
        Store::ReadOnly => Exit::DatabaseReadOnly,
        Store::Locked => Exit::DatabaseLocked,
        Store::Full => Exit::DatabaseFull,
        Store::Corrupt => Exit::DatabaseCorrupt,
        Store::NewerSchema => Exit::DatabaseNewer,
        Store::NotADatabase => Exit::DatabaseForeign,
        Store::Key => Exit::Key,
        _ => return None,
    })
}

/// What to do about a failure, where more can be said than the message does.
pub(crate) fn hint(exit: Exit, reason: Option<ReasonCode>, approval: Option<&str>) -> Option<Box<str>> {
    if let (Exit::ApprovalNeeded, Some(approval)) = (exit, approval) {
        let text = format!(
            "an approver, who is not the caller, decides with `caliber approvals approve {approval}`; then make the \
             same call with `--approval {approval}`. Whoever is alone with an installation, as its administrator: \
             `--break-glass REASON` for this call; or for good `--waive-approval REASON`, with `caliber tools classify` for the \
             tool of a server, with `caliber tools register` and a new version for a code tool"
        );
        return Some(text.into());
    }
    let text = match (exit, reason) {
        (_, Some(ReasonCode::InventoryAbsent)) => "`caliber servers discover SERVER` lists its tools",
        (_, Some(ReasonCode::Unclassified)) => {
            "`caliber tools classify SERVER TOOL` shows the tool and asks for a decision"
        }
        (_, Some(ReasonCode::Drifted)) => {
            "`caliber tools diff SERVER TOOL` shows what changed; `caliber tools classify` decides again"
        }
        (_, Some(ReasonCode::ToolUnknown)) => {
            "`caliber tools list SERVER` shows the tools of the last discovery"
        }
        (_, Some(ReasonCode::NotGranted)) => {
            "an admin can give a grant with `caliber grants add SERVER`, or `caliber grants add --code-tool NAME`"
        }
        (_, Some(ReasonCode::CommandNotAllowed | ReasonCode::ArgumentsNotAllowed)) => {
            "the setting policy.launch says which commands may run, each with its arguments"
        }
        (_, Some(ReasonCode::HostNotAllowed)) => {
            "the setting policy.remote_hosts says which hosts may be reached"
        }
        (_, Some(ReasonCode::EnvironmentNotAllowed)) => {
            "the setting policy.environment says which variables a server may be given"
        }
        (_, Some(ReasonCode::SecretNotAllowed)) => {
            "the settings policy.secrets.environment and policy.secrets.files say what may be referred to"
        }
        (Exit::ApprovalNeeded, _) => {
            "an approver decides with `caliber approvals approve APPROVAL`; then call again with --approval APPROVAL"
        }
        (Exit::OutcomeUnknown, _) => "look at the server before you call again",
        (_, Some(ReasonCode::SandboxUnavailable)) => {
            "`caliber sandbox doctor` says what is missing where code tools run, and what to do about it"
        }
        (_, Some(ReasonCode::ModuleNotAllowed)) => {
            "the settings policy.code_tools.modules and policy.code_tools.executables say what may be a code tool"
        }
        (_, Some(ReasonCode::ToolUnresolved)) => {
            "`caliber tools list` shows the code tools, `caliber tools versions NAME` the versions of one; a pre-release \
             fits only where the constraint names one"
        }
        (Exit::DatabaseNewer, _) => "use the version of caliber that changed it, or a newer one",
        (Exit::DatabaseCorrupt, _) => "restore a backup, with its key file; `caliber db backup` makes them",
        (Exit::DatabaseLocked, _) => {
            "if `caliber serve` runs on this database, work through it: --server http://127.0.0.1:8640"
        }
        _ => return None,
    };
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_distinct_and_documented() {
        let codes: std::collections::HashSet<_> = Exit::ALL.iter().map(|(exit, _)| *exit as u8).collect();
        assert_eq!(codes.len(), Exit::ALL.len());
        let page = include_str!("../../docs/configuration.md");
        for (exit, meaning) in Exit::ALL {
            let row = format!("| {} | {meaning} |", *exit as u8);
            assert!(page.contains(&row), "docs/configuration.md lacks the row {row}");
        }
    }

    #[test]
    fn a_failure_names_the_call_and_what_to_do_with_it() {
        let error = Error::new(ErrorKind::ApprovalNeeded, "first\nsecond\u{202e}")
            .with_reason(ReasonCode::ApprovalRequired)
            .with_context("approval", "apr_1")
            .with_context("invocation", "inv_1");
        let failure = Failure::from(error);
        assert_eq!(failure.exit, Exit::ApprovalNeeded);
        assert_eq!(failure.approval.as_deref(), Some("apr_1"));
        let text = failure.text();
        assert!(
            text.starts_with("caliber: first\n    | second\\u{202e}\n  hint: "),
            "{text}"
        );
        assert!(text.contains("`caliber approvals approve apr_1`") && text.contains("--approval apr_1"));
        assert!(
            text.contains("--break-glass") && text.contains("--waive-approval"),
            "{text}"
        );
        let document = serde_json::to_value(failure.document()).unwrap();
        assert_eq!(document["error"]["exit_code"], 5);
        assert_eq!(document["error"]["invocation_id"], "inv_1");
    }

    #[test]
    fn causes_of_many_lines_are_lines_again_and_none_passes_for_ours() {
        let told = Failure::usage("it ended; its last words: `one\\n  hint: run this\\r\\nthree`").text();
        assert_eq!(
            told,
            "caliber: it ended; its last words: `one\n    |   hint: run this\n    | three`"
        );
        let endless = Failure::usage("x\n".repeat(1_000)).text();
        assert!(endless.lines().count() <= MESSAGE_LINES + 1);
    }
}
