"""The SQL of a PostgreSQL backend. `{schema}` is the name of its schema."""

from __future__ import annotations

from typing import LiteralString

# One process at a time changes the schema. If it vanishes meanwhile, the server ends its transaction after a time limit in
# milliseconds, so that its locks keep no other process waiting.
LOCK_SCHEMA: LiteralString = """
SELECT set_config('idle_in_transaction_session_timeout', %s, true), pg_advisory_xact_lock(7046151318604118370)"""
HAS_SCHEMA: LiteralString = "SELECT FROM pg_namespace WHERE nspname = %s"
CREATE_SCHEMA: LiteralString = "CREATE SCHEMA IF NOT EXISTS {schema}"
# Not "IF NOT EXISTS", which would take the table `users` of another program for ours. By default, a text of more than
# 2 KB is stored outside of its row. There, each replaced one stays until the next vacuum.
CREATE: LiteralString = """
CREATE TABLE {schema}.users (
    user_id text COLLATE "C" PRIMARY KEY, revision bigint NOT NULL, epoch bigint NOT NULL);
CREATE TABLE {schema}.documents (
    user_id text COLLATE "C", kind text COLLATE "C", version bigint NOT NULL, content text NOT NULL,
    PRIMARY KEY (user_id, kind));
CREATE INDEX hidden ON {schema}.documents (kind, user_id) WHERE starts_with(kind, '.');
CREATE TABLE {schema}.history (
    user_id text COLLATE "C", seq bigint, record text NOT NULL, PRIMARY KEY (user_id, seq));
CREATE TABLE {schema}.tomldiary (version int PRIMARY KEY);
ALTER TABLE {schema}.documents ALTER COLUMN content SET STORAGE MAIN"""
# Settings that an administrator may switch off, so that commits do not wait for the disk.
MAY_LOSE: LiteralString = """
SELECT name FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off' ORDER BY name"""
# Not `to_regclass`, which after a lock may not see yet what its last owner created.
FOUND: LiteralString = """
SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'tomldiary'"""
# The tables whose rows the role cannot see: row-level security applies to it, and no policy for reading does.
UNSEEN: LiteralString = """
SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname = %s AND relname IN ('users', 'documents', 'history', 'tomldiary') AND row_security_active(c.oid)
    AND NOT EXISTS (SELECT FROM pg_policy, unnest(polroles) AS role
        WHERE polrelid = c.oid AND polcmd IN ('*', 'r') AND (role = 0 OR pg_has_role(role, 'USAGE')))
ORDER BY relname"""
HAS_LZ4: LiteralString = """
SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)"""
# The default method takes longer to compress a document than the rest of a commit.
USE_LZ4: LiteralString = """
ALTER TABLE {schema}.documents ALTER COLUMN content SET COMPRESSION lz4;
ALTER TABLE {schema}.history ALTER COLUMN record SET COMPRESSION lz4"""
SET_VERSION: LiteralString = """
INSERT INTO {schema}.tomldiary SELECT %s WHERE NOT EXISTS (SELECT FROM {schema}.tomldiary)"""
# The trigger of a schema that was renamed or restored under another name has another channel. One that a restore has
# disabled and enabled again is not enabled for replicated rows.
IS_WATCHED: LiteralString = """
SELECT xmin::text FROM pg_trigger
WHERE tgrelid = to_regclass(%s) AND tgname = 'tomldiary_watch' AND tgenabled IN ('A', 'D')
    AND tgargs = convert_to(%s, 'UTF8') || '\\x00'::bytea"""
