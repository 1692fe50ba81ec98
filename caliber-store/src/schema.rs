//! The one schema, for every backend: text, big integers and bytes.

use diesel::{allow_tables_to_appear_in_same_query, joinable, table};

table! {
    servers (id) {
        id -> Text,
        revision -> BigInt,
        name -> Text,
        project -> Text,
        owner -> Text,
        visibility -> Text,
        status -> Text,
        transport -> Text,
        last_connected_at -> Nullable<BigInt>,
        connection_error -> Nullable<Text>,
        created_at -> BigInt,
        updated_at -> BigInt,
        location -> Text,
        icon -> Text,
        description -> Text,
        search_text -> Text,
        definition -> Text,
    }
}

table! {
    inventories (server_id) {
        server_id -> Text,
        revision -> BigInt,
        discovered_at -> BigInt,
        live_discovered_at -> Nullable<BigInt>,
        tool_count -> BigInt,
        protocol_version -> Text,
        server_info -> Nullable<Text>,
        instructions -> Nullable<Text>,
    }
}

table! {
    tools (server_id, name) {
        server_id -> Text,
        name -> Text,
        digest -> Text,
        input_schema -> Text,
        output_schema -> Nullable<Text>,
        descriptor -> Text,
    }
}

table! {
    withheld_tools (server_id, position) {
        server_id -> Text,
        position -> BigInt,
        name -> Text,
        reason -> Text,
    }
}

table! {
    classifications (server_id, tool) {
        server_id -> Text,
        tool -> Text,
        revision -> BigInt,
        policy -> Text,
        descriptor_digest -> Text,
        fingerprint -> Text,
        classified_by -> Text,
        classified_at -> BigInt,
        drifted_at -> Nullable<BigInt>,
        descriptor -> Text,
    }
}

table! {
    code_tools (id) {
        id -> Text,
        revision -> BigInt,
        family -> Text,
        project -> Text,
        version_key -> Text,
        version -> Text,
        owner -> Text,
        visibility -> Text,
        status -> Text,
        runtime -> Text,
        side_effect_level -> Text,
        requires_approval -> BigInt,
        allow_in_preview -> BigInt,
        content_hash -> Text,
        deprecated_at -> Nullable<BigInt>,
        successor -> Nullable<Text>,
        created_at -> BigInt,
        updated_at -> BigInt,
        description -> Text,
        search_text -> Text,
        pinned -> Text,
        definition -> Text,
    }
}

table! {
    secrets (id) {
        id -> Text,
        server_id -> Nullable<Text>,
        code_tool_id -> Nullable<Text>,
        key_id -> Text,
        nonce -> Binary,
        ciphertext -> Binary,
    }
}

table! {
    revisions (entity) {
        entity -> Text,
        revision -> BigInt,
    }
}

table! {
    grants (id) {
        id -> Text,
        project -> Text,
        server_id -> Nullable<Text>,
        grantee_kind -> Text,
        grantee -> Text,
        tool -> Nullable<Text>,
        family -> Nullable<Text>,
        family_project -> Nullable<Text>,
        created_by -> Text,
        created_at -> BigInt,
    }
}

table! {
    memberships (subject, project) {
        subject -> Text,
        project -> Text,
        scopes -> Text,
    }
}

table! {
    tokens (id) {
        id -> Text,
        hash -> Text,
        subject -> Text,
        project -> Nullable<Text>,
        scopes -> Text,
        label -> Text,
        created_by -> Text,
        created_at -> BigInt,
        expires_at -> Nullable<BigInt>,
        revoked_at -> Nullable<BigInt>,
    }
}

table! {
    approvals (id) {
        id -> Text,
        revision -> BigInt,
        project -> Text,
        server_id -> Nullable<Text>,
        tool -> Nullable<Text>,
        descriptor_digest -> Nullable<Text>,
        code_tool_id -> Nullable<Text>,
        family -> Nullable<Text>,
        version -> Nullable<Text>,
        content_hash -> Nullable<Text>,
        argument_digest -> Text,
        requested_by -> Text,
        requested_at -> BigInt,
        expires_at -> BigInt,
        state -> Text,
        decided_by -> Nullable<Text>,
        decided_at -> Nullable<BigInt>,
        note -> Nullable<Text>,
        invocation_id -> Nullable<Text>,
        arguments -> Text,
    }
}

table! {
    invocations (id) {
        id -> Text,
        started_at -> BigInt,
        subject -> Text,
        identity -> Text,
        surface -> Text,
        project -> Text,
        server_id -> Nullable<Text>,
        server_name -> Nullable<Text>,
        tool -> Nullable<Text>,
        descriptor_digest -> Nullable<Text>,
        policy_revision -> Nullable<BigInt>,
        code_tool_id -> Nullable<Text>,
        family -> Nullable<Text>,
        version -> Nullable<Text>,
        content_hash -> Nullable<Text>,
        side_effect_level -> Nullable<Text>,
        argument_digest -> Text,
        approval_id -> Nullable<Text>,
        break_glass -> Nullable<Text>,
        lease_owner -> Nullable<Text>,
        lease_until -> Nullable<BigInt>,
        outcome -> Nullable<Text>,
        reason -> Nullable<Text>,
        detail -> Nullable<Text>,
        ended_at -> Nullable<BigInt>,
        duration -> Nullable<BigInt>,
        result_bytes -> Nullable<BigInt>,
    }
}

table! {
    audit_entries (sequence) {
        sequence -> BigInt,
        id -> Text,
        at -> BigInt,
        actor -> Text,
        identity -> Text,
        surface -> Text,
        action -> Text,
        entity_type -> Text,
        entity_id -> Text,
        project -> Nullable<Text>,
        details -> Text,
    }
}

table! {
    deployment_references (server_id, workflow, alias, rollback_only) {
        server_id -> Text,
        workflow -> Text,
        alias -> Text,
        rollback_only -> BigInt,
    }
}

table! {
    code_tool_deployment_references (code_tool_id, workflow, alias, rollback_only) {
        code_tool_id -> Text,
        workflow -> Text,
        alias -> Text,
        rollback_only -> BigInt,
    }
}

joinable!(inventories -> servers (server_id));
allow_tables_to_appear_in_same_query!(servers, inventories, tools, classifications);
