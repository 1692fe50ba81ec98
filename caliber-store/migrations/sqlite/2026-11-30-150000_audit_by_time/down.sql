DROP INDEX audit_entries_entity;
DROP INDEX audit_entries_project;
DROP INDEX audit_entries_actor;
DROP INDEX audit_entries_action;
CREATE INDEX audit_entries_entity ON audit_entries (entity_id, sequence);
CREATE INDEX audit_entries_project ON audit_entries (project, sequence);
CREATE INDEX audit_entries_actor ON audit_entries (actor, sequence);
CREATE INDEX audit_entries_action ON audit_entries (action, sequence);
