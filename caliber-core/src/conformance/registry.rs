//! The contract of [`Registry`], in cases.

use std::sync::Arc;

use super::samples::{code_tool, commit, refused, registered};
use super::{Case, cases, run_all};
use crate::code_tool::{CodeToolRecord, CodeToolStatus};
use crate::error::ErrorKind;
use crate::id::{CodeToolId, ServerId};
use crate::reason::ReasonCode;
use crate::registry::{Change, Registry};

mod access;
mod admission;
mod agreement;
mod approvals;
mod audit;
mod changes;
mod code_tools;
mod concurrency;
mod inventory;
mod ledger;
mod paging;
mod retention;
mod servers;
mod views;

/// Runs every case of [`cases`] on a registry of its own.
///
/// `make` gives an empty registry that runs on the machine's clock and can keep secrets. It is called once per case.
///
/// # Panics
///
/// With the names of the clauses that are violated.
pub async fn run(make: impl AsyncFn() -> Arc<dyn Registry>) {
    run_all(cases(), make).await;
}

/// Every clause, to be run one by one.
pub fn cases() -> Vec<Case<Arc<dyn Registry>>> {
    cases![
        servers::{
            a_registered_server_reads_back_whole,
            a_taken_name_is_refused_and_leaves_nothing,
            an_update_moves_the_revision_and_keeps_the_rest,
            an_update_keeps_how_connections_went,
            a_connection_is_recorded_and_moves_nothing,
            what_is_absent_cannot_be_changed,
            a_removed_server_takes_everything_along,
            a_removed_name_comes_back_empty,
        },
        changes::{
            a_stale_expectation_changes_nothing,
            every_expectation_counts,
            staleness_is_told_before_absence,
            an_absent_thing_has_revision_zero_and_counts_on,
            each_change_moves_what_it_says,
        },
        inventory::{
            a_discovery_replaces_the_inventory,
            a_listing_that_nobody_asked_for_is_no_news_of_the_connection,
            descriptors_come_back_byte_for_byte,
            a_discovery_never_classifies,
            another_descriptor_drifts_for_good,
            another_place_drifts_for_good,
            a_tool_that_vanishes_does_not_drift,
            a_refused_discovery_drifts_nothing,
            classifying_again_ends_the_drift,
        },
        access::{
            grants_are_listed_by_project_in_their_order,
            a_grant_ends_in_its_own_project_only,
            memberships_hold_in_a_project_or_everywhere,
            an_empty_membership_ends_it,
            a_token_is_found_by_its_hash_also_when_it_is_revoked,
            a_token_is_revoked_once_and_where_it_holds,
            tokens_are_listed_by_project,
        },
        approvals::{
            an_approval_reads_back_whole,
            an_approval_is_decided_once,
            what_is_asked_for_twice_waits_once,
            an_expired_approval_is_not_decided,
            the_pending_list_shows_what_waits,
            an_approval_is_spent_by_one_of_fifty_calls,
            what_is_not_approved_cannot_be_spent,
        },
        ledger::{
            a_call_begins_and_settles,
            the_first_settlement_stands,
            a_call_begins_once,
            recorded_calls_are_kept_with_their_entries,
            recording_again_changes_nothing,
            a_sweep_settles_what_outlived_its_lease,
            a_sweep_keeps_to_its_limit,
            a_sweep_that_finds_nothing_leaves_no_entry,
        },
        retention::{
            old_calls_are_pruned_and_open_ones_stay,
            old_entries_are_pruned,
            old_approvals_are_pruned,
            tokens_that_ended_long_ago_are_pruned,
            a_prune_that_finds_nothing_leaves_no_entry,
        },
        admission::{
            the_facts_are_complete,
            the_facts_tell_what_is_missing,
            grants_count_by_project_and_visibility,
            only_grants_that_concern_the_call_are_read,
            whatever_moves_makes_the_intent_stale,
            what_does_not_matter_leaves_the_intent_fresh,
        },
        audit::{
            an_entry_lands_with_its_change_and_reads_back_whole,
            several_entries_keep_their_order,
            the_trail_is_filtered,
            following_misses_nothing,
            the_trail_is_read_by_time,
        },
        paging::{
            pages_of_every_size_add_up,
            what_is_added_between_pages_loses_and_repeats_nothing,
            what_is_removed_between_pages_loses_nothing_else,
            limits_are_bounded,
            a_foreign_cursor_is_invalid,
        },
        views::{
            visibility_holds_in_lists,
            filters_hold_in_lists,
            secrets_are_in_no_view,
        },
        concurrency::{
            many_writers_all_land,
            one_of_many_updates_of_a_revision_wins,
            two_changes_cannot_add_up_to_a_wrong_state,
            a_dropped_commit_happens_wholly_or_not_at_all,
            it_answers_a_ping,
        },
        code_tools::{
            a_registered_version_reads_back_whole,
            a_version_is_taken_once_in_its_project,
            a_public_name_belongs_to_one_project,
            an_update_keeps_what_a_version_does,
            a_change_is_decided_on_a_revision,
            versions_are_listed_in_their_order,
            versions_are_filtered_and_hidden,
            a_family_is_granted_where_it_is,
            the_facts_of_a_run_are_complete,
            whatever_moves_makes_the_intent_of_a_run_stale,
            runs_and_consents_to_them_read_back_whole,
            a_run_that_outlived_its_lease_is_settled,
        },
        agreement::{
            random_histories_agree_with_the_reference,
        },
    ]
}

