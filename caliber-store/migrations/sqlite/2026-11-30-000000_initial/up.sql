-- Columns are TEXT, BIGINT and BLOB only, so that PostgreSQL takes the same schema (BYTEA for BLOB, text compared
-- byte by byte). Instants and spans are microseconds; instants count from 1970-01-01 UTC. Wide columns come last:
-- SQLite reads a row up to the last column that is asked for.

CREATE TABLE servers (
    id                TEXT   NOT NULL PRIMARY KEY,
    revision          BIGINT NOT NULL,
    name              TEXT   NOT NULL,
    project           TEXT   NOT NULL,
    owner             TEXT   NOT NULL,
    visibility        TEXT   NOT NULL,
    status            TEXT   NOT NULL,
    transport         TEXT   NOT NULL,
    last_connected_at BIGINT,
    connection_error  TEXT,
    created_at        BIGINT NOT NULL,
    updated_at        BIGINT NOT NULL,
    location          TEXT   NOT NULL,
    icon              TEXT   NOT NULL,
    description       TEXT   NOT NULL,
    -- Name, description and location with ASCII letters in lower case, one a line.
    search_text       TEXT   NOT NULL,
    definition        TEXT   NOT NULL
);
CREATE UNIQUE INDEX servers_name ON servers (name);
-- A viewer's list is filtered inside the index, in the order of the names.
CREATE INDEX servers_listed ON servers (name, visibility, project, owner, status, transport);

CREATE TABLE inventories (
    server_id          TEXT   NOT NULL PRIMARY KEY REFERENCES servers (id) ON DELETE CASCADE,
    revision           BIGINT NOT NULL,
    discovered_at      BIGINT NOT NULL,
    -- The last listing that an admin asked for; discovered_at is also that of a refresh.
    live_discovered_at BIGINT,
    tool_count         BIGINT NOT NULL,
    protocol_version   TEXT   NOT NULL,
    server_info        TEXT,
    instructions       TEXT
);

CREATE TABLE tools (
    server_id     TEXT NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
    name          TEXT NOT NULL,
    digest        TEXT NOT NULL,
    input_schema  TEXT NOT NULL,
    output_schema TEXT,
    descriptor    TEXT NOT NULL,
    PRIMARY KEY (server_id, name)
);

CREATE TABLE withheld_tools (
    server_id TEXT   NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
    position  BIGINT NOT NULL,
    name      TEXT   NOT NULL,
    reason    TEXT   NOT NULL,
    PRIMARY KEY (server_id, position)
);
CREATE INDEX withheld_tools_name ON withheld_tools (server_id, name, position);

CREATE TABLE classifications (
    server_id         TEXT   NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
    tool              TEXT   NOT NULL,
    revision          BIGINT NOT NULL,
    policy            TEXT   NOT NULL,
    descriptor_digest TEXT   NOT NULL,
    fingerprint       TEXT   NOT NULL,
    classified_by     TEXT   NOT NULL,
    classified_at     BIGINT NOT NULL,
    drifted_at        BIGINT,
    descriptor        TEXT   NOT NULL,
    PRIMARY KEY (server_id, tool)
);

CREATE TABLE secrets (
    id         TEXT   NOT NULL PRIMARY KEY,
    server_id  TEXT   NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
    key_id     TEXT   NOT NULL,
    nonce      BLOB   NOT NULL,
    ciphertext BLOB   NOT NULL
);
CREATE INDEX secrets_server ON secrets (server_id);
CREATE INDEX secrets_key ON secrets (key_id);

-- The counters of things that have no row of their own (the access to a project) or have none any more (what was
-- removed goes on counting when it comes back).
CREATE TABLE revisions (
    entity   TEXT   NOT NULL PRIMARY KEY,
    revision BIGINT NOT NULL
) WITHOUT ROWID;

CREATE TABLE grants (
    id           TEXT   NOT NULL PRIMARY KEY,
    project      TEXT   NOT NULL,
    server_id    TEXT   NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
    -- `subject` or `scope`, and which.
    grantee_kind TEXT   NOT NULL,
    grantee      TEXT   NOT NULL,
    tool         TEXT,
    created_by   TEXT   NOT NULL,
    created_at   BIGINT NOT NULL
);
CREATE INDEX grants_server ON grants (server_id, grantee_kind, grantee);
CREATE INDEX grants_project ON grants (project, id);

