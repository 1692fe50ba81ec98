-- The trail is read by time. Its records land in another order: those of reading calls are written in batches.
-- SQLite keeps `sequence`, which decides between entries of one time, at the end of every index.
DROP INDEX audit_entries_entity;
DROP INDEX audit_entries_project;
DROP INDEX audit_entries_actor;
DROP INDEX audit_entries_action;
CREATE INDEX audit_entries_entity ON audit_entries (entity_id, at);
CREATE INDEX audit_entries_project ON audit_entries (project, at);
CREATE INDEX audit_entries_actor ON audit_entries (actor, at);
CREATE INDEX audit_entries_action ON audit_entries (action, at);