/// The one clause that needs a hand: a server that a deployment needs cannot be removed, and can be once none
/// does. `set_needed` makes the store say that an active deployment needs the server, or that none does.
///
/// # Panics
///
/// When the clause is violated.
pub async fn a_needed_server_stays(registry: Arc<dyn Registry>, set_needed: impl AsyncFn(&ServerId, bool)) {
    let record = registered(&*registry, "needed").await;
    let removal = || Change::RemoveServer {
        id: record.id.clone(),
    };
    set_needed(&record.id, true).await;
    assert_eq!(registry.deployments_using(&record.id).await.unwrap().len(), 1);
    let outcome = commit(&*registry, removal()).await;
    refused(outcome, ErrorKind::Conflict, Some(ReasonCode::InUse));
    assert!(registry.server(&record.id).await.unwrap().is_some());
    set_needed(&record.id, false).await;
    assert!(registry.deployments_using(&record.id).await.unwrap().is_empty());
    commit(&*registry, removal()).await.unwrap();
}

/// The same for a version of a code tool: one that a deployment needs cannot be archived, by any change.
///
/// # Panics
///
/// When the clause is violated.
pub async fn a_needed_version_stays(
    registry: Arc<dyn Registry>,
    set_needed: impl AsyncFn(&CodeToolId, bool),
) {
    let mut record = code_tool("needed", "1");
    let registration = Change::RegisterCodeTool {
        record: Box::new(record.clone()),
        secrets: Vec::new(),
    };
    commit(&*registry, registration).await.unwrap();
    let update = |record: &CodeToolRecord| Change::UpdateCodeTool {
        record: Box::new(record.clone()),
    };
    set_needed(&record.id, true).await;
    let needed = registry.deployments_using_code_tool(&record.id).await.unwrap();
    assert_eq!(needed.len(), 1);
    record.status = CodeToolStatus::Archived;
    let outcome = commit(&*registry, update(&record)).await;
    refused(outcome, ErrorKind::Conflict, Some(ReasonCode::InUse));
    record.status = CodeToolStatus::Deprecated;
    commit(&*registry, update(&record)).await.unwrap();
    set_needed(&record.id, false).await;
    assert!(
        registry
            .deployments_using_code_tool(&record.id)
            .await
            .unwrap()
            .is_empty()
    );
    record.status = CodeToolStatus::Archived;
    commit(&*registry, update(&record)).await.unwrap();
    // What is archived already may be described anew, whoever needs it.
    set_needed(&record.id, true).await;
    record.definition.description = "gone".to_owned();
    commit(&*registry, update(&record)).await.unwrap();
}