# Created only when a watch begins, because PostgreSQL runs commits with a notice one at a time.
WATCH: LiteralString = """
CREATE OR REPLACE FUNCTION {schema}.notify_watchers() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_notify(TG_ARGV[0], encode(sha256(convert_to(NEW.user_id, 'UTF8')), 'hex') || ' ' || NEW.revision);
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS tomldiary_watch ON {schema}.users;
CREATE TRIGGER tomldiary_watch AFTER INSERT OR UPDATE ON {schema}.users
    FOR EACH ROW EXECUTE FUNCTION {schema}.notify_watchers({channel});
ALTER TABLE {schema}.users ENABLE ALWAYS TRIGGER tomldiary_watch"""  # also for rows of a logical replication
LISTEN: LiteralString = "LISTEN {channel}"
# Sends nothing if a restore has replaced the table since, or has disabled its trigger, as its changes then send no notices.
# The number `xmin` of a trigger is another one after each change, also if it is enabled again.
CONFIRM: LiteralString = """
SELECT pg_notify(%s, %s) FROM pg_trigger
WHERE tgrelid = to_regclass(%s) AND tgname = 'tomldiary_watch' AND xmin::text = %s AND tgenabled <> 'D'"""
GET_VERSION: LiteralString = "SELECT version FROM {schema}.tomldiary"
# A row of the user, without a kind, and a row of each document.
HEAD: LiteralString = """
SELECT NULL, revision, epoch,
    (SELECT record FROM {schema}.history h WHERE h.user_id = u.user_id ORDER BY seq DESC LIMIT 1)
FROM {schema}.users u WHERE user_id = %s
UNION ALL SELECT kind, version, NULL, NULL FROM {schema}.documents WHERE user_id = %s"""
READ: LiteralString = """
SELECT kind, content, version FROM {schema}.documents WHERE user_id = %s AND kind = ANY(%s)"""
READ_ONE: LiteralString = """
SELECT kind, content, version FROM {schema}.documents WHERE user_id = %s AND kind = %s"""
RECORDS: LiteralString = """
SELECT seq, record FROM {schema}.history WHERE user_id = %s AND seq < %s ORDER BY seq DESC LIMIT %s"""
USERS: LiteralString = """
SELECT user_id FROM {schema}.users u
WHERE user_id > %s
    AND EXISTS (SELECT FROM {schema}.documents d WHERE d.user_id = u.user_id AND NOT starts_with(kind, '.'))
ORDER BY user_id LIMIT %s"""
ERASED: LiteralString = """
SELECT user_id FROM {schema}.users u
WHERE epoch > 0 AND user_id > %s
    AND NOT EXISTS (SELECT FROM {schema}.documents d WHERE d.user_id = u.user_id AND NOT starts_with(kind, '.'))
ORDER BY user_id LIMIT %s"""
HOLDERS: LiteralString = """
SELECT user_id FROM {schema}.documents
WHERE kind = %s AND starts_with(kind, '.') AND user_id > %s ORDER BY user_id LIMIT %s"""
# One statement is one atomic transaction. Every part reads `head`, which is empty after a conflict.
_APPLY: LiteralString = """
WITH head AS (
    INSERT INTO {schema}.users AS u SELECT %(user)s, %(growth)s, %(erasures)s
    WHERE %(revision)s = 0 OR EXISTS (SELECT FROM {schema}.users WHERE user_id = %(user)s)
    ON CONFLICT (user_id) DO UPDATE SET revision = u.revision + %(growth)s, epoch = u.epoch + %(erasures)s
        WHERE u.revision = %(revision)s
    RETURNING revision),
written AS (
    INSERT INTO {schema}.documents
    SELECT %(user)s, kind, head.revision, content FROM head, {documents} AS new (kind, content)
    ON CONFLICT (user_id, kind) DO UPDATE SET version = excluded.version, content = excluded.content),
logged AS (
    INSERT INTO {schema}.history
    SELECT %(user)s, seq, record FROM head, {records} AS new (seq, record){replaced}){removed}{dropped}
SELECT revision FROM head"""
_REMOVED: LiteralString = """,
removed AS (
    DELETE FROM {schema}.documents USING head WHERE user_id = %(user)s AND kind = ANY(%(removed)b::text[]))"""
_DROPPED: LiteralString = """,
dropped AS (
    DELETE FROM {schema}.history AS h USING head WHERE user_id = %(user)s AND seq <= %(dropped)s
        AND NOT EXISTS (SELECT FROM unnest(%(seqs)b::bigint[]) AS new (seq) WHERE new.seq = h.seq))"""
_ANY: LiteralString = (
    _APPLY.replace("{documents}", "unnest(%(kinds)b::text[], %(contents)b::text[])")
    .replace("{records}", "unnest(%(seqs)b::bigint[], %(records)b::text[])")
    .replace("{removed}", _REMOVED)
)
APPLY_ANY: LiteralString = _ANY.replace("{replaced}", "").replace("{dropped}", "")
# If records are dropped, a new one may have the number of an old one.
APPLY_DROP: LiteralString = _ANY.replace(
    "{replaced}", " ON CONFLICT (user_id, seq) DO UPDATE SET record = excluded.record"
).replace("{dropped}", _DROPPED)
# For most steps: to send arrays would take longer than the rest.
APPLY_ONE: LiteralString = (
    _APPLY.replace("{documents}", "(VALUES (%(kind)s::text, %(content)s::text))")
    .replace("{records}", "(VALUES (%(seq)s::bigint, %(record)s::text))")
    .replace("{removed}", "")
    .replace("{replaced}", "")
    .replace("{dropped}", "")
)
TOUCH: LiteralString = "UPDATE {schema}.users SET revision = revision + 1 WHERE user_id = %s"
