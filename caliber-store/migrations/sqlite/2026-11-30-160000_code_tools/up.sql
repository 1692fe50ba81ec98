-- Code tools, and grants, approvals, calls and secrets that are about one. SQLite cannot take NOT NULL off a column, so
-- those tables are made anew; nothing refers to them.

CREATE TABLE code_tools (
    id                TEXT   NOT NULL PRIMARY KEY,
    revision          BIGINT NOT NULL,
    family            TEXT   NOT NULL,
    project           TEXT   NOT NULL,
    -- Sorts as the version does, and is the same for versions that differ in build metadata only.
    version_key       TEXT   NOT NULL,
    version           TEXT   NOT NULL,
    owner             TEXT   NOT NULL,
    visibility        TEXT   NOT NULL,
    status            TEXT   NOT NULL,
    runtime           TEXT   NOT NULL,
    side_effect_level TEXT   NOT NULL,
    requires_approval BIGINT NOT NULL,
    allow_in_preview  BIGINT NOT NULL,
    content_hash      TEXT   NOT NULL,
    deprecated_at     BIGINT,
    successor         TEXT,
    created_at        BIGINT NOT NULL,
    updated_at        BIGINT NOT NULL,
    description       TEXT   NOT NULL,
    -- Name and description with ASCII letters in lower case, one a line.
    search_text       TEXT   NOT NULL,
    pinned            TEXT   NOT NULL,
    definition        TEXT   NOT NULL
);
-- In the order of lists. A name is taken in its project only.
CREATE UNIQUE INDEX code_tools_version ON code_tools (family, project, version_key DESC);

-- Written by promotions of workflows. While there is a row, the version is not archived.
CREATE TABLE code_tool_deployment_references (
    code_tool_id  TEXT   NOT NULL REFERENCES code_tools (id),
    workflow      TEXT   NOT NULL,
    alias         TEXT   NOT NULL,
    rollback_only BIGINT NOT NULL,
    PRIMARY KEY (code_tool_id, workflow, alias, rollback_only)
) WITHOUT ROWID;

-- Of a server or of a code tool, one of the two.
CREATE TABLE secrets_anew (
    id           TEXT NOT NULL PRIMARY KEY,
    server_id    TEXT REFERENCES servers (id) ON DELETE CASCADE,
    code_tool_id TEXT REFERENCES code_tools (id) ON DELETE CASCADE,
    key_id       TEXT NOT NULL,
    nonce        BLOB NOT NULL,
    ciphertext   BLOB NOT NULL,
    CHECK ((server_id IS NULL) <> (code_tool_id IS NULL))
);
INSERT INTO secrets_anew (id, server_id, key_id, nonce, ciphertext)
    SELECT id, server_id, key_id, nonce, ciphertext FROM secrets;
DROP TABLE secrets;
ALTER TABLE secrets_anew RENAME TO secrets;
CREATE INDEX secrets_server ON secrets (server_id);
CREATE INDEX secrets_code_tool ON secrets (code_tool_id);
CREATE INDEX secrets_key ON secrets (key_id);

-- For the tools of a server or for a family of code tools, one of the two.
CREATE TABLE grants_anew (
    id             TEXT   NOT NULL PRIMARY KEY,
    project        TEXT   NOT NULL,
    server_id      TEXT REFERENCES servers (id) ON DELETE CASCADE,
    -- `subject` or `scope`, and which.
    grantee_kind   TEXT   NOT NULL,
    grantee        TEXT   NOT NULL,
    tool           TEXT,
    family         TEXT,
    family_project TEXT,
    created_by     TEXT   NOT NULL,
    created_at     BIGINT NOT NULL,
    CHECK ((server_id IS NULL) <> (family IS NULL) AND (family IS NULL) = (family_project IS NULL))
);
INSERT INTO grants_anew (id, project, server_id, grantee_kind, grantee, tool, created_by, created_at)
    SELECT id, project, server_id, grantee_kind, grantee, tool, created_by, created_at FROM grants;
DROP TABLE grants;
ALTER TABLE grants_anew RENAME TO grants;
CREATE INDEX grants_server ON grants (server_id, grantee_kind, grantee);
CREATE INDEX grants_family ON grants (family, family_project, grantee_kind, grantee);
CREATE INDEX grants_project ON grants (project, id);

-- For a call of a server's tool or for a run of a code tool, one of the two.
CREATE TABLE approvals_anew (
    id                TEXT   NOT NULL PRIMARY KEY,
    revision          BIGINT NOT NULL,
    project           TEXT   NOT NULL,
    server_id         TEXT,
    tool              TEXT,
    descriptor_digest TEXT,
    code_tool_id      TEXT,
    family            TEXT,
    version           TEXT,
    content_hash      TEXT,
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
INSERT INTO approvals_anew (id, revision, project, server_id, tool, descriptor_digest, argument_digest, requested_by,
    requested_at, expires_at, state, decided_by, decided_at, note, invocation_id, arguments)
    SELECT id, revision, project, server_id, tool, descriptor_digest, argument_digest, requested_by,
    requested_at, expires_at, state, decided_by, decided_at, note, invocation_id, arguments FROM approvals;
DROP TABLE approvals;
ALTER TABLE approvals_anew RENAME TO approvals;
CREATE INDEX approvals_project ON approvals (project, id);
CREATE INDEX approvals_pending ON approvals (id) WHERE state = 'pending';
CREATE INDEX approvals_waiting ON approvals (requested_by, project, argument_digest) WHERE state = 'pending';
CREATE INDEX approvals_expiry ON approvals (expires_at);

-- A call of a server's tool or a run of a code tool, one of the two.
CREATE TABLE invocations_anew (
    id                TEXT   NOT NULL PRIMARY KEY,
    started_at        BIGINT NOT NULL,
    subject           TEXT   NOT NULL,
    identity          TEXT   NOT NULL,
    surface           TEXT   NOT NULL,
    project           TEXT   NOT NULL,
    server_id         TEXT,
    server_name       TEXT,
    tool              TEXT,
    descriptor_digest TEXT,
    policy_revision   BIGINT,
    code_tool_id      TEXT,
    family            TEXT,
    version           TEXT,
    content_hash      TEXT,
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
INSERT INTO invocations_anew (id, started_at, subject, identity, surface, project, server_id, server_name, tool,
    descriptor_digest, policy_revision, side_effect_level, argument_digest, approval_id, break_glass, lease_owner,
    lease_until, outcome, reason, detail, ended_at, duration, result_bytes)
    SELECT id, started_at, subject, identity, surface, project, server_id, server_name, tool,
    descriptor_digest, policy_revision, side_effect_level, argument_digest, approval_id, break_glass, lease_owner,
    lease_until, outcome, reason, detail, ended_at, duration, result_bytes FROM invocations;
DROP TABLE invocations;
ALTER TABLE invocations_anew RENAME TO invocations;
CREATE INDEX invocations_server ON invocations (server_id, id);
CREATE INDEX invocations_code_tool ON invocations (code_tool_id, id) WHERE code_tool_id IS NOT NULL;
CREATE INDEX invocations_open ON invocations (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX invocations_ended ON invocations (ended_at);
