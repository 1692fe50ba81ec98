//! Every reason code of admission and readiness is produced by a test, and not produced by its neighbour.

use std::collections::BTreeSet;

use caliber_core::reason::ReasonCode;

/// Who produces a code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Producer {
    Admission,
    /// Admission of a code tool alone.
    RunAdmission,
    ReadinessBlocker,
    ReadinessWarning,
    /// The gateway, the use cases or the store.
    Elsewhere,
}

fn producer(code: ReasonCode) -> Producer {
    use ReasonCode::*;
    match code {
        ServerDisabled | ServerNotReady | InventoryAbsent | ToolUnknown | ToolWithheld | Unclassified
        | Drifted | Blocked | NotGranted | ArgumentsInvalid | ArgumentsUnchecked | ApprovalRequired
        | ApprovalInvalid | RateLimited | QuotaUnavailable | PolicyError => Producer::Admission,
        ToolArchived | SandboxUnavailable | ModuleNotAllowed | SourceChanged => Producer::RunAdmission,
        EndpointMissing
        | CommandNotAllowed
        | ArgumentsNotAllowed
        | ExecutableNotFound
        | EnvironmentNotAllowed
        | UrlInvalid
        | CredentialsInUrl
        | HostNotAllowed
        | AddressBlocked
        | PlainHttp
        | SecretNotAllowed
        | IsolationMisconfigured => Producer::ReadinessBlocker,
        NotIsolated | WrapperUnverified | OperatorAttested | HostUnresolved | PlainHttpAllowed => {
            Producer::ReadinessWarning
        }
        ServerBusy | BreakerOpen | ConnectFailed | OauthUnsupported | UpstreamUnauthorized
        | SecretUnresolved | ProtocolViolation | UpstreamError | SessionRestarted | ResultTooLarge
        | SandboxBusy | SandboxFailed | ToolCrashed | ToolDeprecated | ToolUnresolved | VersionTaken
        | ResultInvalid | ListTooLarge | Timeout | Cancelled | OutcomeUnknown | NameTaken | StaleRevision
        | InUse | SecretOriginChanged | SecretKeyMissing | StoreUnavailable => Producer::Elsewhere,
        new => panic!("{new} is new: say who produces it"),
    }
}

fn codes(wanted: Producer) -> BTreeSet<ReasonCode> {
    let all = ReasonCode::ALL.iter().copied();
    all.filter(|code| producer(*code) == wanted).collect()
}

/// The codes that `decide` answers with.
pub(crate) fn admission_codes() -> BTreeSet<ReasonCode> {
    codes(Producer::Admission)
}

/// The codes that `decide` answers runs with: those of any call of a tool, and its own.
pub(crate) fn run_codes() -> BTreeSet<ReasonCode> {
    use ReasonCode::*;
    let common = [
        NotGranted,
        ArgumentsInvalid,
        ArgumentsUnchecked,
        ApprovalRequired,
        ApprovalInvalid,
        RateLimited,
        QuotaUnavailable,
        PolicyError,
    ];
    codes(Producer::RunAdmission).into_iter().chain(common).collect()
}

#[test]
fn every_code_of_a_run_is_covered() {
    let covered: BTreeSet<_> = crate::runs::faults().iter().map(|(code, _)| *code).collect();
    assert_eq!(covered, run_codes());
}

#[test]
fn every_code_of_admission_is_covered() {
    let covered: BTreeSet<_> = crate::admission::examples()
        .iter()
        .map(|example| example.code)
        .collect();
    assert_eq!(covered, codes(Producer::Admission));
}

#[test]
fn every_code_of_readiness_is_covered() {
    let examples = || {
        let stdio = crate::stdio::examples();
        stdio.into_iter().chain(crate::remote::examples())
    };
    let blockers: BTreeSet<_> = examples()
        .filter(|example| example.blocks)
        .map(|example| example.code)
        .collect();
    let mut expected = codes(Producer::ReadinessBlocker);
    // Facts about another transport, which admission names by the same code.
    expected.insert(ReasonCode::PolicyError);
    assert_eq!(blockers, expected);
    let warnings: BTreeSet<_> = examples()
        .filter(|example| !example.blocks)
        .map(|example| example.code)
        .collect();
    assert_eq!(warnings, codes(Producer::ReadinessWarning));
}

/// A verdict that has a reason, and one beside it that has not.
pub(crate) struct Example {
    pub(crate) code: ReasonCode,
    pub(crate) blocks: bool,
    pub(crate) with: caliber_core::readiness::Readiness,
    pub(crate) without: caliber_core::readiness::Readiness,
}

impl Example {
    pub(crate) fn check(&self) {
        let has = |verdict: &caliber_core::readiness::Readiness| {
            let reasons = if self.blocks {
                &verdict.blockers
            } else {
                &verdict.warnings
            };
            reasons.iter().any(|reason| reason.code == self.code)
        };
        assert!(has(&self.with), "{}: {:#?}", self.code, self.with);
        assert!(!has(&self.without), "{}: {:#?}", self.code, self.without);
        for reason in self.with.blockers.iter().chain(&self.with.warnings) {
            assert!(crate::facts::is_presentable(&reason.text), "{reason:?}");
        }
    }
}