CREATE TABLE memberships (
    subject TEXT NOT NULL,
    -- Empty for every project.
    project TEXT NOT NULL,
    scopes  TEXT NOT NULL,
    PRIMARY KEY (subject, project)
) WITHOUT ROWID;

CREATE TABLE tokens (
    id         TEXT   NOT NULL PRIMARY KEY,
    hash       TEXT   NOT NULL,
    subject    TEXT   NOT NULL,
    project    TEXT,
    scopes     TEXT   NOT NULL,
    label      TEXT   NOT NULL,
    created_by TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT
);
CREATE UNIQUE INDEX tokens_hash ON tokens (hash);
CREATE INDEX tokens_project ON tokens (project, id);

CREATE TABLE approvals (
    id                TEXT   NOT NULL PRIMARY KEY,
    revision          BIGINT NOT NULL,
    project           TEXT   NOT NULL,
    server_id         TEXT   NOT NULL,
    tool              TEXT   NOT NULL,
    descriptor_digest TEXT   NOT NULL,
    argument_digest   TEXT   NOT NULL,
    requested_by      TEXT   NOT NULL,
    requested_at      BIGINT NOT NULL,
    expires_at        BIGINT NOT NULL,
    -- `pending`, `approved`, `refused` or `spent`.
    state             TEXT   NOT NULL,
    decided_by        TEXT,
    decided_at        BIGINT,
    note              TEXT,
    invocation_id     TEXT,
    arguments         TEXT   NOT NULL
);
CREATE INDEX approvals_project ON approvals (project, id);
CREATE INDEX approvals_pending ON approvals (id) WHERE state = 'pending';
CREATE INDEX approvals_expiry ON approvals (expires_at);

-- No reference to the server: the ledger outlives it.
CREATE TABLE invocations (
    id                TEXT   NOT NULL PRIMARY KEY,
    started_at        BIGINT NOT NULL,
    subject           TEXT   NOT NULL,
    identity          TEXT   NOT NULL,
    surface           TEXT   NOT NULL,
    project           TEXT   NOT NULL,
    server_id         TEXT   NOT NULL,
    server_name       TEXT   NOT NULL,
    tool              TEXT   NOT NULL,
    descriptor_digest TEXT,
    policy_revision   BIGINT,
    side_effect_level TEXT,
    argument_digest   TEXT   NOT NULL,
    approval_id       TEXT,
    break_glass       TEXT,
    -- Of a call that was begun, until it is settled.
    lease_owner       TEXT,
    lease_until       BIGINT,
    outcome           TEXT,
    reason            TEXT,
    detail            TEXT,
    ended_at          BIGINT,
    duration          BIGINT,
    result_bytes      BIGINT
);
CREATE INDEX invocations_server ON invocations (server_id, id);
CREATE INDEX invocations_open ON invocations (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX invocations_ended ON invocations (ended_at);

-- Numbered in the order of the commits, which is what following the trail needs; numbers are never used again.
CREATE TABLE audit_entries (
    sequence    INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL,
    at          BIGINT  NOT NULL,
    actor       TEXT    NOT NULL,
    identity    TEXT    NOT NULL,
    surface     TEXT    NOT NULL,
    action      TEXT    NOT NULL,
    entity_type TEXT    NOT NULL,
    entity_id   TEXT    NOT NULL,
    project     TEXT,
    details     TEXT    NOT NULL
);
CREATE UNIQUE INDEX audit_entries_id ON audit_entries (id);
CREATE INDEX audit_entries_at ON audit_entries (at);
CREATE INDEX audit_entries_entity ON audit_entries (entity_id, sequence);
CREATE INDEX audit_entries_project ON audit_entries (project, sequence);
CREATE INDEX audit_entries_actor ON audit_entries (actor, sequence);
CREATE INDEX audit_entries_action ON audit_entries (action, sequence);

-- Written by promotions of workflows. While there is a row, the server stays.
CREATE TABLE deployment_references (
    server_id     TEXT   NOT NULL REFERENCES servers (id),
    workflow      TEXT   NOT NULL,
    alias         TEXT   NOT NULL,
    rollback_only BIGINT NOT NULL,
    PRIMARY KEY (server_id, workflow, alias, rollback_only)
) WITHOUT ROWID;
